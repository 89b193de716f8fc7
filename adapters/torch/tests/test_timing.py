"""Measured run-times, with a clock of our own and CPU tensors in place of a device."""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from acplan import DEVICES, AcplanError, trace
from acplan._device.devices import known_as
from acplan._device.operator_timing import MeasuredDevice, measured_device
from acplan._step.recorder import Recorder
from zoo import EXAMPLES


@dataclasses.dataclass
class Clock:
    """The nth operator that it times takes n milliseconds."""

    results: list[Any] = dataclasses.field(default_factory=list)

    def __call__(self, call: Callable[[], Any]) -> float:
        self.results.append(call())
        return float(len(self.results))


def _device(clock: Callable[[Callable[[], Any]], float]) -> MeasuredDevice:
    roofline = dataclasses.asdict(DEVICES["a100"])
    return MeasuredDevice(**roofline, place=torch.device("cpu"), clock=clock)


def _net() -> nn.Sequential:
    layers = (nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Dropout())
    return nn.Sequential(*layers)


def test_operators_are_timed_once_for_all_of_the_same_shapes() -> None:
    clock = Clock()
    data = trace(_net(), torch.randn(2, 8), device=_device(clock)).data
    times_of = {op["name"]: [] for op in data["operators"]}
    for op in data["operators"]:
        times_of[op["name"]].append(op["runtime_ms"])
    products, activations = times_of["aten.addmm.default"], times_of["aten.relu.default"]
    assert products == [1.0, 1.0] and activations == [2.0, 2.0]
    assert not any(times_of["aten.t.default"])
    times = {ms for op in times_of.values() for ms in op if ms}
    assert times == {float(n + 1) for n in range(len(clock.results))}


def test_what_is_timed_is_the_operator_on_real_tensors() -> None:
    clock = Clock()
    trace(_net(), torch.randn(2, 8), device=_device(clock))
    product = clock.results[0]
    assert type(product) is torch.Tensor and product.shape == (2, 8)
    assert product.device.type == "cpu" and product.isfinite().all()


def test_tensors_have_the_strides_of_the_traced_ones() -> None:
    calls = []

    class Watching(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            calls.append((func, [t.stride() for t in args if hasattr(t, "stride")]))
            return func(*args, **(kwargs or {}))

    def clock(call: Callable[[], Any]) -> float:
        with Watching():
            call()
        return 1.0

    x, row = torch.empty(3, 4).t(), torch.empty(1, 3).expand(4, 3)
    with Recorder(_device(clock)):
        x + row
    assert calls == [(torch.ops.aten.add.Tensor, [(1, 4), (0, 1)])]


def test_the_random_state_is_kept() -> None:
    model = _net()
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    trace(model, torch.zeros(2, 8), device=_device(Clock()))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.filterwarnings("ignore:.*cannot be measured")
def test_what_cannot_run_has_its_predicted_time() -> None:
    def no_clock(call: Callable[[], Any]) -> float:
        raise RuntimeError("out of memory\nmore")

    x = torch.zeros(2, 8)
    with pytest.warns(
        UserWarning, match=r"addmm.*RuntimeError: out of memory\); .* kernels of"
    ):
        measured = trace(_net(), x, device=_device(no_clock)).data
    assert measured == trace(_net(), x).data


# Parts of the names of operators that only CUDA has kernels for.
_CUDA_ONLY = ("attention", "dropout", "cudnn", "rms_norm")


@pytest.mark.parametrize("name", ["gpt2", "resnet", "shared"])
def test_operators_of_models_run_alone(name: str) -> None:
    model, inputs = EXAMPLES[name]().on_meta()
    clock = Clock()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trace(model, device=_device(clock), **inputs)
    # Kernels that only CUDA has.
    messages = [str(w.message) for w in caught if "cannot be measured" in str(w.message)]
    assert all(any(kernel in text for kernel in _CUDA_ONLY) for text in messages), messages
    assert len(clock.results) > 20


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("Something Else", "a100"),
    ],
)
def test_rates_are_found_by_name(name: str, key: str) -> None:
    assert known_as(name) == key


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_no_device_is_told() -> None:
    with pytest.raises(AcplanError, match="finds no CUDA device; expected one of"):
        measured_device()
    with pytest.raises(AcplanError, match="finds no CUDA device"):
        trace(_net(), torch.zeros(2, 8), device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_devices_are_measured() -> None:
    with torch.device("cuda"):
        model, x = nn.Linear(4096, 4096), torch.randn(4096, 4096)
    data = trace(model, x, device="cuda").data
    product = next(op for op in data["operators"] if "addmm" in op["name"])
    assert product["runtime_ms"] > 0
