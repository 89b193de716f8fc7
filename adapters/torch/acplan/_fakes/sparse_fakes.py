"""Fake sparse tensors: the results of operators on them, and the plain tensors of which they
consist.

PyTorch's fakes know few operators of sparse tensors, and have wrong results for some. The
number of elements of a result follows from the indices. So each sparse fake has a real sparse
tensor on the CPU, with the indices that it has in the step if these have values, and else with
as many others; all its elements are one zero. Operators run on the real tensors, and their
results show the parts of which a fake result consists: parts of the arguments, or new ones.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    FakeTensor,
    in_kernel_invocation_manager,
)
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves, tree_map

from acplan._base.errors import AcplanError, reason_of
from acplan._base.tensors import LAYOUTS_BY_ROWS, SPARSE_LAYOUTS, is_sparse

_aten = torch.ops.aten
_STRIDED = torch.strided
# The attribute of a fake that holds its real tensor.
_REAL = "_acplan_sparse"

GiveValue = Callable[[torch.Tensor, torch.Tensor], None]
ValueOf = Callable[[torch.Tensor], torch.Tensor | None]

# The operators that make a sparse tensor of plain ones.
_MAKERS = frozenset(
    getattr(getattr(_aten, packet), overload)
    for packet, overload in (
        ("_sparse_coo_tensor_with_dims_and_tensors", "default"),
        ("_sparse_coo_tensor_unsafe", "default"),
        ("_sparse_compressed_tensor_unsafe", "default"),
        ("sparse_compressed_tensor", "comp_plain_value_size"),
        ("sparse_coo_tensor", "indices_size"),
    )
    if hasattr(_aten, packet) and overload in getattr(_aten, packet).overloads()
)
# The operators whose number of elements depends on values.
_TO_SPARSE = ("_to_sparse", "to_sparse")
# The operators that ask only for properties of the shape, which PyTorch's fakes have.
_ASKS = ("is_coalesced", "_nnz", "sparse_dim", "dense_dim", "_dimI", "_dimV", "device")
# The products, with the places of their factors.
_PRODUCTS: Mapping[str, tuple[int, int]] = {
    "mm": (0, 1), "mv": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "addmv": (1, 2),
    "_sparse_addmm": (1, 2), "_sparse_mm": (0, 1),
}  # fmt: skip


def sparse_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Returns the plain tensors of which a sparse tensor consists: indices, then elements."""
    with torch.no_grad():
        if tensor.layout is torch.sparse_coo:
            return [tensor._indices(), tensor._values()]
        is_by_rows = tensor.layout in LAYOUTS_BY_ROWS
        whole = tensor.crow_indices() if is_by_rows else tensor.ccol_indices()
        others = tensor.col_indices() if is_by_rows else tensor.row_indices()
        return [whole, others, tensor.values()]


def concerns_sparse(func: Any, tensors: Sequence[torch.Tensor]) -> bool:
    """Returns whether an operator with these tensors is one for `SparseFakes`."""
    is_strided = True
    for tensor in tensors:
        layout = tensor.layout
        if layout is not _STRIDED:
            is_strided = False
            if layout in SPARSE_LAYOUTS:
                return True
    return is_strided and _makes_sparse(func)


@functools.cache
def _makes_sparse(func: Any) -> bool:
    return func in _MAKERS or func.__name__.split(".")[0] in _TO_SPARSE


def asks_of_sparse(func: Any) -> bool:
    return func.__name__.split(".")[0] in _ASKS


def fake_of_sparse(value: torch.Tensor, fake: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    """Returns the fake of a real sparse tensor; `fake` makes the fakes of its parts."""
    with no_dispatch():
        parts = sparse_parts(value.detach())
        sides = [part.cpu() for part in parts[:-1]]
        real = _with_parts(value, [*sides, _zeros(parts[-1])])
    return made_of(real, [fake(part) for part in parts])


def structure_of(
    fake: torch.Tensor, parts: Sequence[torch.Tensor] | None = None
) -> torch.Tensor:
    """Returns the real tensor of a fake."""
    real: torch.Tensor | None = fake.__dict__.get(_REAL)
    if real is not None and real.shape == fake.shape:
        return real
    parts = sparse_parts(fake) if parts is None else parts
    with no_dispatch():
        return _assumed(fake, parts)


def made_of(real: torch.Tensor, parts: Sequence[Any]) -> torch.Tensor:
    """Returns the fake sparse tensor that consists of these fake parts and has this real
    tensor."""
    mode, device = parts[-1].fake_mode, parts[-1].device
    with no_dispatch(), in_kernel_invocation_manager(mode):
        metas = [part.view(part.shape) for part in parts]
    with no_dispatch():
        meta_tensor = _with_parts(real, metas)
    fake: torch.Tensor = mode.fake_tensor_converter.from_meta_and_device(
        mode, meta_tensor, device
    )
    fake.__dict__[_REAL] = real
    return fake


class SparseFakes:
    """A run of one operator on fake sparse tensors."""

    def __init__(self, value_of: ValueOf, give_value: GiveValue) -> None:
        self._value_of = value_of
        self._give_value = give_value
        # The fake part for a real part, indexed by the storage of the real part.
        self._fakes: dict[int, torch.Tensor] = {}
        # A real tensor and its fake, indexed by the id of the real tensor, which is held so.
        self._originals: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._device = torch.device("cpu")

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Returns the operator's result for fake tensors."""
        name = func.__name__.split(".")[0]
        tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        self._device = next((t.device for t in tensors if t.dim() > 0), tensors[0].device)
        if func._schema.is_mutable:
            return self._run_in_place(func, args)
        if name in _PRODUCTS:
            first, second = (args[place] for place in _PRODUCTS[name])
            if not (is_sparse(first) and is_sparse(second)):
                return self._product(first, second, args[0])
        if name in _TO_SPARSE and tensors[0].layout is _STRIDED:
            if self._value_of(tensors[0]) is None:
                raise AcplanError(
                    f"{func}: the number of elements of a sparse tensor that is made from a "
                    "plain one depends on values, which a trace does not compute; make it "
                    "before the step, and give it as an input or a buffer"
                )
        return tree_map(self._fake, self._computed(func, args, kwargs))

    def _run_in_place(self, func: Any, args: Sequence[Any]) -> Any:
        """Runs an operator that writes in place. A tensor that is written to has its own
        elements and those of another sparse tensor that is added. Returns the operator's
        result."""
        first, second = (args[0], args[1]) if len(args) > 1 else (args[0], None)
        kinds = (list, tuple)
        pairs: Any = [(first, second)]
        if isinstance(first, kinds) and isinstance(second, kinds):
            pairs = zip(first, second)
        for target, other in pairs:
            if not (isinstance(target, torch.Tensor) and isinstance(other, torch.Tensor)):
                continue
            if is_sparse(target) and is_sparse(other):
                self._add(func, target, other)
        return first if func._schema.returns else None

    def _add(self, func: Any, target: torch.Tensor, other: torch.Tensor) -> None:
        """Adds a sparse tensor as CUDA does: its elements come behind those of `target`."""
        is_sum = func.__name__.split(".")[0] in ("add_", "sub_", "_foreach_add_")
        if not is_sum or {target.layout, other.layout} != {torch.sparse_coo}:
            raise AcplanError(
                f"{func}: a write in place to a sparse tensor can be traced only for sums of "
                "tensors of coordinates; make a new tensor"
            )
        sides = zip(sparse_parts(target), sparse_parts(other))
        dims = (1, 0)
        parts = [torch.cat(pair, dim) for pair, dim in zip(sides, dims)]
        with no_dispatch():
            indices = torch.cat([structure_of(t)._indices() for t in (target, other)], 1)
            real = torch.sparse_coo_tensor(
                indices, _zeros(parts[1]), target.shape, check_invariants=False
            )
        total = made_of(real, parts)
        with torch.no_grad():
            target.data = total
        target.__dict__[_REAL] = real

    def _product(self, first: Any, second: Any, like: torch.Tensor) -> torch.Tensor:
        plain = next(t for t in (first, second, like) if not is_sparse(t))
        return plain.new_empty([*first.shape[:-1], *second.shape[first.dim() - 1 :]])

    def _computed(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func is _aten._coalesce.default:
            return self._coalesced(args[0])
        real_args = tree_map(self._real, args)
        real_kwargs = tree_map(self._real, dict(kwargs))
        with no_dispatch():
            try:
                return func(*real_args, **real_kwargs)
            except (NotImplementedError, RuntimeError) as error:
                reason = reason_of(error, "it")
                raise AcplanError(
                    f"{func}: PyTorch has no kernel for the CPU that shows its result for "
                    f"sparse tensors, so it cannot be traced: {reason}"
                ) from error

    def _coalesced(self, fake: torch.Tensor) -> torch.Tensor:
        """Returns a coalesced tensor with elements of any width, without their memory."""
        real = self._real(fake)
        with no_dispatch():
            values = real._values()
            narrow = torch.zeros(values.shape[:1], dtype=values.dtype)
            shape = real.shape[: real.sparse_dim()]
            indices = (
                torch.sparse_coo_tensor(real._indices(), narrow, shape, check_invariants=False)
                .coalesce()
                ._indices()
            )
            zeros = _zeros(values[:1]).expand(indices.shape[1], *values.shape[1:])
            return torch.sparse_coo_tensor(
                indices, zeros, real.shape, check_invariants=False, is_coalesced=True
            )

    def _real(self, value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu") if value.type != "meta" else value
        if not isinstance(value, torch.Tensor):
            return value
        if not isinstance(value, FakeTensor):
            with no_dispatch():
                return value.detach().cpu()
        if not is_sparse(value):
            known_value = self._value_of(value)
            with no_dispatch():
                copy = _zeros(value) if known_value is None else known_value.clone()
            self._originals[id(copy)] = (copy, value)
            self._fakes[_key(copy)] = value
            return copy
        parts = sparse_parts(value)
        with no_dispatch():
            real = structure_of(value, parts)
            # An operator may write to the copies.
            copies = [part.clone() for part in sparse_parts(real)[:-1]]
            real = _with_parts(real, [*copies, _zeros(parts[-1])])
            self._fakes |= {_key(r): f for r, f in zip(sparse_parts(real), parts)}
        self._originals[id(real)] = (real, value)
        return real

    def _fake(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in self._originals:
            return self._originals[id(value)][1]
        if is_sparse(value):
            with no_dispatch():
                parts = sparse_parts(value)
            return made_of(value, [self._fake(part) for part in parts])
        source = self._fakes.get(_key(value))
        if source is not None and source.dtype == value.dtype:
            if source.shape == value.shape:
                return source.detach()
            if not _is_one_number(value):
                return source.as_strided(value.shape, value.stride(), value.storage_offset())
        fake = torch.empty(value.shape, dtype=value.dtype, device=self._device)
        if not value.is_floating_point():
            self._give_value(fake, value)
        return fake


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_one_number(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().nbytes() <= tensor.element_size()


def _zeros(like: torch.Tensor) -> torch.Tensor:
    """Returns as many zeros, in the memory of one."""
    return torch.zeros((), dtype=like.dtype).expand(like.shape)


def _with_parts(like: torch.Tensor, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    shape = tuple(like.shape)
    if like.layout is torch.sparse_coo:
        indices, values = parts
        return torch.sparse_coo_tensor(
            indices, values, shape, check_invariants=False, is_coalesced=like.is_coalesced()
        )
    whole, others, values = parts
    tensor: torch.Tensor = torch.sparse_compressed_tensor(
        whole, others, values, shape, layout=like.layout, check_invariants=False
    )
    return tensor


def _assumed(fake: torch.Tensor, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns a real tensor with as many elements, in different places as long as there are
    any."""
    count = parts[0 if fake.layout is torch.sparse_coo else 1].shape[-1]
    if fake.layout is torch.sparse_coo:
        shape = fake.shape[: parts[0].shape[0]]
        places = torch.arange(count) % max(math.prod(shape), 1)
        indices = torch.stack(torch.unravel_index(places, shape)) if shape else parts[0]
        return torch.sparse_coo_tensor(
            indices, _zeros(parts[1]), tuple(fake.shape), check_invariants=False
        )
    rows = parts[0].shape[-1] - 1
    whole = torch.arange(rows + 1) * count // max(rows, 1)
    others = torch.arange(count) - whole[:-1].repeat_interleave(whole.diff())
    sides = (whole.to(parts[0].dtype), others.to(parts[1].dtype))
    return _with_parts(fake, [*sides, _zeros(parts[2])])
