"""The package's version: that of the program. The source tree's file VERSION has it, of
which an installed package has a copy."""

import pathlib


def _version_file() -> pathlib.Path:
    copied = pathlib.Path(__file__).with_name("VERSION")
    if copied.exists():
        return copied
    return pathlib.Path(__file__).resolve().parents[3] / "VERSION"


__version__ = _version_file().read_text().strip()
