"""docs/measured/third_party.md, from the results of compare_third_party.py."""

import importlib.metadata
import json
import pathlib
from collections.abc import Sequence
from typing import Any

_TEXT = """
# Training steps of other packages

Small models and training loops of packages of PyPI, besides transformers and diffusers, as
they come: made from their configurations, with random weights, no data and no network. Each
is a training step (what the package computes as its loss, backward, an update), planned
without a change to it:

- **traced** on fake tensors (`acplan.trace`). Where what runs depends on values of the batch
  the trace is refused; then it is taken with `values="real"` where this version has that.
- **planned** at three budgets, between the least that any plan needs (0%, `min`) and what the
  step needs without a plan (100%): 75% is three quarters of that way up.
- **traced again** with each plan applied (`acplan.verify`): the operators, the bytes in use at
  each, the peak and the run-time of what runs again are those predicted.
- **run for real** on the CPU, two iterations with and without each plan: losses, all
  gradients, random states, and weights and buffers after two updates are equal bit for bit on
  one thread. Where two runs without a plan already differ in the last bits, they are equal to
  1e-5 of the largest element, and the row says *closely*.

In each cell is what the plan recomputes, as a share of the step by the roofline of an A100; an
asterisk marks a plan that is not proven to be optimal after a second. Models this small need
little memory besides workspaces: neither peaks nor shares say anything of models in use. A
budget that is met without a plan is a row of 0.0%.

A step that ends otherwise stands in the table with its reason. The packages are those of
[`third_party/requirements.txt`](../../adapters/torch/tests/third_party/requirements.txt), the
steps are in the modules beside it.

    ACPLAN=... adapters/torch/tests/run_third_party.sh FOLDER

installs them into a folder (10 GB), runs all steps of which it has no good result yet, and
prints this page.
"""

_HEADER = (
    "| step | class | operators | peak | least | 75% | 50% | min | all equal |\n"
    "|---|---|---:|---:|---:|---:|---:|---:|---|"
)


def print_page(path: pathlib.Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    # A step that was run again replaces what it was.
    latest = {(row["package"], row["name"]): row for row in rows}
    rows = sorted(latest.values(), key=lambda row: str(row["package"]).lower())
    print(_TEXT.strip() + f"\n\nRun with PyTorch {importlib.metadata.version('torch')}.\n")
    _print_counts(rows)
    for package in dict.fromkeys(row["package"] for row in rows):
        own = [row for row in rows if row["package"] == package]
        print(f"\n## {package} {own[0]['version']}\n\n{_HEADER}")
        for row in own:
            print(_row(row))


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


def _row(row: dict[str, Any]) -> str:
    cells = [
        f"{overhead:.1%}{'' if is_optimal else chr(92) + '*'}"
        for overhead, is_optimal, _ in row["plans"]
    ] or ["", "", ""]
    what = wrong(row).replace("|", "\\|")
    agreement = "closely" if row["tolerance"] else "yes"
    if row["values"]:
        agreement += f", values={row['values']}"
    counts = [row["operators"], row["peak_bytes"], row["least_bytes"]]
    numbers = [f"{count:,}" if count else "" for count in counts]
    verdict = f"**no**: {what}" if what else agreement
    return f"| {' | '.join([row['name'], row['kind'], *numbers, *cells, verdict])} |"
