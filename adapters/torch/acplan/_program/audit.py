"""acplan.audit: the checkpoints of a trainer's configuration, judged."""

import dataclasses
import os
from typing import Any

import torch

from acplan._base.errors import AcplanError
from acplan._base.question import question_folder
from acplan._files import display
from acplan._files.json_files import path_of, read_json
from acplan._files.trace_file import Trace
from acplan._program.budgets import Budget, size_value
from acplan._program.own_checkpoints import OwnCheckpoints, own_checkpoints

_OVER_BUDGET = 1
_OPTIONS = (
    "allocator", "blocks", "config_format", "ddp", "device_memory", "function",
    "optimizer_state", "reserve", "time_limit", "torch_version", "world_size",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Effect:
    """The effect of a policy on a step: `overhead` is the share of the step that it
    recomputes."""

    peak_bytes: int
    recompute_ms: float
    overhead: float

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "Effect":
        """Returns the effect in a part of an audit."""
        return cls(data["peak_bytes"], data["recompute_ms"], data["overhead"])


@dataclasses.dataclass(frozen=True)
class Audit:
    """The policy of a trainer's configuration, beside better ones. `data` is described in
    docs/file_formats.md, `acplan.audit`."""

    data: dict[str, Any] = dataclasses.field(repr=False)
    text: str = dataclasses.field(default="", repr=False, compare=False)

    @property
    def trainer(self) -> str:
        return str(self.data["trainer"])

    @property
    def effect(self) -> Effect:
        """The effect of the configuration as it is."""
        return Effect.from_data(self.data)

    @property
    def language(self) -> Effect | None:
        """The effect of the best policy that the trainer's configuration can say within the
        budget; None if no policy was found."""
        return self._effect_of("language")

    @property
    def plan(self) -> Effect | None:
        """The effect of the plan of acplan.plan within the budget; None if none was found."""
        return self._effect_of("plan")

    @property
    def change(self) -> Effect | None:
        """The effect of the best single change, `change_words`; None if no change helps."""
        return self._effect_of("change")

    @property
    def change_words(self) -> str:
        """The best single change in words; "" if no change helps."""
        return str(self.data.get("change", {}).get("words", ""))

    @property
    def fits(self) -> bool:
        return bool(self.data["fits"])

    @property
    def broken_rule(self) -> str | None:
        """The reason why PyTorch refuses the policy or computes wrong gradients; None for a
        policy without such a fault."""
        return self.data.get("broken_rule")

    @property
    def notes(self) -> list[str]:
        """The parts of the configuration that are not simulated."""
        return list(self.data["notes"])

    def _effect_of(self, key: str) -> Effect | None:
        return Effect.from_data(self.data[key]) if key in self.data else None

    def __repr__(self) -> str:
        return f"<Audit of a configuration of {display.plain(self.trainer)}>"

    def __str__(self) -> str:
        return self.text


def audit(
    trace: Trace | str | os.PathLike[str],
    config: str | os.PathLike[str] | torch.nn.Module,
    trainer: str | None = None,
    *,
    budget: Budget | None = None,
    **options: Any,
) -> Audit:
    """Judges the checkpoints of a trainer's configuration, or those that a model has, on a
    trace: `acplan audit`.

    config:  the path of the configuration: YAML, TOML, JSON, Python or a script with flags; or
             the traced model, with its checkpoints on (the trace is of the step without them).
    trainer: the trainer, if the keys of the configuration do not say which.
    budget:  the peak at which to compare; by default that of the configuration.
    options: blocks, config_format, function, reserve, time_limit, world_size, and with
             device_memory in place of a budget allocator, ddp, optimizer_state and
             torch_version, as the flags of `acplan audit`.
    """
    if unknown := sorted(set(options) - set(_OPTIONS)):
        raise AcplanError(
            f"audit: expected options of {', '.join(_OPTIONS)}, found {unknown[0]}"
        )
    if not isinstance(trace, (Trace, str, os.PathLike)):
        raise AcplanError(f"audit: expected a Trace or a path, found {type(trace).__name__}")
    own: OwnCheckpoints | None = None
    source: OwnCheckpoints | str | os.PathLike[str]
    if isinstance(config, torch.nn.Module):
        source = own = own_checkpoints(config)
        trainer = own.trainer
        options = {**options, "config_format": own.config_format}
    else:
        source = path_of(config, "config")
    with question_folder() as folder:
        question = {
            "config": folder.add("config", source),
            "trace": folder.add("trace", trace),
            "for": trainer,
            "budget": None if budget is None else size_value("budget", budget),
            **options,
            "output": "audit",
        }
        outcome = folder.ask("audit", question)
        file = folder.path_of("audit")
        if outcome.exit_code != _OVER_BUDGET or not file.exists():
            outcome.require_success()
        result = Audit(read_json(file), outcome.out)
        if own is not None:
            own.require_units(result.data["units"])
        return result
