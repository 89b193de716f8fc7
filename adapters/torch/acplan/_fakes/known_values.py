"""Values of small tensors while a step is traced.

Models ask their inputs what to run: whether a mask hides anything, how long the
sequences of a batch are, which positions begin a document. Fake tensors cannot tell,
so libraries skip such decisions, or end. Here every tensor whose value follows from
the inputs, constants and buffers of integers and booleans carries that value, as a
real tensor on the CPU: each operator all of whose tensors have values is computed
beside the fake one, views share memory as they do in the step, and what is written to
with an unknown value is unknown from then on. Activations depend on parameters, whose
values nobody reads, and stay unknown, so that nothing large is ever computed.
"""

import contextlib
import functools
import importlib
import inspect
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from acplan._base.operators import written_by
from acplan._base.patching import set_attribute
from acplan._base.tensors import tensors_of
from acplan._base.torchscript import by_operators
from acplan._base.triton_kernels import is_launch
from acplan._fakes.branches import line_of_error
from acplan._fakes.followed_numbers import Following, UnknownValue, followed
from acplan._fakes.plain_fakes import plain_fakes
from acplan._fakes.sparse_fakes import SparseFakes, asks_of_sparse, concerns_sparse
from acplan._fakes.unknown_arrays import array_of_unknown, list_of_unknown
from acplan._fakes.unknown_numbers import NUMBERS_IN_OPERATORS, kind_of, without_numbers

_aten = torch.ops.aten

# Elements. A larger tensor decides nothing that a smaller one does not decide before,
# and of fractions not even many of those are looked at.
_MOST_ELEMENTS = 1 << 22
_MOST_FRACTIONS = 1 << 15
_SEED = 0

_DISCRETE = frozenset(
    [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
)
UNKNOWN = object()

# What is made has nothing of the values of what it is like. What is empty is taken for
# zeros; None: filled with an argument.
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
    """Fake tensors, of which the small ones that follow from known values have them.

    `value_of` returns them; `.item()`, the truth of a tensor, `.tolist()`, `.numpy()`,
    and operators whose result's shape depends on values take them by themselves.
    """

    sees_launches = True

    def __init__(self, device: str = "") -> None:
        """`device` is the one whose answers PyTorch gets while this mode is active."""
        super().__init__(allow_non_fake_inputs=True)
        self._answers = device
        self._is_inside = False

    def create_symbolic_nested_int(self, *, nt_tensor_id: int | None = None) -> Any:
        """What a jagged dimension is as long as: a number of its own, as real ones have."""
        nested: Any = importlib.import_module("torch.nested._internal.nested_tensor")
        nested._tensor_id_counter += 1
        return torch.SymInt(nested.NestedIntNode(nested._tensor_id_counter - 1, 1))

    def _prep_args_for_hash(self, result: list[Any], *others: Any) -> None:
        # PyTorch remembers results by shapes alone; devices may have different ones.
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
        if _can_end_at(func):
            give_way()
        if self._is_inside or not isinstance(func, torch._ops.OpOverload):
            return self._faked(func, types, args, kwargs)
        given = tensors_of(args, kwargs)
        if concerns_sparse(func, given):
            return self._of_sparse(func, types, args, kwargs)
        has_unknown = False
        session = followed()
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
        if func in _FILLED:
            if not has_unknown and all(map(self.has_room_for, tensors_of(out))):
                _attach_fill(out, _fill_of(func, args, kwargs))
            return out
        fits = is_known and all(map(self.has_room_for, tensors_of(out)))
        value = self.computed(func, args, kwargs, out) if fits else UNKNOWN
        if value is UNKNOWN:
            value = _of_finite_numbers(func, args, out)
        _attach(out, value)
        if value is UNKNOWN:
            _forget_written(func, args, kwargs)
        return out

    def knows(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether all tensors that an operator reads have values."""
        return _is_known(func, args, kwargs)

    def has_room_for(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor may have a value."""
        return _is_small(tensor)

    def computed(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any = None
    ) -> Any:
        """Returns what an operator makes of the values of its tensors; `out` is its result
        on fake ones, where these have one by themselves."""
        return _computed(func, args, kwargs)

    def give_value(self, fake: torch.Tensor, value: torch.Tensor) -> None:
        """Gives a fake tensor of the model, or of what it is given, its value."""
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
        """As PyTorch fakes it. What runs inside needs this mode, as fake tensors do not
        call it by themselves; what PyTorch computes for real must not have it."""
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
        """The result where fake tensors alone do not know its shape."""
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
            mask = value_of(args[1])
            if mask is not None:
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
        """The sizes of a packed sequence's batches are real, as PyTorch reads them
        where they lie."""
        with no_dispatch():
            narrow = torch.zeros(*padded.shape[:2], 1)
            rows, sizes = _aten._pack_padded_sequence(narrow, lengths, batch_first)
        shape = [rows.shape[0], *padded.shape[2:]]
        return self._faked(_aten.new_empty.default, types, (padded, shape), {}), sizes

    def _places_of(self, index: Any) -> list[Any] | None:
        """A mask among indices as the indices of what it shows."""
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
        made = self._faked(
            _aten.empty_strided.default,
            (),
            (list(value.shape), list(value.stride())),
            {"dtype": value.dtype, "device": device},
        )
        return made


# They give numbers of Python's.
_GIVING = frozenset({_aten._local_scalar_dense.default, _aten.equal.default})


def _given_unknown(func: Any, args: Sequence[Any]) -> Any:
    """What stands for an unknown number: where Python asks for it, `following` does the rest,
    else the answer to what PyTorch asks; None where there is none."""
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
    """The arguments of an operator with plain numbers, and whether one is unknown."""
    if session.makes_tensor and func is _aten.lift_fresh.default:
        session.makes_tensor = False
        return args, kwargs, True
    return without_numbers(func, args, kwargs)


@functools.cache
def _can_end_at(func: Any) -> bool:
    """Whether it makes a tensor. What tells of one, or makes another one of it, is called by
    parts of PyTorch in C++ that end the process where it raises."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace == "prim":
        return False
    made = [r for r in func._schema.returns if r.alias_info is None]
    return any(r.type.kind() in ("TensorType", "ListType") for r in made)


def value_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The value of a tensor, on the CPU, where it is known."""
    if not isinstance(tensor, FakeTensor):
        is_small = type(tensor) in _REAL and _is_small(tensor)
        return tensor if is_small and tensor.device.type == "cpu" else None
    value = tensor.__dict__.get("_acplan_value")
    if value is None or value.untyped_storage().__dict__.get("is_unknown"):
        return None
    # A tensor's `data` can be set behind everybody's back.
    return value if value.shape == tensor.shape else None


def _takes_numbers(func: Any) -> bool:
    return bool(fake_tensor.should_allow_numbers_as_tensors(func))


def _is_unfaked_zero(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor._is_zerotensor()


LOST_ZERO = (
    "a tangent that is known to be zero cannot be traced within a gradient; use "
    "torch.func.jacrev(torch.func.jacrev(f)) in place of torch.func.hessian(f), and of "
    "jacfwd(jacrev(f))"
)
_REAL = (torch.Tensor, torch.nn.Parameter)


def give_value(fake: torch.Tensor, value: torch.Tensor) -> None:
    """Gives a fake tensor a copy of a real one's value, if it is small, else none; one on
    the meta device has none, a parameter changes."""
    fake.__dict__.pop("_acplan_value", None)
    if isinstance(value, torch.nn.Parameter):
        return
    if value.device.type == "meta" or isinstance(value, FakeTensor):
        return
    if value.is_sparse or value.is_quantized or value.is_nested:
        return
    if _is_small(value):
        with no_dispatch():
            set_value(fake, value.detach().cpu().clone())


def _default_value(name: str, tensor: torch.Tensor) -> torch.Tensor | None:
    """The value that an input on the meta device is taken to have, by its name:
    nothing is padded, nothing is packed. Masks are true everywhere, positions count
    from 0, labels and types are 0, and other integers, tokens say, are 3, which no
    library takes for padding or an end."""
    if tensor.dtype not in _DISCRETE or not _is_small(tensor):
        return None
    with no_dispatch():
        if "mask" in name or tensor.dtype == torch.bool:
            return torch.ones(tensor.shape, dtype=tensor.dtype)
        if "position" in name and tensor.dim() > 0 and not name.startswith(_PLACES):
            return torch.arange(tensor.shape[-1], dtype=tensor.dtype).expand(tensor.shape)
        is_zero = name.startswith(_PLACES) or "label" in name or "type" in name
        return torch.full(tensor.shape, 0 if is_zero else 3, dtype=tensor.dtype)


_PLACES = ("start_position", "end_position")


def give_defaults(forward: Callable[..., Any], inputs: Any, fakes: Any) -> list[str]:
    """Gives the fakes of a model's inputs on the meta device their default values, and
    says so. Both are pairs of arguments and keyword arguments."""
    names = []
    for (name, value), (_, fake) in zip(_named(forward, inputs), _named(forward, fakes)):
        # One tensor may be several inputs, tokens and labels say: the first counts.
        if value.device.type != "meta" or value_of(fake) is not None:
            continue
        default = _default_value(name, fake)
        if default is not None:
            set_value(fake, default)
            names.append(name)
    if not names:
        return []
    return [
        f"on the meta device {', '.join(dict.fromkeys(names))} have no values: traced as "
        "without padding and packed sequences; give real tensors where there are any"
    ]


def _named(
    forward: Callable[..., Any], inputs: tuple[Sequence[Any], Mapping[str, Any]]
) -> list[tuple[str, torch.Tensor]]:
    """Tensors with the names by which a model takes them, or a mapping in them."""
    args, kwargs = inputs
    try:
        signature = inspect.signature(forward)
        given: Any = signature.bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):
        given = {**kwargs, "": args}
    return list(_leaves("", given))


def _leaves(name: str, values: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(values, torch.Tensor):
        yield name, values
    elif isinstance(values, Mapping):
        for key, value in values.items():
            yield from _leaves(str(key), value)
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _leaves(name, value)


@contextlib.contextmanager
def as_in_training() -> Iterator[None]:
    """While it lasts, libraries that ask whether they are traced hear that they are
    not, tensors with values give them out as real ones do, and code that torch.jit has
    compiled runs as if it had not."""
    # What it cannot fake it logs with a traceback, and raises.
    data = property(torch.Tensor.data.__get__, _set_data)  # type: ignore[attr-defined]
    moved = set_attribute(FakeTensor, "data", data, create=True)
    quiet = set_attribute(fake_tensor.log, "disabled", True)
    asked = set_attribute(torch._subclasses, "FakeTensor", _AskedFakeTensor)
    lists = set_attribute(FakeTensor, "tolist", _to_list)
    arrays = set_attribute(FakeTensor, "numpy", _to_numpy, create=True)
    array = set_attribute(FakeTensor, "__array__", _to_array, create=True)
    text = set_attribute(FakeTensor, "__format__", _formatted)
    padding = set_attribute(torch._VF, "_pad_packed_sequence", _pad_packed_sequence)
    lengths = set_attribute(torch, "ctc_loss", _ctc_loss)
    plain = plain_fakes(value_of)
    replaced = (quiet, asked, lists, arrays, array, text, padding, moved)
    with contextlib.ExitStack() as undo:
        for one in (*replaced, random_state_kept(), plain, lengths, by_operators()):
            undo.enter_context(one)
        yield


def start_of_step() -> None:
    """Random numbers that decide what runs, layers that are dropped say, are the same
    at every step that is recorded."""
    random.seed(_SEED)
    with no_dispatch():
        torch.default_generator.manual_seed(_SEED)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(_SEED)


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """At the end the random states of PyTorch, NumPy and Python are what they were."""
    state = random.getstate()
    numpy = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state() if numpy else None
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(state)
        if numpy:
            numpy.random.set_state(of_numpy)


class _Asked(type):
    """transformers asks `isinstance(x, torch._subclasses.FakeTensor)` before it looks
    at values. PyTorch itself, which asks the same, hears the truth."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return _asks_as_torch() and isinstance(instance, FakeTensor)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return _asks_as_torch() and issubclass(subclass, FakeTensor)


class _AskedFakeTensor(metaclass=_Asked):
    pass


def _asks_as_torch() -> bool:
    # The frame of what asked, two above this one.
    name = str(sys._getframe(2).f_globals.get("__name__", ""))
    return name == "torch" or name.startswith("torch.")


# Called with what Python's own code, rather than an operator, reads.
readers: list[Callable[[torch.Tensor], None]] = []


def _tell_readers(tensor: torch.Tensor) -> None:
    for reader in readers:
        reader(tensor)


def _to_list(tensor: torch.Tensor) -> Any:
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    _tell_readers(tensor)
    if value_of(tensor) is None and followed() is not None:
        return list_of_unknown(tensor)
    with no_dispatch():
        return _known(tensor, "tolist").tolist()


def _to_numpy(tensor: FakeTensor, *args: Any, **kwargs: Any) -> Any:
    if tensor.device.type != "cpu":
        raise TypeError(
            f"can't convert {tensor.device} device type tensor to numpy. Use "
            "Tensor.cpu() to copy the tensor to host memory first."
        )
    _tell_readers(tensor)
    if value_of(tensor) is None and followed() is not None:
        return array_of_unknown(tensor)
    with no_dispatch():
        return _known(tensor, "numpy").numpy()


def _to_array(tensor: FakeTensor, dtype: Any = None, *_: Any, **__: Any) -> Any:
    array = _to_numpy(tensor)
    return array if dtype is None else array.astype(dtype, copy=False)


def _pad_packed_sequence(
    data: torch.Tensor,
    batch_sizes: torch.Tensor,
    batch_first: bool,
    padding_value: float,
    total_length: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """With the operators of PyTorch's own, which writes lengths where a fake tensor has
    no memory: rows of steps with as many sequences are copied at once."""
    if not isinstance(data, FakeTensor):
        padded: tuple[torch.Tensor, torch.Tensor] = _PAD_PACKED(
            data, batch_sizes, batch_first, padding_value, total_length
        )
        return padded
    with no_dispatch():
        sizes: list[int] = batch_sizes.tolist()
    steps = max(total_length, len(sizes))
    out = torch.full(
        (steps, sizes[0], *data.shape[1:]),
        padding_value,
        dtype=data.dtype,
        layout=data.layout,
        device=data.device,
    )
    lengths = torch.empty(sizes[0], dtype=torch.int64, layout=torch.strided)
    ends = [k for k, size in enumerate(sizes) if [*sizes, 0][k + 1] != size]
    row = first = 0
    for end in ends:
        count, size = end + 1 - first, sizes[end]
        part = data.narrow(0, row, count * size)
        place = out.narrow(0, first, count).narrow(1, 0, size)
        place.copy_(part.view(count, size, *data.shape[1:]))
        row, first = row + count * size, end + 1
    with no_dispatch():
        found = torch.tensor([sum(size > k for size in sizes) for k in range(sizes[0])])
        set_value(lengths, found)
    return (out.transpose(0, 1) if batch_first else out), lengths


_PAD_PACKED = torch._VF._pad_packed_sequence


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """With lengths on the device, wherever they are: PyTorch's kernel reads numbers on the
    host, and makes a tensor of them after that, but has no form of it for fake tensors."""
    lengths = [
        torch.as_tensor(some, device=log_probs.device)
        for some in (input_lengths, target_lengths)
    ]
    loss: torch.Tensor = _CTC_LOSS(log_probs, targets, *lengths, *args, **kwargs)
    return loss


_CTC_LOSS: Any = torch.ctc_loss


def _set_data(tensor: FakeTensor, data: torch.Tensor) -> None:
    torch.Tensor.data.__set__(tensor, data)  # type: ignore[attr-defined]
    tensor.__dict__.pop("_acplan_value", None)
    value = value_of(data)
    if value is not None and isinstance(data, FakeTensor):
        set_value(tensor, value)


def _formatted(tensor: FakeTensor, form: str) -> str:
    """In a message a single number is shown, for which it is copied to the host."""
    if tensor.dim() == 0 and (value_of(tensor) is not None or followed() is not None):
        return format(tensor.item(), form)
    return object.__format__(tensor, form)


def _known(tensor: torch.Tensor, what: str) -> torch.Tensor:
    value = value_of(tensor)
    if value is None:
        raise DataDependentOutputException(what)  # type: ignore[arg-type]
    return value


def depends_on_values(error: Exception, given: Any, inputs: Any) -> str:
    """Says of a step what it asked for, where, and what to do. `given` are the inputs as the
    user has them, `inputs` their fakes."""
    if isinstance(error, UnknownValue):
        what, line = error.what, error.line
    else:
        what, line = f"the result of {error}", line_of_error(error)
    ways = []
    if any(tensor.device.type == "meta" for tensor in tensors_of(*given)):
        ways.append(
            "give real inputs in place of those on the meta device, whose values are unknown"
        )
    many = _too_many_for_values(tensors_of(*inputs))
    if many:
        ways.append(f"trace a smaller batch, as an input of {many} is too large to have values")
    return (
        "what the model runs depends on values, which a trace does not compute: it asks for "
        + "; ".join([f"{what}{f', at {line}' if line else ''}", *ways])
    )


def _too_many_for_values(tensors: Iterable[torch.Tensor]) -> str:
    """How many numbers the first of these has that has more than are looked at."""
    for tensor in tensors:
        if tensor.dtype in _DISCRETE and tensor.numel() > _MOST_ELEMENTS:
            return f"{tensor.numel():,} whole numbers"
        if tensor.dtype not in _DISCRETE and tensor.numel() > _MOST_FRACTIONS:
            return f"{tensor.numel():,} fractions"
    return ""


def _is_small(tensor: torch.Tensor) -> bool:
    most = _MOST_ELEMENTS if tensor.dtype in _DISCRETE else _MOST_FRACTIONS
    return tensor.layout == torch.strided and tensor.numel() <= most


def _is_known(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether all tensors of an operator have values."""
    is_written = func._schema.is_mutable
    if isinstance(kwargs.get("generator"), torch.Generator):
        return False  # It is the user's, and would be moved on.
    return all(
        value_of(tensor) is not None and (isinstance(tensor, FakeTensor) or not is_written)
        for tensor in tensors_of(args, kwargs)
    )


def _computed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an operator returns for the values of its tensors."""
    with no_dispatch():
        try:
            return func(*tree_map(_on_cpu, args), **tree_map(_on_cpu, dict(kwargs)))
        except (RuntimeError, IndexError, TypeError, ValueError):
            return UNKNOWN  # The CPU has no such operator.


def _on_cpu(leaf: Any) -> Any:
    if isinstance(leaf, FakeTensor):
        return value_of(leaf)
    if isinstance(leaf, torch.Tensor):
        return leaf.clone()  # What it becomes part of may be written to.
    if isinstance(leaf, torch.device) and leaf.type != "meta":
        return torch.device("cpu")
    return leaf


def _of_finite_numbers(func: Any, args: Sequence[Any], out: Any) -> Any:
    """What tests for infinity and for what is no number find, as all numbers that a
    step computes are taken for finite ones: one value for all places."""
    if not isinstance(out, FakeTensor) or out.dtype != torch.bool:
        return UNKNOWN
    if func in (_aten.eq.Tensor, _aten.ne.Tensor) and args[0] is args[1]:
        found = func is _aten.eq.Tensor
    elif func in (_aten.eq.Scalar, _aten.ne.Scalar) and args[1] in (_INF, -_INF):
        found = func is _aten.ne.Scalar
    elif func is _aten.isnan.default or func is _aten.isinf.default:
        found = False
    elif func is _aten.mul.Tensor and all(map(_is_uniform, args)):
        values = map(value_of, args)
        found = all(value is not None and bool(value.flatten()[0]) for value in values)
    else:
        return UNKNOWN
    with no_dispatch():
        return torch.tensor(found).expand(out.shape)


_INF = float("inf")


def _is_uniform(value: Any) -> bool:
    known = value_of(value) if isinstance(value, FakeTensor) else None
    return known is not None and known.numel() > 0 and not any(known.stride())


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
            # Zeros of the operating system cost nothing until they are looked at.
            if fill == 0 and out.is_contiguous():
                made = torch.zeros(out.shape, dtype=out.dtype)
            else:
                made = torch.empty_strided(out.shape, out.stride(), dtype=out.dtype)
                made.fill_(fill)
            set_value(out, made)


def _attach(out: Any, value: Any) -> None:
    if isinstance(out, (list, tuple)) and isinstance(value, (list, tuple)):
        for pair in zip(out, value):
            _attach(*pair)
    elif isinstance(out, FakeTensor) and isinstance(value, torch.Tensor):
        if out.shape == value.shape:
            set_value(out, value)


def set_value(fake: torch.Tensor, value: torch.Tensor | None) -> None:
    """Says what a fake tensor's value is; None: nobody knows."""
    fake.__dict__["_acplan_value"] = value


def _forget_written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    for tensor in written_by(func, args, kwargs):
        value = tensor.__dict__.get("_acplan_value")
        if value is not None:
            # So are all views of that memory.
            value.untyped_storage().is_unknown = True


def _device_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    if isinstance(kwargs.get("device"), torch.device):
        device: torch.device = kwargs["device"]
        return device
    tensors = tensors_of(args, kwargs)
    return next((t.device for t in tensors if t.dim() > 0), tensors[0].device)
