"""acplan.explain: where the memory of a step goes, and what would help."""

import dataclasses
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import torch

from acplan._advise.explain_batches import BatchesExplanation, explain_batches
from acplan._advise.host_states import LEVER as HOST_STATES
from acplan._advise.host_states import HostStates, compare
from acplan._advise.levers import LEVERS, Lever, states_on_host, with_levers
from acplan._advise.precision import adam_parameters
from acplan._base.errors import AcplanError, reason_of
from acplan._base.progress import progress_bar
from acplan._base.question import question_folder
from acplan._device.devices import Device, find_device
from acplan._files.charts import figure
from acplan._files.display import Rows, page, plain, size, table
from acplan._files.display import to_pandas as frame_of
from acplan._files.json_files import read_json
from acplan._files.plan_file import Plan, plan_given
from acplan._files.plan_table import PlanTable
from acplan._files.trace_file import Trace
from acplan._program.budgets import Budget, size_bytes, size_value
from acplan._program.lengths import Traces
from acplan._program.plan import DEVICE_OPTIONS, PLAN_OPTIONS, Source, add_source, plan_options
from acplan._step.parallel_already import mesh_of
from acplan._step.trace import trace
from acplan._step.training_step import TrainingStep

_TOGETHER = "together"


@dataclasses.dataclass(frozen=True)
class Measured:
    """A step with a lever, by its own trace, or the reason why there is none."""

    lever: str
    how: str
    peak_bytes: int | None = None  # without a plan
    least_bytes: int | None = None  # the least budget that was found
    is_least_proven: bool = False
    step_ms: float | None = None  # of an iteration, without a plan
    why_not: str = ""

    @property
    def is_measured(self) -> bool:
        return self.peak_bytes is not None


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The answer of explain. `data` is described in docs/file_formats.md, `acplan.explanation`;
    `text` is what the program prints. The first of `levers` is the unchanged step."""

    data: dict[str, Any] = dataclasses.field(repr=False)
    text: str = dataclasses.field(repr=False)
    levers: tuple[Measured, ...] = ()
    # The bytes that there are, and what they are of.
    limit: tuple[int, str] | None = None
    # The trace of the unchanged step, or its path.
    source: Source | None = dataclasses.field(default=None, repr=False, compare=False)
    # The optimizer's states on the host beside recomputation, for a budget.
    host_states: HostStates | None = None

    @property
    def peak_bytes(self) -> int:
        """The peak without a plan."""
        return int(self.data["baseline"]["peak_bytes"])

    @property
    def least_bytes(self) -> int:
        """The least budget for which a plan was found."""
        return int(self.data["least"]["peak_bytes"])

    @property
    def lines(self) -> Rows:
        """The contents of memory at the peak without a plan, by the line of Python that made
        it; empty if the trace has no lines."""
        return list(self.data["baseline"]["lines"])

    @property
    def by_kind(self) -> dict[str, int]:
        """The contents of memory at the peak without a plan, by kind."""
        return dict(self.data["baseline"]["by_kind"])

    @property
    def device(self) -> dict[str, Any] | None:
        """The run on a device, with the bytes that are lost at its peak (`device` of
        docs/file_formats.md, `acplan.explanation`), or None if it was not explained."""
        device: dict[str, Any] | None = self.data.get("device")
        return device

    @property
    def device_levers(self) -> Rows:
        """The settings with which the run would end on a smaller device, each simulated: the
        one that brings most first, and then those that help, together."""
        rows: Rows = [] if self.device is None else list(self.device["levers"])
        return rows

    def __repr__(self) -> str:
        return (
            f"<Explanation of {plain(self.data['model'])}: peak {self.peak_bytes:,} bytes, "
            f"least budget {self.least_bytes:,}>"
        )

    @property
    def rows(self) -> Rows:
        """The contents of memory at the peak without a plan, by the operator that made it."""
        return [
            {key: row[key] for key in ("operator", "phase", "bytes", "fixed_bytes")}
            for row in self.data["baseline"]["operators"]
        ]

    def to_pandas(self) -> Any:
        return frame_of(self.rows)

    def _repr_html_(self) -> str:
        kinds = [{"kind": k, "bytes": size(v)} for k, v in self.by_kind.items() if v]
        measured = [
            {
                "lever": m.lever,
                "peak": size(m.peak_bytes or 0),
                "least budget": size(m.least_bytes or 0),
                "step ms": f"{m.step_ms:,.1f}",
            }
            for m in self.levers
            if m.is_measured
        ]
        facts = {"peak": size(self.peak_bytes), "least budget": size(self.least_bytes)}
        title = f"Memory of {self.data['model']}"
        charts = figure(["memory", "lines"], self.source)
        return page(title, facts, charts, table(kinds), table(measured, len(measured)))

    def __str__(self) -> str:
        if not self.levers:
            return self.text
        verdict = "" if self.limit is None else _verdict(self.levers, *self.limit)
        host_states = "" if self.host_states is None else str(self.host_states)
        return f"{self.text}\n{levers_text(self.levers)}{verdict}{host_states}"


@overload
def explain(
    model_or_trace: torch.nn.Module | Callable[[], torch.nn.Module] | Source,
    *args: Any,
    budget: Budget | None = None,
    plan: Plan | None = None,
    **kwargs: Any,
) -> Explanation: ...


@overload
def explain(
    model_or_trace: Traces,
    *,
    lengths: Any,
    plan: Plan | PlanTable | None = None,
    **kwargs: Any,
) -> BatchesExplanation: ...


def explain(
    model_or_trace: torch.nn.Module | Callable[[], torch.nn.Module] | Source | Traces,
    *args: Any,
    budget: Budget | None = None,
    plan: Plan | PlanTable | None = None,
    levers: bool | Iterable[str] = True,
    device: str | Device = "a100",
    workspaces: bool = True,
    source: bool = True,
    progress: bool | None = False,
    top: int = 10,
    **kwargs: Any,
) -> Explanation | BatchesExplanation:
    """Explains where the memory of a training step goes at its peak, which of it no plan can
    discard, what the least budget consists of, and what would help.

    model_or_trace: a model, whose step is traced with the arguments of acplan.trace; or a
                 trace, or the path of one, for which no lever can be measured; or traces of
                 several lengths, with `lengths` as for acplan.plan: the run of all batches with
                 a table, or with one plan for all, is explained on the table's device, or on
                 device_memory.
    budget:      says by how much the least budget exceeds it.
    plan:        a plan whose peak is shown beside.
    levers:      the levers of acplan.LEVERS to measure: all (True), none (False), or these.
                 Each is set, the step traced again, and the model left unchanged; none is
                 estimated. A rank of a parallel model, which a function makes as for
                 acplan.trace, has none.
    source:      says which line of Python made each content of memory.
    kwargs:      options of acplan.plan, such as decisions and time_limit, are for the least
                 budget; with world_size and fsdp_units all bytes are those of a rank; with
                 device_memory (and allocator, torch_version, optimizer_state) a run of the
                 plan, or of the step without one, is explained on that device; all others are
                 for the trace.
    """
    options = {name: kwargs.pop(name) for name in PLAN_OPTIONS if name in kwargs}
    if isinstance(model_or_trace, (Mapping, Sequence)) and not isinstance(model_or_trace, str):
        return explain_batches(model_or_trace, plan, top, {**options, **kwargs})
    if isinstance(plan, PlanTable):
        raise AcplanError("explain: a table of plans needs several traces and lengths")
    model: Any = model_or_trace
    is_made = callable(model) and kwargs.get("mesh") is not None
    if not (isinstance(model, torch.nn.Module) or is_made):
        if args or kwargs:
            raise AcplanError("explain: arguments of a model cannot be combined with a trace")
        data, text = _ask(model, options, budget, plan, top)
        return Explanation(data, text, source=model)
    step = TrainingStep.from_arguments(model, args, kwargs)
    levers_to_measure = _levers_of(levers, step)
    with progress_bar(progress, unit="trace") as phase:
        tick = phase("explain", len(levers_to_measure) + 1)

        trace_of = _tracer(device, workspaces)

        def traced(changed: TrainingStep, source: bool = False) -> Trace:
            result = trace_of(changed, source)
            tick()
            return result

        own = traced(step, source)
        data, text = _ask(own, options, budget, plan, top)
        options = {k: v for k, v in options.items() if k not in DEVICE_OPTIONS}
        if not levers_to_measure:
            return Explanation(data, text, source=own)
        measured = [_measured("as it is", "", own, data)]
        host_states: HostStates | None = None
        limit = _limit_of(budget, device, own, int(data["least"]["peak_bytes"]))
        for lever in levers_to_measure:
            result, lever_trace = _measure([lever], step, traced, options)
            measured.append(result)
            if lever.name == HOST_STATES and lever_trace is not None and budget is not None:
                shares = _TracesOfShares(step, lever_trace, trace_of)
                host_states = compare(own, shares, limit[0], options)
        together = _helpful(measured[0], levers_to_measure, measured[1:])
        if len(together) > 1:
            measured.append(_measure(together, step, traced, options)[0])
    return Explanation(data, text, tuple(measured), limit, own, host_states)


def _tracer(device: str | Device, workspaces: bool) -> Callable[..., Trace]:
    def trace_of(step: TrainingStep, source: bool = False) -> Trace:
        return trace(
            step.model,
            *step.args,
            device=device,
            workspaces=workspaces,
            source=source,
            **step.options(),
        )

    return trace_of


class _TracesOfShares:
    """Traces of a step with shares of the optimizer's states on the host."""

    def __init__(
        self, step: TrainingStep, of_all: Trace, trace_of: Callable[..., Trace]
    ) -> None:
        self.updated_on_cpu = adam_parameters(step)
        self._step, self._of_all, self._trace_of = step, of_all, trace_of

    def __call__(self, share: float) -> Trace:
        if share == 1:
            return self._of_all
        with states_on_host(share)(self._step) as changed:
            return self._trace_of(changed)


def _limit_of(
    budget: Budget | None, device: str | Device, own: Trace, least_bytes: int
) -> tuple[int, str]:
    """Returns the bytes that the levers are judged by, and their name: the budget, or else the
    memory of the device on its data sheet."""
    if budget is None:
        target = find_device(device)
        return target.memory, f"the {size(target.memory)} of the {target.name}"
    text = str(budget).strip()
    if text == "min":
        return least_bytes, "the least budget of the step as it is"
    if text.endswith("%"):
        total = int(own.peak_bytes * float(text[:-1]) / 100)
    else:
        total = size_bytes("budget", budget)
    return total, size(total)


def _verdict(levers: Sequence[Measured], total: int, name: str) -> str:
    """Returns a sentence that says whether a lever fits, with a plan."""
    needs = [(m.least_bytes, m.lever) for m in levers if m.least_bytes is not None]
    fitting = sum(least <= total for least, _ in needs)
    least, lever = min(needs)
    if fitting:
        return f"{fitting} of {len(needs)} rows fit in {name} with a plan.\n"
    return (
        f"no row fits in {name}: the least is {size(least)} ({lever}); acplan.what_fits also "
        "tries precisions, 8-bit optimizers, adapters and several at once\n"
    )


def _levers_of(levers: bool | Iterable[str], step: TrainingStep) -> list[Lever]:
    if step.is_of_rank or mesh_of(step.model):
        if not isinstance(levers, bool):
            raise AcplanError("levers: expected the model of one GPU, found a rank of a mesh")
        return []
    if isinstance(levers, bool):
        return list(LEVERS.values()) if levers else []
    if not isinstance(levers, Iterable):
        raise AcplanError(f"levers: expected True, False or names, found {levers!r}")
    names = [levers] if isinstance(levers, str) else list(levers)
    for name in names:
        if name not in LEVERS:
            raise AcplanError(f"levers: expected some of {', '.join(LEVERS)}, found {name!r}")
    return [LEVERS[name] for name in names]


def _ask(
    source: Source, options: dict[str, Any], budget: Budget | None, plan: Plan | None, top: int
) -> tuple[dict[str, Any], str]:
    with question_folder() as folder:
        question = {
            "trace": add_source(folder, source, "explain"),
            "top": top,
            "budget": None if budget is None else size_value("budget", budget),
            "plan": None if plan is None else folder.add("plan", plan_given(plan)),
            **plan_options(options),
            "output": "explanation",
        }
        outcome = folder.ask("explain", question).require_success()
        return read_json(folder.path_of("explanation")), outcome.out


def _measured(name: str, how: str, traced: Trace, data: dict[str, Any]) -> Measured:
    step_ms = sum(operator["runtime_ms"] for operator in traced.data["operators"])
    return Measured(
        name,
        how,
        int(data["baseline"]["peak_bytes"]),
        int(data["least"]["peak_bytes"]),
        bool(data["least"]["proven"]),
        step_ms * traced.accumulate,
    )


def _measure(
    levers: Sequence[Lever], step: TrainingStep, traced: Any, options: dict[str, Any]
) -> tuple[Measured, Trace | None]:
    """Returns the figures of the step with the levers, and its trace if there is one."""
    names = " + ".join(lever.name for lever in levers)
    how = levers[0].how if len(levers) == 1 else ""
    name = names if len(levers) == 1 else f"{_TOGETHER}: {names}"
    try:
        with with_levers(step, levers) as changed:
            lever_trace = traced(changed)
        lever_data, _ = _ask(lever_trace, options, None, None, 1)
        return _measured(name, how, lever_trace, lever_data), lever_trace
    except Exception as error:  # raised by the model, or by PyTorch
        why_not = reason_of(error, "tracing the step with it")
        return Measured(name, how, why_not=why_not), None


def _helpful(
    own: Measured, levers: Sequence[Lever], measured: Sequence[Measured]
) -> list[Lever]:
    """Returns, for each group, the lever with the least budget, and then the least peak, if one
    of both is less than without it."""
    best: dict[str, tuple[tuple[int, int], Lever]] = {}
    for lever, result in zip(levers, measured, strict=True):
        if lever.group == "microbatch":
            continue
        if result.least_bytes is None or result.peak_bytes is None:
            continue
        assert own.least_bytes is not None and own.peak_bytes is not None
        needs = result.least_bytes, result.peak_bytes
        is_less = needs[0] < own.least_bytes or needs[1] < own.peak_bytes
        if is_less and (lever.group not in best or needs < best[lever.group][0]):
            best[lever.group] = needs, lever
    return [lever for _, lever in best.values()]


def levers_text(levers: Sequence[Measured]) -> str:
    """Returns a table of at most 100 columns, a line for each lever that was not measured, and
    names that the table has cut."""
    rows = [("lever, traced", "peak, no plan", "least budget", "step")]
    rows += [(_cut(m.lever), *_cells(m)) for m in levers if m.is_measured]
    widths = [max(len(row[k]) for row in rows) for k in range(4)]
    lines = [
        f"{name:<{widths[0]}}  {peak:>{widths[1]}}  {least:>{widths[2]}}  {ms:>{widths[3]}}"
        for name, peak, least, ms in rows
    ]
    cut = [m.lever for m in levers if m.is_measured and _cut(m.lever) != m.lever]
    whole = [line for name in cut for line in textwrap.wrap(name, 100, subsequent_indent="  ")]
    lines = [line.rstrip() for line in lines]
    return "\n".join([*lines, *whole, *_not_measured(levers)]) + "\n"


def _cells(measured: Measured) -> tuple[str, str, str]:
    assert measured.peak_bytes is not None and measured.least_bytes is not None
    least = size(measured.least_bytes) + ("" if measured.is_least_proven else " found")
    return size(measured.peak_bytes), least, f"{measured.step_ms:,.1f} ms"


def _not_measured(levers: Sequence[Measured]) -> Iterator[str]:
    for result in levers:
        if not result.is_measured:
            yield _cut(f"not measured: {result.lever}: {result.why_not}", 100)


def _cut(text: str, width: int = 50) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
