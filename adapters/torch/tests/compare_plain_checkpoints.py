"""Looks for models whose least budget is above what PyTorch's plain checkpoint of each
block needs: of each child of each list or sequence of modules.

    ACPLAN=... PYTHONPATH=.:tests python tests/compare_plain_checkpoints.py

prints a line for each such model of the zoo and of `shared_and_repeated`, with whether
gradients with that checkpoint are those without; with names after it, only those models.
Ends with 1 where there is one whose gradients are equal.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import acplan
from acplan import AcplanError, Plan, PlannedModule
from acplan._verify.retrace import measuring
from architectures import architectures
from shared_and_repeated import MODELS

Case = tuple[Callable[[], nn.Module], Callable[[], dict[str, Any]], dict[str, Any]]


def cases() -> dict[str, Case]:
    of_zoo: dict[str, Case] = {
        name: (architecture.make, next(iter(architecture.variants.values())), {})
        for name, architecture in architectures().items()
    }
    return MODELS | of_zoo


def blocks_of(model: nn.Module) -> Iterator[tuple[str, ...]]:
    """Yields the children of each list or sequence of modules."""
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module):
            names = (name for name, child in module.named_children() if child is not None)
            yield tuple(f"{path}.{name}" if path else name for name in names)


def plain_peaks(model: nn.Module, inputs: dict[str, Any], options: Any) -> dict[str, int]:
    """Returns the peak with each block of a list in a checkpoint, indexed by the first and last
    block. Lists that PyTorch refuses are left out."""
    root = type(model).__name__
    peaks = {}
    with measuring(model, **options, **inputs) as measured:
        for blocks in blocks_of(model):
            units = tuple(PlannedModule(f"{root}.{path}") for path in blocks)
            try:
                steps = measured(Plan(units))
            except Exception as error:  # of PyTorch's checkpoint
                print(f"  {blocks[0]}: {type(error).__name__}", file=sys.stderr)
                continue
            peaks[", ".join((blocks[0], blocks[-1]))] = max(s.live_bytes for s in steps)
    return peaks


def gradients(model: nn.Module, inputs: dict[str, Any], autocast: bool) -> Any:
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = acplan._step.training_step.default_loss(model(**inputs))
    loss.backward()
    return [p.grad for p in model.parameters()]


def has_equal_gradients(case: Case, blocks: str) -> bool:
    make, inputs_of, options = case
    autocast = "autocast" in options
    plain, checkpointed = make().train(), make().train()
    checkpointed.load_state_dict(plain.state_dict())
    first = blocks.split(", ")[0]
    names = next(
        block_names for block_names in blocks_of(checkpointed) if block_names[0] == first
    )
    for name in names:
        block = checkpointed.get_submodule(name)
        block.forward = _checkpointed(block.forward)  # type: ignore[method-assign]
    pairs = zip(
        gradients(plain, inputs_of(), autocast),
        gradients(checkpointed, inputs_of(), autocast),
    )
    return all(
        a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs
    )


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)


def complaint_of(case: Case) -> tuple[str, bool]:
    """Returns what to print of a model, and whether its least budget is above the peak of
    checkpoints with equal gradients."""
    make, inputs_of, case_options = case
    model, inputs = make(), inputs_of()
    options = {"optimizer": "sgd", "workspaces": False, **case_options}
    try:
        traced = acplan.trace(model, progress=False, **options, **inputs)
        least = acplan.plan(traced, "min").peak_bytes
    except AcplanError as error:
        return f"not compared: {error}", False
    assert least is not None
    above = {
        blocks: peak
        for blocks, peak in plain_peaks(model, inputs, options).items()
        if peak < least
    }
    if not above:
        return "", False
    blocks, peak = min(above.items(), key=lambda item: item[1])
    is_equal = has_equal_gradients(case, blocks)
    text = f"least {least:,}, checkpoints of {blocks}: {peak:,}"
    return text + ("" if is_equal else ", with other gradients"), is_equal


def main(names: list[str]) -> int:
    failed = 0
    for name, case in cases().items():
        if names and name not in names:
            continue
        text, is_above = complaint_of(case)
        failed += is_above
        print(f"{name}: {text or 'never above'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
