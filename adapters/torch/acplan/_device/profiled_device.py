"""A device whose operators take what a profile of torch.profiler measured.

A kernel belongs to the operator that launched it and to all operators around that one: a
profile has `aten::convolution` around `aten::cudnn_convolution`, of which a trace has the
former. Operators are matched by name, and by shapes and types of their tensors, in order.
"""

import collections
import dataclasses
import gzip
import json
import math
import os
import statistics
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from acplan._base.errors import AcplanError
from acplan._base.tensors import tensors_of
from acplan._device.devices import Device, OperatorRun, find_device

Key = tuple[str, tuple[tuple[tuple[int, ...], str], ...]]

# The names of types in profiles.
_TYPES: Mapping[torch.dtype, str] = {
    torch.float64: "double",
    torch.float32: "float",
    torch.float16: "c10::Half",
    torch.bfloat16: "c10::BFloat16",
    torch.int64: "long int",
    torch.int32: "int",
    torch.uint8: "unsigned char",
    torch.int8: "signed char",
    torch.bool: "bool",
}
_OTHER_NAMES = {"long": "long int"}


@dataclasses.dataclass(frozen=True)
class ProfiledDevice(Device):
    """A device that knows what operators took; others take what `Device` predicts."""

    measured_ms: Mapping[Key, float] = dataclasses.field(default_factory=dict)

    def runtime_ms(
        self,
        run: OperatorRun,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> float:
        name = str(run.func._overloadpacket).replace(".", "::")
        ms = self.measured_ms.get((name, _shapes(tensors_of(run.args, run.kwargs))))
        return super().runtime_ms(run, inputs, outputs) if ms is None else ms


def profiled_device(device: str | Device, path: str | os.PathLike[str]) -> ProfiledDevice:
    """Returns `device` with the times of operators that a profile measured.

    device: the GPU on which the profile was made, or the one most like it.
    path:   a file that torch.profiler's `export_chrome_trace` wrote, compressed or not, of one
            or more steps, with `record_shapes=True` and the activities CPU and CUDA.

    An operator that ran several times takes the median. Raises AcplanError for a file that is
    no such profile.
    """
    base = find_device(device)
    profile = _read(path)
    measured = _operator_times(profile.events)
    if not measured:
        raise AcplanError(
            f"{path}: found no kernel of an operator with shapes; expected a profile with the "
            "activities CPU and CUDA and record_shapes=True"
        )
    made_on = next((str(p["name"]) for p in profile.properties if "name" in p), None)
    if made_on is not None and _is_another(made_on, base):
        warnings.warn(f"{path} was measured on {made_on}, not on {base.product}", stacklevel=2)
    fields = {field.name: getattr(base, field.name) for field in dataclasses.fields(Device)}
    return ProfiledDevice(**fields | {"time_errors": None}, measured_ms=measured)


def _is_another(name: str, device: Device) -> bool:
    plain = name.lower().replace(" ", "").replace("-", "")
    return not any(part in plain for part in device.name.split("-"))


class _Profile(NamedTuple):
    events: list[dict[str, Any]]
    properties: list[dict[str, Any]]


def _read(path: str | os.PathLike[str]) -> _Profile:
    try:
        with open(path, "rb") as file:
            text = file.read()
        if text[:2] == b"\x1f\x8b":
            text = gzip.decompress(text)
        data = json.loads(text, strict=False)
    except (OSError, EOFError, ValueError) as error:
        raise AcplanError(f"{path}: {error}; expected a profile of torch.profiler") from None
    entries = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(entries, list):
        raise AcplanError(f"{path}: found no traceEvents; expected a profile of torch.profiler")
    properties = data.get("deviceProperties") if isinstance(data, dict) else None
    return _Profile(
        [event for event in entries if isinstance(event, dict)],
        [p for p in properties if isinstance(p, dict)] if isinstance(properties, list) else [],
    )


class _Call(NamedTuple):
    """An operator on the host, or the launch of a kernel, and the time of its own kernels."""

    begin: float
    end: float
    key: Key | None
    ms: float


def _operator_times(events: Sequence[dict[str, Any]]) -> dict[Key, float]:
    threads = collections.defaultdict(list)
    for thread, call in _calls(events):
        threads[thread].append(call)
    times = collections.defaultdict(list)
    for calls in threads.values():
        for key, ms in _times_of_a_thread(calls):
            times[key].append(ms)
    return {key: statistics.median(each) for key, each in times.items()}


def _calls(events: Sequence[dict[str, Any]]) -> Iterator[tuple[Any, _Call]]:
    """Yields what threads of the host did. A kernel's time is that of its launch if the profile
    has it, otherwise of the operator with its number."""
    timed = [e for e in events if _is_number(e.get("dur")) and isinstance(e.get("args"), dict)]
    kernels = [e for e in timed if str(e.get("cat")).lower() in _KERNELS]
    launched: dict[Any, float] = collections.defaultdict(float)
    for event in kernels:
        launched[event["args"].get("correlation")] += event["dur"] / 1e3
    hosts = [e for e in timed if _is_number(e.get("ts"))]
    launches = [e for e in hosts if str(e.get("cat")).lower() in _LAUNCHES]
    with_launch = {e["args"].get("correlation") for e in launches}
    by_number: dict[Any, float] = collections.defaultdict(float)
    for event in kernels:
        if event["args"].get("correlation") not in with_launch:
            by_number[event["args"].get("External id")] += event["dur"] / 1e3
    for event in hosts:
        thread, end = (event.get("pid"), event.get("tid")), event["ts"] + event["dur"]
        kind, arguments = str(event.get("cat")).lower(), event["args"]
        if kind in _LAUNCHES:
            ms = launched.get(arguments.get("correlation"), 0.0)
            yield thread, _Call(event["ts"], end, None, ms)
        elif kind in _OPERATORS:
            ms = by_number.get(arguments.get("External id"), 0.0)
            yield thread, _Call(event["ts"], end, _key(event, arguments), ms)


_KERNELS = ("kernel", "gpu_memset", "gpu_memcpy")
_LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime")
_OPERATORS = ("cpu_op", "operator")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _times_of_a_thread(calls: list[_Call]) -> list[tuple[Key, float]]:
    """Returns each operator that launched kernels, itself or inside of it, and their time."""
    calls.sort(key=lambda call: (call.begin, -call.end))
    parents: list[int] = []
    stack: list[int] = []
    for index, call in enumerate(calls):
        while stack and calls[stack[-1]].end <= call.begin:
            stack.pop()
        parents.append(stack[-1] if stack else -1)
        stack.append(index)
    total = [call.ms for call in calls]
    for index in reversed(range(len(calls))):
        if parents[index] >= 0:
            total[parents[index]] += total[index]
    return [(call.key, ms) for call, ms in zip(calls, total) if call.key is not None and ms]


def _key(event: dict[str, Any], arguments: dict[str, Any]) -> Key | None:
    dims, types = arguments.get("Input Dims"), arguments.get("Input type")
    name = event.get("name")
    if not isinstance(dims, list) or not isinstance(types, list) or not isinstance(name, str):
        return None
    shapes: list[tuple[tuple[int, ...], str]] = []
    for shape, kind in zip(dims, types):
        if isinstance(shape, list) and shape and all(isinstance(size, int) for size in shape):
            shapes.append((tuple(shape), _OTHER_NAMES.get(kind, str(kind))))
        elif isinstance(shape, list) and any(isinstance(one, list) for one in shape):
            shapes += [(tuple(one), "") for one in shape if one]
    return name, tuple(shapes)


def _shapes(tensors: Sequence[torch.Tensor]) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Returns shapes and types of tensors, without those that have no dimensions, which a
    profile does not tell from numbers."""
    return tuple((tuple(t.shape), _TYPES.get(t.dtype, "")) for t in tensors if t.dim())
