"""Follows the unknown numbers of a traced step to where they go.

A loss goes into logs, sums, averages and texts, and decides nothing there. So `.item()` of a
tensor whose value is unknown gives a number that stands for any finite one: arithmetic,
`round`, `math`, `max` and formatting of it give such numbers, or text, again; in an operator it
is a number like any other, and the result is unknown. PyTorch accepts them in place of the
symbolic numbers from which they derive. Only if one is to decide what runs, by its truth, as a
size or an index, the step ends with an error that names the line, unless `branches` has the
answer.

Python's own `float(x)`, `int(x)`, `bool(x)`, `max(x, y)`, and functions of `math` that a module
has imported by name, return plain numbers for all arguments. So a module that calls one of them
with an unknown number gets another function by that name until the end of the trace, and the
step begins anew.

A number that remains at the end, in a list of the user's for example, is NaN, or 0.
"""

import builtins
import contextlib
import json
import math
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor

from acplan._base.patching import set_attribute
from acplan._base.stand_ins import StandIn
from acplan._fakes.branches import answer_of, asker, is_formatting, line_of

# The plain number that is written for an unknown number, by its class.
PLAIN: dict[type, Any] = {float: math.nan, int: 0, bool: False}
# Modules that only write numbers down.
_WRITERS = ("google.protobuf", "tensorboard", "tensorboardX", "wandb", "mlflow", "logging")


class UnknownValue(DataDependentOutputException):
    """An unknown value would decide what the step runs."""

    def __init__(self, what: str, line: str) -> None:
        super().__init__(torch.ops.aten._local_scalar_dense.default)
        self.what = what
        self.line = line

    def __str__(self) -> str:
        return f"{self.what} at {self.line}" if self.line else self.what


class BegunAnew(BaseException):
    """The step has to run again from its beginning."""


class Following:
    """The state of following a step's unknown numbers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.first_error: UnknownValue | None = None
        self.has_numbers = False
        # While a tensor gives its number to number_functions.py: true if the number is unknown,
        # else false; None otherwise. And whether the operator that gives the number has run: a
        # recomputation returns the number that forward saw, without that operator.
        self.is_taken: bool | None = None
        self.is_reached = False
        # The places at which a number was unknown, by code and instruction.
        self._places: set[tuple[CodeType, int]] = set()
        # True while a tensor is made of an unknown number.
        self.makes_tensor = False
        self.can_begin_anew = True
        self.is_suspended = False
        self.are_arrays_known = False
        self._put_back = contextlib.ExitStack()
        self._are_functions_replaced = self._are_types_known = False

    def begin(self) -> None:
        """Resets the state: the step runs for the first time, or again from its beginning."""
        self.notes.clear()
        self.first_error = None
        self.has_numbers = self.makes_tensor = self.is_suspended = False
        self.can_begin_anew = True

    def require_none_failed(self) -> None:
        if self.first_error is not None:
            raise self.first_error

    def was_unknown(self) -> bool:
        """Returns whether the number that was just taken is unknown."""
        if self.is_reached and not self.is_taken:
            return False
        frame = asker()
        place = (frame.f_code, frame.f_lasti)
        if self.is_taken:
            self._places.add(place)
        return place in self._places

    def close(self) -> None:
        self._put_back.close()

    def fail(self, what: str, frame: FrameType | None = None) -> UnknownValue:
        error = UnknownValue(what, line_of(frame or asker()))
        # The user's code may catch the error; there is no trace all the same.
        self.first_error = self.first_error or error
        return error

    def truth(self, is_value: bool = False) -> bool:
        """Returns the answer to the frame that asks, or raises an error if there is none."""
        frame = asker()
        answer = answer_of(frame, is_value)
        if answer is None:
            if not is_value and self._replaces_in(frame):
                raise BegunAnew
            raise self.fail("the truth of a value", frame)
        note = f"a check of values is assumed to pass: {line_of(frame)}"
        if note not in self.notes:
            self.notes.append(note)
        return answer

    def plain(self, kind: type) -> Any:
        """Returns a plain number if the code in C that asks for it only writes it, else raises
        an error."""
        frame = asker()
        name = f"{frame.f_globals.get('__name__', '')}."
        if is_formatting(frame) or name.startswith(tuple(f"{w}." for w in _WRITERS)):
            return PLAIN[kind]
        if self._replaces_in(frame):
            raise BegunAnew
        raise self.fail(f"a value as a plain {kind.__name__}", frame)

    def replace_functions(self) -> None:
        """Lets modules of Python follow unknown numbers, from the first such number on."""
        if self._are_functions_replaced:
            return
        from acplan._fakes.number_functions import STAND_INS, picked
        from acplan._fakes.unknown_numbers import Number

        self._are_functions_replaced = True
        for name, value in list(vars(math).items()):
            if callable(value) and value in STAND_INS:
                self.replace(math, name, STAND_INS[value])
        default = json.JSONEncoder.default

        def plain_or_default(encoder: json.JSONEncoder, thing: Any) -> Any:
            number = PLAIN[thing.kind] if isinstance(thing, Number) else None
            return default(encoder, thing) if number is None else number

        self.replace(json.JSONEncoder, "default", plain_or_default)
        for cls in (FakeTensor, StandIn):
            self.replace(cls, "__getitem__", picked)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Replaces an attribute until the end of the trace."""
        patch = set_attribute(owner, name, value, create=True)
        self._put_back.enter_context(patch)

    def _replaces_in(self, frame: FrameType) -> bool:
        """Replaces functions that a frame's code names by functions that follow numbers.
        Returns whether there were any."""
        if not self.can_begin_anew:
            return False
        from acplan._fakes.number_functions import STAND_INS, knows_types

        names = frame.f_globals
        is_new = not self._are_functions_replaced
        self.replace_functions()
        for name in frame.f_code.co_names:
            value = names.get(name, vars(builtins).get(name))
            with contextlib.suppress(TypeError):  # not hashable
                # A class that stands for another one is equal to it.
                if value in STAND_INS and value is not STAND_INS[value]:
                    self._put_back.callback(_set_or_remove, names, name, names.get(name, _NONE))
                    names[name] = STAND_INS[value]
                    is_new = True
                    if isinstance(value, type):
                        self._know_types(knows_types)
        return is_new

    def _know_types(self, knows_types: Callable[[Any], Any]) -> None:
        """Lets functions of PyTorch accept the class that stands for `float`, say, as a data
        type."""
        if self._are_types_known:
            return
        self._are_types_known = True
        for name in ("to", "type", *_OF_TYPES, *(f"new_{maker}" for maker in _MAKERS)):
            self.replace(FakeTensor, name, knows_types(getattr(torch.Tensor, name)))
        likes = (f"{maker}_like" for maker in _MAKERS)
        for name in (*_MAKERS, *likes, *_OF_TYPES, "tensor", "as_tensor", "arange"):
            self.replace(torch, name, knows_types(getattr(torch, name)))


_NONE = object()
# Functions that take a data type.
_MAKERS = ("zeros", "ones", "full", "empty")
_OF_TYPES = ("sum", "mean", "prod", "cumsum", "softmax", "log_softmax")


def _set_or_remove(names: dict[str, Any], name: str, value: Any) -> None:
    if value is _NONE:
        names.pop(name, None)
    else:
        names[name] = value


# The session of the one step that is traced (`step.alone`).
_now: Following | None = None


def followed() -> Following | None:
    """Returns the session that follows the numbers of the current step, or None."""
    return None if _now is None or _now.is_suspended else _now


def set_followed(session: Following | None) -> Following | None:
    """Lets a session follow the step from here on. Returns the session before."""
    global _now
    before, _now = _now, session
    return before


def is_followed_by(session: Following | None) -> bool:
    """Returns whether the current step is the session's."""
    return session is _now


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Suspends following within the block, so that others answer for unknown numbers."""
    session = followed()
    if session is None:
        yield
        return
    session.is_suspended = True
    try:
        yield
    finally:
        session.is_suspended = False


def session_now() -> Following:
    session = followed()
    assert session is not None
    return session
