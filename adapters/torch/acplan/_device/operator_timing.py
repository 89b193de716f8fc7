"""Run-times of operators, measured one by one on the current CUDA device."""

import dataclasses
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from acplan._base.errors import AcplanError, reason_of
from acplan._device.devices import DEVICES, Device, OperatorRun, known_as
from acplan._device.host_copy_times import is_host_copy

Clock = Callable[[Callable[[], Any]], float]
"""Milliseconds that one call takes."""

_WARM_UPS = 3
_CALLS = 10


def cuda_clock(call: Callable[[], Any]) -> float:
    for _ in range(_WARM_UPS):
        call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(_CALLS):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / _CALLS


@dataclasses.dataclass(frozen=True)
class MeasuredDevice(Device):
    """A device that runs each operator, once for all calls with the same shapes, on tensors of
    its own, so that a model need not fit on the device. For an operator that cannot run, it
    warns and returns the prediction."""

    place: torch.device
    clock: Clock = cuda_clock
    known_ms: dict[Hashable, float] = dataclasses.field(default_factory=dict)

    def runtime_ms(
        self,
        run: OperatorRun,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> float:
        func, args, kwargs, _ = run
        if is_host_copy(func):  # one way alone takes another time
            return super().runtime_ms(run, inputs, outputs)
        key = _signature(func, args, kwargs)
        if key not in self.known_ms:
            try:
                time_ms = self._measured_ms(func, args, kwargs)
            except (RuntimeError, TypeError, ValueError) as error:
                reason = reason_of(error, "running it")
                warnings.warn(
                    f"{func} cannot be measured ({reason}); its time is that of "
                    f"kernels of {self.name}",
                    stacklevel=2,
                )
                time_ms = super().runtime_ms(run, inputs, outputs)
            self.known_ms[key] = time_ms
        return self.known_ms[key]

    def _measured_ms(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        forked = [self.place] if self.place.type == "cuda" else []
        with (
            _disable_current_modes(),
            torch.no_grad(),
            torch.random.fork_rng(devices=forked),
        ):
            real_args, real_kwargs = tree_map(self._real, (args, kwargs))
            return self.clock(lambda: func(*real_args, **real_kwargs))

    def _real(self, value: Any) -> Any:
        if isinstance(value, torch.device):
            return self._place_of(value)
        if not isinstance(value, torch.Tensor):
            return value
        ends = (stride * (size - 1) for size, stride in zip(value.shape, value.stride()))
        length = 1 + sum(ends) if value.numel() else 0
        # Zeros are valid indices into every table.
        make = torch.rand if value.dtype in _RANDOM else torch.zeros
        place = self._place_of(value.device)
        storage = make(length, dtype=value.dtype, device=place)
        return storage.as_strided(value.shape, value.stride())

    def _place_of(self, device: torch.device) -> torch.device:
        return self.place if device.type == "cuda" else device


_RANDOM = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _signature(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    leaves, shape = tree_flatten((args, kwargs))
    return (
        func,
        str(shape),
        tuple(
            (leaf.shape, leaf.stride(), leaf.dtype, leaf.device.type)
            if isinstance(leaf, torch.Tensor)
            else repr(leaf)
            for leaf in leaves
        ),
    )


def measured_device() -> MeasuredDevice:
    """Returns the current CUDA device. Its rates are those of the device in DEVICES that its
    name matches, or else of an A100."""
    if not torch.cuda.is_available():
        raise AcplanError(
            "device: 'cuda' measures run-times, and PyTorch finds no CUDA device; "
            f"expected one of {', '.join(DEVICES)}"
        )
    name = torch.cuda.get_device_name()
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    fields = dataclasses.asdict(DEVICES[known_as(name)]) | {
        "name": name,
        "product": name,
        "capability": (properties.major, properties.minor),
        "multiprocessors": properties.multi_processor_count,
        "memory": properties.total_memory,
        "is_rocm": torch.version.hip is not None,
        "time_errors": None,
    }
    place = torch.device("cuda", torch.cuda.current_device())
    return MeasuredDevice(**fields, place=place)
