"""The order in which a compiled backward pass runs: what needs a gradient as autograd would
run it, everything else right before it is first read.

PyTorch's own order does so with what it computes again of the forward pass; but what stands
behind the first gradient in the joint graph, such as the factors of a derivative, it runs
where it stands, however much later it is read.
"""

import dataclasses
import operator
from collections.abc import Mapping

from torch.fx import Graph, GraphModule, Node


@dataclasses.dataclass(frozen=True)
class BackwardOrder:
    """place: of nodes of the joint graph, by name.
    turns: the names of those that run only in backward, as they are to."""

    place: Mapping[str, int]
    turns: tuple[str, ...]

    def applied(self, module: GraphModule) -> GraphModule:
        """Returns the same graph in this order: before a node what it needs that is not there,
        in the order of the joint graph. Parts of a tuple are taken from it at once, so
        that it is not held for one of them."""
        graph = module.graph
        places = self._places(graph)
        made = Graph()
        copies: dict[Node, Node] = {}

        def copy(node: Node) -> None:
            copies[node] = made.node_copy(node, copies.__getitem__)
            for user in node.users:
                if user.target is operator.getitem and user not in copies:
                    copy(user)

        for node in graph.find_nodes(op="placeholder"):
            copy(node)
        by_name = {node.name: node for node in graph.nodes}
        turns = [by_name[name] for name in self.turns if name in by_name]
        for node in [*turns, *graph.find_nodes(op="output")]:
            for needed in sorted(_missing(node, copies), key=places.__getitem__):
                if needed not in copies:
                    copy(needed)
        return GraphModule(module, made)

    def _places(self, graph: Graph) -> dict[Node, float]:
        """Nodes that PyTorch has put in another's place run behind what they read."""
        places: dict[Node, float] = {}
        for node in graph.nodes:
            behind = max((places[n] for n in node.all_input_nodes), default=-1.0) + 0.5
            places[node] = self.place.get(node.name, behind)
            if node.op == "output":
                places[node] = float("inf")
        return places


def _missing(node: Node, there: Mapping[Node, Node]) -> set[Node]:
    """Returns the node and what it needs that is not there."""
    found: set[Node] = set()
    left = [node]
    while left:
        needed = left.pop()
        if needed not in found and needed not in there:
            found.add(needed)
            left += needed.all_input_nodes
    return found
