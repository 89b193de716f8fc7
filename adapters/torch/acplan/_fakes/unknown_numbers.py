"""Numbers that stand for any finite number, for Python and for PyTorch's operators."""

import math
import numbers
from collections.abc import Callable
from typing import Any

import torch

from acplan._fakes.branches import asker, is_formatting
from acplan._fakes.followed_numbers import (
    PLAIN,
    Following,
    followed,
    is_followed_by,
    session_now,
)

# The numbers with which operators compute in place of unknown ones, which nobody reads: they
# are valid as a probability, a weight, an epsilon.
NUMBERS_IN_OPERATORS: dict[type, Any] = {float: 0.5, int: 1, bool: True}


class Number:
    """An unknown number. For Python it is of the class that it stands for."""

    kind: type

    def __init__(self) -> None:
        self.node = _Node(self.kind)
        self._session = session = followed()
        if session is not None:
            session.has_numbers = True
            session.replace_functions()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self.kind

    def _live(self) -> Following | None:
        """Returns the session that follows the number, or None if its step is over."""
        return self._session if is_followed_by(self._session) else None

    def __bool__(self) -> bool:
        session = self._live()
        return bool(PLAIN[self.kind]) if session is None else session.truth()

    def __float__(self) -> float:
        return float(self._as(float))

    def __int__(self) -> int:
        session = self._live()
        return 0 if session is None else int(session.plain(int))

    def __complex__(self) -> complex:
        return complex(self._as(float))

    def _as(self, kind: type) -> Any:
        session = self._live()
        return PLAIN[self.kind] if session is None else session.plain(kind)

    def __index__(self) -> int:
        session = self._live()
        if session is None:
            return 0
        frame = asker()
        if is_formatting(frame):
            return 0
        raise session.fail("a value as a size, a count or an index", frame)

    def __hash__(self) -> int:
        session = self._live()
        if session is None:
            return hash(PLAIN[self.kind])
        raise session.fail("a value as a key")

    def __format__(self, form: str) -> str:
        return format(PLAIN[self.kind], form)

    def __repr__(self) -> str:
        return repr(PLAIN[self.kind])

    __str__ = __repr__

    def __copy__(self) -> "Number":
        return self

    def __deepcopy__(self, memo: Any) -> "Number":
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.kind, (PLAIN[self.kind],)

    def __round__(self, digits: int | None = None) -> Any:
        return unknown(int if digits is None else self.kind)

    def is_integer(self) -> Any:
        return unknown(bool)

    @property
    def real(self) -> "Number":
        return self

    @property
    def imag(self) -> Any:
        return 0.0 if self.kind is float else 0

    def conjugate(self) -> "Number":
        return self

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        from acplan._fakes.unknown_arrays import of_ufunc

        return of_ufunc(ufunc, method, args, kwargs)


class _UnknownFloat(Number, torch.SymFloat):  # type: ignore[misc]
    kind = float


class UnknownInt(Number, torch.SymInt):  # type: ignore[misc]
    kind = int


class _UnknownBool(Number, torch.SymBool):
    kind = bool


_CLASSES: dict[type, type[Number]] = {
    float: _UnknownFloat,
    int: UnknownInt,
    bool: _UnknownBool,
}


def unknown(kind: type) -> Number:
    return _CLASSES[kind]()


def kind_of(tensor: torch.Tensor) -> type:
    """Returns the class of the numbers in a tensor."""
    if tensor.dtype == torch.bool:
        return bool
    if tensor.is_complex():
        return complex
    return float if tensor.is_floating_point() else int


class _Node:
    """The answers to what PyTorch's C++ code asks a symbolic number."""

    def __init__(self, kind: type, is_true: bool | None = None) -> None:
        self.kind = kind
        self.is_true = is_true

    def is_float(self) -> bool:
        return self.kind is float

    def is_int(self) -> bool:
        return self.kind is int

    def is_bool(self) -> bool:
        return self.kind is bool

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def maybe_as_int(self) -> None:
        return None

    maybe_as_float = maybe_as_bool = constant_int = constant_bool = nested_int = maybe_as_int

    def has_hint(self) -> bool:
        return False

    def str(self) -> str:
        return "unknown"

    def guard_float(self, file: Any, line: int) -> Any:
        return self._plain(file)

    def guard_bool(self, file: Any, line: int) -> bool:
        session = followed()
        if self.is_true is not None:
            return self.is_true
        if _makes_tensor(file) or session is None:
            return bool(self._plain(file))
        return session.truth()

    expect_true = guard_size_oblivious = guard_or_false = guard_or_true = guard_bool

    def guard_int(self, file: Any, line: int) -> Any:
        session = followed()
        if _makes_tensor(file) or session is None:
            return self._plain(file)
        raise session.fail("a value as a size, a count or an index")

    def _plain(self, file: Any) -> Any:
        session = followed()
        if session is not None and _makes_tensor(file):
            session.makes_tensor = True
        return NUMBERS_IN_OPERATORS[self.kind]

    def __getattr__(self, name: Any) -> Any:
        if name in ("eq", "ne"):
            # Derivatives ask whether an exponent is 2 or 0, say, to run less: an unknown one is
            # neither.
            return lambda *_: _Node(bool, name == "ne")
        if name in _OF_BOOL:
            return lambda *_: _Node(bool)
        if name in _OF_NUMBERS:
            return lambda *others: _Node(joined(self.kind, *(o.kind for o in others)))
        if name in ("wrap_int", "wrap_float", "wrap_bool"):
            kinds: dict[Any, type] = {"wrap_int": int, "wrap_float": float, "wrap_bool": bool}
            return lambda _: _Node(kinds[name])
        raise AttributeError(name)


_OF_BOOL = frozenset("lt le gt ge sym_not and_ or_ is_integer".split())
_OF_NUMBERS = frozenset("add sub mul neg abs pow mod floordiv sym_max sym_min clone".split())


def _makes_tensor(file: Any) -> bool:
    return "tensor_new" in str(file)


def joined(*kinds: type) -> type:
    """Returns the class of the result of arithmetic on numbers."""
    return float if any(kind not in (int, bool) for kind in kinds) else int


def kinds_of(*values: Any) -> list[type]:
    return [v.kind if isinstance(v, Number) else type(v) for v in values]


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Number)


def _arithmetic(name: str, is_reflected: bool) -> Callable[..., Any]:
    makes_float = name in ("truediv", "pow")
    is_logic = name in ("and", "or", "xor")

    def operate(self: Number, other: Any, *modulus: Any) -> Any:
        if not _is_number(other):
            return NotImplemented
        kinds = kinds_of(self, other)
        if is_logic and all(kind is bool for kind in kinds):
            return unknown(bool)
        return unknown(float if makes_float else joined(*kinds))

    def divide(self: Number, other: Any) -> Any:
        if not _is_number(other):
            return NotImplemented
        kind = joined(*kinds_of(self, other))
        return unknown(kind), unknown(kind)

    return divide if name == "divmod" else operate


def _unary(name: str) -> Callable[[Number], Any]:
    is_whole = name in ("trunc", "floor", "ceil", "invert")
    return lambda self: unknown(int if is_whole else joined(self.kind))


def _comparison(name: str) -> Callable[[Number, Any], Any]:
    """Returns a comparison of finite numbers: all numbers that a step computes are taken to be
    finite."""
    of_itself = name in ("eq", "le", "ge")

    def compare(self: Number, other: Any) -> Any:
        if other is self:
            return of_itself
        if not _is_number(other):
            return NotImplemented
        is_plain = isinstance(other, float) and not isinstance(other, Number)
        if is_plain and not math.isfinite(other):
            return bool(getattr(1.0, f"__{name}__")(other))
        return unknown(bool)

    return compare


def _complete(cls: type) -> None:
    for name in "add sub mul truediv floordiv mod pow divmod and or xor lshift rshift".split():
        setattr(cls, f"__{name}__", _arithmetic(name, False))
        setattr(cls, f"__r{name}__", _arithmetic(name, True))
    for name in "neg pos abs invert trunc floor ceil".split():
        setattr(cls, f"__{name}__", _unary(name))
    for name in "eq ne lt le gt ge".split():
        setattr(cls, f"__{name}__", _comparison(name))


_complete(Number)


def without_numbers(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any, bool]:
    """Returns an operator's arguments with plain numbers for unknown ones, and whether there
    was one. Raises an error if one decides a shape."""
    has_unknown = [False]
    by_position = [
        _plain_in(value, func, argument, has_unknown)
        for value, argument in zip(args, func._schema.arguments)
    ]
    by_name = {argument.name: argument for argument in func._schema.arguments}
    by_keyword = {
        name: _plain_in(value, func, by_name.get(name), has_unknown)
        for name, value in kwargs.items()
    }
    return (by_position, by_keyword, True) if has_unknown[0] else (args, kwargs, False)


_SYMBOLIC = (torch.SymFloat, torch.SymInt, torch.SymBool)


def _plain_in(value: Any, func: Any, argument: Any, has_unknown: list[bool]) -> Any:
    if isinstance(value, (list, tuple)):
        if any(isinstance(part, _SYMBOLIC) for part in value):
            return [_plain_in(part, func, argument, has_unknown) for part in value]
        return value
    if not isinstance(value, _SYMBOLIC) or not isinstance(value.node, _Node):
        return value
    kind = value.node.kind
    has_unknown[0] = True
    if kind is int and argument is not None and "int" in str(argument.type).lower():
        raise session_now().fail("a value as a size, a count or an index")
    return NUMBERS_IN_OPERATORS[kind]
