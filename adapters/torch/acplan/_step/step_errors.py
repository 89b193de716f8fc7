"""Exceptions of PyTorch in a traced step, reported with the user's line.

An exception that the model, its loss or a library raises passes unchanged. An exception that
PyTorch raises about an operator, or acplan about a tensor of its own, says nothing of the
model: it becomes an AcplanError, chained from it, with the innermost line outside of both.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from types import TracebackType

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)

from acplan._base.errors import AcplanError
from acplan._base.package import FOLDER
from acplan._base.source_lines import file_of

# Exceptions with lines of their own, or without a fault.
_PASSED_BY = (AcplanError, DataDependentOutputException, DynamicOutputShapeException)
_OF_ACPLAN = os.path.join(FOLDER, "")
_OF_TORCH = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
_STEP_FILE = os.path.join(_OF_ACPLAN, "_step/step.py")
_MOST_CHARACTERS = 300

# A pattern of messages about shapes.
OF_SHAPES = "cannot be multiplied|reduction dim|shape|size of tensor|broadcast"
# The attribute of an exception that says what to do about it.
WAY_OUT = "_acplan_way_out"

_NO_FORM = (
    "the operator has no form for tensors without data: register one with "
    "torch.library.register_fake"
)
# Patterns of messages, and what to do about them.
_WAYS_OUT = (
    (
        "same device",
        "a tensor that is not an input, a parameter or a buffer stays on its device: "
        "register it as a buffer, make it on the device of another tensor, or give it as an "
        "input",
    ),
    (
        "sparse",
        "sparse tensors of this form have no memory that a trace can count: use dense "
        "ones there",
    ),
    (
        "modified by an inplace operation",
        "write x = x + y if x += y changes a tensor that backward needs",
    ),
    (
        "does not require grad and does not have a grad_fn",
        "the loss depends on no parameter that requires a gradient: give a loss_fn, or "
        "unfreeze some",
    ),
    ("dtype", "give `autocast` as in the training loop, or cast the tensor"),
    (
        OF_SHAPES,
        "give inputs of the shapes that the model is trained with",
    ),
    ("meta|fake", _NO_FORM),
)
# The part of the step, by the function that calls the operator.
_PASSES = {
    "run_step": "in the backward pass",
    "run": "in the backward pass",
    "run_earlier": "in the backward pass",
    "loss": "in the forward pass",
    "loss_of": "in the forward pass",
    "update": "in the update",
}
_WAY_OUT = "run the step without acplan: if it fails too, fix it; otherwise report this line"


class StepError(AcplanError):
    """An error of PyTorch's at an operator of the step."""


@contextlib.contextmanager
def told_with_line() -> Iterator[None]:
    try:
        yield
    except _PASSED_BY:
        raise
    except Exception as error:
        place = _place_of(error)
        if place is None:
            raise
        raise StepError(_text(error, place)) from error


def _place_of(error: Exception) -> str | None:
    """Returns the place of the step: a line of the user, or one of the step's passes. Returns
    None if the error is the user's own, or not of a step."""
    place, is_of_others = "", True
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        path = os.path.abspath(code.co_filename)
        if path.startswith(_OF_ACPLAN):
            is_of_others = True
            if path == _STEP_FILE and code.co_name in _PASSES:
                place = _PASSES[code.co_name]
        elif path.startswith(_OF_TORCH):
            is_of_others = True
        elif place and (file := file_of(code.co_filename)):
            place = f"at {file}:{traceback.tb_lineno}"
            is_of_others = False
        traceback = traceback.tb_next
    return place if place and is_of_others else None


def _text(error: Exception, place: str) -> str:
    said = " ".join(str(error).split())
    if len(said) > _MOST_CHARACTERS:
        said = said[:_MOST_CHARACTERS] + " ..."
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    ways = (way for part, way in _WAYS_OUT if re.search(part, what, re.IGNORECASE))
    way = getattr(error, WAY_OUT, None) or next(ways, _WAY_OUT)
    return f"{what} ({place} of the traced step); {way}"
