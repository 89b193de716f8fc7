"""The graphs of a step as one joint graph: forward of each in order, then backward of each in
order, with each storage that passes from one to another as one buffer.

- A storage that a graph makes for itself is a buffer of each run of the graph. Runs of one
  graph share decisions: the nodes of a later run are `tied` to those of the first.
- A storage that forward of a graph returns, and another graph takes, lives until forward has
  ended, as the frames between which it passes have it until they return; and it is kept from
  there on if backward of any graph needs it: a graph cannot make what another one has made. So
  it is made by a node of its own, right before the real one, that never runs again. A storage
  that the model returns, or that no graph takes, stays to the end.
- Gradients that one graph hands to another live until that graph has read them, those of
  parameters to the end, others until the graph that makes them has run.
- Parameters, inputs and tensors that the model's own code makes between graphs live during the
  whole step.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from acplan._compile.fake_step import RecordedStep
from acplan._compile.step_recorder import Run
from acplan._graphs.graph_buffers import BACKWARD, FORWARD


@dataclasses.dataclass(frozen=True)
class JointStep:
    """The joint graph of a whole step.

    data:   the file `acplan.graph` of the whole step.
    inputs: storages that live during the whole step.
    """

    data: dict[str, Any]
    inputs: frozenset[int]

    def shares(self, step: RecordedStep, saved: Iterable[str]) -> dict[str, list[str]]:
        """Returns, for each graph, by its key, the buffers of its own that it saves."""
        saved_names = set(saved)
        shares: dict[str, list[str]] = {}
        for place, run in enumerate(step.forward):
            own = shares.setdefault(run.graph.key, [])
            for buffer in run.graph.data["buffers"]:
                is_new = buffer["name"] not in own
                if is_new and global_name(place, buffer["name"]) in saved_names:
                    own.append(buffer["name"])
        return shares


def global_name(place: int, name: str) -> str:
    return f"{place}.{name}"


def joint_step(step: RecordedStep, name: str, held_bytes: int = 0) -> JointStep:
    """Returns the joint graph of a step. `held_bytes`: bytes beside those in `step`."""
    return _Builder(step).build(name, held_bytes)


class _Builder:
    def __init__(self, step: RecordedStep) -> None:
        self._step = step
        self._buffers: list[dict[str, Any]] = []
        self._nodes: list[dict[str, Any]] = []
        self._buffer_of: dict[int, int] = {}  # by storage
        self._constants: dict[tuple[str, int], int] = {}  # by graph and buffer
        self._inputs: set[int] = set()  # storages
        # For each run in the order of forward: the buffers here, by their numbers in the run's
        # graph.
        self._maps: list[dict[int, int]] = []
        self._first_nodes: dict[tuple[str, str], int] = {}

    def build(self, name: str, held_bytes: int) -> JointStep:
        for place, run in enumerate(self._step.forward):
            self._add_forward(place, run)
        outputs = {s for run in self._step.forward for s in run.outputs.values()}
        handed_on = (outputs & _input_storages(self._step)) - self._inputs
        buffers = [self._buffer_of[s] for s in handed_on if s in self._buffer_of]
        self._nodes.append(_end("end of forward", FORWARD, buffers))
        places = {id(run): place for place, run in enumerate(self._step.forward)}
        for run in self._step.backward:
            self._add_backward(places[id(run)], run)
        data = {
            "format": "acplan.graph",
            "version": 1,
            "model": {"name": name},
            "held_bytes": held_bytes,
            "buffers": self._buffers,
            "nodes": self._nodes,
            "forward_outputs": self._returned(),
            "backward_outputs": self._gradients(),
        }
        return JointStep(data, frozenset(self._inputs))

    def _add_forward(self, place: int, run: Run) -> None:
        numbers: dict[int, int] = {}
        self._maps.append(numbers)
        data = run.graph.data
        made_buffers = {b for node in data["nodes"] for b in node["makes"]}
        for number, buffer in enumerate(data["buffers"]):
            if number in made_buffers:
                numbers[number] = self._add_buffer(place, buffer)
            elif buffer.get("from") != BACKWARD:
                numbers[number] = self._input(run, number, buffer)
        handed_on = {b for b in run.outputs if b in made_buffers}
        for b in handed_on:
            self._buffer_of.setdefault(run.outputs[b], numbers[b])
        for node in data["nodes"]:
            if node["stage"] == BACKWARD:
                continue
            for b in node["makes"]:
                if b in handed_on:
                    self._add_output(place, run, numbers[b], data["buffers"][b]["name"])
            self._add_node(place, run, node, handed_on)

    def _add_output(self, place: int, run: Run, buffer: int, name: str) -> None:
        node = _end(f"{place}.{name} is made", FORWARD, ())
        self._nodes.append(node | {"makes": [buffer], "again": False})

    def _add_node(
        self, place: int, run: Run, node: Mapping[str, Any], handed_on: set[int]
    ) -> None:
        numbers = self._maps[place]
        remaining = [b for b in node["makes"] if b not in handed_on]
        entry = dict(node)
        entry["name"] = global_name(place, node["name"])
        entry["reads"] = list(dict.fromkeys(numbers[b] for b in node["reads"]))
        entry["makes"] = [numbers[b] for b in remaining]
        if remaining and len(remaining) < len(node["makes"]):
            entry["again"] = False  # it would make what it hands on a second time
        if remaining and node["stage"] != BACKWARD:
            first = self._first_nodes.setdefault(
                (run.graph.key, node["name"]), len(self._nodes)
            )
            if first != len(self._nodes):
                entry["tied_to"] = first
        self._nodes.append(entry)

    def _add_backward(self, place: int, run: Run) -> None:
        numbers, data = self._maps[place], run.graph.data
        for number, buffer in enumerate(data["buffers"]):
            if buffer.get("from") == BACKWARD:
                numbers[number] = self._tangent(place, run, number, buffer)
        for node in data["nodes"]:
            if node["stage"] == BACKWARD:
                self._add_node(place, run, node, set())
        for b, storage in run.gradients.items():
            self._buffer_of.setdefault(storage, numbers[b])
        outputs = {numbers[b] for b in data["backward_outputs"]}
        self._nodes.append(_end(f"{place}.end of backward", BACKWARD, outputs))

    # --- buffers

    def _add_buffer(self, place: int, buffer: Mapping[str, Any]) -> int:
        entry = dict(buffer) | {"name": global_name(place, buffer["name"])}
        self._buffers.append(entry)
        return len(self._buffers) - 1

    def _input(self, run: Run, number: int, buffer: Mapping[str, Any]) -> int:
        """Returns the buffer of an input of a graph's forward, or of a constant."""
        storage = run.inputs.get(number)
        if storage is None:
            key = (run.graph.key, number)
            if key not in self._constants:
                self._constants[key] = self._add_buffer(len(self._maps) - 1, buffer)
            return self._constants[key]
        if storage not in self._buffer_of:
            self._buffer_of[storage] = self._add_buffer(len(self._maps) - 1, buffer)
            self._inputs.add(storage)
        return self._buffer_of[storage]

    def _tangent(self, place: int, run: Run, number: int, buffer: Mapping[str, Any]) -> int:
        storage = run.tangents.get(number)
        if storage is None or storage not in self._buffer_of:
            new_buffer = self._add_buffer(place, buffer)
            if storage is None:
                return new_buffer
            self._buffer_of[storage] = new_buffer
        return self._buffer_of[storage]

    # --- what stays

    def _returned(self) -> list[int]:
        stays: dict[int, None] = {}
        input_storages = _input_storages(self._step)
        for place, run in enumerate(self._step.forward):
            for number, storage in run.outputs.items():
                is_kept = storage in self._step.returned or storage not in input_storages
                if is_kept:
                    stays[self._maps[place][number]] = None
        return list(stays)

    def _gradients(self) -> list[int]:
        stays: dict[int, None] = {}
        for place, run in enumerate(self._step.forward):
            for number, storage in run.gradients.items():
                if storage in self._step.gradients:
                    stays[self._maps[place][number]] = None
        return list(stays)


def _input_storages(step: RecordedStep) -> set[int]:
    """Returns the storages that are inputs of graphs in forward."""
    return {storage for run in step.forward for storage in run.inputs.values()}


def _end(name: str, stage: str, reads: Iterable[int]) -> dict[str, Any]:
    """Returns a node that computes nothing."""
    return {
        "name": name,
        "op": "",
        "stage": stage,
        "ms": 0.0,
        "reads": sorted(set(reads)),
        "makes": [],
    }


def of_model(step: RecordedStep, inputs: frozenset[int]) -> int:
    """Returns the bytes of the model's parameters and buffers that are inputs of graphs."""
    return sum(step.bytes_of[i] for i in inputs & step.of_model)
