"""Traces of a step with a combination of levers, and plans of them within a limit."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from acplan._advise.combinations import Combination, StateBytes, state_bytes
from acplan._advise.fits import Fit
from acplan._advise.levers import Lever, NotApplicable, batch_of, split_microbatch, with_levers
from acplan._advise.precision import copy_on_meta
from acplan._base.errors import AcplanError
from acplan._base.host_links import link_of_gpu
from acplan._device.devices import Device, known_as
from acplan._device.workspaces import persistent_bytes
from acplan._files.plan_file import Plan
from acplan._files.trace_file import Trace
from acplan._program.plan import DEVICE_OPTIONS, plan
from acplan._step.interpolation import added_ms_of, step_ms_of
from acplan._step.trace import trace
from acplan._step.training_step import TrainingStep

_INFEASIBLE = (3, 4)  # exit codes: proven infeasible, and nothing found in time
_OF_DEVICE = 0.97  # of a device, for plans that the allocator's simulation does not know


@dataclasses.dataclass(frozen=True)
class Limit:
    """The options of acplan.plan that say what there is, and its bytes."""

    options: Mapping[str, Any]
    total_bytes: int


@dataclasses.dataclass(frozen=True)
class Case:
    """A combination with so many parts of the microbatch, and the bytes of its state."""

    combination: Combination
    parts: int
    state: StateBytes


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A traced case, and its plan; or, if none fits, the least budget that was found."""

    case: Case
    traced: Trace
    fit: Fit | None
    least_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Bench:
    """The step, and what its settings are tried on. `options` are those of acplan.plan."""

    step: TrainingStep
    device: Device
    limit: Limit
    options: Mapping[str, Any]
    workspaces: bool

    @property
    def batch(self) -> int | None:
        """The samples of a microbatch as it is, or None if inputs have no batch in common."""
        try:
            return batch_of(self.step)
        except NotApplicable:
            return None

    @property
    def parts(self) -> list[int]:
        """The numbers of parts into which a microbatch can be divided."""
        batch = self.batch or 1
        return [n for n in range(1, batch + 1) if batch % n == 0]

    def parts_after(self, parts: int, size: int, state: StateBytes) -> int | None:
        """Returns the number of parts to try after so many, which need `size` bytes, or None if
        there is no larger one. An update in backward takes one part."""
        if state.is_early:
            return None
        more = [n for n in self.parts if n > parts]
        # A microbatch needs memory beside the state about in proportion to its size.
        activations = parts * max(size - state.device, 0)
        room = max(self.limit.total_bytes - state.device, 1)
        return next((n for n in more if activations / n <= room), more[-1] if more else None)

    @property
    def _gpu(self) -> str:
        """The GPU that has the device's link to the host's memory."""
        return known_as(self.device.name)

    @property
    def gpus(self) -> int:
        parallel = self.step.parallel
        return 1 if parallel is None else parallel.world_size

    def state_of(self, combination: Combination) -> StateBytes:
        state = state_bytes(combination.levers, self.step, self.device)
        libraries = persistent_bytes(self.device) if self.workspaces else 0
        return dataclasses.replace(state, device=state.device + libraries)

    def attempt(self, case: Case) -> Attempt:
        """Traces the case, and plans it."""
        traced = self.traced(case)
        own_plan = self.plan_within(traced, self.limit.options)
        if own_plan is not None:
            return Attempt(case, traced, self._fit(case, traced, own_plan))
        least = self.plan_within(traced, {"budget": "min"})
        return Attempt(case, traced, None, 0 if least is None else least.peak_bytes)

    def traced(self, case: Case) -> Trace:
        """Returns the trace of the case."""
        levers = [*case.combination.levers]
        if case.parts > 1:
            levers.append(Lever("parts", "", split_microbatch(case.parts), "microbatch"))
        # Sharding changes a model for good.
        step = self.step if self.gpus == 1 else copy_on_meta(self.step)
        with with_levers(step, levers) as changed:
            model: Any = changed.model
            return trace(
                model if changed.parallel is None else lambda: model,
                *changed.args,
                device=self.device,
                workspaces=self.workspaces,
                source=False,
                progress=False,
                **changed.options(),
            )

    def offloaded(self, attempt: Attempt) -> Fit | None:
        """Returns the case with a plan that moves results to the host, if one fits."""
        if self.gpus > 1:
            return None
        budget = self.limit.total_bytes
        if "device_memory" in self.limit.options:
            budget = int(_OF_DEVICE * budget)
        limits = {"budget": budget, "offload": self._gpu}
        own_plan = self.plan_within(attempt.traced, limits)
        return None if own_plan is None else self._fit(attempt.case, attempt.traced, own_plan)

    def ends_on(self, traced: Trace, card: str) -> bool:
        """Returns whether training with some plan of the trace ends on a card."""
        return self.plan_within(traced, {"device_memory": card}) is not None

    def plan_within(self, traced: Trace, limits: Mapping[str, Any]) -> Plan | None:
        """Returns a plan within the limits, or None if there is none."""
        options = dict(self.options)
        if "device_memory" not in limits:
            options = {k: v for k, v in options.items() if k not in DEVICE_OPTIONS}
        try:
            return plan(traced, progress=False, **{**options, **limits})
        except AcplanError as error:
            if error.exit_code not in _INFEASIBLE:
                raise
            return None

    def estimated(self, case: Case, peak_bytes: int, step_ms: float, added_ms: float) -> Fit:
        """Returns the case with estimates of an iteration without a plan and of what one adds,
        in place of a trace."""
        accumulate = case.parts * self.step.accumulate
        figures = (accumulate, peak_bytes, step_ms + added_ms, added_ms)
        return self._with_lines(case, None, figures)

    def paging_ms(self, state: StateBytes) -> float:
        """Returns the time that state in the host's memory takes, which comes and goes once an
        iteration, beside what traces have of it."""
        if state.has_copies:
            return 0.0
        link = link_of_gpu(self._gpu)
        return state.host * (1 / link.to_device + 1 / link.to_host) * 1e3

    def _fit(self, case: Case, traced: Trace, own_plan: Plan) -> Fit:
        accumulate = traced.accumulate
        added_ms = accumulate * added_ms_of(own_plan)
        plain_ms = accumulate * step_ms_of(traced) + self.paging_ms(case.state)
        figures = (accumulate, own_plan.peak_bytes, plain_ms + added_ms, added_ms)
        return self._with_lines(case, own_plan, figures)

    def _with_lines(
        self, case: Case, own_plan: Plan | None, figures: tuple[int, int, float, float]
    ) -> Fit:
        accumulate, peak_bytes, step_ms, added_ms = figures
        microbatch = None if self.batch is None else self.batch // case.parts
        per_second = 1000 * (microbatch or 1) * accumulate * self.gpus / step_ms
        fit = Fit(
            case.combination, microbatch, accumulate, own_plan, peak_bytes, step_ms, added_ms,
            per_second, (),
        )  # fmt: skip
        return dataclasses.replace(fit, lines=tuple(self._lines(fit, case.parts)))

    def _lines(self, fit: Fit, parts: int) -> Iterator[str]:
        """Yields what to write for these settings and the plan."""
        levers = fit.combination.levers
        # A model is loaded, then changed, then given to its optimizer.
        order = ("method", "precision", "optimizer", "loss")
        for lever in sorted(levers, key=lambda lever: order.index(lever.group)):
            yield from lever.how.splitlines()
        if parts > 1:
            yield (
                f"microbatches of {fit.microbatch}, and optimizer.step() after every "
                f"{fit.accumulate}"
            )
        if self.gpus > 1:
            yield "fully_shard(block, mesh=mesh) for each block, then fully_shard(model, ...)"
        if not fit.has_plan:
            yield from self._needs(fit)
            return
        options = {"device": repr(self.device.name)}
        for lever in levers:
            options |= lever.options
        if fit.accumulate > 1:
            options["accumulate"] = str(fit.accumulate)
        text = "".join(f", {name}={value}" for name, value in options.items())
        yield f"trace = acplan.trace(model, **inputs{text})"
        yield f"plan = acplan.plan(trace, {self._limit_text(fit)})"
        yield "model = acplan.apply(model, plan)"
        yield from self._needs(fit)

    def _limit_text(self, fit: Fit) -> str:
        if fit.plan is not None and fit.plan.stall_ms is not None:
            return f'budget={fit.plan.budget_bytes}, offload="{self._gpu}"'
        return ", ".join(f"{name}={value!r}" for name, value in self.limit.options.items())

    def _needs(self, fit: Fit) -> Iterator[str]:
        if fit.plan is not None and fit.plan.device is not None and fit.plan.device.needs:
            yield f"the device needs: {fit.plan.device.needs}"
