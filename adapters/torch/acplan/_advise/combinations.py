"""Combinations of levers, and the memory that none of them can be below: parameters, gradients
and the optimizer's state, all of which the update needs at once. It is computed from the
parameters alone; the optimizer runs one step on a fake of each distinct parameter."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from acplan._advise.adapters import adapter_levers
from acplan._advise.levers import (
    CHANGES,
    LEVERS,
    NOTHING,
    Lever,
    optimizer_made_again,
    with_levers,
)
from acplan._advise.precision import (
    EARLY_HOST_STATES,
    EIGHT_BIT_OPTIMIZERS,
    HOST_STATES,
    autocast_lever,
    computes_in_float32,
    eight_bit_levers,
    fused_lever,
    half_weights_lever,
    host_states_levers,
)
from acplan._advise.sharding import mixed_precision_lever
from acplan._base.errors import AcplanError
from acplan._base.offloaded_states import OffloadedStates
from acplan._base.tensors import block_bytes, tensors_in
from acplan._device.devices import Device
from acplan._device.fake_cuda import fake_cuda
from acplan._step.step import alone
from acplan._step.training_step import TrainingStep


@dataclasses.dataclass(frozen=True)
class StateBytes:
    """The bytes that exist during the update whatever is recomputed: those of the device, and
    those that wait in the host's memory, whose copies a trace may have. With `is_early`,
    parameters are updated in backward, so that gradients are not there at once."""

    device: int
    host: int = 0
    has_copies: bool = False
    is_early: bool = False


@dataclasses.dataclass(frozen=True)
class Combination:
    """Levers that are set together, of different groups."""

    levers: tuple[Lever, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(lever.name for lever in self.levers)

    @property
    def change(self) -> str:
        """The part of training that differs: that of its strongest lever."""
        return max((lever.change for lever in self.levers), key=CHANGES.index, default=NOTHING)

    @property
    def kind(self) -> tuple[str, ...]:
        """The levers on which the forward and the backward pass depend, and whether the update
        has temporary tensors of all parameters, or copies."""
        own = tuple(self.in_group(group) for group in ("precision", "method", "loss"))
        optimizer = self.in_group("optimizer") or "plain"
        return (*own, optimizer if optimizer in ("plain", *_ON_HOST) else "")

    def in_group(self, group: str) -> str:
        """Returns the name of its lever of a group, or "" if it has none."""
        return next((lever.name for lever in self.levers if lever.group == group), "")

    def is_milder_than(self, other: "Combination") -> bool:
        """Returns whether the other one has all of its levers and more, so that it saves memory
        and does not compute less. An optimizer with a smaller state counts as more, except
        beside states that are copied, for which the step waits."""
        if self.names == other.names:
            return False
        if not self._computes_less(other):
            for group in ("precision", "method"):
                if self.in_group(group) != other.in_group(group):
                    return False
        if self.in_group("loss") not in ("", other.in_group("loss")):
            return False
        own, others = self.in_group("optimizer"), other.in_group("optimizer")
        if own in _ON_HOST and others not in _ON_HOST:
            return False
        return own == others or _ORDER.index(own) < _ORDER.index(others)

    def _computes_less(self, other: "Combination") -> bool:
        """Returns whether both train adapters alone, and the other one casts frozen weights
        more: from float32, or from four bits."""
        own, others = self.in_group("method"), other.in_group("method")
        if not own or not others or own.startswith("QLoRA"):
            return False
        is_cast = self.in_group("precision").startswith("autocast")
        other_is_cast = other.in_group("precision").startswith("autocast")
        return others.startswith("QLoRA") or (other_is_cast and not is_cast)


_FUSED_LOSS = "loss: fused with the last layer"
_ON_HOST = (EARLY_HOST_STATES, HOST_STATES)
_ORDER = ("", "fused optimizer", *_ON_HOST, *EIGHT_BIT_OPTIMIZERS)


def combinations(step: TrainingStep, device: Device) -> list[Combination]:
    """Returns all combinations, the mildest first, those with the fewest levers first, and
    those with weights of four bits last."""
    plain = tuple(_applicable(fused_lever(step), step, device))
    losses = [(), *[(lever,) for lever in _applicable(LEVERS[_FUSED_LOSS], step, device)]]
    on_host = [(lever,) for lever in _on_host(step, device)]
    choices = [(), plain, *on_host, *_choices(step, device, [plain, *on_host])]
    # The better one of two ways with states on the host is tried with another loss.
    choices += [
        (*levers, *loss)
        for levers in _choices(step, device, [plain, *on_host[:1]])
        for loss in losses[1:]
    ]
    results = [Combination(levers) for levers in dict.fromkeys(choices)]
    return sorted(results, key=_mildness)


def _mildness(combination: Combination) -> tuple[int, bool, int]:
    has_four_bits = combination.in_group("method").startswith("QLoRA")
    return CHANGES.index(combination.change), has_four_bits, len(combination.levers)


def _applicable(lever: Lever, step: TrainingStep, device: Device) -> Iterator[Lever]:
    """Yields the lever if it can be set."""
    try:
        state_bytes([lever], step, device)
    except Exception:  # of a model or an optimizer of any kind: it has no such lever
        return
    yield lever


def _on_host(step: TrainingStep, device: Device) -> Iterator[Lever]:
    """Yields the levers of states on the host; none if the model is sharded."""
    for lever in host_states_levers(step) if step.parallel is None else []:
        yield from _applicable(lever, step, device)


def _choices(
    step: TrainingStep, device: Device, optimizers: Sequence[tuple[Lever, ...]]
) -> Iterator[tuple[Lever, ...]]:
    """Yields precisions with these optimizers, which have the step's own state, and those of 8
    bits, and adapters."""
    is_sharded = step.parallel is not None
    precisions: list[tuple[Lever, ...]] = [()]
    if any(p.dtype == torch.float32 for p in step.model.parameters()):
        half = mixed_precision_lever() if is_sharded else autocast_lever(device)
        # A step in float32 has nothing but time to lose.
        precisions = [(half,)] if computes_in_float32(step) else [()]
        if "fp16" not in half.name:
            precisions.append((half_weights_lever(),))
    bits = [(lever,) for lever in eight_bit_levers(step)]
    for precision, optimizer in itertools.product(precisions, [*optimizers, *bits]):
        yield (*precision, *optimizer)
    lora, qlora = adapter_levers(step)
    for precision in reversed(precisions):  # frozen weights lose nothing by their rounding
        yield (*precision, lora)
    if not is_sharded:
        yield (qlora,)


def state_bytes(levers: Sequence[Lever], step: TrainingStep, device: Device) -> StateBytes:
    """Returns bytes that no plan of the step with the levers is below, and what waits in the
    host's memory. Raises NotApplicable, or an error of the model's, if they cannot be set."""
    with with_levers(step, levers) as changed:
        parameters = list(changed.model.parameters())
        trained = [p for p in parameters if p.requires_grad]
        dtype = changed.param_dtype
        shards = sum(_bytes_of(p, dtype) for p in parameters)
        state = _optimizer_state(changed, trained, device)
        is_early = state.is_early or any(map(_is_stepped_in_backward, trained))
        if changed.step_fn is None and not is_early:
            shards += sum(_bytes_of(p, dtype) for p in trained)  # their gradients
        # Labels may be the same tensor as the inputs.
        inputs = {id(t): t for t in tensors_in((changed.args, changed.kwargs))}
        others = [*changed.model.buffers(), *inputs.values()]
        ranks = 1 if changed.parallel is None else changed.parallel.world_size
    shared = sum(_bytes_of(tensor, None) for tensor in others)
    on_device = (shards + state.device) // ranks + shared
    return dataclasses.replace(state, device=on_device, host=state.host // ranks)


def _is_stepped_in_backward(parameter: torch.nn.Parameter) -> bool:
    """Returns whether hooks may free the gradient before others exist."""
    return bool(getattr(parameter, "_post_accumulate_grad_hooks", None))


def _bytes_of(tensor: torch.Tensor, dtype: torch.dtype | None) -> int:
    """Returns the bytes of the memory of a tensor in another data type, if that is given."""
    itemsize = dtype.itemsize if dtype and tensor.is_floating_point() else tensor.itemsize
    steps = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
    count = 1 + steps if tensor.numel() else 0
    return int(block_bytes(count * itemsize))


def _optimizer_state(
    step: TrainingStep, trained: Sequence[torch.nn.Parameter], device: Device
) -> StateBytes:
    """Returns the bytes of the optimizer's state; none if its step does not run alone."""
    with alone(), fake_cuda(device), FakeTensorMode(), torch.no_grad():
        fakes = [
            torch.nn.Parameter(
                torch.empty_strided(
                    p.shape,
                    p.stride(),
                    dtype=step.param_dtype or p.dtype,
                    device="cuda",
                )
            )
            for p in trained
        ]
        optimizer = optimizer_made_again(step)(fakes)
        counts: Counter[Any] = Counter()
        for place, group in enumerate(optimizer.param_groups):
            # These two need more of a fake than the state does.
            group.update({key: False for key in ("foreach", "fused") if key in group})
            for parameter in group["params"]:
                counts[key := (place, parameter.shape, parameter.dtype)] += 1
                if counts[key] == 1:
                    parameter.grad = torch.empty_like(parameter)
        try:
            optimizer.step()
        except AcplanError:
            raise
        except Exception:  # the optimizer needs more than gradients; 0 bounds all
            return StateBytes(0)
        return _state_of(optimizer, counts)


def _state_of(optimizer: torch.optim.Optimizer, counts: Counter[Any]) -> StateBytes:
    counted_ids: set[int] = set()
    total = Counter[str]()
    for place, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            count = counts[place, parameter.shape, parameter.dtype]
            for tensor in tensors_in(optimizer.state.get(parameter, {})):
                if tensor.dim() > 0 and id(tensor) not in counted_ids:
                    is_shared = tensor.numel() <= 256 < parameter.numel()
                    size = block_bytes(tensor.nbytes) * (1 if is_shared else count)
                    total[tensor.device.type] += size
                counted_ids.add(id(tensor))
    has_copies = isinstance(optimizer, OffloadedStates)
    is_early = isinstance(optimizer, OffloadedStates) and optimizer.early is not None
    return StateBytes(total["cuda"], total["cpu"], has_copies, is_early)
