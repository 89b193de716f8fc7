"""acplan.plan and acplan.auto_checkpoint."""

import difflib
import os
from collections.abc import Mapping, Sequence
from typing import Any, overload

import torch

from acplan._base.errors import AcplanError
from acplan._base.program import warn
from acplan._base.progress import progress_bar
from acplan._base.question import QuestionFolder, question_folder
from acplan._files.charts import remember
from acplan._files.fingerprint import KEY, made_for
from acplan._files.json_files import read_json
from acplan._files.plan_file import Plan
from acplan._files.plan_table import PlanTable
from acplan._files.profile_file import Profile
from acplan._files.trace_file import DIFFERENTIATES, Trace
from acplan._program.budgets import Budget, require_budget, size_value
from acplan._program.lengths import Batches, Traces, plan_table
from acplan._program.links import OWN_LINK
from acplan._program.visible_device import with_visible_device

Source = Trace | Profile | str | os.PathLike[str]


@overload
def plan(
    source: Source,
    budget: Budget | None = None,
    *,
    progress: bool | None = None,
    **options: Any,
) -> Plan: ...


@overload
def plan(
    source: Traces,
    *,
    lengths: Any,
    plans: int = 1,
    evaluations: Mapping[int, Trace] | None = None,
    progress: bool | None = None,
    **options: Any,
) -> PlanTable: ...


def plan(
    source: Source | Traces,
    budget: Budget | None = None,
    *,
    lengths: Any = None,
    plans: int = 1,
    evaluations: Mapping[int, Trace] | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Plan | PlanTable:
    """Returns the plan with the least recomputation within the budget, optimal and checked; or,
    with device_memory in place of a budget, a plan with which training ends on that device.

    source:   a trace, a profile, or the path of a file with either.
    budget:   the bytes that a rank may use at its peak: bytes, "60GiB", a share of what it uses
              without a plan such as "75%", "min", the least that any plan needs, or "device",
              a device_memory of what PyTorch can have of this process's GPU.
    options:  the flags of `acplan plan` (docs/command_line.md): reserve, memory_model,
              world_size, without_states, ac_units, fsdp_units, max_units, granularity,
              decisions, segments, offload (a link such as "25GB/s" or "pcie4"; True: that of
              the trace's device), host_memory, tradeoff, save, recompute, engine, gap,
              time_limit, seed, times_off (a factor by which run-times may be wrong, or
              "measured", that of each kind of operator: Plan.times_off then has proven bounds
              of what the plan can lose), robust (True: the plan that can lose least),
              without_host (True: as if CUDA graphs launched the step). Units, and the
              patterns of save and recompute, may be lists. For a device: device_memory (bytes
              or such as "8GiB", all that PyTorch can have of it), allocator (the text of
              PYTORCH_ALLOC_CONF, or "native"), torch_version (by default the installed one, if
              its allocator is known), optimizer_state ("update", as optimizers make it, or
              "first": acplan.make_optimizer_state). If allocator or optimizer_state is not
              given, acplan chooses it; Plan.device has the choice. ddp: the arguments of
              DistributedDataParallel that holds the model, such as {"gradient_as_bucket_view":
              True}; {} for none.
    lengths:  for traces of several lengths of inputs, as a list or as {length: trace}: the
              lengths of the batches, as acplan.Lengths, a list of lengths or of inputs, or
              {length: count}. The result is a table of at most `plans` plans, switched by
              length, with which all batches fit device_memory (docs/python/lengths.md).
    evaluations: for these, {length: trace} for evaluations whose inputs are others than those
              of training, such as larger batches.
    progress: shows that the search goes on, if tqdm is installed, once it has taken two
              seconds; by default if somebody watches, on a terminal or in a notebook.

    If no plan fits, it raises AcplanError, which names the smallest budget that a plan meets. A
    plan that is not proven to be optimal is logged as a warning: time_limit, "none" or seconds,
    is five seconds if operators may be skipped, as in plans of traces. Ctrl-C ends the search
    with the best plan so far.
    """
    budget, options = with_visible_device(budget, options)
    if isinstance(source, (Mapping, Sequence)) and not isinstance(source, str):
        if budget is not None or options.get("device_memory") is None:
            raise AcplanError(
                "plan: several traces need lengths and device_memory, which all batches share"
            )
        batches = Batches.from_arguments(source, lengths, evaluations)
        for trace in (*batches.traces.values(), *batches.evaluations.values()):
            _refuse_shares_of_rank(trace, options)
        return plan_table(batches, plans, progress, plan_options(options))
    if lengths is not None or evaluations is not None:
        raise AcplanError("plan: lengths need several traces, as a list or {length: trace}")
    require_one_limit(budget, options)
    _refuse_shares_of_rank(source, options)
    with question_folder() as folder, progress_bar(progress, unit="s") as phase:
        question = {
            "profile": add_source(folder, source),
            **({} if budget is None else {"budget": size_value("budget", budget)}),
            **plan_options(options),
            "output": "plan",
        }
        outcome = folder.ask("plan", question, phase("plan", None)).require_success()
        data = {**read_json(folder.path_of("plan")), **_made_for(source)}
        result: Plan = remember(Plan.from_data(data, outcome.out + _note(source)), source)
    _tell_of_limit(result)
    return result


def _refuse_shares_of_rank(source: Source, options: Mapping[str, Any]) -> None:
    """Raises AcplanError for options that divide among ranks what the trace of a rank has
    divided."""
    if not isinstance(source, Trace) or source.rank is None:
        return
    for name in ("world_size", "fsdp_units", "ddp"):
        if options.get(name) is not None:
            raise AcplanError(
                f"plan: {name}: expected the trace of a whole model, found that of rank "
                f"{source.rank} of a mesh, whose bytes are the rank's own"
            )


def _made_for(source: Source) -> dict[str, Any]:
    """Returns the entries of a plan about its model. Only traces have them."""
    data = source.data if isinstance(source, Trace) else None
    if isinstance(source, (str, os.PathLike)):
        data = read_json(source)
    if not isinstance(data, dict) or data.get("format") != "acplan.trace":
        return {}
    modules = data.get("modules", ())
    fingerprint = made_for(modules)
    holding = {
        m["fqn"]: m[DIFFERENTIATES] for m in modules if isinstance(m.get(DIFFERENTIATES), bool)
    }
    return ({} if fingerprint is None else {KEY: fingerprint}) | (
        {DIFFERENTIATES: holding} if holding else {}
    )


def _note(source: Source) -> str:
    if not isinstance(source, Trace) or source.accumulate == 1:
        return ""
    return (
        f"note: run-times are those of one of {source.accumulate} microbatches, with its "
        "share of the update\n"
    )


def _tell_of_limit(plan: Plan) -> None:
    limit = plan.data.get("limit")
    if limit in (None, "gap", "interrupted"):  # there was none, or it was asked for
        return
    why = "without a proof" if limit == "unproven" else f"stopped by the {limit} limit"
    if plan.streams is not None and plan.streams.least_step_ms is not None:
        step_ms, least_ms = plan.streams.step_ms, plan.streams.least_step_ms
        warn(
            f"plan: feasible, {why}: the step takes {step_ms:.3f} ms, and with no plan less "
            f"than {least_ms:.3f} ms"
        )
        return
    text = f"plan: feasible, {why}: it recomputes {plan.recompute_ms:.3f} ms"
    if plan.stall_ms is not None:
        text += f" and waits {plan.stall_ms:.3f} ms for the host"
    does = "recomputes" if plan.stall_ms is None else "costs"
    warn(f"{text}, and no plan {does} less than {plan.bound_ms:.3f} ms (gap {plan.gap:.2%})")


def add_source(folder: QuestionFolder, source: Source, asked_by: str = "plan") -> str:
    """Returns the path of the source of a question; a value is written into the folder."""
    if isinstance(source, (Trace, Profile, str, os.PathLike)):
        return folder.add(type(source).__name__.lower(), source)
    raise AcplanError(
        f"{asked_by}: expected a Trace, a Profile or a path, found {type(source).__name__}"
    )


# The options of acplan.plan about a device, and of what trains within one.
DEVICE_OPTIONS = ("device_memory", "allocator", "torch_version", "optimizer_state", "ddp")

# The options of acplan.plan: flags of `acplan plan` (docs/command_line.md).
PLAN_OPTIONS = (
    "reserve", "memory_model", "world_size", "without_states", "ac_units", "fsdp_units",
    "max_units", "granularity", "decisions", "segments", "offload", "host_memory", "tradeoff",
    "save", "recompute", "engine", "gap", "time_limit", "seed", "times_off", "robust",
    "without_host",
    *DEVICE_OPTIONS,
)  # fmt: skip
_SIZES = ("reserve", "host_memory", "device_memory")
_NAMES = ("ac_units", "fsdp_units")


# Without this function of PyTorch, plans that skip are recomputed as a whole, and plans with
# segments are refused.
_MAY_SKIP = hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks")


def plan_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options as a question has them. Raises AcplanError for unknown options, and
    for sizes that are none."""
    for name in options:
        if name not in PLAN_OPTIONS:
            names = ", ".join(PLAN_OPTIONS)
            near = difflib.get_close_matches(name, PLAN_OPTIONS, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {names}"
            raise AcplanError(f"plan: unknown option {name!r}; {hint}")
    question = {name: value for name, value in options.items() if value is not None}
    if "device_memory" in question:
        version = installed_allocator()
        question = ({} if version is None else {"torch_version": version}) | question
    if isinstance(question.get("offload"), bool):
        own = question.pop("offload")
        question |= {"offload": OWN_LINK} if own else {}
    for name in _SIZES:
        if name in question:
            question[name] = size_value(name, question[name])
    for name in _NAMES:
        value = question.get(name)
        if isinstance(value, str) and value.startswith("@"):
            # The program runs in a folder of its own.
            question[name] = "@" + os.path.abspath(value[1:])
    if "ddp" in question:
        question["ddp"] = _text_of_ddp(question["ddp"])
    if not _MAY_SKIP:
        question.setdefault("decisions", "save,recompute")
    return question


def _text_of_ddp(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    if not isinstance(arguments, Mapping):
        raise AcplanError(
            "ddp: expected the arguments of DistributedDataParallel as a dict, found a "
            f"{type(arguments).__name__}"
        )
    texts = (f"{name}:{value}" for name, value in arguments.items() if value is not None)
    return ",".join(texts) or "default"


def require_one_limit(budget: Any, options: Mapping[str, Any], asked_by: str = "plan") -> None:
    """Raises AcplanError if there is not exactly one of a budget and device_memory."""
    is_for_device = options.get("device_memory") is not None
    if is_for_device == (budget is not None):
        count = "both" if is_for_device else "neither"
        raise AcplanError(f"{asked_by}: expected a budget or device_memory, found {count}")


def require_plannable(budget: Any, options: Mapping[str, Any], asked_by: str = "plan") -> None:
    """Raises AcplanError, before anything is traced for them, if budget and options limit no
    plan."""
    require_one_limit(budget, options, asked_by)
    if budget is not None:
        require_budget(budget)
    else:
        size_value("device_memory", options["device_memory"])


def refuse_device(options: Mapping[str, Any], asked_by: str) -> None:
    """Raises AcplanError if one of the options is about a device."""
    for name in DEVICE_OPTIONS:
        if options.get(name) is not None:
            raise AcplanError(
                f"{asked_by}: {name} is for acplan.plan and acplan.auto_checkpoint; expected a "
                "budget"
            )


# The versions of PyTorch whose allocator the program knows (docs/allocator.md).
_KNOWN_ALLOCATORS = range(8, 16)


def installed_allocator() -> str | None:
    """Returns the version of the installed PyTorch, such as 2.13, or None if the program does
    not know its allocator."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    return f"2.{minor}" if major == 2 and minor in _KNOWN_ALLOCATORS else None
