"""The memory that a training step holds beside the graphs that a compiler makes of it."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from acplan._base.errors import AcplanError
from acplan._base.tensors import block_bytes
from acplan._fakes.restored_state import fake_beside
from acplan._step.optimizers import OptimizerLike, make_optimizer


@dataclasses.dataclass(frozen=True)
class GraphBytes:
    """The bytes of one graph: parameters and buffers of the model among its inputs, its other
    inputs, and, once it is planned, what it saves and what its forward pass returns."""

    static: int
    inputs: int
    saved: int = 0
    outputs: int = 0


class StepMemory:
    """The memory that a step holds beside each of its graphs, which are planned one after the
    other in the order of forward.

    While a graph runs, forward or backward, the memory has the model and its optimizer; the
    tensors that the graphs before it save and return, less those that come back as its inputs;
    and, in backward, the gradients of the graphs behind it. The tensors that those save are
    gone by then.
    """

    def __init__(
        self, model: torch.nn.Module | None, optimizer: OptimizerLike, held_bytes: int
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._held_bytes = held_bytes
        self._of_optimizer: int | None = None
        self._graphs: dict[str, GraphBytes] = {}

    def key(self) -> tuple[int, ...]:
        """Returns what is known of the step, for caches."""
        return (self._of_model(), self._trained(), self._held_bytes, self._kept_by_optimizer())

    def bytes_beside(self, name: str, graph: GraphBytes) -> int:
        """Returns the bytes beside a graph. `name`: the same for graphs that replace one
        another, for other shapes."""
        before = self._before(name)
        returned = sum(g.outputs for g in before)
        total = max(0, self._of_model() - graph.static)
        total += sum(g.saved for g in before)
        total += max(0, returned - graph.inputs)
        with_gradients = graph.static + sum(g.static for g in before)
        total += max(0, self._trained() - with_gradients)
        return total + self._held_bytes + self._kept_by_optimizer()

    def beside_step(self, in_graphs: int) -> int:
        """Returns the bytes that are held beside all graphs of a step, which have `in_graphs`
        bytes of the model and its gradients."""
        total = max(0, self._of_model() - in_graphs)
        return total + self._held_bytes + self._kept_by_optimizer()

    def plan_is(self, name: str, graph: GraphBytes) -> None:
        self._graphs[name] = graph

    def _before(self, name: str) -> list[GraphBytes]:
        graphs = []
        for other, graph in self._graphs.items():
            if other == name:
                break
            graphs.append(graph)
        return graphs

    def _of_model(self) -> int:
        return 0 if self._model is None else model_bytes(self._model)

    def _trained(self) -> int:
        if self._model is None:
            return 0
        return _blocks(_on_device(p for p in self._model.parameters() if p.requires_grad))

    def _kept_by_optimizer(self) -> int:
        if self._model is None:
            return 0
        if self._of_optimizer is None:
            self._of_optimizer = optimizer_bytes(self._model, self._optimizer)
        return self._of_optimizer


def require_time_limit(seconds: float | None) -> None:
    if seconds is None:
        return
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not seconds >= 0:
        raise AcplanError(f"time_limit: expected at least 0 seconds, found {seconds!r}")


def _blocks(tensors: Iterable[torch.Tensor]) -> int:
    """Returns the bytes that the allocator has for these tensors, each memory once."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        # Tensors of subclasses, such as DTensor, have their own share inside.
        local = getattr(tensor, "_local_tensor", tensor)
        storage = local.untyped_storage()
        sizes[storage._cdata] = block_bytes(int(storage.nbytes()))
    return sum(sizes.values())


def model_bytes(model: torch.nn.Module) -> int:
    """Returns the bytes of parameters and buffers on an accelerator, or of all if none is on
    one."""
    return _blocks(_on_device([*model.parameters(), *model.buffers()]))


def _on_device(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    tensors = [*tensors]
    accelerated = [t for t in tensors if t.device.type not in ("cpu", "meta")]
    return accelerated or tensors


def optimizer_bytes(model: torch.nn.Module, optimizer: OptimizerLike) -> int:
    """Returns the bytes that the optimizer keeps from step to step. An optimizer that has not
    stepped yet takes a step on fake tensors; None keeps nothing."""
    if optimizer is None:
        return 0
    if isinstance(optimizer, torch.optim.Optimizer) and optimizer.state:
        return _blocks(_on_device(_states(optimizer)))
    with _disable_current_modes(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        memo: dict[int, torch.nn.Parameter] = {}

        def fake(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if id(value) not in memo:
                memo[id(value)] = torch.nn.Parameter(
                    fake_beside(mode, value), requires_grad=value.requires_grad
                )
            return memo[id(value)]

        fake_optimizer = make_optimizer(optimizer, _Fakes(model, fake), fake)
        for parameter in memo.values():
            if parameter.requires_grad:
                parameter.grad = torch.empty_like(parameter)
        fake_optimizer.step()
        return _blocks(_on_device(_states(fake_optimizer)))


class _Fakes(torch.nn.Module):
    """Fakes of a model's parameters."""

    def __init__(self, model: torch.nn.Module, fake: Any) -> None:
        super().__init__()
        self.fakes = torch.nn.ParameterList([fake(p) for p in model.parameters()])


def _states(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for state in optimizer.state.values():
        values = state.values() if isinstance(state, dict) else [state]
        yield from (value for value in values if isinstance(value, torch.Tensor))
