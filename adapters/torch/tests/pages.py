"""Pages of docs/measured: each is what the script that measures it prints."""

import importlib.metadata
import pathlib
import sys


def start_page(title: str, text: str, *packages: str, arguments: str = "") -> None:
    """Prints what stands above the tables: the title, the text, and how to repeat it."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", *packages)]
    script = pathlib.Path(sys.argv[0]).name
    print(
        f"# {title}\n\n{text.strip()}\n\nThis page is what\n\n"
        f"    PYTHONPATH=. python tests/{script}{arguments}\n\n"
        "prints in `adapters/torch`, with `ACPLAN` the path of the program and "
        f"{', '.join(versions)}.\n",
        flush=True,
    )
