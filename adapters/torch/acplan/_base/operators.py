"""Operators: what follows from their schemas and arguments, and what schemas do not say."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import checkpoint

from acplan._base.process_groups import is_collective
from acplan._base.tensors import tensors_of

# The operator that casts. Autocast keeps the results of some casts.
CAST = torch.ops.aten._to_copy.default
# A view that neither its schema nor autograd declares as one. From PyTorch 2.15 on, linear
# layers return it, and a ReLU in place then writes to their product.
_UNNAMED_VIEW = torch.ops.aten._unsafe_view.default
# The operator that hands out the result of a collective before it has ended, as a tensor that
# waits when it is used; None in a PyTorch that does so without an operator.
HANDS_OUT: Any = getattr(
    getattr(torch.ops._c10d_functional, "_wrap_tensor_autograd", None), "default", None
)
# The operator that waits for a collective. It returns the tensor that it is given.
WAITS = torch.ops._c10d_functional.wait_tensor.default
# Neither counts: a tensor that has waited does not wait again, in a recomputation for example.
OF_WAITING = frozenset([HANDS_OUT, WAITS])
# An operator that makes an empty tensor, and those that give it other memory: the weights of
# recurrent modules are put together so, and up to PyTorch 2.11 a checkpoint attaches its
# arguments to an empty tensor.
EMPTY = torch.ops.aten.empty.memory_format
_SETS_MEMORY = frozenset(
    [torch.ops.aten.set_.source_Storage] + [torch.ops.aten.set_.source_Storage_storage_offset]
)
_DEVICE = torch.ops.prim.device.default
STATISTICS = ("running_mean", "running_var")
# The buffers of normalisations that a call moves on, and does not read.
MOVED_ON = (*STATISTICS, "num_batches_tracked")
_IN_TRAINING = ("training", "train", "use_input_stats")
# The namespaces of operators that communicate, or copy for those that do.
COMMUNICATING = frozenset(["c10d", "_c10d_functional", "_dtensor", "fsdp"])
# PyTorch's own operators have a tag if they draw.
_WITH_TAGS = frozenset(["aten", "prim", "prims", "profiler"]) | COMMUNICATING
_ONLY_SELF = ((0, "self"),)


@dataclasses.dataclass(frozen=True, slots=True)
class Traits:
    """The properties of an operator that the modes need, for any arguments.

    is_view:    it is a view by its schema, and so for autograd.
    only_shows: it reads nothing of the memory of which it makes another tensor.
    communicates: it is a collective, or acplan.ring_attention, in which collectives run.
    """

    is_ignored: bool
    is_plain: bool
    is_mutable: bool
    is_random: bool
    dropout_place: int
    is_cast: bool
    is_view: bool
    only_shows: bool
    writes: bool
    changes_shape: bool
    may_be_of_nothing: bool
    communicates: bool


@functools.cache
def traits_of(func: Any) -> Traits:
    schema = getattr(func, "_schema", None)
    arguments = schema.arguments if schema else ()
    names = [argument.name for argument in arguments]
    is_mutable = bool(schema and schema.is_mutable)
    # Operators that libraries register may draw random numbers without a tag that says so.
    namespace = getattr(func, "namespace", "")
    is_random = namespace not in _WITH_TAGS or (torch.Tag.nondeterministic_seeded in func.tags)
    is_cast = func is CAST
    is_view = not is_mutable and any(argument.alias_info for argument in arguments)
    return Traits(
        is_ignored=func in checkpoint.SAC_IGNORED_OPS or func in OF_WAITING,
        is_plain=not (is_mutable or is_random or is_cast or "running_mean" in names),
        is_mutable=is_mutable,
        is_random=is_random,
        dropout_place=names.index("dropout_p") if "dropout_p" in names else -1,
        is_cast=is_cast,
        is_view=is_view,
        only_shows=is_view or func is _UNNAMED_VIEW,
        # Schemas do not always declare that statistics are written to.
        writes=is_mutable or "running_mean" in names,
        changes_shape=torch.Tag.inplace_view in getattr(func, "tags", ()),
        may_be_of_nothing=func is EMPTY or func in _SETS_MEMORY,
        communicates=namespace == "acplan" or (bool(namespace) and is_collective(func)),
    )


def draws(traits: Traits, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Returns whether this call draws random numbers. Attention is tagged as random, and draws
    none if its dropout is 0."""
    if not traits.is_random or traits.dropout_place < 0:
        return traits.is_random
    positional = args[traits.dropout_place :]
    return bool(positional[0] if positional else kwargs.get("dropout_p"))


def is_kept_cast(tensor: torch.Tensor) -> bool:
    """Returns whether autocast keeps casts of this tensor. The recomputation does not have
    these casts, and so runs casts that forward did not run, or runs them elsewhere."""
    return (
        tensor.is_leaf
        and tensor.requires_grad
        and tensor.dtype == torch.float32
        and not tensor._is_view()
    )


def device_asked(func: Any, args: Sequence[Any]) -> torch.device | None:
    """Returns the answer if PyTorch asks a fake tensor for its device, which it does more often
    than it runs operators; else None."""
    if func is _DEVICE and type(args[0]) is FakeTensor:
        if not args[0].fake_mode.in_kernel_invocation:
            return args[0].fake_device
    return None


def is_of_nothing(func: Any, args: Sequence[Any]) -> bool:
    """Returns whether an operator makes an empty tensor, or gives one other memory. Neither
    computes anything, and policies see neither."""
    if func is EMPTY:
        return [*args[0]] == [0]
    return func in _SETS_MEMORY and args[0].numel() == 0


def statistics_of(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[torch.Tensor]:
    """Returns the running statistics that a normalisation updates. It writes to them only in
    training, even if its schema says otherwise."""
    places = _places_of_statistics(func)
    if not places:
        return []
    arguments = {name: args[k] if k < len(args) else kwargs.get(name) for k, name in places}
    if any(arguments.get(name) is False for name in _IN_TRAINING):
        return []
    return [value for value in arguments.values() if isinstance(value, torch.Tensor)]


@functools.cache
def _places_of_statistics(func: Any) -> tuple[tuple[int, str], ...]:
    schema = getattr(func, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema else []
    if STATISTICS[0] not in names:
        return ()
    relevant = STATISTICS + _IN_TRAINING
    return tuple((place, name) for place, name in enumerate(names) if name in relevant)


@functools.cache
def _places_written(func: Any) -> tuple[tuple[int, str], ...]:
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def written_by(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Returns the tensors that an operator writes to in place, according to its schema."""
    places = _places_written(func)
    if args and places == _ONLY_SELF and isinstance(args[0], torch.Tensor):
        return [args[0]]
    tensors: list[torch.Tensor] = []
    for place, name in places:
        tensors += tensors_of(args[place] if place < len(args) else kwargs.get(name))
    return tensors
