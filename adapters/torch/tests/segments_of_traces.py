"""Runs of modules in a trace, and the trace with such runs as if they were modules: what
`acplan` does with the segments that a plan names, written anew."""

import copy
import itertools
import random
from collections.abc import Iterator
from typing import Any


def longest_runs(data: dict[str, Any]) -> list[list[int]]:
    """Returns the longest runs of children of one module that are called one right after the
    other."""
    names = [module["fqn"] for module in data["modules"]]
    runs: list[list[int]] = []
    for parent in names:
        children = [k for k, name in enumerate(names) if name.rpartition(".")[0] == parent]
        run = children[:1]
        for before, after in itertools.pairwise(children):
            if not _follows(data, before, after):
                runs.append(run)
                run = []
            run.append(after)
        runs.append(run)
    return [run for run in runs if len(run) > 1]


def _follows(data: dict[str, Any], before: int, after: int) -> bool:
    calls = data["calls"]
    places = [
        [k for k, call in enumerate(calls) if call["module"] == module]
        for module in (before, after)
    ]
    if not places[0] or len(places[0]) != len(places[1]):
        return False
    for a, b in zip(*places):
        is_next = b == 1 + max([a, *_calls_inside(calls, a)])
        first, then = calls[a], calls[b]
        if not is_next or first["parent"] != then["parent"]:
            return False
        if first["end"] != then["start"] or bool(first.get("no_grad")) != bool(
            then.get("no_grad")
        ):
            return False
        if any(
            saved["call"] == first["parent"] and saved["packed"] == first["end"]
            for saved in data["saved"]
        ):
            return False
    return True


def _calls_inside(calls: list[dict[str, Any]], outer: int) -> Iterator[int]:
    places = {outer}
    for place in range(outer + 1, len(calls)):
        if calls[place]["parent"] in places:
            places.add(place)
            yield place


def name_of(data: dict[str, Any], run: list[int]) -> str:
    first, last = (data["modules"][k]["fqn"] for k in (run[0], run[-1]))
    return f"{first}-{last.rpartition('.')[2]}"


def with_segment(data: dict[str, Any], run: list[int]) -> dict[str, Any]:
    """Returns the trace with a module, and calls of it, around those of the run."""
    data = copy.deepcopy(data)
    calls, count = data["calls"], len(data["calls"])
    module = {"fqn": name_of(data, run), "class": "", "parameters": [], "buffers": []}
    data["modules"].insert(run[0], module)
    for call in calls:
        call["module"] += call["module"] >= run[0]
    members = [[k for k, c in enumerate(calls) if c["module"] == m + 1] for m in run]
    order = list(range(count))
    for group in zip(*members):
        calls.append(_enclosing_call(data, [calls[k] for k in group], run[0]))
        for k in group:
            calls[k]["parent"] = len(calls) - 1
        order.insert(order.index(group[0]), len(calls) - 1)
    new = {old: place for place, old in enumerate(order)} | {-1: -1}
    data["calls"] = [calls[old] for old in order]
    for call in data["calls"]:
        call["parent"] = new[call["parent"]]
    for thing in (*data["operators"], *data["saved"]):
        if "call" in thing:
            thing["call"] = new[thing["call"]]
    return data


def _enclosing_call(
    data: dict[str, Any], group: list[dict[str, Any]], module: int
) -> dict[str, Any]:
    first, last = group[0], group[-1]
    storages = {storage for call in group for storage in call["inputs"]}
    begun = [c["backward_start"] for c in group if c["backward_start"] is not None]
    ended = [c["backward_end"] for c in group if c["backward_end"] is not None]
    return first | {
        "module": module,
        "end": last["end"],
        "outputs": last["outputs"],
        "inputs": sorted(s for s in storages if data["storages"][s]["born"] < first["start"]),
        "backward_start": min(begun, default=None),
        "backward_end": max(ended, default=None),
    }


def segments_by_chance(
    data: dict[str, Any], chance: random.Random
) -> tuple[dict[str, Any], list[str]]:
    """Returns the trace with segments, none inside another one, and their names."""
    names: list[str] = []
    members: list[str] = []
    fqns = [module["fqn"] for module in data["modules"]]
    runs = [[fqns[k] for k in run] for run in longest_runs(data)]
    chance.shuffle(runs)
    for run in runs:
        length = chance.randint(2, len(run))
        begin = chance.randint(0, len(run) - length)
        part = run[begin : begin + length]
        if any(_are_nested(a, b) for a in part for b in members):
            continue
        places = [k for k, m in enumerate(data["modules"]) if m["fqn"] in part]
        names.append(name_of(data, places))
        data = with_segment(data, places)
        members += part
    return data, names


def _are_nested(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")
