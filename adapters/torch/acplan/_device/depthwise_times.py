"""The times of depthwise convolutions on a GPU (see `kernel_times`).

A depthwise convolution has too few products for matrix units. Its kernels stream, or take the
time of their taps, the products of an element of the image with one of the weight. PyTorch's
`use_cudnn_depthwise` chooses between its own kernels and cuDNN's: cuDNN's for channels last,
and in float16 for shapes that were measured to be faster.

- PyTorch's own kernels (DepthwiseConv2d.cu) have a thread for each element of the result or of
  the input's gradient, which visits all taps, also those that a stride leaves out. The gradient
  of weights has a block of threads for each element of the weight, which reads that channel of
  all images: few channels leave multiprocessors idle. For example, 3 x 3 weights of 16 channels
  have 144 blocks, on a GPU with room for 656.
- cuDNN's kernels stream but for two. The gradient of weights is slower with channels first, and
  so is the input's gradient with channels last if there is a stride: as an element for sides up
  to 5, as a tap for wider ones, for which cuDNN has no kernels of their own.

Parts of an image's channels, as models have them that give each part a side of its own, are
copied before the forward pass and before the gradients.
"""

import torch

from acplan._device.convolution import Convolution, Pass
from acplan._device.gpu_table import kernel_figure
from acplan._device.product_times import Rates, bytes_of

# These two are rates of one multiprocessor, in a second.
_TAPS: dict[str, float] = kernel_figure("depthwise_taps")
_STRIDED_ELEMENTS: float = kernel_figure("depthwise_strided_elements")
# A multiprocessor runs this many blocks of threads at a time.
_BLOCKS: int = kernel_figure("depthwise_blocks")
# cuDNN has kernels of its own for weights up to this width.
_WIDEST_SIDE = 5


def depthwise_seconds(it: Convolution, which: Pass, rates: Rates) -> float:
    """Returns the seconds of a pass. Copies before the gradients count for the weights'."""
    is_of_input = which == Pass.INPUT_GRADIENT
    elements = it.input.numel() if is_of_input else it.result.numel()
    compute = elements * _seconds_of_an_element(it, which, rates)
    copied = 0 if is_of_input else _copied_bytes(it)
    return max(it.traffic / rates.memory_rate, compute) + copied / rates.memory_rate


def _seconds_of_an_element(it: Convolution, which: Pass, rates: Rates) -> float:
    kernel = kernel_of(it, which)
    if kernel == "cudnn_strided":
        return 1 / (_STRIDED_ELEMENTS * rates.multiprocessors)
    busy = float(rates.multiprocessors)
    if kernel == "own_weight_gradient":
        busy = min(busy, it.weight.numel() / _BLOCKS)
    return it.taps / (_TAPS[kernel] * busy)


def kernel_of(it: Convolution, which: Pass) -> str:
    """Returns the kernel of a pass, by the name of its figure."""
    is_of_weight = which == Pass.WEIGHT_GRADIENT
    if not _is_by_cudnn(it):
        return "own_weight_gradient" if is_of_weight else "own"
    if is_of_weight and not it.is_channels_last:
        return "cudnn_weight_gradient"
    if which == Pass.INPUT_GRADIENT and it.is_channels_last and max(it.stride) > 1:
        is_wide = max(it.weight.shape[2:]) > _WIDEST_SIDE
        return "cudnn_wide_strided" if is_wide else "cudnn_strided"
    return "cudnn"


def _copied_bytes(it: Convolution) -> int:
    return sum(
        bytes_of(tensor) + tensor.numel() * tensor.element_size()
        for tensor in (it.input, it.result)
        if not (tensor.is_contiguous() or tensor.movedim(1, -1).is_contiguous())
    )


def _is_by_cudnn(it: Convolution) -> bool:
    """Returns what `use_cudnn_depthwise` of aten/src/ATen/native/Convolution.cpp does."""
    if it.is_channels_last or it.is_transposed:
        return True
    is_flat = it.input.dim() == 3 or it.input.shape[2] == 1
    return (
        it.input.dtype == torch.float16
        and it.input.dim() <= 4
        and it.input.shape[1] >= 32
        and max(it.dilation) == 1
        and (is_flat or min(it.stride) == max(it.stride))
        and _is_faster_by_cudnn(it, is_flat)
    )


def _is_faster_by_cudnn(it: Convolution, is_flat: bool) -> bool:
    side, width = it.weight.shape[-1], it.input.shape[-1]
    if is_flat:
        return it.stride[-1] == 1
    if it.weight.shape[-2] != side or side not in (1, 3, 5) or width < 7:
        return False
    if it.stride[0] != 2:
        return it.stride[0] == 1
    images, channels = it.input.shape[:2]
    if side > 1:
        return images == 1 or channels >= 512 or (channels >= 256 and width >= 28)
    if images == 1:
        return width <= 28
    return images <= 16 and channels >= 128 and width <= 7
