"""Sets `acplan profile` beside PyTorch's own estimators, statistic by statistic.

    ACPLAN=... PYTHONPATH=. python tests/compare_statistics.py

writes docs/measured/statistics.csv and statistics_failures.csv.
"""

import dataclasses
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from acplan import Trace, profile, trace
from tables import Table, print_versions
from torch_statistics import ModuleMemory, SACStats, TorchStatistics, torch_statistics
from zoo import EXAMPLES

CATEGORIES = ("param", "buffer", "grad", "act", "temp", "opt", "other", "total")
MOMENTS = ("pre_fw", "post_fw", "peak_fw", "pre_bw", "post_bw", "peak_bw")
# Operators that PyTorch's estimator leaves out, and policies see.
_LEFT_OUT = ("clone", "lift_fresh")


# Why a statistic differs, as docs/statistics.md explains.
KEYWORDS = "keyword arguments"
CALLS = "called again"
NO_OPERATOR = "runs nothing"
NO_GRADIENT = "needs no gradient"
NODES = "gradient or temporary"
ADDRESSES = "addresses used again"
IN_PLACE = "in place"
RESULTS = "results"
LAST = "the last operator"
NOT_AGAIN = "never runs again"
TIES = "at the same time"
WRITTEN_TO = "written to later"
NO_DROPOUT = "no dropout"


@dataclasses.dataclass(frozen=True)
class Row:
    """A statistic of a module, as acplan and as PyTorch have it."""

    statistic: str
    fqn: str
    ours: Any
    torchs: Any

    @property
    def is_equal(self) -> bool:
        if isinstance(self.ours, float):
            return math.isclose(self.ours, self.torchs, rel_tol=1e-9, abs_tol=1e-12)
        return bool(self.ours == self.torchs)


@dataclasses.dataclass(frozen=True)
class Comparison:
    traced: Trace
    profile: dict[str, Any]
    torchs: TorchStatistics
    rows: tuple[Row, ...]

    def module(self, fqn: str) -> dict[str, Any]:
        return next(m for m in self.profile["modules"] if m["fqn"] == fqn)

    def keywords(self, fqn: str) -> set[str]:
        return {KEYWORDS} if fqn in self.torchs.with_keywords else set()

    def calls(self, fqn: str) -> list[dict[str, Any]]:
        data = self.traced.data
        names = [module["fqn"] for module in data["modules"]]
        return [call for call in data["calls"] if names[call["module"]] == fqn]


def models() -> dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]]:
    return {name: make().on_meta for name, make in EXAMPLES.items()}


def compare(model: nn.Module, inputs: dict[str, Any], light_hooks: bool = True) -> Comparison:
    traced = trace(model, workspaces=False, **inputs)
    data = profile(traced).data
    torchs = torch_statistics(model, inputs, light_hooks)
    rows = tuple(_rows(data, torchs))
    return Comparison(traced, data, torchs, rows)


def _rows(profile: dict[str, Any], torchs: TorchStatistics) -> Iterator[Row]:
    for module in profile["modules"]:
        fqn = module["fqn"]
        if fqn in torchs.memory:
            yield from _memory_rows(module, torchs.memory[fqn])
        if fqn in torchs.runtimes:
            for phase in ("fw", "bw"):
                ours = module[f"{phase}_runtime_per_module"]
                yield Row(f"{phase}_runtime", fqn, ours, torchs.runtimes[fqn][phase])
        if fqn in torchs.operators and "sac" in module:
            yield from _operator_rows(fqn, module["sac"], torchs.operators[fqn])
    for name, order in torchs.orders.items():
        yield Row(f"order {name}", "", profile["order"][name], list(dict.fromkeys(order)))


def _memory_rows(module: dict[str, Any], theirs: ModuleMemory) -> Iterator[Row]:
    fqn = module["fqn"]
    yield Row("param_per_module", fqn, module["param_per_module"], theirs.parameters)
    yield Row("buffer_per_module", fqn, module["buffer_per_module"], theirs.buffers)
    yield Row("input_per_module", fqn, module["input_per_module"], theirs.inputs)
    yield Row("output_per_module", fqn, module["output_per_module"], theirs.outputs)
    snapshots = theirs.snapshots
    act, temp = CATEGORIES.index("act"), CATEGORIES.index("temp")
    act_fw = snapshots["post_fw"][act] - snapshots["pre_fw"][act] - theirs.outputs
    yield Row("act_fw_per_module", fqn, module["act_fw_per_module"], max(0, act_fw))
    yield Row("act_total", fqn, module["act_total"], snapshots["post_fw"][act])
    for moment in MOMENTS:
        ours = module["snap"][moment]
        if ours is None or moment not in snapshots:
            yield Row(f"has {moment}", fqn, ours is not None, moment in snapshots)
            continue
        for place, category in enumerate(CATEGORIES):
            torch_bytes = snapshots[moment][place]
            yield Row(f"{moment}.{category}", fqn, ours[place], torch_bytes)
    if "peak_bw" in snapshots and not module["no_backward"]:
        grad = snapshots["pre_bw"][CATEGORIES.index("grad")]
        yield Row("grad_total", fqn, module["grad_total"], grad)
        peak = snapshots["peak_bw"]
        yield Row("act_bw_per_module", fqn, module["act_bw_per_module"], peak[act])
        act_grad = peak[temp] - snapshots["pre_bw"][temp]
        yield Row("act_grad_per_module", fqn, module["act_grad_per_module"], act_grad)


def _operator_rows(fqn: str, ours: dict[str, Any], theirs: SACStats) -> Iterator[Row]:
    places = [place for place, name in enumerate(ours["func_names"]) if name not in _LEFT_OUT]
    new = {place: index for index, place in enumerate(places)}

    def listed(key: str) -> list[Any]:
        return [ours[key][place] for place in places]

    yield Row("sac.func_names", fqn, listed("func_names"), theirs.func_names)
    yield Row("sac.memory", fqn, listed("memory"), theirs.memory)
    times = [float(f"{ms:.9g}") for ms in listed("runtimes")]
    yield Row("sac.runtimes", fqn, times, [float(f"{t:.9g}") for t in theirs.runtimes])
    for key in ("view_like_ops", "rand_ops", "saved_autograd_ops"):
        torch_places = sorted(set(getattr(theirs, key)))
        yield Row(f"sac.{key}", fqn, [new[p] for p in ours[key] if p in new], torch_places)
    pairs = [(new[op], new.get(parent)) for op, parent in ours["inplace_ops"] if op in new]
    yield Row("sac.inplace_ops", fqn, pairs, [tuple(p) for p in theirs.inplace_ops])
    yield Row(
        "sac.force_store_random",
        fqn,
        ours["force_store_random"],
        theirs.force_store_random,
    )


def reasons(row: Row, comparison: Comparison) -> set[str]:
    """Returns why a row is unequal: an empty set if nothing explains it."""
    if row.statistic.startswith("order bw"):
        return {TIES} if _differs_in_ties(row, comparison) else set()
    if row.statistic == "input_per_module":
        return {KEYWORDS} & comparison.keywords(row.fqn) if row.ours > row.torchs else set()
    if len(comparison.calls(row.fqn)) > 1:
        return {CALLS}
    if row.statistic == "sac.saved_autograd_ops":
        return {ADDRESSES} if set(row.ours) <= set(row.torchs) else set()
    if row.statistic == "sac.rand_ops":
        return {NO_DROPOUT} if _are_attention(row, comparison) else set()
    if row.statistic == "sac.view_like_ops":
        return {WRITTEN_TO} if _are_of_what_is_written_to(row, comparison) else set()
    if row.statistic == "sac.inplace_ops":
        return _reasons_of_ties(row, comparison)
    if row.statistic == "sac.memory":
        return _reasons_of_memory(row, comparison)
    if row.statistic == "sac.runtimes":
        pairs = zip(row.ours, row.torchs)
        return {NOT_AGAIN} if all(a in (0, b) for a, b in pairs) else set()
    if "bw" in row.statistic or row.statistic == "act_grad_per_module":
        return _reasons_of_backward(row, comparison)
    return set()


def _differs_in_ties(row: Row, comparison: Comparison) -> bool:
    """Returns whether both name the same modules, and PyTorch's follow our times."""
    if row.statistic != "order bw_pre":
        return set(row.ours) <= set(row.torchs)
    times = [
        min(call["backward_start"] for call in comparison.calls(fqn) if call["backward_start"])
        for fqn in row.torchs
        if fqn in row.ours
    ]
    return set(row.ours) == set(row.torchs) and times == sorted(times)


def _reasons_of_ties(row: Row, comparison: Comparison) -> set[str]:
    """Explains operators that both tie, to other parents, and operators that only we tie."""
    ours, theirs = set(map(tuple, row.ours)), set(map(tuple, row.torchs))
    tied = {op for op, _ in theirs}
    if not tied <= {op for op, _ in ours}:
        return set()
    alone = [pair for pair in ours - theirs if pair[0] not in tied]
    if not _are_of_what_is_written_to(
        dataclasses.replace(row, ours=alone, torchs=[]), comparison
    ):
        return set()
    others = {ADDRESSES} if ours - theirs != set(alone) else set()
    return others | ({WRITTEN_TO} if alone else set())


def _are_attention(row: Row, comparison: Comparison) -> bool:
    """Returns whether all operators that only PyTorch takes for random are attention."""
    names = [n for n in comparison.module(row.fqn)["sac"]["func_names"] if n not in _LEFT_OUT]
    others = set(row.torchs) - set(row.ours)
    return set(row.ours) < set(row.torchs) and all("attention" in names[k] for k in others)


def _are_of_what_is_written_to(row: Row, comparison: Comparison) -> bool:
    """Returns whether all operators that only one of both lists write, or have results that
    are written to."""
    (call,) = comparison.calls(row.fqn)
    names = comparison.module(row.fqn)["sac"]["func_names"]
    places = [k for k, name in enumerate(names) if name not in _LEFT_OUT]
    operators = comparison.traced.data["operators"]
    mutated_storages = {s for operator in operators for s in operator.get("mutates", ())}
    entries = {str(entry): entry for entry in (*row.ours, *row.torchs)}
    shared = set(map(str, row.ours)) & set(map(str, row.torchs))
    parents = [
        entry if isinstance(entry, int) else entry[1]
        for key, entry in entries.items()
        if key not in shared
    ]
    return all(
        mutated_storages & set(operators[call["start"] + places[parent]]["outputs"])
        for parent in parents
    )


def _reasons_of_memory(row: Row, comparison: Comparison) -> set[str]:
    sac = comparison.module(row.fqn)["sac"]
    (call,) = comparison.calls(row.fqn)
    places = [k for k, n in enumerate(sac["func_names"]) if n not in _LEFT_OUT]
    memory_reasons = set()
    for place, ours, theirs in zip(places, row.ours, row.torchs):
        entry = comparison.traced.data["operators"][call["start"] + place]
        if ours == theirs:
            continue
        if theirs == 0:
            memory_reasons.add(LAST)
        elif entry.get("mutates"):
            memory_reasons.add(IN_PLACE)
        elif set(entry["creates"]) & set(call["outputs"]):
            memory_reasons.add(RESULTS)
        else:
            return set()
    return memory_reasons


def _reasons_of_backward(row: Row, comparison: Comparison) -> set[str]:
    (call,) = comparison.calls(row.fqn)
    if call["backward_start"] is None:
        return {NO_GRADIENT}
    if call["backward_start"] == call["backward_end"]:
        return {NO_OPERATOR}
    theirs = comparison.torchs.memory[row.fqn].snapshots["peak_bw"]
    ours = comparison.module(row.fqn)["snap"]["peak_bw"]
    if row.statistic.startswith(("peak_bw", "act_grad")) and ours[-1] == theirs[-1]:
        return {NODES}
    return {KEYWORDS} & comparison.keywords(row.fqn)


def _main() -> None:
    print_versions("transformers")
    equal: dict[str, dict[bool, list[bool]]] = {}
    why: dict[str, dict[str, int]] = {}
    operators: dict[str, list[bool]] = {"sac.memory": [], "sac.runtimes": []}
    failed: list[tuple[str, str, str]] = []
    for name, make in models().items():
        for light in (True, False):
            comparison = compare(*make(), light_hooks=light)
            for row in comparison.rows:
                shares = equal.setdefault(row.statistic, {True: [], False: []})
                shares[light].append(row.is_equal)
                if light and row.statistic in operators:
                    operators[row.statistic] += map(operator.eq, row.ours, row.torchs)
                if row.is_equal or not light:
                    continue
                counts = why.setdefault(row.statistic, {})
                for reason in reasons(row, comparison) or {"?"}:
                    counts[reason] = counts.get(reason, 0) + 1
            if light:
                failed += [(name, *f) for f in comparison.torchs.failed.items()]
    columns = ("statistic", "equal", "equal with PyTorch hooks", "the others")
    table = Table("statistics", columns)
    everywhere = [s for s, rows in equal.items() if all(rows[True] + rows[False])]
    for statistic, rows in equal.items():
        if statistic in everywhere:
            continue
        shares = [f"{sum(rows[light])} of {len(rows[light])}" for light in (True, False)]
        others = ", ".join(f"{r} {n}" for r, n in why.get(statistic, {}).items())
        table.add(statistic, *shares, others)
    for statistic, are_equal in operators.items():
        share = f"{sum(are_equal):,} of {len(are_equal):,}"
        table.add(f"{statistic} of operators", share)
    print(f"Equal everywhere: {', '.join(everywhere)}.")
    failures = Table("statistics_failures", ("model", "tool", "fails with"))
    for line in failed:
        failures.add(*line)


if __name__ == "__main__":
    _main()
