"""acplan.what_fits: the settings with which a training step fits a device.

The search is that of `fit_search`. Figures are those of traces with exactly these settings, or
marked as estimates.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from acplan._advise.bench import Attempt, Bench, Limit
from acplan._advise.fit_search import Search
from acplan._advise.fits import Fits
from acplan._advise.sharding import sharded_step
from acplan._base.arguments import require_module, whole_number
from acplan._base.errors import AcplanError
from acplan._base.progress import progress_bar
from acplan._device.devices import DEVICES, Device, find_device
from acplan._files.display import size
from acplan._program.budgets import Budget, require_budget, size_bytes
from acplan._program.plan import DEVICE_OPTIONS, PLAN_OPTIONS, plan
from acplan._step.parallel_already import mesh_of
from acplan._step.trace import trace
from acplan._step.training_step import TrainingStep

_MOST_GPUS = 1024
_LOGGER = logging.getLogger("acplan")


def what_fits(
    model: torch.nn.Module,
    *args: Any,
    device: str | Device = "a100",
    device_memory: Budget | None = None,
    budget: Budget | None = None,
    gpus: int = 1,
    seconds: float = 60,
    progress: bool | None = None,
    **kwargs: Any,
) -> Fits:
    """Returns settings with which the training step of `model(*args, **kwargs)` fits, the
    mildest first: parts of the microbatch, the optimizer and the precision of its state, the
    precision of weights, a loss in chunks, adapters (LoRA, QLoRA), each with its plan.

    device:        the GPU that is there, a name of acplan.DEVICES.
    device_memory: all that PyTorch can have of it, if that is not what such a card offers.
    budget:        a size in bytes or such as "60GiB", in place of a device's memory: live bytes
                   alone are counted.
    gpus:          the number of GPUs; the model is sharded over several by fully_shard.
    seconds:       of computing. The best of each kind of change, by estimate, is traced however
                   long that takes; others only in the time that is left, or else they keep
                   their estimates.
    kwargs:        options of acplan.trace, of acplan.plan, and the model's own arguments.

    The model is left unchanged. An answer is traced with exactly its settings, its plan is for
    that trace, and with device_memory training with it ends on the device; or it is marked as
    estimated, from traces of fewer layers. Rates are those of the trace's run-times.
    """
    if kwargs.get("mesh") is not None:
        raise AcplanError("what_fits: mesh: expected the model of one GPU; gpus= shards it")
    require_module(model)
    count = whole_number(gpus, "gpus", 1)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds < 0:
        raise AcplanError(f"seconds: expected a number of at least 0, found {seconds!r}")
    options = {name: kwargs.pop(name) for name in PLAN_OPTIONS if name in kwargs}
    workspaces = kwargs.pop("workspaces", True)
    target = find_device(device)
    step = TrainingStep.from_arguments(model, args, kwargs)
    _ = step.update  # refuses wrong options
    if step.is_of_rank or mesh_of(model) is not None:
        raise AcplanError("what_fits: expected the model of one GPU, found a rank of a mesh")
    limit = _limit_of(target, device_memory, budget, options)
    if count > 1:
        step = sharded_step(step, count)
    bench = Bench(step, target, limit, options, workspaces)
    with _quietly(), progress_bar(progress, unit="trace") as phase:
        search = Search(bench, seconds, phase("what fits", None))
        search.run()
        advice = "" if search.fits else _advice(bench, search.closest)
    return Fits(
        _title(bench, type(model).__name__),
        limit.total_bytes,
        tuple(search.ranked()),
        tuple(search.misses),
        advice,
        "samples/s" if bench.batch else "steps/s",
        search.about_estimates() if search.estimated else "",
    )


def _title(bench: Bench, model: str) -> str:
    count = "one" if bench.gpus == 1 else f"{bench.gpus} x"
    each = "" if bench.gpus == 1 else " on each"
    batch = f", {bench.batch} samples a step{each}" if bench.batch else ""
    memory = size(bench.limit.total_bytes)
    return f"{model} on {count} {bench.device.name}, {memory} for PyTorch{batch}"


def _limit_of(
    device: Device,
    device_memory: Budget | None,
    budget: Budget | None,
    options: Mapping[str, Any],
) -> Limit:
    if budget is not None:
        if device_memory is not None:
            raise AcplanError("what_fits: expected a budget or device_memory, found both")
        require_budget(budget)
        return Limit({"budget": budget}, size_bytes("budget", budget))
    memory = device.name if device_memory is None else device_memory
    # The program knows what a card offers PyTorch, and says it with any plan.
    smallest = trace(torch.nn.Linear(1, 1), torch.zeros(1, 1), source=False, progress=False)
    of_device = {k: v for k, v in options.items() if k in (*DEVICE_OPTIONS, "reserve")}
    some_plan = plan(smallest, device_memory=memory, progress=False, **of_device)
    return Limit({"device_memory": memory}, some_plan.budget_bytes)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keeps warnings of traces and plans that are only tried from the log, in the block."""
    level = _LOGGER.level
    _LOGGER.setLevel(logging.ERROR)
    try:
        yield
    finally:
        _LOGGER.setLevel(level)


def _advice(bench: Bench, closest: Attempt | None) -> str:
    """Returns what would fit where nothing does: the least that is needed, and the smallest
    card or the number of cards that has it."""
    if closest is None:
        return "no settings could be traced"
    names = ", ".join(closest.case.combination.names) or "the step as it is"
    total = bench.limit.total_bytes
    missing = closest.least_bytes - total
    parts = [
        f"{names} needs least, {size(closest.least_bytes)}, "
        + (f"{size(missing)} too much" if missing > 0 else "and the allocator's holes")
    ]
    cards = sorted(DEVICES.values(), key=lambda card: (card.memory, card.multiprocessors))
    larger = [c.name for c in cards if c.memory > max(closest.least_bytes, total)]
    card = next((name for name in larger if bench.ends_on(closest.traced, name)), None)
    parts.append(
        "no card of the table is large enough"
        if card is None
        else f"the smallest card of the table on which it ends is the {card}"
    )
    state = closest.case.state.device
    other_bytes = closest.least_bytes - state
    gpus = 2 * bench.gpus
    while gpus <= _MOST_GPUS and state * bench.gpus / gpus + other_bytes > total:
        gpus *= 2
    if gpus <= _MOST_GPUS:
        parts.append(f"sharded over {gpus} GPUs it may fit (gpus={gpus})")
    return "; ".join(parts)
