"""Statistics of a step by PyTorch's own estimators (torch.distributed._tools)."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.distributed._tools import mod_tracker
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType, _ModState
from torch.distributed._tools.runtime_estimator import RuntimeEstimator
from torch.distributed._tools.sac_estimator import SACEstimator, SACStats
from torch.utils._python_dispatch import TorchDispatchMode

from acplan._base.composed import COMPOSED, run_parts
from acplan._base.tensors import tensors_in
from acplan._device.devices import OperatorRun, find_device
from acplan._step.step import Step, step_on_fakes
from acplan._step.training_step import TrainingStep

_MODE = "operator-level-cost-model"
_CATEGORIES = (
    _MemRefType.PARAM,
    _MemRefType.BUFFER,
    _MemRefType.GRAD,
    _MemRefType.ACT,
    _MemRefType.TEMP,
    _MemRefType.OPT,
    _MemRefType.OTH,
    "Total",
)
_STATES = {
    "pre_fw": _ModState.PRE_FW,
    "post_fw": _ModState.POST_FW,
    "peak_fw": _ModState.PEAK_FW,
    "pre_bw": _ModState.PRE_BW,
    "post_bw": _ModState.POST_BW,
    "peak_bw": _ModState.PEAK_BW,
}
# Operators that the adapter does not record, and allocations. Views take no time either.
_FREE = ("detach", "empty", "prim.device")

Snapshot = list[int]


@dataclasses.dataclass
class ModuleMemory:
    parameters: int
    buffers: int
    inputs: int
    outputs: int
    snapshots: dict[str, Snapshot]


@dataclasses.dataclass
class TorchStatistics:
    """Statistics, indexed by FQN. A tool that fails leaves its part empty and says why in
    `failed`."""

    memory: dict[str, ModuleMemory] = dataclasses.field(default_factory=dict)
    peak_bytes: int = 0
    runtimes: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    orders: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    operators: dict[str, SACStats] = dataclasses.field(default_factory=dict)
    # Modules that get tensors as keyword arguments, which the tools do not see.
    with_keywords: set[str] = dataclasses.field(default_factory=set)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)


def torch_statistics(
    model: nn.Module, inputs: dict[str, Any], light_hooks: bool
) -> TorchStatistics:
    """Runs each tool on a second training step, as acplan.trace takes it. Run-times are those
    of acplan's roofline, as PyTorch's asks a real device.

    The tools' hooks hold gradients until the last one of a module's inputs has
    arrived, which changes what they measure; light ones hold nothing.
    """
    statistics = TorchStatistics()
    hook = _light_hook if light_hooks else mod_tracker.register_multi_grad_hook
    for name, measure in (
        ("MemTracker", _measure_memory),
        ("RuntimeEstimator", _measure_runtimes),
        ("SACEstimator", _measure_operators),
        ("", _find_keywords),
    ):
        with (
            mock.patch.object(mod_tracker, "register_multi_grad_hook", hook),
            second_step(model, inputs) as (step, optimizer),
        ):
            try:
                measure(statistics, step, optimizer)
            except Exception as error:
                statistics.failed[name] = f"{type(error).__name__}: {error}".split("\n")[0]
    return statistics


@contextlib.contextmanager
def second_step(
    model: nn.Module, inputs: dict[str, Any], autocast: torch.dtype | None = None
) -> Iterator[tuple[Step, torch.optim.Optimizer]]:
    """Yields a second step for the tools to watch, with acplan's roofline."""
    with (
        mock.patch.object(RuntimeEstimator, "_roofline_estimate", _estimate),
        mock.patch("builtins.print"),
        step_on_fakes(TrainingStep(model, (), inputs, autocast=autocast)) as step_and_optimizer,
    ):
        yield step_and_optimizer


def _light_hook(
    tensors: Sequence[torch.Tensor], action: Callable[..., None], mode: str = "all"
) -> None:
    """Does what register_multi_grad_hook does, without the gradients."""
    # Asking for a node may run an operator.
    edges = tensors if mode == "all" else ()
    nodes = [t.grad_fn or get_gradient_edge(t).node for t in edges]
    count = 0
    expected = 1

    def on_gradient(_: torch.Tensor) -> None:
        nonlocal count, expected
        if count == 0 and mode == "all":
            expected = sum(map(torch._C._will_engine_execute_node, nodes))
        nodes.clear()
        count += 1
        if count == expected:
            action()

    for tensor in tensors:
        tensor.register_hook(on_gradient)


def track_memory(step: Step, optimizer: torch.optim.Optimizer) -> MemTracker:
    tracker = MemTracker()
    tracker.track_external(step.model, optimizer, *tensors_in((step.args, step.kwargs)))
    with tracker:
        loss = step.loss()
        loss.backward()
        del loss
        optimizer.step()
        optimizer.zero_grad()
    return tracker


def _measure_memory(statistics: TorchStatistics, step: Any, optimizer: Any) -> None:
    tracker = track_memory(step, optimizer)
    for stats in tracker.memory_tracking.values():
        statistics.memory[stats.mod_fqn] = ModuleMemory(
            stats.parameter_mem,
            stats.buffer_mem,
            stats.input_mem,
            stats.output_mem,
            {
                name: _on_device(stats.snapshots[state][-1])
                for name, state in _STATES.items()
                if state in stats.snapshots
            },
        )
    statistics.peak_bytes = _on_device(tracker.get_tracker_snapshot("peak"))[-1]


def _on_device(snapshot: dict[torch.device, dict[Any, int]]) -> Snapshot:
    for device, categories in snapshot.items():
        if device.type == "cuda":
            return [categories[category] for category in _CATEGORIES]
    return [0] * len(_CATEGORIES)


def estimate_runtimes(step: Step, optimizer: torch.optim.Optimizer) -> RuntimeEstimator:
    with RuntimeEstimator()(_MODE) as estimator:
        step.loss().backward()
    optimizer.zero_grad()
    return estimator


def _measure_runtimes(statistics: TorchStatistics, step: Any, optimizer: Any) -> None:
    estimator = estimate_runtimes(step, optimizer)
    statistics.runtimes = {
        fqn: {"fw": times["fw"], "bw": times["bw"]}
        for fqn, times in estimator.mod_runtimes.items()
    }
    statistics.orders = {
        "fw_pre": estimator.mod_fw_pre_order,
        "fw_post": estimator.mod_fw_post_order,
        "bw_pre": estimator.mod_bw_pre_order,
        "bw_post": estimator.mod_bw_post_order,
    }


class _Held(TorchDispatchMode):
    """Keeps every result alive: SACEstimator knows a storage by its address, and takes one
    that is used again for the storage that was there before.
    """

    def __init__(self) -> None:
        super().__init__()
        self._results: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._results.append(result)
        return result


def estimate_operators(step: Step) -> SACEstimator:
    estimator = SACEstimator()
    with _Held(), estimator(_MODE):
        step.loss()
    return estimator


def _measure_operators(statistics: TorchStatistics, step: Any, optimizer: Any) -> None:
    statistics.operators = estimate_operators(step).sac_mod_stats


def _find_keywords(statistics: TorchStatistics, step: Any, optimizer: Any) -> None:
    root = type(step.model).__name__
    handles = []
    for path, module in step.model.named_modules():
        fqn = f"{root}.{path}" if path else root

        def note(_: nn.Module, args: Any, kwargs: Any, fqn: str = fqn) -> None:
            if tensors_in(kwargs):
                statistics.with_keywords.add(fqn)

        handles.append(module.register_forward_pre_hook(note, with_kwargs=True))
    step.loss()
    for handle in handles:
        handle.remove()


class _Parts(TorchDispatchMode):
    """Adds up the times of operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in PyTorch
        self.ms = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out, ms = _estimate(func, args, kwargs)
        self.ms += ms
        return out


def _estimate(func: Any, args: Any, kwargs: Any) -> tuple[Any, float]:
    kwargs = kwargs or {}
    if func in COMPOSED:
        with _Parts() as parts:
            return run_parts(func, args, kwargs), parts.ms
    out = func(*args, **kwargs)
    read, results = tensors_in((args, kwargs)), tensors_in(out)
    storages = {t.untyped_storage()._cdata for t in read}
    is_view = not func._schema.is_mutable and all(
        t.untyped_storage()._cdata in storages for t in results
    )
    if is_view or any(name in str(func) for name in _FREE):
        return out, 0.0
    device = find_device("a100")
    return out, device.runtime_ms(OperatorRun(func, args, kwargs, out), read, results)
