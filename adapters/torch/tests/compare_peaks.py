"""Compares the peaks that are predicted for models of real sizes with those of the same
models with the plan applied and traced again.

    ACPLAN=... PYTHONPATH=. python tests/compare_peaks.py

writes docs/measured/exactness.csv; with names of models after it, it prints only those.
"""

import sys
from collections.abc import Iterator

from acplan import AcplanError, Plan, Trace, plan, trace, verify
from models import MODELS
from tables import Table, print_versions
from zoo import Example, plans

_BUDGETS = ("90%", "75%", "60%", "min")


def _plans(example: Example, traced: Trace) -> Iterator[tuple[str, Plan]]:
    yield from plans(example, traced)
    for budget in _BUDGETS:
        try:
            yield (
                f"acplan plan, {budget}",
                plan(traced, budget, memory_model="snapshot"),
            )
        except AcplanError:
            continue  # Nothing fits.


def _main(names: list[str]) -> None:
    print_versions("transformers")
    every = worst = equal = everywhere = 0
    columns = ("model", "plan", "predicted bytes", "re-traced bytes", "error", "operators")
    table = Table("exactness", columns, is_partial=bool(names))
    for name, (make, autocast) in MODELS.items():
        if names and name not in names:
            continue
        example = make()
        model, inputs = example.on_meta()
        traced = trace(model, autocast=autocast, **inputs)
        for label, trial_plan in _plans(example, traced):
            try:
                verification = verify(
                    model, trial_plan, trace=traced, autocast=autocast, **inputs
                )
            except AcplanError as error:
                table.add(name, label, f"refused: {error}")
                continue
            every += 1
            equal += verification.error == 0
            same = verification.first_difference() is None
            everywhere += same
            worst = max(worst, abs(verification.error))
            operators = "equal at all" if same else "the same"
            if not verification.runs_the_same_operators:
                operators = "others"
            table.add(
                name,
                label,
                verification.predicted_bytes,
                verification.measured_bytes,
                f"{verification.error:+.4%}",
                f"{operators} {len(verification.measured):,}",
            )
    print(
        f"{every} plans: {equal} equal to the byte, {everywhere} at every operator; "
        f"worst {worst:.4%}"
    )


if __name__ == "__main__":
    _main(sys.argv[1:])
