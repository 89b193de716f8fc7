"""acplan.best_batch beside a search that traces and plans every batch.

    ACPLAN=... PYTHONPATH=. python tests/compare_batches.py

prints docs/measured/batches.md; with names of models after it, only those.
"""

import sys
from typing import Any

import acplan
from acplan.batches import step_ms_of
from acplan.showing import size

from pages import start_page
from zoo import EXAMPLES

_PAGE = """
The batch that `acplan.best_batch` finds for small models, of 1 to 24 within the memory that a
batch of 7 takes without a plan, beside what tracing and planning every batch finds: the same
largest batch, the same most samples a second (roofline of an A100), with fewer traces. Plans
save or recompute (`decisions="save,recompute"`), and `tolerance` is 0. The script ends with an
error where anything differs.
"""

_MODELS = ("gpt2", "llama", "bert", "t5", "vit", "swin", "resnet", "transformer")
_SIZES = range(1, 25)


def _inputs_of(example: Any, count: int) -> dict[str, Any]:
    _, inputs = example.on_meta()
    return {
        name: value[:1].repeat(count, *[1] * (value.dim() - 1))
        for name, value in inputs.items()
    }


def _every(model: Any, example: Any, budget: int) -> dict[int, float]:
    rates = {}
    for count in _SIZES:
        traced = acplan.trace(model, **_inputs_of(example, count))
        try:
            planned = acplan.plan(traced, budget, decisions="save,recompute")
        except acplan.AcplanError:
            continue
        rates[count] = 1000 * count / (step_ms_of(traced) + planned.recompute_ms)
    return rates


def _row(name: str) -> str:
    example = EXAMPLES[name]()
    model, _ = example.on_meta()
    budget = acplan.trace(model, **_inputs_of(example, 7)).peak_bytes
    found = acplan.best_batch(
        model,
        lambda count: _inputs_of(example, count),
        budget=budget,
        sizes=_SIZES,
        tolerance=0.0,
        decisions="save,recompute",
    )
    rates = _every(model, example, budget)
    most = max(rates.values())
    assert found.largest.size == max(rates), name
    assert abs(found.best.per_second / most - 1) < 1e-9, name
    return (
        f"| {name} | {size(budget)} | {found.best.size} | {found.best.per_second:,.1f} | "
        f"{most:,.1f} | {found.largest.size} | {max(rates)} | {len(found.traced)} | "
        f"{len(_SIZES)} | {found.planned} | {len(found.notes)} |"
    )


def main(names: list[str]) -> None:
    start_page("The best batch", _PAGE, "transformers")
    print(
        "| model | budget | best | a second | of every batch | largest | of every batch | "
        "traces | of every batch | plans | traces not as expected |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name in names or _MODELS:
        print(_row(name), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
