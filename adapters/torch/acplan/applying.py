"""acplan.apply: wraps what a plan checkpoints."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)

from acplan.errors import AcplanError
from acplan.files import read_json, write_json
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
    discard_ratio: float = 1.0


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to checkpoint, and the plan file that says so (docs/file_formats.md)."""

    modules: tuple[PlannedModule, ...]
    data: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    text: str = dataclasses.field(default="", repr=False, compare=False)

    @classmethod
    def of(cls, data: dict[str, Any], text: str = "") -> "Plan":
        """`text` is what `acplan plan` printed about it."""
        if not isinstance(data, dict):
            raise AcplanError(f"plan: expected a dict, found {type(data).__name__}")
        if data.get("format") != "acplan.plan" or data.get("version") != 1:
            raise AcplanError(
                "plan: expected format acplan.plan, version 1, found "
                f"{data.get('format')!r}, {data.get('version')!r}"
            )
        if data.get("status") not in ("optimal", "feasible"):
            raise AcplanError(f"plan: there is none, it is {data.get('status')!r}")
        try:
            modules = tuple(_planned(module) for module in data["modules"])
        except (KeyError, TypeError, ValueError) as error:
            raise AcplanError(f"plan: modules: {error!r}") from None
        return cls(modules, data, text)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Plan":
        return cls.of(read_json(path))

    def save(self, path: str | os.PathLike[str], model: str | None = None) -> None:
        """Writes a plan file; one made by hand is a plan for the model named."""
        if not self.data and model is None:
            raise AcplanError("plan: made by hand, it needs the name of its model")
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
        write_json(path, data)

    def _figure(self, *keys: str) -> Any:
        value: Any = self.data
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value is None:
            raise AcplanError(f"plan: it does not say its {' '.join(keys)}")
        return value

    @property
    def status(self) -> str:
        """`optimal`, or `feasible` where a limit was hit first."""
        return str(self._figure("status"))

    @property
    def budget_bytes(self) -> int:
        return int(self._figure("budget_bytes"))

    @property
    def peak_bytes(self) -> int:
        return int(self._figure("peak_bytes"))

    @property
    def baseline_peak_bytes(self) -> int:
        """Without the plan, of one device."""
        return int(self._figure("baseline", "peak_bytes"))

    @property
    def recompute_ms(self) -> float:
        return float(self._figure("recompute_ms"))

    @property
    def bound_ms(self) -> float:
        """No plan recomputes less: proven."""
        return float(self._figure("bound_ms"))

    @property
    def gap(self) -> float:
        """Between both, relative to what the plan recomputes."""
        return float(self._figure("gap"))

    @property
    def overhead(self) -> float:
        """Recomputation relative to the step without it."""
        return float(self._figure("overhead"))

    def __str__(self) -> str:
        if self.text:
            return self.text
        names = ", ".join(module.fqn for module in self.modules)
        text = f"{len(self.modules)} modules to checkpoint: {names or 'none'}"
        if "recompute_ms" not in self.data:
            return text
        return (
            f"{self.status}: peak {self.peak_bytes:,} bytes of {self.budget_bytes:,} "
            f"(without a plan {self.baseline_peak_bytes:,}), recomputes "
            f"{self.recompute_ms:.3f} ms ({self.overhead:+.2%})\n{text}"
        )


def _planned(module: dict[str, Any]) -> PlannedModule:
    return PlannedModule(
        module["fqn"],
        tuple(
            PlannedOperator(op["name"], op["decision"] == "save")
            for op in module.get("ops", ())
        ),
        float(module.get("discard_ratio", 1)),
    )


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
        if planned.discard_ratio < 1:
            raise AcplanError(
                f"plan: {planned.fqn} is to discard a part, and the plan does not say "
                "which operators: plan with granularity operator"
            )
        return checkpoint_wrapper(module, CheckpointImpl.NO_REENTRANT)
    return checkpoint_wrapper(
        module,
        CheckpointImpl.NO_REENTRANT,
        checkpoint_fn=checkpoint_of(planned.fqn, planned.operators),
    )
