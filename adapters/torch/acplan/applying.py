"""acplan.apply: wraps what a plan checkpoints."""

import contextlib
import dataclasses
import gzip
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)

from acplan.errors import AcplanError
from acplan.selecting import checkpoint_of, class_name_of


@dataclasses.dataclass(frozen=True)
class PlannedOperator:
    name: str
    save: bool


@dataclasses.dataclass(frozen=True)
class PlannedModule:
    """A module to checkpoint; without operators, all of it is recomputed."""

    fqn: str
    operators: tuple[PlannedOperator, ...] = ()


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to checkpoint, and the plan file that says so (docs/file_formats.md)."""

    modules: tuple[PlannedModule, ...]
    data: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, data: dict[str, Any]) -> "Plan":
        if data.get("format") != "acplan.plan" or data.get("version") != 1:
            raise AcplanError(
                "plan: expected format acplan.plan, version 1, found "
                f"{data.get('format')!r}, {data.get('version')!r}"
            )
        if data.get("status") not in ("optimal", "feasible"):
            raise AcplanError(f"plan: there is none, it is {data.get('status')!r}")
        modules = []
        for module in data["modules"]:
            operators = module.get("ops", ())
            if not operators and module.get("discard_ratio", 1) < 1:
                raise AcplanError(
                    f"plan: {module['fqn']} is to discard a part, and the plan does "
                    "not say which operators: plan with --granularity operator"
                )
            modules.append(
                PlannedModule(
                    module["fqn"],
                    tuple(
                        PlannedOperator(op["name"], op["decision"] == "save")
                        for op in operators
                    ),
                )
            )
        return cls(tuple(modules), data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Plan":
        raw = pathlib.Path(path).read_bytes()
        try:
            text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
            data = json.loads(text)
        except (ValueError, OSError) as error:
            raise AcplanError(f"{path}: {error}") from None
        return cls.of(data)

    def save(self, path: str | os.PathLike[str], model: str) -> None:
        """Writes a plan file; one made by hand is a plan for the model named."""
        data = self.data or {
            "format": "acplan.plan",
            "version": 1,
            "model": model,
            "budget_bytes": 1 << 53,
            "world_size": 1,
            "memory_model": "snapshot",
            "status": "feasible",
            "modules": [
                {
                    "fqn": module.fqn,
                    "discard_ratio": 1,
                    "memory_budget": 0,
                    "ops": [
                        {
                            "index": index,
                            "name": operator.name,
                            "decision": "save" if operator.save else "recompute",
                        }
                        for index, operator in enumerate(module.operators)
                    ],
                }
                for module in self.modules
            ],
        }
        pathlib.Path(path).write_text(json.dumps(data))


def apply(model: torch.nn.Module, plan: Plan) -> torch.nn.Module:
    """Checkpoints the plan's modules, in place; returns the model, which is another
    object only where the plan checkpoints all of it.

    A module that later runs other operators than the plan says raises AcplanError.
    """
    return _apply(model, plan)[0]


@contextlib.contextmanager
def applied(model: torch.nn.Module, plan: Plan) -> Iterator[torch.nn.Module]:
    """The model with the plan, which is taken back at the end."""
    planned, undo = _apply(model, plan)
    try:
        yield planned
    finally:
        for parent, name, module in reversed(undo):
            setattr(parent, name, module)


Undo = list[tuple[torch.nn.Module, str, torch.nn.Module]]


def _apply(model: torch.nn.Module, plan: Plan) -> tuple[torch.nn.Module, Undo]:
    root = class_name_of(model)
    paths = {
        (f"{root}.{path}" if path else root): module
        for path, module in model.named_modules(remove_duplicate=False)
    }
    wrappers: dict[int, torch.nn.Module] = {}
    for planned in plan.modules:
        module = paths.get(planned.fqn)
        if planned.fqn.split(".")[0] != root:
            raise AcplanError(
                f"plan: {planned.fqn} is not in this {root}; apply plans before "
                "torch.compile or DistributedDataParallel wraps the model"
            )
        if module is None:
            raise AcplanError(f"plan: the model has no module {planned.fqn!r}")
        wrappers[id(module)] = _wrapped(module, planned)
    undo: Undo = []
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and id(child) in wrappers:
                undo.append((parent, name, child))
                setattr(parent, name, wrappers[id(child)])
    return wrappers.get(id(model), model), undo


def _wrapped(module: torch.nn.Module, planned: PlannedModule) -> torch.nn.Module:
    if not planned.operators:
        return checkpoint_wrapper(module, CheckpointImpl.NO_REENTRANT)
    return checkpoint_wrapper(
        module,
        CheckpointImpl.NO_REENTRANT,
        checkpoint_fn=checkpoint_of(planned.fqn, planned.operators),
    )
