"""Which kernels depthwise convolutions have, and what they take."""

from typing import Any

import pytest
import torch

from acplan import DEVICES, Device
from acplan._device.convolution import Convolution, Pass
from acplan._device.depthwise_times import kernel_of
from acplan._device.devices import OperatorRun

aten = torch.ops.aten
RTX3090 = DEVICES["rtx3090"]


def _convolution(
    images: int = 128,
    channels: int = 64,
    width: int = 28,
    side: int = 3,
    stride: int = 1,
    dilation: int = 1,
    dtype: torch.dtype = torch.float16,
    is_channels_last: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[Any]]:
    """Returns input, weight, result and the arguments after them."""
    image = torch.empty(images, channels, width, width, dtype=dtype, device="meta")
    if is_channels_last:
        image = image.to(memory_format=torch.channels_last)
    weight = torch.empty(channels, 1, side, side, dtype=dtype, device="meta")
    padding = dilation * (side // 2)
    rest = [[stride] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], channels]
    return image, weight, aten.convolution(image, weight, None, *rest), rest


def _kernels(**settings: Any) -> set[str]:
    image, weight, result, rest = _convolution(**settings)
    it = Convolution.from_call(image, weight, result, rest)
    return {kernel_of(it, which) for which in Pass}


# The conditions of `use_cudnn_depthwise` in PyTorch's aten/src/ATen/native/Convolution.cpp.
@pytest.mark.parametrize(
    ("settings", "is_by_cudnn"),
    [
        ({}, True),
        ({"dtype": torch.float32}, False),
        ({"dtype": torch.bfloat16}, False),
        ({"dtype": torch.bfloat16, "is_channels_last": True}, True),
        ({"channels": 31}, False),
        ({"side": 5}, True),
        ({"side": 7}, False),
        ({"side": 7, "is_channels_last": True}, True),
        ({"dilation": 2}, False),
        ({"width": 6}, False),
        ({"stride": 2}, False),
        ({"stride": 2, "channels": 256}, True),
        ({"stride": 2, "channels": 256, "width": 27}, False),
        ({"stride": 2, "channels": 512, "width": 7}, True),
        ({"stride": 2, "images": 1}, True),
        ({"stride": 2, "side": 1, "images": 16, "channels": 128, "width": 7}, True),
        ({"stride": 2, "side": 1, "images": 17, "channels": 128, "width": 7}, False),
        ({"stride": 3, "channels": 512}, False),
    ],
)
def test_pytorch_chooses_between_its_own_kernels_and_those_of_cudnn(
    settings: dict[str, Any], is_by_cudnn: bool
) -> None:
    kernels = _kernels(**settings)
    assert all(name.startswith("cudnn" if is_by_cudnn else "own") for name in kernels)


def test_a_sequence_has_a_kernel_of_cudnn_without_a_stride() -> None:
    sequence = torch.empty(8, 64, 512, dtype=torch.float16, device="meta")
    weight = torch.empty(64, 1, 4, dtype=torch.float16, device="meta")
    for stride, kernel in ((1, "cudnn"), (2, "own")):
        rest = [[stride], [3], [1], False, [0], 64]
        result = aten.convolution(sequence, weight, None, *rest)
        it = Convolution.from_call(sequence, weight, result, rest)
        assert kernel_of(it, Pass.FORWARD) == kernel


def test_a_strided_gradient_is_slow_with_channels_last() -> None:
    assert "cudnn_strided" in _kernels(is_channels_last=True, stride=2)
    assert "cudnn_strided" in _kernels(is_channels_last=True, stride=2, side=5)
    assert "cudnn_wide_strided" in _kernels(is_channels_last=True, stride=2, side=7)
    assert _kernels(is_channels_last=True) == {"cudnn"}


def _backward_ms(
    device: Device,
    is_part: bool = False,
    mask: tuple[bool, bool] = (True, True),
    **settings: Any,
) -> float:
    image, weight, result, rest = _convolution(**settings)
    if is_part:
        image = torch.cat([image, image], 1)[:, : image.shape[1]]
    mask_of_all = [*mask, False]
    args = (torch.empty_like(result), image, weight, None, *rest, mask_of_all)
    out = aten.convolution_backward(*args)
    read = [t for t in args if isinstance(t, torch.Tensor)]
    results = [t for t in out if isinstance(t, torch.Tensor)]
    run = OperatorRun(aten.convolution_backward.default, args, {}, out)
    return device.runtime_ms(run, read, results)


def test_gradients_of_few_weights_leave_multiprocessors_idle() -> None:
    settings: dict[str, Any] = {"dtype": torch.float32, "mask": (False, True), "width": 112}
    few, more, many = (
        _backward_ms(RTX3090, channels=channels, **settings) for channels in (16, 64, 256)
    )
    assert few == pytest.approx(more)
    assert many > 3 * more


def test_parts_of_channels_are_copied_first() -> None:
    whole = _backward_ms(RTX3090, is_channels_last=True)
    part = _backward_ms(RTX3090, is_channels_last=True, is_part=True)
    image = 128 * 64 * 28 * 28 * 2
    assert part - whole == pytest.approx(2e3 * image / RTX3090.memory_rate)


def test_wide_weights_take_the_time_of_their_taps() -> None:
    settings: dict[str, Any] = {"is_channels_last": True, "channels": 256}
    narrow, wide = (_backward_ms(RTX3090, side=side, **settings) for side in (3, 31))
    assert wide > 5 * narrow
