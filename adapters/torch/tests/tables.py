"""The tables of docs/measured: CSV files that the scripts which measure write.

docs/measured/README.md describes each table and quotes the counts that the scripts print.
"""

import csv
import importlib.metadata
import pathlib
import re
import sys
from collections.abc import Sequence
from typing import Any

FOLDER = pathlib.Path(__file__).parents[3] / "docs" / "measured"


class Table:
    """A CSV file of docs/measured that is written row by row. With `is_partial`, as when a
    script is given names of models, the rows go to the standard output instead."""

    def __init__(self, name: str, columns: Sequence[str], *, is_partial: bool = False) -> None:
        self._file = (
            sys.stdout if is_partial else (FOLDER / f"{name}.csv").open("w", newline="")
        )
        self._width = len(columns)
        self._writer: Any = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(columns)
        self._file.flush()

    def add(self, *cells: object) -> None:
        """Writes a row. Cells that are missing at its end are empty."""
        missing = [""] * (self._width - len(cells))
        self._writer.writerow([*map(_plain, cells), *missing])
        self._file.flush()


def _plain(cell: object) -> str:
    """Returns the cell's text; a number has no commas."""
    text = str(cell)
    is_number = re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", text)
    return text.replace(",", "") if is_number else text


def print_versions(*packages: str) -> None:
    """Prints what a measurement was made with."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", *packages)]
    print(", ".join(versions), flush=True)
