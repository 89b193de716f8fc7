"""Legal plans with skipped operators, by a reference of the need-driven walk: given which
operators of a unit are saved, what must run again, and which results are needed.
"""

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn

from acplan import Plan, PlannedModule, PlannedOperator
from acplan._step.module_calls import ModuleCalls
from acplan._step.recorder import Recorder
from acplan._step.saved_tensors import recording_saved


def recorded_step(model: nn.Module, step: Callable[[nn.Module], Any]) -> dict[str, Any]:
    """Returns a step on real tensors as a trace has it, as far as plans need it: acplan.trace
    shows the kernels of a GPU, and the CPU runs others."""
    names = [name for name, _ in model.named_modules()]
    root = type(model).__name__
    recorder = Recorder()
    log = recorder.log
    with recorder:
        with ModuleCalls(log).watched(model.modules()), recording_saved(log):
            loss = step(model)
        log.is_forward = False
        loss.backward()
    return {
        "modules": [{"fqn": f"{root}.{name}" if name else root} for name in names],
        "operators": [
            {
                "name": operator.name,
                "reads": operator.reads,
                "outputs": operator.outputs,
                "results": operator.results,
                "mutates": operator.mutates,
                "view": operator.is_view,
                "creates": [s for s in operator.outputs if log.storages[s].born == place],
            }
            for place, operator in enumerate(log.operators)
        ],
        "calls": [vars(call) for call in log.calls],
        "saved": [vars(saved) for saved in log.saved],
        "tensors": [{"storage": tensor.storage} for tensor in log.tensors],
        "storages": [{"born": storage.born} for storage in log.storages],
    }


class Unit:
    """The calls of a module in a trace. Each runs the same operators, else ValueError."""

    def __init__(self, data: dict[str, Any], fqn: str) -> None:
        names = [module["fqn"] for module in data["modules"]]
        self._data = data
        self._calls = [
            index
            for index, call in enumerate(data["calls"])
            if names[call["module"]] == fqn and not call.get("no_grad")
        ]
        runs = {tuple(op["name"] for op in self._operators(call)) for call in self._calls}
        if len(runs) != 1:
            raise ValueError(f"{fqn}: {len(runs)} lists of operators")
        if any(map(self._writes_to_arguments, self._calls)):
            raise ValueError(f"{fqn}: what it is given is written to")
        self.fqn = fqn
        self.names = runs.pop()
        self._mutated_storages = {
            storage for op in data["operators"] for storage in op.get("mutates", ())
        }

    def _operators(self, call: int) -> list[dict[str, Any]]:
        call = self._data["calls"][call]
        return self._data["operators"][call["start"] : call["end"]]

    def _writes_to_arguments(self, index: int) -> bool:
        """Returns whether arguments are written to from the call on. Checkpoints do not allow
        that until they have run again."""
        data, call = self._data, self._data["calls"][index]
        arguments = {data["tensors"][tensor]["storage"] for tensor in call["arguments"]}
        return any(
            arguments & {*op.get("mutates", ())} for op in data["operators"][call["start"] :]
        )

    def can_save(self, place: int) -> bool:
        """Returns whether nothing is written to that it makes, or is given to write to."""
        operators = [self._operators(call)[place] for call in self._calls]
        touched = {s for op in operators for s in (*op["outputs"], *op.get("mutates", ()))}
        return not touched & self._mutated_storages

    def planned_module(self, saved: set[int]) -> PlannedModule:
        """Returns the policy that runs again what must run again, and nothing else."""
        runs: set[int] = set()
        kept_results: dict[int, set[int]] = {}
        while True:
            count = len(runs)
            for call in self._calls:
                self._walk(call, saved, runs, kept_results)
            if len(runs) == count:
                break
        operators = []
        for place, name in enumerate(self.names):
            is_saved = place in saved
            results = tuple(sorted(kept_results.get(place, ()))) if is_saved else None
            is_skipped = not is_saved and place not in runs
            operators.append(PlannedOperator(name, is_saved, is_skipped, results))
        return PlannedModule(self.fqn, tuple(operators))

    def _walk(
        self, index: int, saved: set[int], runs: set[int], kept_results: dict[int, set[int]]
    ) -> None:
        """Backwards, with the storages that are needed as they are at each moment; of a
        storage from outside nothing but its views is made again."""
        data, call = self._data, self._data["calls"][index]
        unpacked = self._unpacked_storages(index)
        needs = set(unpacked.get(call["end"], ()))
        for place in reversed(range(call["end"] - call["start"])):
            now = call["start"] + place
            op = data["operators"][now]
            creates = {s for s in op["outputs"] if data["storages"][s]["born"] == now}
            if place in saved:
                kept_results.setdefault(place, set()).update(
                    at
                    for at, tensor in enumerate(op.get("results", ()))
                    if data["tensors"][tensor]["storage"] in needs
                )
                needs -= creates
            elif place in runs or self._is_needed(op, creates, needs, call["start"]):
                runs.add(place)
                needs -= creates
                needs |= {*op["reads"]}
            needs |= unpacked.get(now, set())

    def _is_needed(
        self, op: dict[str, Any], creates: set[int], needs: set[int], start: int
    ) -> bool:
        born = self._data["storages"]
        mutated_storages = {s for s in op.get("mutates", ()) if born[s]["born"] >= start}
        viewed_storages = {*op["outputs"]} if op.get("view") else set()
        return bool((creates | mutated_storages | viewed_storages) & needs)

    def _unpacked_storages(self, index: int) -> dict[int, set[int]]:
        """Returns what is saved in the call and asked for in backward, indexed by when it is
        saved."""
        calls = self._data["calls"]
        inner_calls = {index}
        storages: dict[int, set[int]] = {}
        for place in range(index + 1, len(calls)):
            if calls[place]["parent"] in inner_calls:
                inner_calls.add(place)
        for saved in self._data["saved"]:
            if saved["call"] in inner_calls and saved["unpacked"] is not None:
                storages.setdefault(saved["packed"], set()).add(saved["storage"])
        return storages


def plan_by_chance(data: dict[str, Any], fqns: Sequence[str], chance: random.Random) -> Plan:
    """Skips what nobody needs, given random operators of these units that are saved."""
    modules = []
    for fqn in fqns:
        unit = Unit(data, fqn)
        share = chance.choice([0.1, 0.3, 0.6])
        saved = {
            place
            for place in range(len(unit.names))
            if chance.random() < share and unit.can_save(place)
        }
        modules.append(unit.planned_module(saved))
    return Plan(tuple(modules))


def units_by_chance(data: dict[str, Any], chance: random.Random) -> list[str]:
    """Returns modules of a trace that can be units, none inside another one."""
    names = [module["fqn"] for module in data["modules"]]
    called_modules = {names[call["module"]] for call in data["calls"]}
    units: list[str] = []
    candidates = sorted(called_modules - {names[0]})
    chance.shuffle(candidates)
    for name in candidates:
        if any(f"{name}.".startswith(f"{u}.") for u in units):
            continue
        if any(f"{u}.".startswith(f"{name}.") for u in units):
            continue
        with contextlib.suppress(ValueError):
            if len(Unit(data, name).names) > 2:
                units.append(name)
    return units


def shares(plan: Plan) -> Iterator[tuple[int, int, int]]:
    """Yields for each unit how many operators are saved, run again and are skipped."""
    for module in plan.modules:
        kinds = [operator.decision for operator in module.operators]
        yield kinds.count("save"), kinds.count("recompute"), kinds.count("skip")
