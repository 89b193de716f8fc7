"""Traces of sizes between two that were traced."""

import bisect
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from acplan._base.tensors import block_bytes
from acplan._files.plan_file import Plan
from acplan._files.trace_file import Trace

# The keys under which rows of a trace name several storages, and the lists whose rows name one.
_LISTS = {
    "modules": ("parameters", "buffers"),
    "calls": ("inputs", "further_inputs", "outputs"),
    "operators": ("reads", "creates", "outputs", "mutates"),
}
_ONE = ("tensors", "saved")


class Interpolation:
    """Traces by size, and interpolations between them."""

    def __init__(self, traced: Callable[[int], Trace]) -> None:
        self._trace = traced
        self._traces: dict[int, Trace] = {}
        self._plain: dict[int, _Plain] = {}
        self._alike_pairs: dict[tuple[int, int], bool] = {}
        self._ms: dict[int, float] = {}
        self.sizes: list[int] = []
        self.off: dict[int, str] = {}  # by size, the difference from its interpolation
        # The share by which the run-time of a size differs from its interpolation.
        self.off_ms: dict[int, float] = {}

    def trace_of(self, size: int) -> Trace:
        """Returns the trace of the size itself."""
        if size not in self._traces:
            expected = self.between(size)
            expected_ms = self.ms(size) if len(self.sizes) > 1 else 0.0
            own_trace = self._trace(size)
            own_ms = self._ms[size] = step_ms_of(own_trace)
            if len(self.sizes) > 1:
                self.off_ms[size] = abs(own_ms - expected_ms) / own_ms if own_ms else 0.0
                difference = _difference(expected, _Plain.from_data(own_trace.data))
                if difference:
                    self.off[size] = difference
            self._traces[size] = own_trace
            self._plain[size] = _Plain.from_data(own_trace.data)
            bisect.insort(self.sizes, size)
        return self._traces[size]

    def is_traced(self, size: int) -> bool:
        return size in self._traces

    def between(self, size: int) -> Trace | None:
        """Returns the size's trace, or the interpolation between its neighbours; None if these
        differ."""
        if size in self._traces:
            return self._traces[size]
        if len(self.sizes) < 2:
            return None
        low, high = self._neighbours(size)
        if not self._are_alike(low, high):
            return None
        share = (size - low) / (high - low)
        return _interpolated(self._plain[low], self._plain[high], share)

    def ms(self, size: int) -> float:
        """Returns the milliseconds without a plan: of the size's trace, or on the line between
        its neighbours."""
        if size in self._traces or len(self.sizes) < 2:
            self.trace_of(size)
            return self._ms[size]
        low, high = self._neighbours(size)
        low_ms, high_ms = self.ms(low), self.ms(high)
        return low_ms + (high_ms - low_ms) * (size - low) / (high - low)

    def _neighbours(self, size: int) -> tuple[int, int]:
        """Returns the two sizes around a size; the last two, or the first two, if it is not
        between any."""
        place = min(max(bisect.bisect(self.sizes, size), 1), len(self.sizes) - 1)
        return self.sizes[place - 1], self.sizes[place]

    def _are_alike(self, low: int, high: int) -> bool:
        if (low, high) not in self._alike_pairs:
            self._alike_pairs[low, high] = _same_operators(self._plain[low], self._plain[high])
        return self._alike_pairs[low, high]

    def estimate_or_trace(self, size: int) -> Trace:
        return self.between(size) or self.trace_of(size)


@dataclasses.dataclass(frozen=True)
class _Plain:
    """A trace's data without the workspaces of kernels, which come and go with sizes; and the
    workspaces' bytes, by operator."""

    data: dict[str, Any]
    workspaces: dict[int, int]

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "_Plain":
        storages, operators = data["storages"], data["operators"]
        workspaces: dict[int, int] = {}
        place: dict[int, int] = {}
        for index, storage in enumerate(storages):
            born = storage["born"]
            if born >= 0 and index not in operators[born]["outputs"]:
                size = block_bytes(storage["bytes"])
                workspaces[born] = workspaces.get(born, 0) + size
            else:
                place[index] = len(place)
        renamed = _renamed(data, place)
        renamed["storages"] = [storages[index] for index in place]
        return cls(renamed, workspaces)

    def with_workspaces(self) -> Trace:
        """Returns the trace with one workspace for each operator that has any."""
        operators, storages = list(self.data["operators"]), list(self.data["storages"])
        for op, size in sorted(self.workspaces.items()):
            operator = operators[op]
            creates = [*operator["creates"], len(storages)]
            operators[op] = {**operator, "creates": creates}
            storages.append(
                {"bytes": size, "category": "temporary", "born": op, "freed": op + 1}
                | ({"scope_end": op + 1} if op < self.data["forward_end"] else {})
            )
        trace = Trace({**self.data, "operators": operators, "storages": storages})
        most = max(trace.live_bytes, default=0)
        trace.data["measured"] = {"peak_bytes": most}
        return trace


def _renamed(data: dict[str, Any], place: Mapping[int, int]) -> dict[str, Any]:
    """Returns the data with other numbers of storages; storages that have none are left out."""
    changed = dict(data)
    for name, keys in _LISTS.items():
        changed[name] = [
            {
                **row,
                **{
                    key: [place[index] for index in row[key] if index in place]
                    for key in keys
                    if key in row
                },
            }
            for row in data[name]
        ]
    for name in _ONE:
        changed[name] = [_row_renamed(row, place) for row in data[name]]
    if "model_tensors" in data:
        changed["model_tensors"] = {
            name: [_row_renamed(row, place) for row in rows]
            for name, rows in data["model_tensors"].items()
        }
    return changed


def _row_renamed(row: dict[str, Any], place: Mapping[int, int]) -> dict[str, Any]:
    return {**row, "storage": place[row["storage"]]}


def _interpolated(low: _Plain, high: _Plain, share: float) -> Trace:
    def between(a: float, b: float) -> float:
        return max(0.0, a + (b - a) * share)

    def mixed(name: str, key: str) -> list[dict[str, Any]]:
        pairs = zip(low.data[name], high.data[name], strict=True)
        return [{**a, key: between(a[key], b[key])} for a, b in pairs]

    storages = mixed("storages", "bytes")
    for storage in storages:
        storage["bytes"] = round(storage["bytes"])
    workspaces = {
        op: round(between(low.workspaces.get(op, 0), high.workspaces.get(op, 0)))
        for op in {*low.workspaces, *high.workspaces}
    }
    data = {
        **low.data,
        "storages": storages,
        "operators": mixed("operators", "runtime_ms"),
    }
    return _Plain(data, workspaces).with_workspaces()


def are_alike(a: Trace, b: Trace) -> bool:
    """Returns whether two traces differ in bytes, run-times and workspaces alone."""
    return _same_operators(_Plain.from_data(a.data), _Plain.from_data(b.data))


def _same_operators(low: _Plain, high: _Plain) -> bool:
    a, b = low.data, high.data
    names = ("forward_end", "backward_end", "calls", "tensors", "saved")
    if any(a[name] != b[name] for name in names):
        return False
    if a.get("model_tensors") != b.get("model_tensors"):
        return False
    return all(
        _all_but(a[name], keys) == _all_but(b[name], keys)
        for name, keys in (("storages", {"bytes"}), ("operators", {"runtime_ms", "source"}))
    )


def _all_but(rows: Sequence[dict[str, Any]], keys: set[str]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in keys} for row in rows]


def _difference(expected: Trace | None, actual: _Plain) -> str:
    """Returns how a trace differs from its interpolation, or "" if it does not."""
    before = None if expected is None else _Plain.from_data(expected.data)
    if before is None or not _same_operators(before, actual):
        return "runs other operators than its neighbours"
    pairs = zip(before.data["storages"], actual.data["storages"], strict=True)
    off = [abs(a["bytes"] - b["bytes"]) for a, b in pairs]
    off += [
        abs(before.workspaces.get(op, 0) - actual.workspaces.get(op, 0))
        for op in {*before.workspaces, *actual.workspaces}
    ]
    wrong = [count for count in off if count]
    if not wrong:
        return ""
    return f"{len(wrong):,} storages are not affine, by up to {max(wrong):,} bytes"


def step_ms_of(trace: Trace) -> float:
    """Returns the milliseconds of a step without a plan: of all its operators, or, if they run
    on several streams, until the last one ends (graph/trace/stream_times.h)."""
    end_of_stream: dict[int, float] = {}
    ends: list[float] = []
    for operator in trace.data["operators"]:
        stream = operator.get("stream", 0)
        start = max((ends[other] for other in operator.get("waits", ())), default=0.0)
        start = max(start, end_of_stream.get(stream, 0.0))
        ends.append(start + operator["runtime_ms"])
        end_of_stream[stream] = ends[-1]
    return max(end_of_stream.values(), default=0.0)


def added_ms_of(plan: Plan) -> float:
    """Returns the milliseconds by which a plan makes a step longer: what it recomputes and
    waits for; with streams, as far as they do not hide it."""
    if plan.streams is not None:
        return max(0.0, plan.streams.step_ms - plan.streams.baseline_ms)
    return plan.recompute_ms + (plan.stall_ms or 0)
