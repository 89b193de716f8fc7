"""The package: its folder, and its version, which is that of the program."""

import os
import pathlib

# The folder as code objects of the package name it: symbolic links are not resolved.
FOLDER = pathlib.Path(os.path.abspath(__file__)).parents[1]


def _version_file() -> pathlib.Path:
    """Returns the copy of the file VERSION in an installed package, or the file in the
    source tree."""
    copied = FOLDER / "VERSION"
    return copied if copied.exists() else FOLDER.resolve().parents[2] / "VERSION"


__version__ = _version_file().read_text().strip()
