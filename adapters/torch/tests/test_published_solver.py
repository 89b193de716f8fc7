"""The solver of torchtitan's graph trainer for recomputation and offload, as its pull request
describes it (pytorch/torchtitan#4636), beside plans of acplan at the same peak.

An outer linear program gives each layer the fractions of its saved bytes that are kept,
computed again and moved: at every layer's backward pass these fit a budget, and a layer moves
no more than the link carries during its forward pass. Inside a layer a greedy choice makes
tensors of the fractions. Both sides are judged by `acplan simulate`, on the same trace.
"""

import dataclasses
import gzip
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

import acplan
from acplan import Plan, PlannedModule, Trace
from acplan import PlannedOperator as Op
from compare_offload import blocks_of, play

_TRACES = pathlib.Path(__file__).parents[3] / "data" / "traces"


@dataclasses.dataclass(frozen=True)
class _Layer:
    """A call of a block, and the operators whose results autograd saves in it, by number."""

    fqn: str
    start: int
    end: int
    saved: Mapping[int, int]  # with their bytes
    data: Mapping[str, Any]

    @property
    def size(self) -> int:
        return sum(self.saved.values())

    @property
    def ms(self) -> float:
        return sum(self.ms_of(k) for k in range(self.start, self.end))

    def ms_of(self, number: int) -> float:
        return float(self.data["operators"][number]["runtime_ms"])


def _layers(data: dict[str, Any]) -> list[_Layer]:
    packed = {saved["storage"] for saved in data["saved"]}
    layers = []
    for call in blocks_of(data):
        saved = {}
        for number in range(call["start"], call["end"]):
            results = set(data["operators"][number]["creates"]) & packed
            if results:
                saved[number] = sum(data["storages"][s]["bytes"] for s in results)
        fqn = data["modules"][call["module"]]["fqn"]
        layers.append(_Layer(fqn, call["start"], call["end"], saved, data))
    return layers


def _fractions(layers: list[_Layer], budget: float, rate: float) -> Any:
    """Returns the fractions kept, computed again and moved of each layer."""
    n = len(layers)
    sizes = np.array([layer.size for layer in layers], dtype=float)
    rows = np.zeros((n, 3 * n))
    for k in range(n):
        rows[k, : k + 1] = sizes[: k + 1]
        rows[k, n + k] = rows[k, 2 * n + k] = sizes[k]
        if k > 0:  # on its way
            rows[k, 2 * n + k - 1] = sizes[k - 1]
    windows = [min(1.0, rate * layer.ms / 1e3 / layer.size) for layer in layers]
    answer = linprog(
        c=[*np.zeros(n), *(layer.ms for layer in layers), *np.zeros(n)],
        A_ub=rows,
        b_ub=np.full(n, budget * sizes.sum()),
        A_eq=np.hstack([np.eye(n)] * 3),
        b_eq=np.ones(n),
        bounds=[(0, 1)] * (2 * n) + [(0, window) for window in windows],
    )
    assert answer.success
    return answer.x.reshape(3, n)


def _unit(layer: _Layer, kept_share: float, moved_share: float) -> PlannedModule:
    """Returns the layer as a unit: the results that take most time for their bytes stay, up to
    a share of all bytes, then the largest ones move."""
    choices: dict[int, str] = {}
    for share, name, rank in (
        (kept_share, "keep", lambda k: -layer.ms_of(k) / layer.saved[k]),
        (moved_share, "move", lambda k: -layer.saved[k]),
    ):
        room = share * layer.size
        for number in sorted(set(layer.saved) - set(choices), key=rank):
            if layer.saved[number] <= room:
                room -= layer.saved[number]
                choices[number] = name
    operators = layer.data["operators"]
    reruns = _reruns(layer, set(layer.saved) - set(choices), set(choices))
    decisions = []
    for number in range(layer.start, layer.end):
        name = operators[number]["name"]
        choice = choices.get(number)
        if choice is not None:
            decisions.append(Op(name, True, offload=choice == "move"))
        else:
            is_unneeded = number not in reruns and not operators[number].get("view")
            decisions.append(Op(name, False, skip=is_unneeded))
    return PlannedModule(layer.fqn, tuple(decisions))


def _reruns(layer: _Layer, targets: set[int], saved: set[int]) -> set[int]:
    """Returns the operators that run again for the results of the targets."""
    operators = layer.data["operators"]
    makers = {s: k for k in range(layer.start, layer.end) for s in operators[k]["creates"]}
    reruns: set[int] = set()
    open_numbers = list(targets)
    while open_numbers:
        number = open_numbers.pop()
        if number in reruns or number in saved:
            continue
        reruns.add(number)
        storages = [*operators[number]["reads"], *operators[number]["outputs"]]
        open_numbers += [makers[s] for s in storages if s in makers]
    return reruns


def _theirs(trace: Trace, budget: float, rate: float) -> Plan:
    layers = _layers(trace.data)
    kept_shares, _, moved_shares = _fractions(layers, budget, rate)
    units = zip(layers, kept_shares, moved_shares, strict=True)
    return Plan(tuple(_unit(*unit) for unit in units))


@pytest.mark.parametrize(
    ("name", "rate"),
    [("gpt2_tiny", 1e12), ("gpt2_small", 25e9), ("gpt2_small", 100e9), ("vit_base", 25e9)],
    ids=["tiny", "small", "small-fast", "vit"],
)
def test_plans_cost_no_more_at_the_same_peak(name: str, rate: float) -> None:
    trace = Trace(json.loads(gzip.decompress((_TRACES / f"{name}.json.gz").read_bytes())))
    moves = reruns = 0
    for budget in (0.3, 0.6):
        theirs = play(trace, _theirs(trace, budget, rate), rate)
        moves += theirs.host_bytes > 0
        reruns += theirs.recompute_ms > 0
        ours = acplan.plan(
            trace,
            theirs.peak_bytes,
            offload=f"{rate / 1e9:g}GB/s",
            time_limit=2,
            progress=False,
        )
        assert ours.peak_bytes <= theirs.peak_bytes
        assert ours.recompute_ms + (ours.stall_ms or 0) <= theirs.cost_ms + 1e-6
    assert moves and reruns
