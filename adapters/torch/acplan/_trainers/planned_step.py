"""The plan of a traced step, or the table of plans for batches of several lengths."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from acplan._base.arguments import whole_number
from acplan._base.errors import AcplanError
from acplan._device.devices import Device
from acplan._files.lengths_file import Lengths
from acplan._files.plan_file import Plan
from acplan._files.plan_table import PlanTable
from acplan._program.budgets import Budget
from acplan._program.plan import plan
from acplan._step.trace import trace
from acplan._step.trace_lengths import trace_lengths
from acplan._trainers.optimizer_state import options_for
from acplan._verify.verify import verify as verify_plan
from acplan._verify.within_budget import require_within_budget


@dataclasses.dataclass(frozen=True)
class StepToPlan:
    """A step to trace and to plan. `args` are the model's arguments; for batches of several
    `lengths`, a function of a length that returns the model's inputs. `options` are those of
    acplan.trace, together with the model's arguments by name."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    options: Mapping[str, Any]
    lengths: Lengths | None = None
    plans: int = 1

    def plan(
        self,
        budget: Budget | None,
        device: str | Device,
        plan_options: Mapping[str, Any],
        *,
        verify: bool = False,
        progress: bool | None = None,
    ) -> Plan | PlanTable:
        """Traces and plans the step. `plan_options` are those of acplan.plan. With `verify` it
        is traced again with the plan, and AcplanError is raised if it is over its budget."""
        options = options_for(self.options.get("optimizer"), plan_options)
        if self.lengths is None:
            return self._plan_of_one(budget, device, options, verify, progress)
        inputs_of = self.args[0]
        traces = trace_lengths(
            self.model, inputs_of, self.lengths, device=device, **self.options
        )
        table = plan(
            traces, lengths=self.lengths, plans=self.plans, progress=progress, **options
        )
        if verify:
            check = verify_plan(
                self.model, table, *self.args, trace=traces, lengths=self.lengths,
                **self.options,
            )  # fmt: skip
            require_within_budget(table, check)
        return table

    def _plan_of_one(
        self,
        budget: Budget | None,
        device: str | Device,
        options: Mapping[str, Any],
        verify: bool,
        progress: bool | None,
    ) -> Plan:
        traced = trace(self.model, *self.args, device=device, progress=progress, **self.options)
        new_plan = plan(traced, budget, progress=progress, **options)
        if verify:
            check = verify_plan(self.model, new_plan, *self.args, trace=traced, **self.options)
            require_within_budget(new_plan, check)
        return new_plan


def require_lengths(
    lengths: Any, plans: Any, inputs_of: Any, options: Mapping[str, Any], name: str
) -> Lengths | None:
    """Returns the lengths of a trainer's batches, or None. Raises AcplanError, before anything
    is traced, if they, or the inputs named `name`, are not those of a table of plans."""
    if lengths is None:
        if plans != 1:
            raise AcplanError("plans: a table of plans needs lengths")
        return None
    if options.get("device_memory") is None:
        raise AcplanError("lengths: a table of plans needs device_memory, found no device")
    if not callable(inputs_of):
        raise AcplanError(
            f"lengths: expected as {name} a function of a length, found "
            f"{type(inputs_of).__name__}"
        )
    whole_number(plans, "plans", 1)
    return lengths if isinstance(lengths, Lengths) else Lengths(lengths)


InputsOf = Callable[[int], Mapping[str, Any]]
