"""Ring attention of PyTorch's context parallelism as one operator.

Each rank runs other operators in it: with a causal mask it reads other parts of the sequence.
The decisions of a plan must hold on every rank, for attention communicates. So modes see one
operator for all that the forward pass runs in it, with the same name on every rank, and with
results of the same strides, which decide what runs after it.
"""

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

_MODULES = (
    "torch.distributed.tensor.experimental._context_parallel._attention",
    "torch.distributed.tensor.experimental._attention",  # up to PyTorch 2.8
)
_NAME = "_templated_ring_attention"
_SCHEMA = (
    "ring_attention(Tensor query, Tensor key, Tensor value, *, str kernel, str group, "
    "int seq_dim, bool is_causal, float dropout_p, float? scale) -> Tensor[]"
)
_plain: Callable[..., tuple[Any, ...]] | None = None
# The results that are no tensors, which depend on these arguments alone.
_numbers: dict[Any, tuple[Any, ...]] = {}


def run_ring(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    kernel: str,
    group: str,
    seq_dim: int,
    is_causal: bool,
    dropout_p: float,
    scale: float | None,
) -> list[torch.Tensor]:
    """Runs PyTorch's function, and the operators in it, and returns its tensors."""
    assert _plain is not None
    resolve: Any = vars(c10d)["_resolve_process_group"]
    options = {} if "flash" in kernel else {"attn_bias": None, "compute_log_sumexp": True}
    results = _plain(
        resolve(group),
        seq_dim,
        getattr(torch.ops.aten, kernel),
        query=query,
        key=key,
        value=value,
        is_causal=is_causal,
        dropout_p=dropout_p,
        scale=scale,
        **options,
    )
    place = _place(query, key, kernel, group, is_causal)
    _numbers[place] = tuple(None if isinstance(r, torch.Tensor) else (r,) for r in results)
    tensors = [result for result in results if isinstance(result, torch.Tensor)]
    # Ranks merge their parts in different ways, which leave the result in different orders.
    tensors[0] = tensors[0].transpose(1, 2).contiguous().transpose(1, 2)
    return tensors


def _place(query: torch.Tensor, key: torch.Tensor, *others: Any) -> tuple[Any, ...]:
    return (tuple(query.shape), tuple(key.shape), *others)


@functools.cache
def ring_attention() -> Any:
    """Returns the operator."""
    library = torch.library.Library("acplan", "FRAGMENT")  # noqa: TOR901 - for good
    library.define(_SCHEMA, tags=(torch.Tag.nondeterministic_seeded,))
    library.impl("ring_attention", run_ring, "CompositeExplicitAutograd")
    torch.library.register_fake("acplan::ring_attention", run_ring, lib=library)
    _kept_libraries.append(library)
    return torch.ops.acplan.ring_attention.default


_kept_libraries: list[Any] = []


def watch_ring_attention() -> None:
    """Lets the modes of acplan see ring attention, from now on, as one operator."""
    global _plain
    if _plain is not None:
        return
    module = next((m for m in map(_imported, _MODULES) if hasattr(m, _NAME)), None)
    if module is None:
        return
    plain: Callable[..., tuple[Any, ...]] = getattr(module, _NAME)
    _plain = plain

    @functools.wraps(plain)
    def ring(
        group: Any,
        seq_dim: int,
        op: Any,
        *,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        is_causal: bool = False,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        modes = _get_current_dispatch_mode_stack()
        if not any(hasattr(mode, "looking_away") for mode in modes):
            tensors = {"query": query, "key": key, "value": value}
            return plain(group, seq_dim, op, **tensors, is_causal=is_causal, **kwargs)
        kernel = str(op).removeprefix("aten.")
        results = ring_attention()(
            query,
            key,
            value,
            kernel=kernel,
            group=group.group_name,
            seq_dim=seq_dim,
            is_causal=is_causal,
            dropout_p=kwargs.get("dropout_p", 0.0),
            scale=kwargs.get("scale"),
        )
        place = _place(query, key, kernel, group.group_name, is_causal)
        return tuple(_with_numbers(results, _numbers[place]))

    setattr(module, _NAME, ring)


def _with_numbers(tensors: Sequence[torch.Tensor], numbers: Sequence[Any]) -> Iterator[Any]:
    remaining = iter(tensors)
    for number in numbers:
        yield next(remaining) if number is None else number[0]


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:  # a module of other versions
        return None
