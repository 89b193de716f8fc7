"""Functions that give numbers, and take them, while unknown ones are followed: methods of
tensors, Python's own functions, and those of `math`."""

import contextlib
import functools
import itertools
import math
import numbers
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from acplan._base.patching import set_attribute
from acplan._base.stand_ins import StandIn
from acplan._fakes.followed_numbers import Following, followed, session_now, set_followed
from acplan._fakes.unknown_numbers import Number, UnknownInt, joined, kind_of, kinds_of, unknown


@contextlib.contextmanager
def following(session: Following) -> Iterator[None]:
    """Follows unknown numbers within the block."""
    before = set_followed(session)
    methods = {
        "item": _item,
        "__float__": _float_of,
        "__int__": _int_of,
        "__index__": _index_of,
        "__bool__": _bool_of,
        "is_nonzero": _bool_of,
    }
    functions: list[tuple[Any, str]] = [(FakeTensor, "equal"), (FakeTensor, "allclose")]
    functions += [(torch, "equal"), (torch, "allclose")]
    try:
        with contextlib.ExitStack() as stack:
            for cls, name in itertools.product((FakeTensor, StandIn), methods):
                patch = set_attribute(cls, name, methods[name], create=True)
                stack.enter_context(patch)
            for owner, name in functions:
                compared = _compares(getattr(owner, name))
                patch = set_attribute(owner, name, compared, create=True)
                stack.enter_context(patch)
            yield
    finally:
        set_followed(before)


def _take_number(tensor: torch.Tensor, take: Callable[[Any], Any]) -> tuple[Any, bool]:
    """Returns the number of a tensor of one element, and whether the number is unknown."""
    session = followed()
    if session is None or not isinstance(tensor, torch.Tensor) or tensor.is_complex():
        return take(tensor), False
    session.is_taken = session.is_reached = False
    try:
        plain = take(tensor)
        return plain, session.was_unknown()
    finally:
        session.is_taken = None


def _item(tensor: torch.Tensor) -> Any:
    plain, is_unknown = _take_number(tensor, torch.Tensor.item)
    return unknown(kind_of(tensor)) if is_unknown else plain


def _float_of(tensor: torch.Tensor) -> float:
    plain, is_unknown = _take_number(tensor, torch.Tensor.__float__)
    return float(session_now().plain(float)) if is_unknown else plain


def _int_of(tensor: torch.Tensor) -> int:
    plain, is_unknown = _take_number(tensor, torch.Tensor.__int__)
    return int(session_now().plain(int)) if is_unknown else plain


def _index_of(tensor: torch.Tensor) -> int:
    plain, is_unknown = _take_number(tensor, torch.Tensor.__index__)
    return unknown(int).__index__() if is_unknown else plain


def _bool_of(tensor: torch.Tensor) -> bool:
    plain, is_unknown = _take_number(tensor, torch.Tensor.__bool__)
    return session_now().truth() if is_unknown else plain


def picked(tensor: torch.Tensor, index: Any) -> Any:
    """Returns an element of a tensor. If no element has a value, an unknown index is taken to
    be 0: any element will do."""
    parts = index if isinstance(index, tuple) else (index,)
    is_unknown = any(type(part) is UnknownInt for part in parts)
    if is_unknown and followed() is not None and "_acplan_value" not in vars(tensor):
        plain = tuple(0 if type(part) is UnknownInt else part for part in parts)
        index = plain if isinstance(index, tuple) else plain[0]
    return torch.Tensor.__getitem__(tensor, index)


def _compares(function: Callable[..., bool]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*tensors: Any, **kwargs: Any) -> Any:
        plain, is_unknown = _take_number(
            tensors[0], lambda first: function(first, *tensors[1:], **kwargs)
        )
        return unknown(bool) if is_unknown else plain

    return call


def _number_of(value: Any) -> Any:
    """Returns a tensor of one element as a number, which may be unknown, and any other argument
    of Python's own functions unchanged."""
    if isinstance(value, (FakeTensor, StandIn)) and value.numel() == 1:
        return value.item()
    return value


def _any_unknown(values: Any) -> bool:
    return any(
        isinstance(value, Number) or isinstance(value, (list, tuple)) and _any_unknown(value)
        for value in values
    )


def _follows(function: Callable[..., Any], result: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that returns `result` of its arguments if one is unknown, and else
    calls `function`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if followed() is None:
            return function(*args, **kwargs)
        values = [_number_of(value) for value in args]
        if len(values) == 1 and not isinstance(values[0], (str, numbers.Number, torch.Tensor)):
            with contextlib.suppress(TypeError):
                values[0] = list(values[0])
        if not _any_unknown((*values, *kwargs.values())):
            return function(*values, **kwargs)
        return result(*values)

    vars(call)["stands_for"] = function
    return call


def _extreme(*args: Any) -> Any:
    values = args[0] if len(args) == 1 else args
    return unknown(joined(*kinds_of(*values)))


def _mathematics() -> Iterator[tuple[Any, Any]]:
    results: dict[str, Callable[..., Any]] = {
        "isnan": lambda *_: False,
        "isinf": lambda *_: False,
        "isfinite": lambda *_: True,
        "isclose": lambda *_: unknown(bool),
        "frexp": lambda *_: (unknown(float), unknown(int)),
        "modf": lambda *_: (unknown(float), unknown(float)),
    }
    for name in "floor ceil trunc gcd lcm comb perm factorial isqrt".split():
        results[name] = lambda *_: unknown(int)
    for name, function in vars(math).items():
        if callable(function) and not name.startswith("_"):
            result = results.get(name, lambda *_: unknown(float))
            yield function, _follows(function, result)


class _OfNumbers(type):
    """The class of a class that stands for float, int or bool."""

    stands_for: Any

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.stands_for)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.stands_for)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and followed() is not None:
            value = _number_of(args[0])
            if isinstance(value, Number):
                return unknown(cls.stands_for)
            return cls.stands_for(value)
        return cls.stands_for(*args, **kwargs)

    def __eq__(cls, other: object) -> bool:
        return other is cls.stands_for or other is cls

    def __hash__(cls) -> int:
        return hash(cls.stands_for)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.stands_for, name)


def knows_types(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function, with each argument that stands for a class replaced by that
    class."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        plain = [v.stands_for if type(v) is _OfNumbers else v for v in args]
        for name, value in kwargs.items():
            if type(value) is _OfNumbers:
                kwargs[name] = value.stands_for
        return function(*plain, **kwargs)

    return call


STAND_INS: dict[Any, Any] = {
    kind: _OfNumbers(kind.__name__, (), {"stands_for": kind}) for kind in (float, int, bool)
}
STAND_INS |= {function: _follows(function, _extreme) for function in (max, min)}
STAND_INS |= dict(_mathematics())
