"""Dataflow graphs: the forward and backward pass of a model as one graph of values."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.flop_counter import flop_registry

from acplan._base.tensors import tensors_in
from acplan._step.autocast import AutocastLike
from acplan._step.checkpointing_off import without_checkpointing
from acplan._step.step import Step, alone, step_on_fakes
from acplan._step.training_step import LossFn, TrainingStep

# Operators that pass their argument on.
_ALIASES = (torch.ops.aten.alias.default, torch.ops.aten.detach.default)


def dataflow_graph(
    model: torch.nn.Module,
    *args: Any,
    loss_fn: LossFn | None = None,
    autocast: AutocastLike = None,
    **kwargs: Any,
) -> dict[str, Any]:
    """Returns the graph of `model(*args, **kwargs)`, its loss and the gradients of its
    parameters, as data of the file that docs/file_formats.md calls `acplan.dataflow`.

    Nothing is computed, as for acplan.trace, whose arguments these are. The nodes are those of
    AOTAutograd's joint graph: parameters, buffers, inputs and the gradient of the loss, and the
    operators that PyTorch runs, one by one, without copies that share everything (`detach`).
    """
    with (
        alone(),
        without_checkpointing(model) as plain,
        step_on_fakes(TrainingStep(plain, args, kwargs, loss_fn, autocast=autocast)) as (
            step,
            _,
        ),
    ):
        traced, names = _joint(step)
        return {
            "format": "acplan.dataflow",
            "version": 1,
            "model": {"name": type(model).__name__, "root_class": type(model).__name__},
            "nodes": _nodes(traced, names),
        }


def _joint(step: Step) -> tuple[GraphModule, list[str]]:
    """Returns the graph that returns the loss, the start of backward and the gradients, and the
    names of its arguments."""
    state = dict([*step.model.named_parameters(), *step.model.named_buffers()])
    leaves, structure = tree_flatten((step.args, step.kwargs))
    tensors = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}

    def joint(
        state: dict[str, torch.Tensor],
        inputs: dict[int, torch.Tensor],
        tangent: torch.Tensor,
    ) -> Any:
        filled = [inputs.get(id(leaf), leaf) for leaf in leaves]
        args, kwargs = tree_unflatten(filled, structure)
        model = functools.partial(_call, step.model, state)
        loss = step.loss_of(model, *args, **kwargs)
        start = torch.ops.aten.alias(tangent)
        trained = [value for value in state.values() if value.requires_grad]
        gradients = torch.autograd.grad(loss, trained, start, allow_unused=True)
        return loss, start, [g for g in gradients if g is not None]

    with torch.no_grad():
        tangent = torch.empty_like(step.loss())
    traced = make_fx(joint)(state, tensors, tangent)
    root = type(step.model).__name__
    inputs = [f"input:{k}" for k in range(len(tensors))]
    return traced, [*(f"{root}.{name}" for name in state), *inputs, "gradient:loss"]


def _call(
    model: torch.nn.Module, state: dict[str, torch.Tensor], *args: Any, **kwargs: Any
) -> Any:
    return torch.func.functional_call(model, state, args, kwargs)


def _nodes(traced: GraphModule, arguments: Sequence[str]) -> list[dict[str, Any]]:
    graph = traced.graph
    stages = _stages(traced)
    graph.eliminate_dead_code()
    for node in graph.nodes:
        if node.target in _ALIASES:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    *nodes, output = graph.nodes
    stages[output.args[0][0]] = "loss"
    graph.erase_node(output)
    values = {node: _value(traced, node) for node in nodes}
    placeholders = graph.find_nodes(op="placeholder")
    saved = set(_saved(values, stages)) - {placeholders[-1]}
    named_arguments = zip(placeholders, arguments, strict=True)
    names = {node: node.name for node in nodes} | dict(named_arguments)
    return [
        {
            "name": names[node],
            "stage": stages[node],
            "saved": node in saved,
            "bytes": sum(t.numel() * t.element_size() for t in tensors_in(value)),
            "inputs": [names[read] for read in node.all_input_nodes],
        }
        | _flops(node, values)
        for node, value in values.items()
    ]


def _stages(traced: GraphModule) -> dict[Node, str]:
    """Returns the stages of nodes. The nodes after the start of backward, which is the second
    output, are backward."""
    *nodes, output = traced.graph.nodes
    start = output.args[0][1]
    stages = {}
    stage = "forward"
    for node in nodes:
        if node is start:
            stage = "backward"
        is_operator = node.op == "call_function"
        stages[node] = stage if is_operator else "placeholder"
    return stages


def _value(traced: GraphModule, node: Node) -> Any:
    if node.op == "get_attr":
        return functools.reduce(getattr, str(node.target).split("."), traced)
    return node.meta["val"]


def _saved(values: dict[Node, Any], stages: dict[Node, str]) -> Iterator[Node]:
    """Yields, for each storage that forward leaves to backward, the first node that has it. For
    views this is the viewed node, whose memory stays."""
    owners: dict[int, Node] = {}
    for node, value in values.items():
        if stages[node] == "backward" or not isinstance(value, torch.Tensor):
            continue
        owner = owners.setdefault(value.untyped_storage()._cdata, node)
        if any(stages[user] == "backward" for user in node.users):
            yield owner


def _flops(node: Node, values: dict[Node, Any]) -> dict[str, int]:
    count = flop_registry.get(getattr(node.target, "_overloadpacket", None))
    if count is None:
        return {}
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
    return {"flops": int(count(*args, **kwargs, out_val=values[node]))}
