"""FLOPs of operators beside counts of their products."""

import pytest
import torch

from acplan._device.devices import flops_of

aten = torch.ops.aten


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("mask", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2)])
def test_gradients_of_a_convolution(
    groups: int, transposed: bool, mask: tuple[bool, bool], stride: int, dilation: int
) -> None:
    input = torch.ones(2, 6, 9, 7)
    weight = torch.ones((6, 12 // groups, 3, 2) if transposed else (12, 6 // groups, 3, 2))
    places = [stride, stride], [0, 0], [dilation, dilation], transposed, [0, 0], groups
    gradient = torch.ones_like(aten.convolution(input, weight, None, *places))
    args = (gradient, input, weight, [12], *places, (*mask, False))
    out = aten.convolution_backward(*args)
    # All factors are ones: an element of a gradient is the number of its products.
    products = sum(float(out[k].sum()) for k in range(2) if mask[k])
    assert flops_of(aten.convolution_backward.default, args, {}, out) == 2 * products
