"""Tensors without memory, in place of results that a recomputation does not make.

A plan skips an operator if nothing that runs again, and no backward node, reads its results.
The module's Python code runs all the same, so it is handed a tensor with the shape, the
strides, the type and the device of the result, and without contents. Autograd attaches its
graph to this tensor as to any other, so that a recomputation saves as many tensors as forward,
and in the same order.

An operator that would compute with a stand-in raises an error that names both operators, so
that no number is ever computed from one. Views of a stand-in are made by shape.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode_stack,
    is_traceable_wrapper_subclass_type,
)
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import SAC_IGNORED_OPS

from acplan._base.errors import AcplanError

_make = torch.Tensor._make_wrapper_subclass
_STRIDED = torch.strided


class Origin:
    """The operator whose result is not made: its unit, and its place in the unit; and the place
    of the operator that made the memory, -1 if the memory is from outside the unit."""

    __slots__ = ("fqn", "place", "func", "made_at")

    def __init__(self, fqn: str, place: int, func: Any, made_at: int) -> None:
        self.fqn = fqn
        self.place = place
        self.func = func
        self.made_at = made_at

    def refuse(self, reader: Any) -> NoReturn:
        raise AcplanError(
            f"{self.fqn}: {reader} needs what operator {self.place}, {self.func}, made, but "
            "the plan does not recompute that result (it skips the operator, or saves others "
            "of its results); trace the model as it is trained and plan again"
        )


class Shape:
    """The properties of a tensor that its stand-in shares."""

    __slots__ = ("size", "stride", "dtype", "device")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.size = tensor.shape
        self.stride = tensor.stride()
        self.dtype = tensor.dtype
        self.device = tensor.device


class Turned(Shape):
    """The properties of a tensor that is read through a conjugation, or through a change of
    sign."""

    __slots__ = ("is_conj", "is_neg")

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor)
        self.is_conj = tensor.is_conj()
        self.is_neg = tensor.is_neg()

    def turn(self, tensor: torch.Tensor) -> None:
        torch._C._set_conj(tensor, self.is_conj)
        torch._C._set_neg(tensor, self.is_neg)


SHAPES = frozenset([Shape, Turned])


def shape_of(tensor: torch.Tensor) -> Shape:
    return Turned(tensor) if tensor.is_conj() or tensor.is_neg() else Shape(tensor)


@functools.cache
def is_run_inside(kind: type) -> bool:
    """Returns whether a class of tensors runs operators on plain tensors that it holds, as
    quantised weights and tensors of torch.distributed do; then the operators on the plain
    tensors count."""
    return is_traceable_wrapper_subclass_type(kind)


def inner_tensors(tensor: Any) -> list[torch.Tensor]:
    """Returns the tensors of which a tensor whose class runs inside consists."""
    names, _ = tensor.__tensor_flatten__()
    # Tensors of torch.distributed name their mesh as well.
    parts = (getattr(tensor, name) for name in names)
    return [part for part in parts if isinstance(part, torch.Tensor)]


class StandIn(torch.Tensor):
    """A tensor that has no memory; nothing can be computed with it."""

    # Libraries read this to learn whose tensor it is.
    __module__ = torch.Tensor.__module__

    origin: Origin

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if any(map(is_run_inside, types)):
            return NotImplemented
        kwargs = kwargs or {}
        first = next(stand_ins((args, kwargs)))
        if func is torch.ops.prim.device.default:
            return first.device
        if func in SAC_IGNORED_OPS or is_view(func):
            return by_shape(func, args, kwargs, first.origin)
        first.origin.refuse(func)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"StandIn({tuple(self.shape)}, {self.dtype}, {self.origin.func})"

    def __format__(self, form: str) -> str:
        # A number that forward saw is returned, as for a plain tensor.
        if self.dim() == 0:
            return format(self.item(), form)
        return object.__format__(self, form)

    # These read memory past the dispatcher: libraries of kernels, and other arrays. A unit that
    # uses one of them runs again with nothing skipped.

    def data_ptr(self) -> NoReturn:
        self._read_by("data_ptr()")

    def untyped_storage(self) -> NoReturn:
        self.origin.refuse("untyped_storage()")

    def numpy(self, *_: Any, **__: Any) -> NoReturn:
        self._read_by("numpy()")

    def tolist(self) -> Any:
        if self.device.type == "cpu":
            self._read_by("tolist()")
        return self.cpu().tolist()  # an operator, whose result may have been saved

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        self._read_by("__array__()")

    def __dlpack__(self, *_: Any, **__: Any) -> NoReturn:
        self._read_by("__dlpack__()")

    def _read_by(self, reader: str) -> NoReturn:
        for mode in reversed(_get_current_dispatch_mode_stack()):
            if hasattr(mode, "begin_again"):
                mode.begin_again()
        self.origin.refuse(reader)


def stand_in(shape: Shape, origin: Origin) -> StandIn:
    # Arguments by position are quicker.
    result: StandIn = _make(
        StandIn, shape.size, shape.stride, None, None, shape.dtype, _STRIDED, shape.device
    )
    torch._C._set_throw_on_mutable_data_ptr(result)
    result.origin = origin
    if type(shape) is Turned:
        shape.turn(result)
    return result


@contextlib.contextmanager
def one_hot_as_in_forward() -> Iterator[None]:
    """Lets one_hot() of a stand-in run, within the block, the operators that it runs for a
    tensor on a GPU: for a tensor class with its own dispatch, PyTorch compares the tensor with
    all classes."""
    original = torch.nn.functional.one_hot

    def one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        is_at_a_place = type(tensor) is StandIn and tensor.device.type == "cuda"
        if not is_at_a_place or num_classes < 0:
            return original(tensor, num_classes)
        shape = (*tensor.shape, num_classes)
        zeros = torch.zeros(shape, dtype=torch.int64, device=tensor.device)
        return zeros.scatter_(-1, tensor.unsqueeze(-1), 1)

    torch.nn.functional.one_hot = one_hot
    try:
        yield
    finally:
        torch.nn.functional.one_hot = original


def stand_ins(values: Any) -> Iterator[StandIn]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, StandIn))


def has_plain_shape(tensor: torch.Tensor, is_view: bool) -> bool:
    """Returns whether shape and strides are all that a stand-in needs: a view that is read
    through a conjugation has more."""
    if type(tensor) not in _PLAIN or tensor.layout is not _STRIDED:
        return False
    if tensor.dtype in _COMMON:
        return not (is_view and tensor.is_neg())
    return not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)


def can_be_stood_in_for(tensor: torch.Tensor) -> bool:
    """Returns whether shape, strides, type and device are all that Python sees of the tensor: a
    tensor of another class has more."""
    is_plain = type(tensor) in _PLAIN and tensor.layout is _STRIDED
    return is_plain and not tensor.is_quantized


_COMMON = frozenset(
    [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.bool]
    + [torch.int64, torch.int32]
)
_PLAIN = frozenset([torch.Tensor, torch.nn.Parameter, torch._subclasses.FakeTensor, StandIn])


def is_view(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    if schema is None or schema.is_mutable:
        return False
    return any(argument.alias_info for argument in schema.arguments)


def by_shape(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    origin: Origin,
) -> Any:
    """Returns what an operator makes of stand-ins: stand-ins of the shapes of its results."""
    device: Any = next(stand_ins((args, kwargs))).device
    if kwargs.get("device") is not None:
        device = torch.device(kwargs["device"])

    def on_meta(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("meta")
        if not isinstance(value, torch.Tensor):
            return value
        tensor = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device="meta"
        )
        shape = shape_of(value)
        if isinstance(shape, Turned):
            shape.turn(tensor)
        return tensor

    def to_stand_in(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        shape = shape_of(value)
        shape.device = device
        return stand_in(shape, origin)

    # Modes that count operators must not see this one.
    with no_dispatch():
        result = func(*tree_map(on_meta, args), **tree_map(on_meta, dict(kwargs)))
        return tree_map(to_stand_in, result)


def reshape(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Changes the shape of a stand-in, the first argument, as the operator does."""
    tensor = args[0]
    reshaped = by_shape(func, args, kwargs, tensor.origin)
    with no_dispatch():
        tensor.data = reshaped
