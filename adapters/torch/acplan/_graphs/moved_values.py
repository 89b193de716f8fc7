"""Puts the copies of a plan into the two graphs of a compiled step.

Forward returns for backward, in place of each value that moves, its copy in the host's memory.
The copy to the host begins right after the value was made, and its memory is needed until the
plan's place. Backward begins the copy back at the plan's place, and waits for it right before
the first node of the plan that reads the value.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves, tree_map

from acplan._base.errors import AcplanError
from acplan._base.host_copies import OFFLOAD, RELOAD, WAIT


@dataclasses.dataclass(frozen=True)
class Move:
    """A value that moves. The nodes before which its memory is released in forward, and
    there is new memory in backward; without them, that is at the end of forward."""

    name: str
    release_before: str | None
    fetch_before: str


def moves_of(data: Mapping[str, Any]) -> list[Move]:
    """Returns the moves of a plan, by the data of `acplan.remat`."""
    return [
        Move(m["buffer"], m["release_before"], m["fetch_before"]) for m in data.get("moved", ())
    ]


def move_values(
    forward: GraphModule,
    backward: GraphModule,
    num_fwd_outputs: int,
    moves: Iterable[Move],
    listed: set[str],
) -> None:
    """Changes the graphs. `listed`: the names of the nodes of the plan; all others are views.

    Raises AcplanError if the graphs are not those of the plan.
    """
    by_name = {m.name: m for m in moves}
    if not by_name:
        return
    waits = _send(forward, num_fwd_outputs, by_name)
    _fetch(backward, waits, by_name, listed)
    for module in (forward, backward):
        module.graph.lint()
        module.recompile()


def _nodes_by_name(module: GraphModule) -> dict[str, Node]:
    return {node.name: node for node in module.graph.nodes}


def _find(nodes: Mapping[str, Node], name: str) -> Node:
    if name not in nodes:
        raise AcplanError(f"the compiled graph has no node {name!r}, which the plan names")
    return nodes[name]


def _send(
    module: GraphModule, num_fwd_outputs: int, by_name: Mapping[str, Move]
) -> dict[str, Node]:
    """Returns, for each value that moves, the node whose result forward returns for it."""
    graph, nodes = module.graph, _nodes_by_name(module)
    (output,) = graph.find_nodes(op="output")
    waits: dict[str, Node] = {}
    # In the order in which they are made, as are the copies.
    for node in [n for n in graph.nodes if n.name in by_name]:
        place = by_name[node.name].release_before
        with graph.inserting_after(node):
            host = graph.call_function(OFFLOAD, (node,), name=f"{node.name}_to_host")
        with graph.inserting_before(output if place is None else _find(nodes, place)):
            wait = graph.call_function(WAIT, (host, node), name=f"{node.name}_on_host")
        host.meta["val"] = wait.meta["val"] = OFFLOAD(node.meta["val"])
        waits[node.name] = wait
    returned = tree_leaves(output.args)
    saved = {n.name for n in returned[num_fwd_outputs:] if isinstance(n, Node)}
    missing = [name for name in by_name if name not in saved]
    if missing:
        raise AcplanError(f"forward does not save {missing[0]!r}, which the plan moves")
    count = 0

    def host_copy_of(value: Any) -> Any:
        nonlocal count
        count += 1
        is_moved = isinstance(value, Node) and count > num_fwd_outputs
        return waits.get(value.name, value) if is_moved else value

    output.args = tree_map(host_copy_of, output.args)
    return waits


def _fetch(
    module: GraphModule,
    waits: Mapping[str, Node],
    by_name: Mapping[str, Move],
    listed: set[str],
) -> None:
    graph, nodes = module.graph, _nodes_by_name(module)
    inputs = {name: _find(nodes, name) for name in waits}
    for node in inputs.values():
        _make_views_late(node, listed)
    places = {node: k for k, node in enumerate(graph.nodes)}
    reads = {name: min(node.users, key=places.__getitem__) for name, node in inputs.items()}
    # In the order in which they are read, as are the copies.
    for name in sorted(waits, key=lambda n: places[reads[n]]):
        node, wait = inputs[name], waits[name]
        with graph.inserting_before(node):
            host = graph.placeholder(wait.name)
        host.meta = node.meta | {"val": wait.meta["val"]}
        host.meta.pop("tensor_meta", None)
        # Views of the value may stand right before the plan's place.
        fetch = _find(nodes, by_name[name].fetch_before)
        with graph.inserting_before(min(fetch, reads[name], key=places.__getitem__)):
            device = node.meta["val"].device
            fetched = graph.call_function(RELOAD, (host, device), name=f"{name}_from_host")
        with graph.inserting_before(reads[name]):
            back = graph.call_function(WAIT, (fetched, host), name=f"{name}_is_back")
        fetched.meta["val"] = back.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(back)
        graph.erase_node(node)


def _make_views_late(node: Node, listed: set[str]) -> None:
    """Moves the views of a value behind the place from which on the plan has it: each right
    before what reads it first."""
    views: list[Node] = []
    open_nodes = [node]
    while open_nodes:
        for user in open_nodes.pop().users:
            if user.op == "call_function" and user.name not in listed and user not in views:
                views.append(user)
                open_nodes.append(user)
    order = {n: k for k, n in enumerate(node.graph.nodes)}
    for view in sorted(views, key=order.__getitem__, reverse=True):
        if view.users:
            places = {n: k for k, n in enumerate(node.graph.nodes)}
            min(view.users, key=places.__getitem__).prepend(view)
