"""Training steps of packages of PyPI, for compare_third_party.py."""

import importlib
import pathlib
import pkgutil

from third_party.registry import ENTRIES, Entry


def all_entries() -> dict[str, Entry]:
    """Returns all entries, indexed by name. Each module of this folder whose name begins with
    `steps` adds its own."""
    folder = pathlib.Path(__file__).parent
    for module in pkgutil.iter_modules([f"{folder}"]):
        if module.name.startswith("steps"):
            importlib.import_module(f"third_party.{module.name}")
    return ENTRIES
