"""Sets the forward passes of many architectures on real CPU tensors beside those that
acplan traces: the same operators in the same order, with the same arguments and
results?

    PYTHONPATH=. python tests/compare_real_steps.py

prints docs/measured/real_steps.md; with names of architectures after it only those, with
`--each` a line for each step.
"""

import dataclasses
import logging
import sys
import warnings
from collections.abc import Iterator

import torch
import transformers

from architectures import Architecture, architectures
from pages import start_page
from real_steps import Case, Comparison, compare

_PAGE = """
A plan names operators, so a trace must run those of the real step. Here the forward pass
of tiny models of many architectures runs twice: with real tensors on the CPU, and as
`acplan.trace` runs it, on fake tensors of a GPU that is not there. Compared are all
operators that `acplan` records, in order, by name, and of each the shapes and types of
what it is given, its other arguments, and the shapes and types of what it makes; of
attention that is the mask (none, or its shape and type), `is_causal`, `dropout_p`, `scale`
and `enable_gqa`. A step is equal if all of that is. What autograd runs backward is not
compared, nor is any kernel: no GPU was used, and none confirms this table.

A model is trained with a batch without a mask, with a mask of ones, padded right and left
(labels of -100 there), with sequences packed in one row where it takes them, and with the
last batch of an epoch, which is one sample; with autocast to bfloat16, without a mask and
padded; and the last batch is evaluated without gradients. Models without masks have those
steps that remain. Weights are random: nothing is downloaded.

## What is made the same in both

Where the device decides how a kernel is called, the CPU tells nothing about CUDA:

- `F.scaled_dot_product_attention`, `F.dropout`, `F.rms_norm`, `F.batch_norm`,
  `F.instance_norm`, `F.group_norm`, `F.one_hot` (which looks at its indices' range on the
  CPU alone), `F.ctc_loss` and the layers and cells of `nn.LSTM`, `nn.GRU` and `nn.RNN` are
  one marked operator each, with the arguments of the call; attention's result is laid out
  as flash attention's. Dropout of probability 0 is none, as in PyTorch.
- Autocast on the CPU casts by other lists than on CUDA. It is given CUDA's, as in
  "Autocast Op Reference" of PyTorch's documentation.
- Copies that change neither type nor layout are left out: they are moves between the CPU
  and the device.
- Sizes that `view` is given are compared in its result alone (-1 stands for one of them).
- What `log_sigmoid`, embedding bags and PyTorch's fused encoder layer (in evaluation) make
  beside their result differs by device: the result alone is compared.
- transformers counts the tokens of each expert as integers on CUDA and as floats on the
  CPU: of the histogram and its neighbours the types are left out.
- Random numbers that decide what runs (layers that are dropped, spans that are masked)
  begin with the same seed.

`tests/test_real_steps.py` compares every architecture with one of these batches in turn.

## Every architecture

An exception is named with its reason.
"""

_FACTS_TEXT = """
## Common models, before and after

Attention and all operators in 23 steps, without a mask and with a mask of ones. *Before*:
whether all operators were the same before tensors of integers and booleans had values in a
trace (commit 37ff185).
"""

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


def _print_facts() -> None:
    by_name = architectures()
    results: list[Comparison] = []
    print(_FACTS_TEXT)
    print("| step | before | attention | operators | first difference |")
    print("|---|---|---|---|---|")
    for name, variant in facts():
        architecture = by_name[name]
        result = compare(architecture.make, Case(architecture.variants[variant]()))
        results.append(result)
        attention = "the same" if result.has_same_attention else "differs"
        operators = "differ" if result.difference() else "the same"
        same = variant == "no mask" and name in _SAME_BEFORE
        before = "the same" if same else "differ"
        print(
            f"| {name}, {variant} | {before} | {attention} | {operators} | "
            f"{_cell(result.difference())} |",
            flush=True,
        )
    attention = sum(result.has_same_attention for result in results)
    operators = sum(not result.difference() for result in results)
    print(
        f"\n{len(results)} steps: attention the same in {attention}, all operators in {operators}"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


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
            reason = _cell(architecture.exception(label) or difference)
            row.reasons.setdefault(reason, []).append(label)
    return row


def _print_table(names: list[str], each: bool) -> None:
    start_page(
        "Real steps: what runs against what is traced", _PAGE, "transformers", "diffusers"
    )
    print("| architecture | group | steps | equal | operators | exceptions |")
    print("|---|---|---:|---:|---:|---|")
    rows = []
    for name, architecture in architectures().items():
        if names and name not in names:
            continue
        row = _row(name, architecture, each)
        rows.append(row)
        print(
            f"| {name} | {architecture.group} | {row.steps} | {row.equal} | "
            f"{row.operators} | {row.exceptions()} |",
            flush=True,
        )
    whole = sum(row.steps == row.equal for row in rows)
    print(
        f"\n{len(rows)} architectures, {whole} equal in every step; "
        f"{sum(row.steps for row in rows)} steps, {sum(row.equal for row in rows)} equal"
    )


def _main(arguments: list[str]) -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    # It tells of what the table has anyway.
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    names = [word for word in arguments if not word.startswith("--")]
    _print_table(names, "--each" in arguments)
    if not names:
        _print_facts()


if __name__ == "__main__":
    _main(sys.argv[1:])
