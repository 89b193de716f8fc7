"""Exceptions in a traced step: PyTorch's with the user's line, the user's as they are."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import acplan
from acplan import AcplanError


class _Net(nn.Module):
    def __init__(self, then: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.then = then

    def forward(self, x: torch.Tensor) -> Any:
        return self.then(self.linear(x))


def _trace(then: Callable[[torch.Tensor], Any], **options: Any) -> None:
    acplan.trace(_Net(then), torch.ones(2, 4), workspaces=False, **options)


_ON_CPU = torch.ones(2, 4)


def _on_two_devices(x: torch.Tensor) -> torch.Tensor:
    return x + _ON_CPU


def _of_wrong_shape(x: torch.Tensor) -> torch.Tensor:
    return x @ torch.ones(3, 3, device=x.device)


@torch.library.custom_op("acplan_tests::without_a_form", mutates_args=())
def _without_a_form(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def _of_wrong_class(x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = nn.functional.cross_entropy(x, "label")  # type: ignore[arg-type]
    return loss


class _FailsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient[:1]


@pytest.mark.parametrize(
    ("then", "place", "said"),
    [
        (_on_two_devices, "an operator has a tensor on the CPU", "keep it in a buffer"),
        (_of_wrong_shape, r"test_trace_errors.py:\d+ ", "inputs of the shapes"),
        (_without_a_form, r"test_trace_errors.py:\d+ ", "torch.library.register_fake"),
        (_of_wrong_class, r"test_trace_errors.py:\d+ ", "run the step without acplan"),
        (_FailsInBackward.apply, "in the backward pass", "_FailsInBackward"),
    ],
)
def test_what_pytorch_raises_has_the_line_of_the_user(then: Any, place: str, said: str) -> None:
    with pytest.raises(AcplanError, match=place) as raised:
        _trace(then)
    text = str(raised.value)
    assert said in text and "\n" not in text
    assert raised.value.__cause__ is not None
    if then is not _on_two_devices:
        assert type(raised.value.__cause__).__name__ in text


def _raises_itself(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("mine")


def _raises_in_a_library(x: torch.Tensor) -> Any:
    return json.loads("{")


def _raises_without_a_frame(x: torch.Tensor) -> Any:
    return {"loss": x}["los"]


@pytest.mark.parametrize(
    ("then", "kind"),
    [
        (_raises_itself, ValueError),
        (_raises_in_a_library, json.JSONDecodeError),
        (_raises_without_a_frame, KeyError),
    ],
)
def test_what_the_user_raises_passes_as_it_is(then: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind) as raised:
        _trace(then)
    assert type(raised.value) is kind


def test_the_line_is_that_of_the_loss_as_well() -> None:
    with pytest.raises(AcplanError, match=re.escape("test_trace_errors.py:")):
        _trace(lambda x: x, loss_fn=_of_wrong_shape)
