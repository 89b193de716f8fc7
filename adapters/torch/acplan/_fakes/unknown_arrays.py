"""NumPy arrays and lists of unknown numbers, as metrics take them.

An unknown array has a shape, a type and zeros in it. NumPy's results for it have the shapes of
its results for the zeros, and are unknown, too: arrays, or unknown numbers if NumPy returns a
number. If the shape itself depends on values (a mask as an index, `unique`), the step ends.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from acplan._fakes.followed_numbers import followed
from acplan._fakes.unknown_numbers import Number, unknown

# A list has an object for each element.
_MOST_IN_LISTS = 1 << 16
_MOST_IN_ARRAYS = 1 << 22
_SHAPED_BY_VALUES = frozenset(
    "unique nonzero argwhere flatnonzero extract compress histogram bincount intersect1d "
    "union1d setdiff1d setxor1d trim_zeros repeat".split()
)
_OF_SHAPES = frozenset({"shape", "ndim", "size"})
# Every number that a step computes is finite, as the zeros are.
_OF_FINITE = frozenset({"isnan", "isinf", "isfinite"})
_METHODS = (
    "all any argmax argmin argsort clip cumprod cumsum dot max mean min prod round std "
    "sum take trace var".split()
)


def list_of_unknown(tensor: torch.Tensor) -> Any:
    """Returns unknown numbers, nested as `tolist` nests them."""
    _require(tensor.numel(), _MOST_IN_LISTS, "a list")
    kind = _kind(_zeros_of(tensor[:0] if tensor.dim() else tensor))

    def nested(shape: Sequence[int]) -> Any:
        return [nested(shape[1:]) for _ in range(shape[0])] if shape else unknown(kind)

    return nested(tuple(tensor.shape))


def array_of_unknown(tensor: torch.Tensor) -> Any:
    _require(tensor.numel(), _MOST_IN_ARRAYS, "an array")
    _replace_functions()
    return _zeros_of(tensor).view(_array_class())


def of_ufunc(ufunc: Any, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns the result of a function of NumPy's for unknown numbers and arrays."""
    import numpy

    out = kwargs.get("out")
    with numpy.errstate(all="ignore"):
        result = getattr(ufunc, method)(*_plain(args), **_plain(dict(kwargs)))
    if out is not None:
        return out[0] if len(out) == 1 else out
    return result if ufunc.__name__ in _OF_FINITE else _unknown(result)


def _require(count: int, most: int, what: str) -> None:
    session = followed()
    assert session is not None
    if count > most:
        raise session.fail(f"{count:,} values as {what}")


def _zeros_of(tensor: torch.Tensor) -> Any:
    """Returns an array of zeros as PyTorch makes it; PyTorch refuses some types."""
    from torch.utils._mode_utils import no_dispatch

    with no_dispatch():
        return torch.zeros(tuple(tensor.shape), dtype=tensor.dtype).numpy()


def _kind(value: Any) -> type:
    kinds: dict[str, type] = {"b": bool, "i": int, "u": int}
    return kinds.get(value.dtype.kind, float)


def _plain(value: Any) -> Any:
    """Returns the value with zeros in place of unknown numbers."""
    import numpy

    if isinstance(value, Number):
        return value.kind(0)
    if isinstance(value, numpy.ndarray):
        return value.view(numpy.ndarray)
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    if type(value) is dict:
        return {name: _plain(part) for name, part in value.items()}
    return value


def _is_unknown(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_is_unknown, value))
    return isinstance(value, (Number, _array_class()))


def _unknown(value: Any) -> Any:
    import numpy

    if isinstance(value, (list, tuple)):
        return type(value)(map(_unknown, value))
    if isinstance(value, numpy.ndarray):
        return value.view(_array_class())
    if isinstance(value, numpy.generic):
        return unknown(_kind(value))
    return unknown(type(value)) if type(value) in (bool, int, float) else value


@functools.cache
def _array_class() -> Any:
    import numpy

    class UnknownArray(numpy.ndarray):
        def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kw: Any) -> Any:
            return of_ufunc(ufunc, method, args, kw)

        def __array_function__(self, func: Any, types: Any, args: Any, kw: Any) -> Any:
            name = func.__name__
            if name in _SHAPED_BY_VALUES or name == "where" and len(args) == 1:
                raise _failed(f"numpy.{name} of values")
            with numpy.errstate(all="ignore"):
                result = func(*_plain(args), **_plain(kw))
            return result if name in _OF_SHAPES else _unknown(result)

        def __getitem__(self, key: Any) -> Any:
            parts = key if isinstance(key, tuple) else (key,)
            for part in parts:
                if isinstance(part, UnknownArray) and part.dtype == bool:
                    raise _failed("a mask of values as an index")
            return _unknown(_plain(self)[_plain(key)])

        def __setitem__(self, key: Any, value: Any) -> None:
            _plain(self)[_plain(key)] = 0

        def __iter__(self) -> Iterator[Any]:
            return (self[k] for k in range(len(self)))

        def item(self, *place: Any) -> Any:
            return unknown(_kind(self))

        def tolist(self) -> Any:
            return [part.tolist() for part in self] if self.ndim > 1 else [*self]

        def __bool__(self) -> bool:
            return bool(self.item())

        def __float__(self) -> float:
            return float(self.item())

        def __int__(self) -> int:
            return int(self.item())

        def __index__(self) -> int:
            return int(self.item().__index__())

        def __format__(self, form: str) -> str:
            return format(self.item(), form) if self.ndim == 0 else super().__format__(form)

    for name in _METHODS:
        setattr(UnknownArray, name, _method(getattr(numpy.ndarray, name)))
    for name in ("nonzero", "repeat", "compress"):
        setattr(UnknownArray, name, _refused(name))
    return UnknownArray


def _method(method: Any) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        import numpy

        with numpy.errstate(all="ignore"):
            return _unknown(method(_plain(self), *_plain(args), **_plain(kwargs)))

    return call


def _refused(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise _failed(f"{name} of values")

    return call


def _failed(what: str) -> Exception:
    session = followed()
    return ValueError(what) if session is None else session.fail(what)


def _replace_functions() -> None:
    """Replaces functions that take an array's zeros by functions whose results are unknown
    again."""
    session = followed()
    assert session is not None
    if session.are_arrays_known:
        return
    session.are_arrays_known = True
    import numpy

    for name in ("array", "asarray", "ascontiguousarray", "asfortranarray"):
        session.replace(numpy, name, _array_of(getattr(numpy, name)))
    for name in ("tensor", "as_tensor", "asarray", "from_numpy"):
        session.replace(torch, name, _tensor_of(getattr(torch, name)))


def _array_of(function: Any) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(value: Any, *args: Any, **kwargs: Any) -> Any:
        if followed() is None:
            return function(value, *args, **kwargs)
        if isinstance(value, FakeTensor):
            value = value.numpy()
        if not _is_unknown(value):
            return function(value, *args, **kwargs)
        return _unknown(function(_plain(value), *args, **kwargs))

    return call


def _tensor_of(function: Any) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(value: Any, *args: Any, **kwargs: Any) -> Any:
        if followed() is None or not _is_unknown(value):
            return function(value, *args, **kwargs)
        tensor = function(_plain(value), *args, **kwargs)
        if not isinstance(tensor, FakeTensor):
            tensor = torch.ops.aten.lift_fresh(tensor)
        vars(tensor).pop("_acplan_value", None)
        return tensor

    return call
