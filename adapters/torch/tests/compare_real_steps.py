"""Sets the forward passes of many architectures on real CPU tensors beside those that
acplan traces: the same operators in the same order, with the same arguments and
results?

    PYTHONPATH=. python tests/compare_real_steps.py

writes docs/measured/real_steps.csv and real_steps_masks.csv. With names of architectures after
it, it prints only those; with `--each`, also a line for each step.
"""

import dataclasses
import logging
import sys
import warnings
from collections.abc import Iterator

import torch
import transformers

from architectures import Architecture, architectures
from real_steps import Case, Comparison, compare
from tables import Table, print_versions

# The steps that were the same then.
_SAME_BEFORE = ("bert", "modernbert", "opt", "t5", "vit")

_FACTS = (
    "gpt2", "llama", "qwen3", "mistral", "gemma3_text", "bert", "modernbert", "opt",
    "t5", "bart",
)  # fmt: skip


def cases(architecture: Architecture) -> Iterator[tuple[str, Case]]:
    """Yields every batch in training, two of them with autocast as well (without a mask and
    with padding), and the last, small batch in evaluation."""
    variants = architecture.variants
    for name, inputs in variants.items():
        yield name, Case(inputs())
    for name in ("no mask", "padded right"):
        if name in variants:
            yield f"{name}, autocast", Case(variants[name](), torch.bfloat16)
    if "batch of one" in variants:
        last = variants["batch of one"]()
        yield "batch of one, evaluated", Case(last, trains=False)


def facts() -> Iterator[tuple[str, str]]:
    """Yields common models, each with the names of its batches: no mask, and a mask of ones."""
    for name in _FACTS:
        yield name, "no mask"
        yield name, "ones"
    yield "vit", "no mask"
    yield "mixtral", "no mask"
    yield "mixtral", "ones"


def _write_facts() -> None:
    by_name = architectures()
    results: list[Comparison] = []
    columns = ("step", "before", "attention", "operators", "first difference")
    table = Table("real_steps_masks", columns)
    for name, variant in facts():
        architecture = by_name[name]
        result = compare(architecture.make, Case(architecture.variants[variant]()))
        results.append(result)
        attention = "the same" if result.has_same_attention else "differs"
        operators = "differ" if result.difference() else "the same"
        same = variant == "no mask" and name in _SAME_BEFORE
        before = "the same" if same else "differ"
        table.add(f"{name}, {variant}", before, attention, operators, result.difference())
    attention = sum(result.has_same_attention for result in results)
    operators = sum(not result.difference() for result in results)
    print(
        f"{len(results)} steps: attention the same in {attention}, all operators in {operators}"
    )


@dataclasses.dataclass
class _Row:
    """One architecture's line of the table."""

    steps: int = 0
    equal: int = 0
    operators: int = 0
    # The labels of steps, indexed by what differs or by the reason why it may.
    reasons: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    def exceptions(self) -> str:
        reasons = (
            f"{'all' if len(labels) == self.steps else ', '.join(labels)}: {reason}"
            for reason, labels in self.reasons.items()
        )
        return "; ".join(reasons)


def _row(name: str, architecture: Architecture, each: bool) -> _Row:
    row = _Row()
    for label, case in cases(architecture):
        result = compare(architecture.make, case)
        difference = result.difference()
        if each:
            print(f"{name}; {label}: {difference or 'equal'}", flush=True)
        row.steps += 1
        row.equal += not difference
        row.operators = max(row.operators, len(result.real))
        if difference:
            reason = architecture.exception(label) or difference
            row.reasons.setdefault(reason, []).append(label)
    return row


def _write_table(names: list[str], each: bool) -> None:
    print_versions("transformers", "diffusers")
    columns = ("architecture", "group", "steps", "equal", "operators", "exceptions")
    table = Table("real_steps", columns, is_partial=bool(names))
    rows = []
    for name, architecture in architectures().items():
        if names and name not in names:
            continue
        row = _row(name, architecture, each)
        rows.append(row)
        table.add(
            name, architecture.group, row.steps, row.equal, row.operators, row.exceptions()
        )
    whole = sum(row.steps == row.equal for row in rows)
    print(
        f"{len(rows)} architectures, {whole} equal in every step; "
        f"{sum(row.steps for row in rows)} steps, {sum(row.equal for row in rows)} equal"
    )


def _main(arguments: list[str]) -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    # It tells of what the table has anyway.
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    names = [word for word in arguments if not word.startswith("--")]
    _write_table(names, "--each" in arguments)
    if not names:
        _write_facts()


if __name__ == "__main__":
    _main(sys.argv[1:])
