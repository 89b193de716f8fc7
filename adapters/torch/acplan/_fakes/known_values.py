"""Values of small tensors while a step is traced.

Models ask their inputs what to run: whether a mask hides anything, how long the sequences of a
batch are, which positions begin a document. Fake tensors have no answer, so libraries skip such
decisions, or end. Here every tensor whose value follows from the inputs, constants and buffers
of integers and booleans carries that value, as a real tensor on the CPU: each operator all of
whose tensors have values is computed beside the fake one, views share memory as they do in the
step, and memory to which an unknown value is written is unknown from then on. Activations
depend on parameters, whose values nobody reads, and stay unknown, so that nothing large is ever
computed.
"""

import functools
import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map

from acplan._base.errors import AcplanError
from acplan._base.interrupts import give_way
from acplan._base.operators import COMMUNICATING, OF_WAITING
from acplan._base.tensors import tensors_of
from acplan._base.triton_kernels import is_launch
from acplan._fakes.branches import line_of_error
from acplan._fakes.followed_numbers import Following, UnknownValue, followed
from acplan._fakes.other_ranks import OtherRanks
from acplan._fakes.routing import Routing
from acplan._fakes.sparse_fakes import SparseFakes, asks_of_sparse, concerns_sparse
from acplan._fakes.tensor_values import (
    DISCRETE,
    MOST_DISCRETE,
    MOST_FRACTIONS,
    forget_written,
    give_value,
    is_small,
    set_value,
    value_of,
)
from acplan._fakes.unknown_numbers import NUMBERS_IN_OPERATORS, kind_of, without_numbers

_aten = torch.ops.aten


UNKNOWN = object()

# The number that fills the result of an operator that reads only the shape and type of its
# argument. An empty tensor is taken to be zeros; None: the number is an argument.
_FILLED: Mapping[Any, int | None] = {
    _aten.zeros_like.default: 0,
    _aten.ones_like.default: 1,
    _aten.new_zeros.default: 0,
    _aten.new_ones.default: 1,
    _aten.full_like.default: None,
    _aten.new_full.default: None,
    _aten.empty_like.default: 0,
    _aten.new_empty.default: 0,
    _aten.empty.memory_format: 0,
    _aten.empty_strided.default: 0,
    _aten.new_empty_strided.default: 0,
}


class ValuedFakeTensorMode(FakeTensorMode):
    """A mode in which small fake tensors have values, if the values follow from known ones.

    `value_of` returns the values; `.item()`, the truth of a tensor, `.tolist()`, `.numpy()`,
    and operators whose result's shape depends on values read them by themselves.
    """

    sees_launches = True

    def __init__(self, device: str = "") -> None:
        """`device` is the device whose answers PyTorch gets while this mode is active."""
        super().__init__(allow_non_fake_inputs=True)
        self._answers = device
        self._is_inside = False
        self.ranks = OtherRanks()

    def create_symbolic_nested_int(self, *, nt_tensor_id: int | None = None) -> Any:
        """Returns the length of a jagged dimension: a number of its own, as real tensors
        have."""
        nested: Any = importlib.import_module("torch.nested._internal.nested_tensor")
        nested._tensor_id_counter += 1
        return torch.SymInt(nested.NestedIntNode(nested._tensor_id_counter - 1, 1))

    def _prep_args_for_hash(self, result: list[Any], *others: Any) -> None:
        # PyTorch caches results by shapes alone; devices may have different results.
        result.append(self._answers)
        super()._prep_args_for_hash(result, *others)

    def dispatch(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in OF_WAITING:
            return self.ranks.wait(func, args[0])
        if _can_end_at(func):
            give_way()
        if self._is_inside or not isinstance(func, torch._ops.OpOverload):
            return self._faked(func, types, args, kwargs)
        tensors = tensors_of(args, kwargs)
        if concerns_sparse(func, tensors):
            return self._of_sparse(func, types, args, kwargs)
        has_unknown, session = False, followed()
        if session is not None and session.has_numbers:
            args, kwargs, has_unknown = _with_plain_numbers(session, func, args, kwargs)
        is_known = not (has_unknown or is_launch(func)) and self.knows(func, args, kwargs)
        if func in _GIVING:
            if session is not None:
                session.is_reached = True
            if is_known and func is _aten._local_scalar_dense.default:
                return _computed(func, args, kwargs)
            answer = None if is_known else _given_unknown(func, args)
            if answer is not None:
                return answer
        self._is_inside = True
        try:
            out = self._faked(func, types, args, kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            value = self.computed(func, args, kwargs) if is_known else UNKNOWN
            out = self._of_known_shape(func, types, args, kwargs, value)
            _attach(out, value)
            return out
        finally:
            self._is_inside = False
        self.ranks.begin(func, args, kwargs, out)
        if func in _FILLED:
            if not has_unknown and all(map(self.has_room_for, tensors_of(out))):
                _attach_fill(out, _fill_of(func, args, kwargs))
            return out
        fits = is_known and all(map(self.has_room_for, tensors_of(out)))
        value = self.computed(func, args, kwargs, out) if fits else UNKNOWN
        if value is UNKNOWN:
            value = _assumed(self.ranks.routing, func, args, kwargs, out)
        _attach(out, value)
        if value is UNKNOWN:
            forget_written(func, args, kwargs)
        return out

    def knows(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Returns whether all tensors that an operator reads have values."""
        return _is_known(func, args, kwargs)

    def has_room_for(self, tensor: torch.Tensor) -> bool:
        """Returns whether a tensor may have a value."""
        return is_small(tensor)

    def computed(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any = None
    ) -> Any:
        """Returns an operator's result for the values of its tensors; `out` is its result for
        the fake tensors, if that is known without values."""
        return _computed(func, args, kwargs)

    def give_value(self, fake: torch.Tensor, value: torch.Tensor) -> None:
        """Gives a fake tensor of the model, or of its inputs, its value."""
        give_value(fake, value)

    def _of_sparse(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        self._is_inside = True
        try:
            if asks_of_sparse(func):
                if isinstance(args[0], FakeTensor):
                    return self._faked(func, types, args, kwargs)
                with no_dispatch():
                    return func(*args, **kwargs)
            with self:
                return SparseFakes(value_of, _attach).run(func, args, kwargs)
        finally:
            self._is_inside = False

    def _faked(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Returns the result that PyTorch's fake tensors have. Operators that run inside need
        this mode, as fake tensors do not call it by themselves; operators that PyTorch computes
        for real must not have it."""
        is_real = True
        for tensor in tensors_of(args, kwargs):
            if isinstance(tensor, FakeTensor):
                is_real = False
            elif _is_unfaked_zero(tensor):
                raise AcplanError(LOST_ZERO)
        if is_real and (func in self.lift_fns or _takes_numbers(func)):
            return super().dispatch(func, types, args, kwargs)
        with self:
            return super().dispatch(func, types, args, kwargs)

    def _of_known_shape(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        value: Any,
    ) -> Any:
        """Returns the result of an operator if fake tensors alone do not know its shape."""
        if func is _aten._pack_padded_sequence.default:
            lengths = value_of(args[1])
            if lengths is not None:
                return self._packed(types, args[0], lengths, args[2])
        if value is not UNKNOWN:
            device = _device_of(args, kwargs)
            return tree_map(lambda leaf: self._fake_like(leaf, device), value)
        if func is _aten.index.Tensor:
            places = [self._places_of(index) for index in args[1]]
            if None not in places:
                indices = [i for group in places for i in group or ()]
                return self._faked(func, types, (args[0], indices), {})
        if func is _aten.masked_select.default:
            if (mask := value_of(args[1])) is not None:
                shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
                with no_dispatch():
                    count = int(mask.expand(shape).sum())
                return self._faked(_aten.new_empty.default, types, (args[0], [count]), {})
        return self._faked(func, types, args, kwargs)

    def _packed(
        self,
        types: Sequence[type],
        padded: torch.Tensor,
        lengths: torch.Tensor,
        batch_first: bool,
    ) -> Any:
        """Packs a sequence as a fake; the sizes of a packed sequence's batches are real,
        because PyTorch reads their memory."""
        with no_dispatch():
            narrow = torch.zeros(*padded.shape[:2], 1)
            rows, sizes = _aten._pack_padded_sequence(narrow, lengths, batch_first)
        shape = [rows.shape[0], *padded.shape[2:]]
        return self._faked(_aten.new_empty.default, types, (padded, shape), {}), sizes

    def _places_of(self, index: Any) -> list[Any] | None:
        """Returns an index as a list of indices: a mask becomes the places at which it is true.
        Returns None if the mask's value is not known."""
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            return [index]
        mask = value_of(index)
        if mask is None:
            return None
        with no_dispatch():
            places = mask.nonzero(as_tuple=True)
        return [self._fake_like(place, index.device) for place in places]

    def _fake_like(self, value: Any, device: torch.device) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return self._faked(
            _aten.empty_strided.default,
            (),
            (list(value.shape), list(value.stride())),
            {"dtype": value.dtype, "device": device},
        )


# Operators that return numbers of Python.
_GIVING = frozenset({_aten._local_scalar_dense.default, _aten.equal.default})


def _given_unknown(func: Any, args: Sequence[Any]) -> Any:
    """Returns a number in place of an unknown one: if Python asks for it, number_functions.py
    does the rest, else it is the answer to PyTorch's question. Returns None if there is
    none."""
    session = followed()
    if session is None or args[0].is_complex():
        return None
    kind = bool if func is _aten.equal.default else kind_of(args[0])
    if kind is bool and len(args) > 1 and args[0].shape != args[1].shape:
        return False
    if session.is_taken is not None:
        session.is_taken = True
        return NUMBERS_IN_OPERATORS[kind]
    return session.truth(is_value=True) if kind is bool else None


def _with_plain_numbers(
    session: Following, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any], bool]:
    """Returns the arguments of an operator with plain numbers, and whether one is unknown."""
    if session.makes_tensor and func is _aten.lift_fresh.default:
        session.makes_tensor = False
        return args, kwargs, True
    return without_numbers(func, args, kwargs)


@functools.cache
def _can_end_at(func: Any) -> bool:
    """Returns whether an operator makes a tensor, so that the step may end at it. Parts of
    PyTorch in C++ call operators that describe a tensor or alias it, and end the process if
    such a call raises."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace == "prim":
        return False
    results = [r for r in func._schema.returns if r.alias_info is None]
    return any(r.type.kind() in ("TensorType", "ListType") for r in results)


def _takes_numbers(func: Any) -> bool:
    return bool(fake_tensor.should_allow_numbers_as_tensors(func))


def _is_unfaked_zero(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor._is_zerotensor()


LOST_ZERO = (
    "a tangent that is known to be zero cannot be traced within a gradient; use "
    "torch.func.jacrev(torch.func.jacrev(f)) in place of torch.func.hessian(f), and of "
    "jacfwd(jacrev(f))"
)


def depends_on_values(error: Exception, user_inputs: Any, inputs: Any) -> str:
    """Returns the message for a step that depends on values: what it asked for, where, and what
    to do. `user_inputs` are the inputs as the user passed them, `inputs` their fakes."""
    if isinstance(error, UnknownValue):
        what, line = error.what, error.line
    else:
        what, line = f"the result of {error}", line_of_error(error)
    ways = []
    if any(tensor.device.type == "meta" for tensor in tensors_of(*user_inputs)):
        ways.append(
            "give real inputs in place of those on the meta device, whose values are unknown"
        )
    many = _too_many_for_values(tensors_of(*inputs))
    if many:
        ways.append(f"trace a smaller batch, as an input of {many} is too large to have values")
    return (
        "the operators that the model runs depend on values, which a trace does not compute: "
        "the model asks for " + "; ".join([f"{what}{f', at {line}' if line else ''}", *ways])
    )


def _too_many_for_values(tensors: Iterable[torch.Tensor]) -> str:
    """Returns the number of elements of the first tensor that has more than may have values, or
    ""."""
    for tensor in tensors:
        if tensor.dtype in DISCRETE and tensor.numel() > MOST_DISCRETE:
            return f"{tensor.numel():,} whole numbers"
        if tensor.dtype not in DISCRETE and tensor.numel() > MOST_FRACTIONS:
            return f"{tensor.numel():,} fractions"
    return ""


def _is_known(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether all tensors of an operator have values."""
    if getattr(func, "namespace", "") in COMMUNICATING:
        return False  # other ranks, which do not exist, have a part in the result
    is_written = func._schema.is_mutable
    if isinstance(kwargs.get("generator"), torch.Generator):
        return False  # the user's generator would be advanced
    return all(
        value_of(tensor) is not None and (isinstance(tensor, FakeTensor) or not is_written)
        for tensor in tensors_of(args, kwargs)
    )


def _computed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns an operator's result for the values of its tensors."""
    with no_dispatch():
        try:
            if func is _aten.histc.default and args[0].dtype in DISCRETE:
                return _histogram(_on_cpu(args[0]), *args[1:], **kwargs)
            return func(*tree_map(_on_cpu, args), **tree_map(_on_cpu, dict(kwargs)))
        except (RuntimeError, IndexError, TypeError, ValueError):
            return UNKNOWN  # the CPU has no such operator


def _histogram(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Returns the histogram of whole numbers, which the CPU has of fractions alone."""
    counts: torch.Tensor = _aten.histc.default(tensor.double(), *args, **kwargs)
    return counts.to(tensor.dtype)


def _on_cpu(leaf: Any) -> Any:
    if isinstance(leaf, FakeTensor):
        return value_of(leaf)
    if isinstance(leaf, torch.Tensor):
        return leaf.clone()  # a result that shares its memory may be written to
    if isinstance(leaf, torch.device) and leaf.type != "meta":
        return torch.device("cpu")
    return leaf


def _assumed(
    routing: Routing | None,
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    out: Any,
) -> Any:
    """Returns the results that follow from assumptions on values that are not computed."""
    value = None if routing is None else routing.values(func, args, kwargs, out)
    return _of_finite_numbers(func, args, out) if value is None else value


def _of_finite_numbers(func: Any, args: Sequence[Any], out: Any) -> Any:
    """Returns the results of tests for infinity and NaN, as all numbers that a step computes
    are taken to be finite: one value for all places."""
    if not isinstance(out, FakeTensor) or out.dtype != torch.bool:
        return UNKNOWN
    if func in (_aten.eq.Tensor, _aten.ne.Tensor) and args[0] is args[1]:
        answer = func is _aten.eq.Tensor
    elif func in (_aten.eq.Scalar, _aten.ne.Scalar) and args[1] in (_INF, -_INF):
        answer = func is _aten.ne.Scalar
    elif func is _aten.isnan.default or func is _aten.isinf.default:
        answer = False
    elif func is _aten.mul.Tensor and all(map(_is_uniform, args)):
        values = map(value_of, args)
        answer = all(value is not None and bool(value.flatten()[0]) for value in values)
    else:
        return UNKNOWN
    with no_dispatch():
        return torch.tensor(answer).expand(out.shape)


_INF = float("inf")


def _is_uniform(value: Any) -> bool:
    known_value = value_of(value) if isinstance(value, FakeTensor) else None
    return known_value is not None and known_value.numel() > 0 and not any(known_value.stride())


def _fill_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    fill = _FILLED[func]
    if fill is not None:
        return fill
    place = 1 if func is _aten.full_like.default else 2
    return args[place] if len(args) > place else kwargs.get("fill_value")


def _attach_fill(out: Any, fill: Any) -> None:
    if not isinstance(out, FakeTensor) or not isinstance(fill, (bool, int, float)):
        return
    if out.layout == torch.strided and out.device.type != "meta":
        with no_dispatch():
            # Zeros of the operating system cost nothing until they are read.
            if fill == 0 and out.is_contiguous():
                value = torch.zeros(out.shape, dtype=out.dtype)
            else:
                value = torch.empty_strided(out.shape, out.stride(), dtype=out.dtype)
                value.fill_(fill)
            set_value(out, value)


def _attach(out: Any, value: Any) -> None:
    if isinstance(out, (list, tuple)) and isinstance(value, (list, tuple)):
        for pair in zip(out, value):
            _attach(*pair)
    elif isinstance(out, FakeTensor) and isinstance(value, torch.Tensor):
        if out.shape == value.shape:
            set_value(out, value)


def _device_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    if isinstance(kwargs.get("device"), torch.device):
        device: torch.device = kwargs["device"]
        return device
    tensors = tensors_of(args, kwargs)
    return next((t.device for t in tensors if t.dim() > 0), tensors[0].device)
