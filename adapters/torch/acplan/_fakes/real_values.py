"""A traced step with the values of a real one.

Every operator is computed on the CPU beside the fake one of the device, from copies of the
model's own weights, buffers and inputs, so that every question of the model about values
(`.item()`, a branch, `nonzero`) has the answer of this batch, forward and backward. Names,
kernels and bytes stay those of the device.

The step runs several times to be recorded, each time from the same values: those after the
first step, whose update changes none (nothing reads the values that an update writes, and the
values of an optimizer's states would need as much memory again). Random numbers are those of
the CPU's generator from one seed, and a recomputation draws them again as on a device.
"""

import contextlib
import dataclasses
import logging
import pathlib
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map

from acplan._base import generators
from acplan._base.errors import AcplanError, reason_of
from acplan._base.patching import replaced_here
from acplan._base.tensors import tensors_of
from acplan._device.cpu_operators import in_float32, on_the_cpu, read_on_the_cpu
from acplan._device.devices import flops_of
from acplan._fakes.known_values import UNKNOWN, ValuedFakeTensorMode
from acplan._fakes.row_capacity import most_rows_of, with_most_rows
from acplan._fakes.tensor_values import set_value, value_of
from acplan._files import display
from acplan._files.trace_file import Capacity

_LOGGER = logging.getLogger("acplan")
_VALUE = "_acplan_value"
_REAL = (torch.Tensor, torch.nn.Parameter)

# The most that is computed and kept if real values were not asked for: seconds of a CPU.
_MOST_FLOPS = 300e9
_MOST_BYTES = 2 << 30
# The cost of an element that is written, in FLOPs of a product.
_PER_ELEMENT = 16
# The share of the free memory that may be used.
_SHARE = 0.9
# The most operators of a step with more rows, relative to one with those of the batch.
_MOST_TIMES = 10


class NoValues(AcplanError):
    """The model, or its inputs, have no values."""


class TooMuch(AcplanError):
    """More would have to be computed, or kept, than is allowed."""


@dataclasses.dataclass
class Limits:
    """The most that a step may compute and keep, and how much it has computed."""

    most_bytes: float
    most_flops: float = float("inf")
    bytes: int = 0
    peak_bytes: int = 0
    flops: float = 0.0

    @classmethod
    def of_the_machine(cls) -> "Limits":
        return cls(_SHARE * free_bytes())

    @classmethod
    def unasked(cls) -> "Limits":
        return cls(min(_MOST_BYTES, _SHARE * free_bytes()), _MOST_FLOPS)

    def require_room(self, size: int) -> None:
        if self.bytes + size > self.most_bytes:
            raise TooMuch(
                f"real values take more than the {display.size(self.most_bytes)} of memory "
                "that they may use: trace a smaller batch, or fewer layers"
            )

    def add_flops(self, flops: int) -> None:
        self.flops += flops
        if self.flops > self.most_flops:
            raise TooMuch(
                f"a step with real values computes more than {self.most_flops:.0e} FLOPs"
            )

    def watch(self, value: torch.Tensor) -> None:
        """Counts the memory of a value until it is freed."""
        storage = value.untyped_storage()
        if storage.__dict__.get("is_counted"):
            return
        storage.__dict__["is_counted"] = True
        size = storage.nbytes()
        self.bytes += size
        self.peak_bytes = max(self.peak_bytes, self.bytes)

        def on_free() -> None:
            self.bytes -= size

        weakref.finalize(storage, on_free).atexit = False


class RealValuesMode(ValuedFakeTensorMode):
    """A mode of fake tensors in which every computed tensor has a value."""

    def __init__(
        self,
        device: str,
        limits: Limits,
        capacity: Capacity = 1,
        tick: Callable[[], object] = int,
    ) -> None:
        super().__init__(device)
        self.is_first = True
        self.count = 0
        self.capacity = capacity
        self._most: float = float("inf")
        self.is_real = True
        self.limits = limits
        self.not_computed = ""
        self._tick = tick

    def knows(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        if not self.is_real:
            return super().knows(func, args, kwargs)
        is_written = func._schema.is_mutable
        return all(
            _has_value(tensor, but_real=is_written)
            for tensor in tensors_of(read_on_the_cpu(func, args, kwargs))
        )

    def has_room_for(self, tensor: torch.Tensor) -> bool:
        return tensor.layout == torch.strided if self.is_real else super().has_room_for(tensor)

    def computed(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any = None
    ) -> Any:
        if not self.is_real:
            return super().computed(func, args, kwargs, out)
        outputs = tensors_of(out)
        self.limits.require_room(sum(t.numel() * t.element_size() for t in outputs))
        flops = flops_of(func, tuple(args), dict(kwargs), out)
        self.limits.add_flops(flops + _PER_ELEMENT * sum(t.numel() for t in outputs))
        self._tick()
        self._count()
        with no_dispatch():
            real_args, options = tree_map(_real, [*args]), tree_map(_real, dict(kwargs))
            is_padded = self.capacity != 1 and not self.is_first
            if is_padded:
                real_args = with_most_rows(func, real_args, self.capacity)
            value = self._run(func, real_args, options)
            if is_padded and value is not UNKNOWN:
                value = most_rows_of(func, real_args, value, self.capacity)
            if not any(outputs.alias_info for outputs in func._schema.returns):
                value = _laid_out_as(out, value)
        for tensor in tensors_of(value):
            self.limits.watch(tensor)
        return value

    def begin(self) -> None:
        """Begins a step, the first one or one that is recorded."""
        if self.is_first and self.count:
            self.is_first = False
            self._most = _MOST_TIMES * self.count
            self.limits.most_flops = float(
                "inf"
            )  # later steps take no longer than the first one
        self.count = 0

    def _count(self) -> None:
        self.count += 1
        if self.capacity != 1 and self.count > self._most:
            raise AcplanError(
                f"capacity: with {self.capacity} times the rows the step has more than "
                f"{_MOST_TIMES} times the operators: a loop may wait for fewer rows; use a "
                "smaller capacity, or none"
            )

    def _run(self, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        try:
            return (on_the_cpu(func) or func)(*args, **kwargs)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            if not func._schema.returns:
                raise  # an operator that only checks has found an error
            with contextlib.suppress(RuntimeError, IndexError, TypeError, ValueError):
                return in_float32(func, args, kwargs)
            if not self.not_computed:
                reason = reason_of(error, "it")
                self.not_computed = f"the CPU does not compute {func}: {reason}"
            return UNKNOWN

    def give_value(self, fake: torch.Tensor, value: torch.Tensor) -> None:
        fake.__dict__.pop(_VALUE, None)
        if type(value) not in _REAL or value.layout != torch.strided:
            return
        if value.device.type == "meta" or value.is_quantized:
            return
        self.limits.require_room(value.numel() * fake.element_size())
        with no_dispatch():
            copy = value.detach().to("cpu", fake.dtype, copy=True)
            if copy.stride() != value.stride() and 0 not in value.stride():
                copy = torch.empty_strided(value.shape, value.stride(), dtype=fake.dtype)
                copy.copy_(value.detach())
            self.limits.watch(copy)
            set_value(fake, copy)


def _laid_out_as(out: Any, value: Any) -> Any:
    """Returns the value in new memory with the device's layout, if the CPU's kernel has another
    one."""
    if isinstance(out, (list, tuple)) and isinstance(value, (list, tuple)):
        return [*map(_laid_out_as, out, value)]
    if not isinstance(out, torch.Tensor) or not isinstance(value, torch.Tensor):
        return value
    if out.shape != value.shape or out.stride() == value.stride() or 0 in out.stride():
        return value
    copy = torch.empty_strided(out.shape, out.stride(), dtype=value.dtype)
    return copy.copy_(value)


def _has_value(tensor: torch.Tensor, but_real: bool) -> bool:
    if isinstance(tensor, FakeTensor):
        return value_of(tensor) is not None
    is_strided = type(tensor) in _REAL and tensor.layout == torch.strided
    return is_strided and not but_real and tensor.device.type != "meta"


def _real(leaf: Any) -> Any:
    if isinstance(leaf, FakeTensor):
        return value_of(leaf)
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().cpu().clone()  # a result that shares its memory may be written to
    if isinstance(leaf, torch.device) and leaf.type != "meta":
        return torch.device("cpu")
    # The user's generator would be advanced, and would not be the same at the next run.
    return None if isinstance(leaf, torch.Generator) else leaf


@dataclasses.dataclass
class _Noted:
    """A fake tensor with the value that it has at the start of each step."""

    fake: torch.Tensor
    value: torch.Tensor


class Beginning:
    """The values from which each recorded step begins."""

    def __init__(self, mode: RealValuesMode) -> None:
        self._mode = mode
        self._noted: dict[int, _Noted] = {}
        self._noted_attributes: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        self._is_complete = False
        self._started_s = time.monotonic()

    def add(self, fake: torch.Tensor, value: torch.Tensor) -> None:
        """Notes a tensor of the model, or of its inputs, with the user's own value."""
        if fake.__dict__.get(_VALUE) is not None:
            with no_dispatch():
                self._noted[id(fake)] = _Noted(fake, value.detach())

    def of_trace(self) -> dict[str, Any]:
        """Returns the entries of the trace about real values."""
        capacity = self._mode.capacity
        return {"values": "real"} | ({} if capacity == 1 else {"capacity": capacity})

    def put_back(self) -> None:
        """Restores the values that the step before has overwritten."""
        if not self._is_complete:
            return
        self._mode.begin()
        with no_dispatch():
            for noted in self._noted.values():
                _put_back(noted.fake, noted.value)
            for holder, name, value in self._noted_attributes:
                tensor = holder.get(name)
                if tensor is None or not _is_another(tensor, self._noted):
                    continue
                if _is_alike(tensor, value):
                    _put_back(tensor, value)

    def note(self, model: torch.nn.Module, inputs: Iterable[torch.Tensor]) -> None:
        """Notes, after forward and backward of the first step, the values that modules keep
        from then on. Inputs are left out: they are those of another batch each time."""
        if self._is_complete:
            return
        self._is_complete = True
        self._mode.begin()
        input_ids = {id(tensor) for tensor in inputs}
        with no_dispatch():
            for noted in self._noted.values():
                value = value_of(noted.fake)
                if value is None or id(noted.fake) in input_ids:
                    continue
                # Most are still the user's own values, and are not kept twice.
                if not _is_equal(value, noted.value):
                    noted.value = value.clone()
            for module in model.modules():
                for holder in (module._buffers, vars(module)):
                    self._note_of(holder)
        _LOGGER.info(
            "trace: the first step with real values took %.1f s and %s; the step runs %s "
            "times more", time.monotonic() - self._started_s,
            display.size(self._mode.limits.peak_bytes), "two or three",
        )  # fmt: skip

    def _note_of(self, holder: dict[str, Any]) -> None:
        for name, tensor in holder.items():
            if _is_another(tensor, self._noted):
                value = value_of(tensor)
                if value is not None:
                    self._noted_attributes.append((holder, name, value.clone()))

    @contextlib.contextmanager
    def update(self, model: torch.nn.Module, is_own: bool) -> Iterator[None]:
        """Makes values of weights and gradients unknown to the update within the block, unless
        the update is the user's own."""
        if is_own:
            yield
            return
        gradients = (p.grad for p in model.parameters() if p.grad is not None)
        _forget(noted.fake for noted in self._noted.values())
        _forget(gradients)
        self._mode.is_real = False
        try:
            yield
        finally:
            self._mode.is_real = True


def _is_another(tensor: Any, noted: Mapping[int, Any]) -> bool:
    return isinstance(tensor, FakeTensor) and id(tensor) not in noted


def _is_alike(tensor: torch.Tensor, value: torch.Tensor) -> bool:
    return tensor.shape == value.shape and tensor.dtype == value.dtype


def _forget(fakes: Iterable[torch.Tensor]) -> None:
    for fake in fakes:
        value = fake.__dict__.get(_VALUE)
        if value is not None:
            value.untyped_storage().is_unknown = True


def _is_equal(value: torch.Tensor, other: torch.Tensor) -> bool:
    is_alike = (value.dtype, value.device) == (other.dtype, other.device)
    return is_alike and torch.equal(value, other)


def _put_back(fake: torch.Tensor, value: torch.Tensor) -> None:
    now = fake.__dict__.get(_VALUE)
    if now is None or now.shape != value.shape or 0 in now.stride():
        set_value(fake, value.to("cpu", fake.dtype, copy=True))
        return
    now.untyped_storage().is_unknown = False
    now.copy_(value)


@contextlib.contextmanager
def drawn_again() -> Iterator[None]:
    """Lets operators that draw random numbers for the device draw from the CPU's generator
    within the block: a caller that runs a module again sets that generator back."""

    def generator_of(device: torch.device) -> torch.Generator | None:
        return torch.default_generator

    with replaced_here(generators, "default_generator", generator_of):
        yield


def require_values(
    model: torch.nn.Module,
    inputs: Iterable[torch.Tensor],
    limits: Limits,
    is_empty: bool = False,
) -> None:
    """Raises an error if a weight or an input has no values, unless the model `is_empty` yet,
    or if their copies and gradients alone have no room. Logs how much memory they take."""
    weights = [*model.named_parameters(), *model.named_buffers()]
    named_inputs = [("an input", tensor) for tensor in inputs]
    for name, tensor in (*weights, *named_inputs):
        is_known = tensor.device.type != "meta" or not tensor.is_floating_point()
        if not is_known and not is_empty:
            raise NoValues(
                f"real values need weights and inputs: {name} is on the meta device; create "
                "the model and its inputs on the CPU, with fewer layers if they are too large"
            )
    trained = [p for p in model.parameters() if p.requires_grad]
    tensors = [*(t for _, t in weights), *trained, *(t for _, t in named_inputs)]
    size = sum(t.numel() * t.element_size() for t in tensors)
    _LOGGER.info(
        "trace: the step runs with real values on the CPU: weights, gradients and inputs "
        "take %s of the %s of memory; computed values come on top",
        display.size(size), display.size(limits.most_bytes),
    )  # fmt: skip
    limits.require_room(size)


_GROUP = pathlib.Path("/sys/fs/cgroup")


def about_real_values(capacity: Capacity) -> str:
    """Returns the note of a trace with real values."""
    contents = {
        1: "operators and numbers of rows",
        "all": "operators, with all rows that values may select,",
    }
    other = f"operators, with {capacity} times the rows that values select,"
    return (
        f"traced with real values: {contents.get(capacity, other)} are those for these inputs "
        "and weights"
    )


def free_bytes() -> float:
    """Returns the memory that this process may still take, or infinity if that is not known."""
    bounds = [float("inf")]
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                bounds.append(1024.0 * int(line.split()[1]))
    with contextlib.suppress(OSError, ValueError):
        most = float((_GROUP / "memory.max").read_text())
        bounds.append(most - float((_GROUP / "memory.current").read_text()))
    return min(bounds)
