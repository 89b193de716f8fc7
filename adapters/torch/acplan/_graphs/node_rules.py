"""The rules of PyTorch's partitioner for a node: whether it may run in backward again, and what
its user has decided."""

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

_RECOMPUTED = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
# Arguments with the share of elements that an operator drops; it draws nothing if they are
# zero.
_DROP_ARGUMENTS = ("dropout_p", "dropout", "p")


def is_tangent(node: Node) -> bool:
    """Returns whether the node is an input that arrives with the backward pass."""
    if node.op != "placeholder":
        return False
    name = str(node.target)
    return "tangents" in name or "bwd_seed" in name or "bwd_base_offset" in name


def must_recompute(node: Node) -> bool:
    """Returns whether the model itself checkpoints the node, by torch.utils.checkpoint."""
    return node.meta.get("recompute") in _RECOMPUTED


def may_run_again(node: Node) -> bool:
    """Returns whether the node makes the same results when it runs once more in backward, and
    has no other effect."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return True
    if node.meta.get("recompute") == CheckpointPolicy.MUST_SAVE:
        return False
    if node.meta.get("partitioner_tag") == "must_be_in_forward":
        return False
    if _is_collective(node.target):
        return must_recompute(node)
    if _is_random(node):
        # PyTorch lets such an operator draw the same numbers again.
        return must_recompute(node) and isinstance(node.target, torch._ops.OpOverload)
    return not _has_effects(node)


def _is_collective(target: Any) -> bool:
    return getattr(target, "namespace", None) in ("_c10d_functional", "c10d_functional")


def _has_effects(node: Node) -> bool:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        # A size that depends on values would get a second symbol.
        has_own_size = bool(node.meta.get("unbacked_bindings"))
        return target._schema.is_mutable or _is_effectful(target) or has_own_size
    name = _name(target)
    return "with_effects" in name or "print" in name


def _is_effectful(target: Any) -> bool:
    try:
        from torch._higher_order_ops.effects import has_effects
    except ImportError:
        return False
    try:
        return bool(has_effects(target))
    except TypeError:  # older versions need the arguments, too
        return False


def _is_random(node: Node) -> bool:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return _draws(target) and not _drops_nothing(node)
    if "rng_state" in _name(target):
        return True
    module = node.graph.owning_module
    return any(
        _has_random_nodes(getattr(module, str(source.target), None))
        for source in node.all_input_nodes
        if source.op == "get_attr"
    )


def _has_random_nodes(module: Any) -> bool:
    if not isinstance(module, GraphModule):
        return False
    return any(node.op == "call_function" and _is_random(node) for node in module.graph.nodes)


def _draws(target: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in target.tags


def _drops_nothing(node: Node) -> bool:
    """Returns whether an operator has no dropout: attention without it is the same every
    time."""
    parameters = node.target._schema.arguments  # type: ignore[union-attr]
    for place, parameter in enumerate(parameters):
        if parameter.name not in _DROP_ARGUMENTS:
            continue
        if place < len(node.args):
            share = node.args[place]
        else:
            share = node.kwargs.get(parameter.name, parameter.default_value)
        return isinstance(share, (int, float)) and share == 0
    return False


def _name(target: Any) -> str:
    return str(getattr(target, "__name__", target))
