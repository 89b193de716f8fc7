"""acplan.offload_states: an optimizer whose states wait in the host's memory.

The update goes through the parameters in order, some at a time. While it computes with the
states of some, those of the next come to the device, and those of the ones before return to the
host (host_copies.py), so the states of three such parts are on the device at most. The
optimizers of torch.optim update each parameter by itself, so the results are the same to the
bit.

With a `share` below 1 the states of some parameters stay on the device, which are spread evenly
over the others, so that copies and updates alternate.

With `in_backward` parameters are updated in the order in which backward completes their
gradients, which are then released. The states of a parameter begin to come when its gradient is
there; a part is updated when the next one is complete, so that copies have the time of a part
of the backward pass. Nothing reads a weight in backward after its gradient is complete.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from acplan._base.errors import AcplanError
from acplan._base.host_copies import OFFLOAD, RELOAD, WAIT

# The classes that update a parameter from its own gradient and state alone.
_SUPPORTED = (
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Muon", "NAdam",
    "RAdam", "RMSprop", "Rprop", "SGD",
)  # fmt: skip


class _Part(NamedTuple):
    """Parameters of a group that are updated at once."""

    group: dict[str, Any]
    parameters: list[torch.nn.Parameter]


# Copies under way: a state, its name, and the source and the target of the copy.
Copies = list[tuple[dict[str, Any], str, torch.Tensor, torch.Tensor]]


class OffloadedStates(torch.optim.Optimizer):
    """An optimizer with its own groups and states, which are on the host between steps."""

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        part_bytes: int,
        in_backward: bool = False,
        share: float = 1,
    ) -> None:
        self.inner = inner
        self.part_bytes = part_bytes
        self.share = share
        self._staying = _staying(inner, share)
        self.early: EarlyUpdates | None = None
        super().__init__(inner.param_groups, {})
        self._share()
        self._send_all()
        if in_backward:
            self.early = EarlyUpdates(self)

    def _share(self) -> None:
        self.param_groups = self.inner.param_groups
        self.state = self.inner.state

    def wrap(self, inner: torch.optim.Optimizer) -> "OffloadedStates":
        """Returns the same for another optimizer."""
        return OffloadedStates(inner, self.part_bytes, self.early is not None, self.share)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.early is not None:
            self.early.end()
        parts = list(self._parts())
        coming = self.fetch(parts[0].parameters) if parts else []
        leaving: Copies = []
        try:
            for place, part in enumerate(parts):
                arrived = coming
                is_last = place + 1 == len(parts)
                coming = [] if is_last else self.fetch(parts[place + 1].parameters)
                finish(arrived)
                self.update(part.group, part.parameters)
                finish(leaving)
                leaving = self.send(part.parameters)
        finally:
            finish(coming)
            finish(leaving)
        return loss

    def update(self, group: dict[str, Any], parameters: list[torch.nn.Parameter]) -> None:
        """Lets the optimizer step on these parameters of a group alone."""
        try:
            self.inner.param_groups = [{**group, "params": parameters}]
            self.inner.step()
        finally:
            self.inner.param_groups = self.param_groups

    def state_dict(self) -> dict[str, Any]:
        self._wait()
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict)
        self._share()
        self._send_all()

    def _send_all(self) -> None:
        parameters = [p for group in self.param_groups for p in group["params"]]
        finish(self.send(p for p in parameters if p in self.state))

    def _wait(self) -> None:
        """Waits until all copies to the host have ended."""
        devices = {p.device for group in self.param_groups for p in group["params"]}
        for device in devices:
            if device.type not in ("cpu", "meta"):
                torch.get_device_module(device).synchronize(device)

    def _parts(self) -> Iterator[_Part]:
        """Yields the parameters that have gradients, in order."""
        for group in self.param_groups:
            parameters: list[torch.nn.Parameter] = []
            total = 0
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameters and total + parameter.nbytes > self.part_bytes:
                    yield _Part(group, parameters)
                    parameters, total = [], 0
                parameters.append(parameter)
                total += parameter.nbytes
            if parameters:
                yield _Part(group, parameters)

    def fetch(self, parameters: Iterable[torch.nn.Parameter]) -> Copies:
        return [
            (state, name, value, RELOAD(value, parameter.device))
            for parameter, state, name, value in self._states(parameters)
        ]

    def send(self, parameters: Iterable[torch.nn.Parameter]) -> Copies:
        return [
            (state, name, value, OFFLOAD(value))
            for _, state, name, value in self._states(parameters)
        ]

    def _states(
        self, parameters: Iterable[torch.nn.Parameter]
    ) -> Iterator[tuple[torch.nn.Parameter, dict[str, Any], str, torch.Tensor]]:
        """Yields the states that move: of parameters whose states do not stay, all but single
        numbers, such as the steps so far."""
        for parameter in parameters:
            if parameter in self._staying:
                continue
            state = self.state.get(parameter, {})
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.dim() > 0:
                    yield parameter, state, name, value


def _staying(optimizer: torch.optim.Optimizer, share: float) -> set[torch.nn.Parameter]:
    """Returns the parameters whose states stay on the device: as many as leave at most `share`
    of the bytes of the parameters up to any of them to move."""
    staying: set[torch.nn.Parameter] = set()
    total = leaving = 0
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        if not parameter.requires_grad:
            continue
        total += parameter.nbytes
        if leaving + parameter.nbytes <= share * total:
            leaving += parameter.nbytes
        else:
            staying.add(parameter)
    return staying


def finish(copies: Copies) -> None:
    """Lets the device wait for copies, whose targets are the states then."""
    for state, name, source, target in copies:
        state[name] = WAIT(target, source)
    copies.clear()


class EarlyUpdates:
    """The updates of an optimizer within the backward pass. Parameters whose gradients are
    complete are gathered in parts, of which the last complete one waits for its update."""

    def __init__(self, optimizer: OffloadedStates) -> None:
        self._optimizer = optimizer
        self._number = {
            parameter: number
            for number, group in enumerate(optimizer.param_groups)
            for parameter in group["params"]
        }
        self._early_parameters: set[torch.nn.Parameter] = set()
        self._growing = _EarlyPart([], [])
        self._complete = _EarlyPart([], [])
        self._leaving: Copies = []
        for parameter in self._number:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._take)

    @torch.no_grad()
    def _take(self, parameter: torch.Tensor) -> None:
        assert isinstance(parameter, torch.nn.Parameter)
        _require_first(parameter in self._early_parameters)
        self._early_parameters.add(parameter)
        growing = self._growing
        if growing.size and growing.size + parameter.nbytes > self._optimizer.part_bytes:
            self._update(self._complete)
            self._complete = growing
            growing = self._growing = _EarlyPart([], [])
        growing.parameters.append(parameter)
        growing.coming.extend(self._optimizer.fetch([parameter]))

    def end(self) -> None:
        """Updates the rest, and waits for all copies."""
        self._update(self._complete)
        self._update(self._growing)
        finish(self._leaving)
        self._complete, self._growing = _EarlyPart([], []), _EarlyPart([], [])
        self._early_parameters.clear()

    def _update(self, part: "_EarlyPart") -> None:
        finish(part.coming)
        for number, group in enumerate(self._optimizer.param_groups):
            parameters = [p for p in part.parameters if self._number[p] == number]
            if parameters:
                self._optimizer.update(group, parameters)
        finish(self._leaving)
        self._leaving = self._optimizer.send(part.parameters)
        for parameter in part.parameters:
            parameter.grad = None


class _EarlyPart(NamedTuple):
    """Parameters with complete gradients, and their states on the way."""

    parameters: list[torch.nn.Parameter]
    coming: Copies

    @property
    def size(self) -> int:
        return sum(parameter.nbytes for parameter in self.parameters)


def _require_first(is_updated: bool) -> None:
    if is_updated:
        raise AcplanError(
            "offload_states: in_backward: a second gradient of a parameter before "
            "optimizer.step(), as with accumulation: the first one has been used"
        )
    distributed = torch.distributed
    has_group = distributed.is_available() and distributed.is_initialized()
    if has_group and distributed.get_world_size() > 1:
        raise AcplanError(
            "offload_states: in_backward: expected one process; gradients of several are "
            "combined after their own parts are complete"
        )


def offload_states(
    optimizer: torch.optim.Optimizer,
    *,
    part_bytes: int = 64 * 2**20,
    in_backward: bool = False,
    share: float = 1,
) -> OffloadedStates:
    """Returns an optimizer with the groups and states of this one, whose states wait in the
    host's memory between its steps. Losses and weights are the same to the bit.

    part_bytes:  the bytes of parameters that are updated at once; the states of three such
                 parts are on the device at most.
    in_backward: parameters are updated as soon as their gradients are complete, which are
                 released then: copies have the time of the backward pass, and gradients need
                 no more than two parts. For steps with one backward pass, in one process, in
                 which nothing reads gradients before optimizer.step(): no clipping, no
                 GradScaler.
    share:       the states of at most this share of the bytes of parameters move, from 0 to 1;
                 the others stay on the device, and copies take less time.

    Use it in place of the optimizer from then on, in acplan.trace as well. Optimizers of
    torch.optim are supported, except LBFGS and SparseAdam, on plain tensors.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise AcplanError(
            "offload_states: expected a torch.optim.Optimizer, found "
            f"{type(optimizer).__name__}"
        )
    name = type(optimizer).__name__
    if getattr(torch.optim, name, None) is not type(optimizer) or name not in _SUPPORTED:
        raise AcplanError(
            f"offload_states: expected one of torch.optim's {', '.join(_SUPPORTED)}, found "
            f"{name}"
        )
    _require_steps_in_parts(optimizer)
    if isinstance(part_bytes, bool) or not isinstance(part_bytes, int) or part_bytes <= 0:
        raise AcplanError(f"offload_states: part_bytes: expected bytes, found {part_bytes!r}")
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        raise AcplanError(
            f"offload_states: share: expected a number from 0 to 1, found {share!r}"
        )
    return OffloadedStates(optimizer, part_bytes, in_backward, share)


def _require_steps_in_parts(optimizer: torch.optim.Optimizer) -> None:
    groups: Sequence[dict[str, Any]] = optimizer.param_groups
    if any(group.get("differentiable") for group in groups):
        raise AcplanError("offload_states: differentiable=True is not supported")
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise AcplanError(
            "offload_states: the optimizer has hooks of its steps: register them on the result"
        )
    for group in groups:
        for parameter in group["params"]:
            if is_traceable_wrapper_subclass(parameter):
                raise AcplanError(
                    "offload_states: expected plain tensors, found a parameter of class "
                    f"{type(parameter).__name__}"
                )
