"""Modules under fully_shard: their groups of parameters, and the hooks around their forward,
which gather parameters and free them."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from acplan._base.modules import FSDPModule

# A hook of a module, as PyTorch calls it.
Hook = Callable[..., Any]


def state_of(module: FSDPModule) -> Any:
    return module._get_fsdp_state()


def groups_of(module: FSDPModule) -> list[Any]:
    """Returns the groups of parameters that a module gathers. Earlier versions of PyTorch have
    one at most."""
    state = state_of(module)
    if hasattr(state, "_fsdp_param_groups"):
        return [*state._fsdp_param_groups]
    return [state._fsdp_param_group] if state._fsdp_param_group else []


def shards_on_host(model: torch.nn.Module) -> set[int]:
    """Returns the ids of the rank's own parts of parameters that fully_shard keeps in the
    host's memory."""
    return {
        id(parameter.sharded_param._local_tensor)
        for module in model.modules()
        if isinstance(module, FSDPModule)
        for group in groups_of(module)
        for parameter in group.fsdp_params
        if parameter.offload_to_cpu
    }


@contextlib.contextmanager
def hooks_replaced(
    module: FSDPModule, before: Callable[[Hook], Hook], after: Callable[[Hook], Hook]
) -> Iterator[tuple[Hook, Hook]]:
    """Replaces, within the block, the hook that runs before the module's forward by what
    `before` makes of it, and the one after it by what `after` does. Yields the two hooks."""
    state, of_torch = state_of(module), _as_module(module)
    tables: list[Any] = [of_torch._forward_pre_hooks, of_torch._forward_hooks]
    handles = [state._pre_forward_hook_handle, state._post_forward_hook_handle]
    numbers = [_number_in(table, handle) for table, handle in zip(tables, handles)]
    hooks = [table[number] for table, number in zip(tables, numbers)]
    for table, number, hook, make in zip(tables, numbers, hooks, (before, after)):
        table[number] = make(hook)
    try:
        yield hooks[0], hooks[1]
    finally:
        for table, number, hook in zip(tables, numbers, hooks):
            table[number] = hook


def _number_in(table: Any, handle: Any) -> int:
    """Returns the number of a hook in a module's table, for the handle of the hook, or for one
    of the hooks of several modules that fully_shard takes together."""
    handles = getattr(handle, "handles", (handle,))
    number: int = next(h.id for h in handles if h.hooks_dict_ref() is table)
    return number


def _as_module(module: FSDPModule) -> torch.nn.Module:
    """Returns the module itself: the class of fully_shard comes beside the module's own."""
    assert isinstance(module, torch.nn.Module)
    return module


def gather_again(module: FSDPModule) -> None:
    """Gathers the parameters of a module that runs again in the backward pass, as the hook of
    its gradient will not do once more: until then nothing frees them. Its hooks around forward
    do nothing from here on to the end of the pass."""
    if torch._C._current_graph_task_id() == -1:
        return
    # The enumeration of PyTorch has no public name.
    from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

    state = state_of(module)
    state._training_state = TrainingState.PRE_BACKWARD
    for group in groups_of(module):
        with group.use_training_state(TrainingState.PRE_BACKWARD):
            group.unshard(group.unshard_async_op)
            group.wait_for_unshard()
