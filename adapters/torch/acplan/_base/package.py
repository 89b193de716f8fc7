"""The package: its folder, and its version, which is that of the program."""

import os
import pathlib

# The folder as code objects of the package name it: symbolic links are not resolved.
FOLDER = pathlib.Path(os.path.abspath(__file__)).parents[1]


def shared_file(name: str) -> pathlib.Path:
    """Returns the copy of a file of the source tree in an installed package, or that file.

    name: its path in the source tree, of which the copy has the last part.
    """
    copied = FOLDER / pathlib.PurePath(name).name
    return copied if copied.exists() else FOLDER.resolve().parents[2] / name


__version__ = shared_file("VERSION").read_text().strip()
