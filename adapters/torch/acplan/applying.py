"""acplan.apply: wraps what a plan checkpoints."""

import contextlib
import dataclasses
import functools
import gzip
import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)
from torch.utils.checkpoint import (
    CheckpointPolicy,
    create_selective_checkpoint_contexts,
)

from acplan.errors import AcplanError


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
    root = type(model).__name__
    paths = {
        (f"{root}.{path}" if path else root): module
        for path, module in model.named_modules(remove_duplicate=False)
    }
    wrappers: dict[int, torch.nn.Module] = {}
    for planned in plan.modules:
        module = paths.get(planned.fqn)
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
        context_fn=functools.partial(_contexts, planned.fqn, planned.operators),
    )


def _contexts(fqn: str, operators: Sequence[PlannedOperator]) -> Any:
    place = 0

    def policy(
        context: Any, func: Any, *args: Any, **kwargs: Any
    ) -> CheckpointPolicy:
        nonlocal place
        planned = operators[place] if place < len(operators) else None
        if planned is None or not _is_named(func, planned.name):
            expected = f"{planned.name}" if planned else "no more operators"
            raise AcplanError(
                f"{fqn}: operator {place} is {func}, the plan expects {expected}; "
                "trace the model as it is trained and plan anew"
            )
        place += 1
        if planned.save:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    # What was written to in place is saved together with what wrote to it.
    writes = any(op.save and _writes_in_place(op.name) for op in operators)
    return create_selective_checkpoint_contexts(
        policy, allow_cache_entry_mutation=writes
    )


def _writes_in_place(name: str) -> bool:
    parts = name.split(".")
    return (parts[1] if len(parts) > 1 else name).endswith("_")


def _is_named(func: Any, name: str) -> bool:
    return name in (str(func), func.__name__, str(func._overloadpacket.__name__))
