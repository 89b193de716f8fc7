"""Sets what plans on derived profiles predict beside what the trace's simulation
says of them.

    ACPLAN=... PYTHONPATH=. python tests/compare_profile_plans.py

writes docs/measured/profile_plans.csv.
"""

import json
import pathlib
import tempfile
from typing import Any

import torch

from acplan import AcplanError, Trace, profile, trace
from acplan._base.program import run_acplan
from tables import Table, print_versions
from zoo import EXAMPLES

_BUDGETS = ("90%", "75%", "60%", "min")
_COLUMNS = ["model", "budget", "units", "predicted bytes", "simulated bytes", "error"] + [
    "predicted ms",
    "simulated ms",
]


def _large(name: str) -> Trace:
    """Traces the model with sixteen times its batch, so that activations count."""
    example = EXAMPLES[name]()
    with torch.device("meta"):
        model = example.make()
        inputs = {
            key: value.repeat(16, *[1] * (value.dim() - 1))
            for key, value in example.inputs().items()
        }
    return trace(model, **inputs)


def _row(folder: str, name: str, budget: str) -> list[str] | None:
    """Returns the cells of a row, or None if no plan fits the budget."""

    def run(command: str, *arguments: str) -> dict[str, Any]:
        files = [f"{folder}/{a}" if ".json" in a else a for a in arguments]
        return dict(json.loads(run_acplan([command, *files, "--json"])))

    cells = [name, budget]
    try:
        plan = run("plan", "profile.json", "--budget", budget, "-o", "plan.json", "-q")
    except AcplanError:
        return None
    cells += [str(len(plan["modules"])), f"{plan['peak_bytes']:,}"]
    try:
        simulated = run("simulate", "trace.json", "plan.json")["planned"]
    except AcplanError:
        return [*cells, "refused", "", f"{plan['recompute_ms']:.5f}", ""]
    error = plan["peak_bytes"] / simulated["peak_bytes"] - 1
    return [
        *cells,
        f"{simulated['peak_bytes']:,}",
        f"{error:+.2%}",
        f"{plan['recompute_ms']:.5f}",
        f"{simulated['recompute_ms']:.5f}",
    ]


def _main() -> None:
    print_versions("transformers")
    table = Table("profile_plans", _COLUMNS)
    for name in EXAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            _large(name).save(pathlib.Path(folder) / "trace.json")
            path = pathlib.Path(folder)
            profile(Trace.load(path / "trace.json")).save(path / "profile.json")
            for budget in _BUDGETS:
                row = _row(folder, name, budget)
                if row is not None:
                    table.add(*row)


if __name__ == "__main__":
    _main()
