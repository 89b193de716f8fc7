"""The order in which a compiled backward pass runs: nodes that need a gradient as autograd
would run them, all other nodes right before they are first read.

PyTorch's own order does so for nodes of the forward pass that it computes again; but nodes
behind the first gradient in the joint graph, such as the factors of a derivative, run at their
place in the graph, however much later they are read.
"""

import dataclasses
import operator
from collections.abc import Mapping

from torch.fx import Graph, GraphModule, Node


@dataclasses.dataclass(frozen=True)
class BackwardOrder:
    """The order of the backward pass.

    place: the places of nodes of the joint graph, by name.
    turns: the names of the nodes that run only in backward, in their order.
    """

    place: Mapping[str, int]
    turns: tuple[str, ...]

    def applied(self, module: GraphModule) -> GraphModule:
        """Returns the same graph in this order: before a node come the nodes that it needs and
        that have not run, in the order of the joint graph. The parts of a tuple are taken from
        it at once, so that the tuple is not held for one of them."""
        graph = module.graph
        places = self._places(graph)
        new_graph = Graph()
        copies: dict[Node, Node] = {}

        def copy(node: Node) -> None:
            copies[node] = new_graph.node_copy(node, copies.__getitem__)
            for user in node.users:
                if user.target is operator.getitem and user not in copies:
                    copy(user)

        for node in graph.find_nodes(op="placeholder"):
            copy(node)
        by_name = {node.name: node for node in graph.nodes}
        turns = [by_name[name] for name in self.turns if name in by_name]
        for node in [*turns, *graph.find_nodes(op="output")]:
            for source in sorted(_missing(node, copies), key=places.__getitem__):
                if source not in copies:
                    copy(source)
        return GraphModule(module, new_graph)

    def _places(self, graph: Graph) -> dict[Node, float]:
        """Returns the places of a graph's nodes. A node that PyTorch has put in another's place
        runs behind the nodes that it reads."""
        places: dict[Node, float] = {}
        for node in graph.nodes:
            default = max((places[n] for n in node.all_input_nodes), default=-1.0) + 0.5
            places[node] = self.place.get(node.name, default)
            if node.op == "output":
                places[node] = float("inf")
        return places


def _missing(node: Node, copies: Mapping[Node, Node]) -> set[Node]:
    """Returns the node and the nodes that it needs, except those that have copies."""
    missing: set[Node] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        if current not in missing and current not in copies:
            missing.add(current)
            pending += current.all_input_nodes
    return missing
