"""docs/measured/third_party.csv, from the results of compare_third_party.py."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

from tables import Table, print_versions

_COLUMNS = ["package", "version", "step", "class", "operators", "peak bytes", "least bytes"] + [
    "75%",
    "50%",
    "min",
    "all equal",
]


def write_table(path: pathlib.Path) -> None:
    """Writes the table and prints its counts."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    # A step that was run again replaces what it was.
    latest = {(row["package"], row["name"]): row for row in rows}
    rows = sorted(latest.values(), key=lambda row: str(row["package"]).lower())
    print_versions()
    _print_counts(rows)
    table = Table("third_party", _COLUMNS)
    for package in dict.fromkeys(row["package"] for row in rows):
        own = [row for row in rows if row["package"] == package]
        for row in own:
            table.add(package, own[0]["version"], *_cells(row))


_ERRORS = ("Error: ", "Exception: ")


def wrong(row: dict[str, Any]) -> str:
    """Returns all that did not hold, in one line: what several plans have in common once."""
    failures = [what for _, _, what in row["plans"] if what]
    return row["error"] or "; ".join(dict.fromkeys(failures))


def _print_counts(rows: Sequence[dict[str, Any]]) -> None:
    packages = {row["package"] for row in rows}
    bad = [row for row in rows if wrong(row)]
    plans = sum(len(row["plans"]) for row in rows)
    real = sum(row["values"] == "real" for row in rows)
    print(
        f"{len(rows)} steps of {len(packages)} packages, {plans} plans: {len(rows) - len(bad)} "
        f"steps hold at all budgets, {len(bad)} end otherwise "
        f"({len(bad) / max(len(rows), 1):.0%})."
    )
    if real:
        print(f'{real} steps are traced with `values="real"`.')
    kinds = {
        "a real step differs from the one without the plan": "real step:",
        "peak or operators are not those predicted": "predicted peak",
    }
    for kind, sign in kinds.items():
        print(f"- {sum(sign in wrong(row) for row in rows)}: {kind}")
    raised = sum(any(sign in wrong(row) for sign in _ERRORS) for row in rows if row["plans"])
    print(f"- {raised}: the step, traced again or run, ends with an error")
    print(f"- {sum(bool(row['error']) and not row['plans'] for row in rows)}: no plan")


def _cells(row: dict[str, Any]) -> list[object]:
    cells = [
        f"{overhead:.1%}{'' if is_optimal else '*'}" for overhead, is_optimal, _ in row["plans"]
    ] or ["", "", ""]
    what = wrong(row)
    agreement = "closely" if row["tolerance"] else "yes"
    if row["values"]:
        agreement += f", values={row['values']}"
    counts = [row["operators"], row["peak_bytes"], row["least_bytes"]]
    numbers = [count or "" for count in counts]
    verdict = f"no: {what}" if what else agreement
    return [row["name"], row["kind"], *numbers, *cells, verdict]
