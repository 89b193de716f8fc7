"""The times that predictions have by kind of kernel, for compare_gpu_truth.py and
cross_validate_gpu_truth.py."""

import collections
import contextlib
import unittest.mock
from collections.abc import Callable, Iterator, Mapping

from acplan._device import devices
from acplan._device.convolution import Convolution, Pass
from acplan._device.convolution_times import pass_seconds
from acplan._device.depthwise_times import kernel_of
from acplan._device.kernel_times import LAUNCH_SECONDS, kernel_seconds
from acplan._device.product_times import Call, Rates

Seconds = Callable[[Call, Rates], float]

_KINDS = {
    "mm": "products",
    "addmm": "products",
    "_scaled_mm": "products",
    "bmm": "batched products",
    "baddbmm": "batched products",
    "_softmax": "norms",
    "_log_softmax": "norms",
    "_softmax_backward_data": "norms",
    "_log_softmax_backward_data": "norms",
    "native_layer_norm": "norms",
    "native_layer_norm_backward": "norms",
    "_fused_rms_norm": "norms",
    "_fused_rms_norm_backward": "norms",
    "native_group_norm": "norms",
    "native_group_norm_backward": "norms",
    "sum": "sums",
    "mean": "sums",
    "_cudnn_rnn": "recurrent layers",
    "_cudnn_rnn_backward": "recurrent layers",
}


def _parts(call: Call, rates: Rates) -> Mapping[str, float]:
    """Returns the seconds of an operator without its launch, by kind of kernel."""
    seconds = kernel_seconds(call, rates) - LAUNCH_SECONDS
    name = str(call.func._overloadpacket).rpartition(".")[2]
    if name == "convolution":
        it = Convolution.from_call(*call.args[:2], call.out, call.args[3:])
        return {_kind_of_pass(it, Pass.FORWARD): seconds}
    if name == "convolution_backward":
        gradient, input, weight = call.args[:3]
        it = Convolution.from_call(input, weight, gradient, call.args[4:])
        passes = zip((Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT), call.args[10])
        parts: collections.Counter[str] = collections.Counter()
        for which, is_asked_for in passes:
            if is_asked_for:
                parts[_kind_of_pass(it, which)] += pass_seconds(it, which, call, rates)
        return {**parts, "sums": seconds - sum(parts.values())}
    if "batch_norm" in name:
        return {"batch norms": seconds}
    return {"attention" if "attention" in name else _KINDS.get(name, "traffic"): seconds}


def _kind_of_pass(it: Convolution, which: Pass) -> str:
    layout = "last" if it.is_channels_last else "first"
    if it.is_depthwise:
        return f"depthwise, channels {layout}: {kernel_of(it, which).replace('_', ' ')}"
    size = "grouped" if it.groups > 1 else "dense"
    part = "forward" if which == Pass.FORWARD else "gradients"
    return f"{size} convolutions, channels {layout}: {part}"


_seconds: collections.Counter[str] = collections.Counter()


def with_kinds(seconds: Seconds) -> Seconds:
    """Returns a function that notes the seconds of kinds of kernels, and of launches."""

    def noted_seconds(call: Call, rates: Rates) -> float:
        whole = seconds(call, rates)
        _seconds.update(parts_of(call, rates, whole))
        return whole

    return noted_seconds


def parts_of(call: Call, rates: Rates, whole: float) -> Mapping[str, float]:
    """Returns the parts of an operator that takes `whole`, of which kernels of old builds are
    what today's do not take."""
    parts = {**_parts(call, rates), "launches": LAUNCH_SECONDS}
    is_norm = "norm" in str(call.func._overloadpacket)
    old = f"{'norms' if is_norm else 'groups'} of old builds"
    return parts | {old: whole - sum(parts.values())}


@contextlib.contextmanager
def seconds_of_kinds() -> Iterator[collections.Counter[str]]:
    """Yields the seconds by kind of what is predicted meanwhile."""
    _seconds.clear()
    with unittest.mock.patch.object(devices, "kernel_seconds", with_kinds(kernel_seconds)):
        yield _seconds
