"""Sets the peaks that are predicted for models of real sizes beside those of the same
models with the plan applied.

    ACPLAN=... PYTHONPATH=. python tests/compare_peaks.py

prints docs/measured/exactness.md; with names of models after it, only those.
"""

import sys
from collections.abc import Iterator

from acplan import AcplanError, Plan, Trace, plan, trace, verify
from models import MODELS
from pages import start_page
from zoo import Example, plans

_PAGE = """
`acplan simulate` says what a training step uses at every operator with a plan, from the
trace of the step without it. Here each plan is also applied to the model (`acplan.apply`),
and a step of that is traced again on fake tensors, without a GPU: the bytes of all live
storages while each operator runs, each rounded up to 512 as CUDA's caching allocator does.
`acplan.verify` does both for a model of yours. [Which of PyTorch's rules make them
equal](../exactness.md).

The models have real sizes, on fake CUDA tensors of an A100, in their second training step,
with AdamW. The plans are: all blocks, every second one, the last; parts of blocks (attention, feed-forward);
both; parts inside of blocks, and those inside of the module around all (units inside units
inside units); policies by chance over half of the operators, views among them, alone and
with units inside units; and those of `acplan plan` on the profile derived from the trace, at
90%, 75% and 60% of the peak and at the least budget, where one fits. Plans that are made on
the trace itself are in [plans on traces](plans_on_traces.md).

*Equal at all*: every operator that the simulation says runs is the one that runs, those that
run again included, and the bytes in use at each are equal. Refused are policies for a block
that is called three times under autocast: its first call casts the weights and the others do
not, so that they run different operators. (In training, what a plan does not know is
recomputed, with a warning.)
"""

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
    start_page("Traces: simulated against re-traced", _PAGE, "transformers")
    every = worst = equal = everywhere = 0
    print("| model | plan | predicted | re-traced | error | operators |")
    print("|---|---|---:|---:|---:|---|")
    for name, (make, autocast) in MODELS.items():
        if names and name not in names:
            continue
        example = make()
        model, inputs = example.on_meta()
        traced = trace(model, autocast=autocast, **inputs)
        for label, trial_plan in _plans(example, traced):
            try:
                verification = verify(model, trial_plan, of=traced, autocast=autocast, **inputs)
            except AcplanError as error:
                print(f"| {name} | {label} | refused: {error} | | | |", flush=True)
                continue
            every += 1
            equal += verification.error == 0
            same = verification.first_difference() is None
            everywhere += same
            worst = max(worst, abs(verification.error))
            operators = "equal at all" if same else "the same"
            if not verification.runs_the_same_operators:
                operators = "others"
            print(
                f"| {name} | {label} | {verification.predicted_bytes:,} | "
                f"{verification.measured_bytes:,} | {verification.error:+.4%} | "
                f"{operators} {len(verification.measured):,} |",
                flush=True,
            )
    print(
        f"\n{every} plans: {equal} equal to the byte, {everywhere} at every operator; "
        f"worst {worst:.4%}"
    )


if __name__ == "__main__":
    _main(sys.argv[1:])
