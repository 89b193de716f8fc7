"""acplan.verify of a table: each length's step with its plan, traced again, and the run of all
batches."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from acplan._base.arguments import model_arguments
from acplan._base.errors import AcplanError
from acplan._files.plan_file import Plan
from acplan._files.plan_table import PlanTable
from acplan._files.trace_file import Trace
from acplan._files.verification import TableVerification, Verification
from acplan._program.lengths import Batches, Traces, lengths_of
from acplan._step.trace_lengths import trace_lengths, traces_between
from acplan._step.training_step import TrainingStep
from acplan._verify.device_check import check_batches
from acplan._verify.retrace import OF_TRACES, options_of_retrace, retracing
from acplan._verify.simulated import simulate
from acplan._verify.value_check import check_values


def verify_table(
    model: torch.nn.Module,
    table: PlanTable,
    args: tuple[Any, ...],
    values: bool | None,
    kwargs: Mapping[str, Any],
) -> TableVerification:
    """Returns the verification of a table; arguments are those of acplan.verify."""
    if len(args) != 1 or not callable(args[0]) or "lengths" not in kwargs:
        raise AcplanError(
            "verify: a table of plans needs a function of a length that returns the model's "
            "inputs, and lengths="
        )
    options = dict(kwargs)
    traces: Traces | None = options.pop("trace")
    lengths = lengths_of(options.pop("lengths"), table.switch)
    evaluations = options.pop("evaluations", None)
    if traces is None:
        traces = trace_lengths(model, args[0], lengths, **options)
    batches = Batches.from_arguments(traces, lengths, evaluations)
    retracing_steps = _Retracing(model, args[0], batches.traces, values, options)
    retraces: dict[int, Trace] = {}
    for place, (_, plan) in enumerate(table.entries):
        own = [n for n in lengths.trained if table.place_of(n) == place]
        if own:
            traced = [n for n in batches.traces if n in own]
            retraces |= traces_between(own, retracing_steps.under(plan), 2, traced)
    device = check_batches(batches, table, retraces)
    return TableVerification(dict(sorted(retracing_steps.verified.items())), device)


class _Retracing:
    """The model's steps, traced again with plans; `verified` has those whose lengths were
    traced without one."""

    def __init__(
        self,
        model: torch.nn.Module,
        inputs_of: Callable[[int], Any],
        traces: Mapping[int, Trace],
        values: bool | None,
        options: Mapping[str, Any],
    ) -> None:
        self.verified: dict[int, Verification] = {}
        self._model = model
        self._inputs_of = inputs_of
        self._traces = traces
        self._values = values
        self._options = options

    def under(self, plan: Plan) -> Callable[[int], Trace]:
        """Returns a function that traces the step of a length again with the plan."""
        return lambda length: self._retraced(length, plan)

    def _retraced(self, length: int, plan: Plan) -> Trace:
        args, inputs = model_arguments(self._inputs_of(length))
        kwargs = {**inputs, **self._options}
        traced = self._traces.get(length)
        of_retrace = options_of_retrace(traced or next(iter(self._traces.values())), kwargs)
        with retracing(self._model, *args, **of_retrace) as retraced:
            retrace = retraced(plan, True)
        assert retrace.trace is not None
        if traced is not None:
            own = {name: kwargs[name] for name in kwargs if name not in OF_TRACES}
            step = TrainingStep.from_arguments(self._model, args, own)
            self.verified[length] = Verification(
                simulate(traced, plan),
                retrace.operators,
                check_values(step, plan, traced, self._values),
            )
        return retrace.trace
