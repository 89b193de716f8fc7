"""Shardings and shapes that DTensor works out of operators.

A DTensor runs each operator once on fake tensors of the whole shape, when it first meets such
arguments. A mode that records or matches operators would see these as well, in one step and
not in the next.
"""

import contextlib
import functools
from typing import Any

from torch.distributed.tensor import DTensor, debug
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

_NAME = "_propagate_tensor_meta_non_cached"
_WATCHED = "acplan_watched"


def watch_propagation() -> None:
    """Lets the modes of acplan look away, from now on, while DTensor computes shapes."""
    plain = vars(ShardingPropagator).get(_NAME)
    if plain is None or hasattr(plain, _WATCHED):
        return

    @functools.wraps(plain)
    def propagate(*args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for mode in _get_current_dispatch_mode_stack():
                if hasattr(mode, "looking_away"):
                    stack.enter_context(mode.looking_away())
            return plain(*args, **kwargs)

    setattr(propagate, _WATCHED, True)
    setattr(ShardingPropagator, _NAME, propagate)


def forget_shardings() -> None:
    """Lets DTensor forget the shardings that it has worked out. Each holds its mesh, and would
    be used for an equal mesh of other groups. If ranks forget them, all must."""
    DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear()
    getattr(debug, "_clear_fast_path_sharding_prop_cache", int)()
