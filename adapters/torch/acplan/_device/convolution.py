"""A convolution's tensors and the products of its passes."""

import enum
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from acplan._device.product_times import Product, bytes_of


class Pass(enum.Enum):
    """A kernel of a convolution, by what it computes."""

    FORWARD = "forward"
    INPUT_GRADIENT = "input_gradient"
    WEIGHT_GRADIENT = "weight_gradient"


class Convolution(NamedTuple):
    input: torch.Tensor
    weight: torch.Tensor
    result: torch.Tensor
    stride: Sequence[int]
    dilation: Sequence[int]
    is_transposed: bool
    groups: int

    @classmethod
    def from_call(
        cls, input: Any, weight: Any, result: Any, rest: Sequence[Any]
    ) -> "Convolution":
        """Returns the convolution of a call. `rest`: its arguments from the stride on."""
        stride, _, dilation, is_transposed, _, groups = rest[:6]
        if is_transposed:  # its passes are those of a convolution from result to input
            input, result = result, input
        return cls(input, weight, result, stride, dilation, bool(is_transposed), int(groups))

    @property
    def channels_in(self) -> int:
        return self.input.shape[1] // self.groups

    @property
    def channels_out(self) -> int:
        return self.result.shape[1] // self.groups

    @property
    def taps(self) -> int:
        return math.prod(self.weight.shape[2:])

    @property
    def places(self) -> int:
        """The elements of a channel of the result."""
        return self.result.shape[0] * math.prod(self.result.shape[2:])

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.channels_in == self.channels_out == 1

    @property
    def is_channels_last(self) -> bool:
        return self.input.shape[1] > 1 and self.input.stride(1) == 1

    @property
    def traffic(self) -> int:
        return bytes_of(self.input) + bytes_of(self.result)

    def product(self, which: Pass) -> Product:
        """Returns the products of the unfolded input."""
        if which == Pass.INPUT_GRADIENT and self.is_transposed:
            which = Pass.FORWARD
        if which == Pass.WEIGHT_GRADIENT:
            columns = self.channels_in * self.taps
            return Product(self.groups, self.channels_out, columns, self.places)
        inner, columns = self.channels_in, self.channels_out
        if which == Pass.INPUT_GRADIENT:
            inner, columns = columns, inner
        return Product(self.groups, self.places, columns, inner * self.taps)
