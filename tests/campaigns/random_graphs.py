"""Random graphs of compiled steps, as `acplan remat` reads them.

Small, so that another solver finds the optimum in no time, and with all that the formats
allow: nodes of every stage, several results and none, scratch, inputs and outputs of both
passes, buffers that may not be kept, nodes that may not run again, ties, buffers of no bytes.
"""

import random
from typing import Any

Json = dict[str, Any]


def joint_graph(seed: int) -> Json:
    """Returns a graph of format acplan.graph."""
    return _Joint(random.Random(seed)).graph


class _Joint:
    def __init__(self, source: random.Random) -> None:
        self.random = source
        self.largest = source.choice((6, 40, 1000))
        self.has_rules = source.random() < 0.5
        self.has_ties = source.random() < 0.3
        self.buffers: list[Json] = []
        self.nodes: list[Json] = []
        self.forward_readable: list[int] = []  # what nodes of stage forward may read
        self.either: list[int] = []  # what nodes of stage either make
        self.backward_buffers: list[int] = []  # what comes with backward or is made there
        for _ in range(source.randint(1, 2)):
            self.forward_readable.append(self._buffer())
        inputs = list(self.forward_readable)
        for _ in range(source.randint(0, 2)):
            self.backward_buffers.append(self._buffer({"from": "backward"}))
        for _ in range(source.randint(2, 9)):
            self._add_early_node()
        made_buffers = [b for b in self.forward_readable if b not in inputs]
        for _ in range(source.randint(1, 7)):
            self._add_backward_node()
        outputs = [b for b in made_buffers if self._chance(0.15)]
        if self._chance(0.2):
            outputs.append(source.choice(inputs))
        returned = [b for b in self.backward_buffers if self._chance(0.3)]
        returned += [b for b in made_buffers + self.either if self._chance(0.07)]
        self.graph: Json = {
            "format": "acplan.graph",
            "version": 1,
            "model": {"name": "random"},
            "held_bytes": source.choice((0, 0, source.randint(1, self.largest))),
            "buffers": self.buffers,
            "nodes": self.nodes,
            "forward_outputs": outputs,
            "backward_outputs": returned,
        }

    def _chance(self, share: float) -> bool:
        return self.random.random() < share

    def _buffer(self, more: Json | None = None) -> int:
        size = 0 if self._chance(0.05) else self.random.randint(1, self.largest)
        self.buffers.append({"name": f"b{len(self.buffers)}", "bytes": size} | (more or {}))
        return len(self.buffers) - 1

    def _some(self, values: list[int], most: int) -> list[int]:
        """Returns some of the values without repetition, recent ones more often."""
        chosen_values: list[int] = []
        for _ in range(self.random.randint(0, most)):
            if not values:
                break
            back = min(self.random.randrange(len(values)) for _ in range(2))
            value = values[-1 - back]
            if value not in chosen_values:
                chosen_values.append(value)
        return chosen_values

    def _node(self, stage: str, reads: list[int], makes: list[int]) -> None:
        node: Json = {
            "name": f"n{len(self.nodes)}",
            "stage": stage,
            "ms": 0 if self._chance(0.15) else self.random.randint(1, 40) / 4,
            "reads": reads,
            "makes": makes,
        }
        if self._chance(0.2):
            node["scratch"] = self.random.randint(1, self.largest)
        self.nodes.append(node)

    def _add_early_node(self) -> None:
        is_either = self._chance(0.25)
        stage = "either" if is_either else "forward"
        readable = self.forward_readable + self.either if is_either else self.forward_readable
        reads = self._some(readable, 3) or [self.random.choice(readable)]
        count = self.random.choice((1, 1, 1, 1, 0, 2, 3))
        makes = [self._buffer() for _ in range(count)]
        self._node(stage, reads, makes)
        node = self.nodes[-1]
        first = self._tie(node) if self.has_ties and self._chance(0.5) else None
        if first is not None:
            node["tied_to"] = first
        elif self.has_rules:
            for b in makes:
                if self._chance(0.12):
                    self.buffers[b]["keep"] = False
            if self._chance(0.12):
                node["again"] = False
        (self.either if is_either else self.forward_readable).extend(makes)

    def _tie(self, node: Json) -> int | None:
        """Returns an earlier node that this one may be another run of."""
        candidates = [
            n
            for n, other in enumerate(self.nodes[:-1])
            if len(other["makes"]) == len(node["makes"])
            and all(self.buffers[b].get("keep", True) for b in other["makes"])
            and "tied_to" not in other
            and not self._needs(node["reads"], n)
        ]
        return self.random.choice(candidates) if candidates else None

    def _needs(self, reads: list[int], first: int) -> bool:
        """Returns whether these buffers need, directly or not, a result of a node or of one
        tied to it."""
        group = {n for n, node in enumerate(self.nodes) if node.get("tied_to") == first}
        group.add(first)
        makers = {b: n for n, node in enumerate(self.nodes) for b in node["makes"]}
        open_buffers, visited = list(reads), set(reads)
        while open_buffers:
            maker = makers.get(open_buffers.pop())
            if maker is None:
                continue
            if maker in group:
                return True
            for b in self.nodes[maker]["reads"]:
                if b not in visited:
                    visited.add(b)
                    open_buffers.append(b)
        return False

    def _add_backward_node(self) -> None:
        early = self.forward_readable + self.either
        reads = self._some(self.backward_buffers, 1)
        # Mostly from the last to the first, as for gradients.
        late = sum(node["stage"] == "backward" for node in self.nodes)
        from_end = max(1, len(early) - late)
        for b in self._some(early[:from_end], 3) + self._some(early, 1):
            if b not in reads:
                reads.append(b)
        makes = [self._buffer() for _ in range(self.random.choice((1, 1, 1, 0, 2)))]
        self._node("backward", reads, makes)
        self.backward_buffers.extend(makes)


def node_link_graph(seed: int) -> Json:
    """Returns a graph in the form of NetworkX."""
    source = random.Random(seed)
    largest = source.choice((6, 40, 1000))
    count = source.randint(3, 9)
    nodes = [
        {
            "id": f"n{n}",
            "cost_ram": 0 if source.random() < 0.05 else source.randint(1, largest),
            "cost_cpu": source.randint(0, 9),
        }
        for n in range(count)
    ]
    links = []
    for n in range(1, count):
        read = {max(source.randrange(n) for _ in range(source.randint(1, 3)))}
        read |= {source.randrange(n) for _ in range(source.randint(0, 2))}
        links += [{"source": f"n{r}", "target": f"n{n}"} for r in sorted(read)]
    return {
        "directed": True,
        "multigraph": False,
        "graph": {"name": "random", "order": [node["id"] for node in nodes]},
        "nodes": nodes,
        "links": links,
    }
