"""Measures what the decisions of a plan cost the host, for each operator of a unit.

    ACPLAN=... OMP_NUM_THREADS=1 PYTHONPATH=. python tests/compare_host_times.py

writes docs/measured/host_times.csv and host_times_models.csv: microseconds per operator in forward and in
backward, beyond the same step without a checkpoint, and what that makes of plans for real
models, beside the run-time of their steps on a GPU. Tensors have one element, so that kernels
take next to nothing. For each decision all operators of a kind have that decision. Beside it
stands the selective checkpoint of PyTorch itself, whose policies know neither a plan nor
skipping.
"""

import copy
import functools
import logging
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from acplan import Plan, PlannedModule, PlannedOperator, Trace, apply, plan
from sharding_cases import operators_of
from tables import Table

_COUNT = 300
_REPEATS = 25

Forward = Callable[[torch.Tensor], torch.Tensor]


def _plain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(_COUNT):
        x = x * 1.01
    return x


def _views(x: torch.Tensor) -> torch.Tensor:
    x = x * 2
    for _ in range(_COUNT):
        x.unsqueeze(0)
    return x


def _random(x: torch.Tensor) -> torch.Tensor:
    for _ in range(_COUNT):
        torch.rand_like(x)
    return x


def _in_place(x: torch.Tensor) -> torch.Tensor:
    x = x * 2
    for _ in range(_COUNT):
        x.mul_(1.01)
    return x


_KINDS: dict[str, Forward] = {
    "most": _plain, "views": _views, "random": _random, "in place": _in_place
}  # fmt: skip
_POLICIES = ("whole", "recompute", "save", "skip", "skip, in a run")
_OF_PYTORCH = ("PyTorch's, recompute", "PyTorch's, save")
_TRACES = pathlib.Path(__file__).parents[3] / "data" / "traces"
# Plans are made at so much of the way from the least budget to the step without one.
_SHARE = 0.6


class _Unit(nn.Module):
    def __init__(self, run: Forward) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Only the exponential asks for a recomputation: autograd saves its result.
        return self.run(x).sum() + x.exp()


class _Model(nn.Module):
    def __init__(self, run: Forward) -> None:
        super().__init__()
        self.unit = _Unit(run)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.unit(x)


class _Two(nn.Module):
    def __init__(self, run: Forward) -> None:
        super().__init__()
        self.units = nn.ModuleList([_Unit(run), _Unit(run)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = (unit(x) for unit in self.units)
        return first + second


def _policy_of_pytorch(policy: str, _: Any, func: Any, *__: Any, **___: Any) -> Any:
    is_saved = policy.endswith("save") and func is not torch.ops.aten.exp.default
    kinds = CheckpointPolicy
    return kinds.MUST_SAVE if is_saved else kinds.MUST_RECOMPUTE


class _ByPyTorch(nn.Module):
    def __init__(self, model: nn.Module, policy: str) -> None:
        super().__init__()
        self.model = model
        self.contexts = functools.partial(
            create_selective_checkpoint_contexts,
            functools.partial(_policy_of_pytorch, policy),
            allow_cache_entry_mutation=True,
        )

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.model, x, use_reentrant=False, context_fn=self.contexts)


def _models(run: Forward, policy: str) -> tuple[nn.Module, nn.Module]:
    """Returns the model without a plan and with one."""
    if policy in _OF_PYTORCH:
        return _Model(run), _ByPyTorch(_Model(run), policy)
    is_run = policy.endswith("run")
    model: nn.Module = _Two(run) if is_run else _Model(run)
    fqn = "_Two.units.0-1" if is_run else "_Model.unit"
    skips = policy.startswith("skip")
    listed = tuple(
        PlannedOperator(name, policy == "save", skips and "exp" not in name)
        for unit in (model.units if is_run else [model.unit])
        for name in operators_of(unit, torch.ones(1, requires_grad=True))
    )
    unit = PlannedModule(fqn, () if policy == "whole" else listed)
    return model, apply(copy.deepcopy(model), Plan((unit,)), strict=True)


def _times(models: list[nn.Module]) -> list[tuple[float, float]]:
    """Returns the best of many times, forward and backward. The models take turns."""
    best = [(float("inf"), float("inf"))] * len(models)
    for _ in range(_REPEATS):
        for index, model in enumerate(models):
            x = torch.ones(1, requires_grad=True)
            start = time.process_time()
            out = model(x)
            middle = time.process_time()
            out.backward()
            end = time.process_time()
            forward, backward = best[index]
            best[index] = (min(forward, middle - start), min(backward, end - middle))
    return best


# Indexed by kind of operator and by decision: forward and backward, in microseconds.
Costs = dict[str, dict[str, tuple[float, float]]]


def _costs() -> Costs:
    costs: Costs = {}
    for kind, run in _KINDS.items():
        costs[kind] = {}
        for policy in _OF_PYTORCH + _POLICIES:
            plain, with_plan = _models(run, policy)
            count = len(operators_of(plain, torch.ones(1, requires_grad=True)))
            before, after = _times([plain, with_plan])
            forward, backward = (
                (b - a) / count * 1e6 for a, b in zip(before, after, strict=True)
            )
            costs[kind][policy] = forward, backward
    return costs


def _kind(operator: dict[str, Any]) -> str:
    if operator.get("view"):
        return "views"
    if operator.get("random"):
        return "random"
    return "in place" if operator.get("mutates") else "most"


def _host_ms(plan: Plan, traced: Trace, costs: Costs) -> tuple[int, float]:
    """Returns the number of operators in units, and the milliseconds that they cost the host in
    a step. The operators of a run of modules follow one another."""
    data = traced.data
    names = [module["fqn"] for module in data["modules"]]
    starts = {names[call["module"]]: call["start"] for call in reversed(data["calls"])}
    count, spent = 0, 0.0
    for module in plan.modules:
        start = starts[_first_of(module.fqn, starts)]
        for place, operator in enumerate(module.operators):
            kind = _kind(data["operators"][start + place])
            count += 1
            spent += sum(costs[kind][operator.decision])
    return count, spent / 1e3


def _first_of(fqn: str, starts: dict[str, int]) -> str:
    """Returns the module itself, or the first one of the run."""
    if fqn in starts:
        return fqn
    parent, _, children = fqn.rpartition(".")
    return f"{parent}.{children.partition('-')[0]}"


def _share_rows(costs: Costs) -> Iterator[list[str]]:
    for path in sorted(_TRACES.glob("*.json.gz")):
        traced = Trace.load(path)
        step_ms = sum(operator["runtime_ms"] for operator in traced.data["operators"])
        least = plan(path, "min", decisions="save,recompute").budget_bytes
        budget = least + round(_SHARE * (traced.peak_bytes - least))
        row = [path.name.partition(".")[0], f"{step_ms:.0f}"]
        for decisions in ("save,recompute", "save,recompute,skip"):
            best_plan = plan(path, budget, decisions=decisions)
            count, host_ms = _host_ms(best_plan, traced, costs)
            row += [str(count), f"{host_ms:.1f}", f"{host_ms / step_ms:.1%}"]
        yield row


def _main() -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    passes = ("forward us", "backward us")
    kinds = [f"{kind}: {name}" for kind in _KINDS for name in passes]
    table = Table("host_times", ["all operators", *kinds])
    costs = _costs()
    for policy in _OF_PYTORCH + _POLICIES:
        cells = [f"{us:.1f}" for kind in _KINDS for us in costs[kind][policy]]
        table.add(policy, *cells)
    figures = ("operators", "host ms", "of the step")
    columns = [f"{name}: {f}" for name in ("save,recompute", "skip") for f in figures]
    models = Table("host_times_models", ["model", "step ms", *columns])
    for row in _share_rows(costs):
        models.add(*row)


if __name__ == "__main__":
    _main()
