"""acplan.apply: wraps the modules that a plan checkpoints."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from acplan._apply.checkpoint import has_compiled_call
from acplan._apply.inner_gradients import hold, let_go
from acplan._apply.offload import Traffic
from acplan._apply.refusals import (
    refuse_checkpoints,
    refuse_nested_offload,
    refuse_scripted,
    require_apart,
)
from acplan._apply.segment import Place, Segment
from acplan._apply.switching import stop_switching, switch_of, switched
from acplan._apply.unit import (
    CheckpointOfUnit,
    ContainerUnit,
    Unit,
    call_plainly,
    inside_of,
    is_idle,
    refuse_part,
    wrapped_in,
)
from acplan._base import kv_caches
from acplan._base.arguments import require_module
from acplan._base.errors import AcplanError
from acplan._base.interrupts import uninterrupted
from acplan._base.modules import class_name_of
from acplan._base.sharding import forget_shardings
from acplan._base.torchscript import (
    let_optimize,
)
from acplan._files.fingerprint import KEY, require_made_for
from acplan._files.json_files import read_json
from acplan._files.plan_file import Plan, PlannedModule, plan_given
from acplan._files.plan_table import FORMAT, PlanTable
from acplan._files.trace_file import DIFFERENTIATES


def apply(
    model: torch.nn.Module,
    plan: Plan | PlanTable | str | os.PathLike[str],
    *,
    strict: bool = False,
    param_dtype: torch.dtype | None = None,
) -> torch.nn.Module:
    """Checkpoints the modules of the plan, or of a plan file, in place. Returns the model,
    which is another object only if the plan checkpoints all of it. acplan.remove removes the
    plan.

    A plan that acplan made of a trace is for that model: if modules, or their parameters'
    shapes or types, differ, AcplanError names the first difference. Devices and ranks may
    differ. param_dtype: the type in which parameters compute, if it is not their own: that of
    fully_shard's MixedPrecisionPolicy.

    A module that later runs other operators than the plan says recomputes what the plan does
    not know, and a PlanMismatchWarning says so once; losses and gradients are those without the
    plan all the same. strict: it raises AcplanError.

    A table of plans is switched by the length of the inputs, before each forward pass, in eager
    code: a length between two entries has the plan of the longer one, and one above all has the
    last plan, and a PlanMismatchWarning says so once. The backward pass must come before the
    next forward pass of another length.

    A model that is checkpointed already is refused with AcplanError. Until the plan is removed,
    models of transformers make no cache in calls with gradients, even if `use_cache` is set: a
    layer that runs again would add to it once more.
    """
    require_module(model)
    if dist.is_available() and dist.is_initialized():
        # A rank that traced has done so, and would else communicate on another mesh.
        forget_shardings()
    if isinstance(plan, (str, os.PathLike)):
        plan = plan_or_table(plan)
    if not isinstance(plan, PlanTable):
        return _apply_one(model, plan_given(plan), strict, param_dtype)
    if len(plan.entries) == 1 and plan.switch is None:
        return _apply_one(model, plan.entries[0][1], strict, param_dtype)
    refuse_checkpoints(model, class_name_of(wrapped_in(model)))
    if any(map(has_compiled_call, model.modules())):
        raise AcplanError("table: expected a model in eager code, found a compiled module")
    for _, entry in plan.entries:
        _require_made_for(model, entry, param_dtype)
    return switched(model, plan, lambda now, entry: _apply(now, entry, strict)[0])


def plan_or_table(path: str | os.PathLike[str]) -> Plan | PlanTable:
    """Returns the plan or the table of plans in a file."""
    data = read_json(path)
    is_table = isinstance(data, dict) and data.get("format") == FORMAT
    return PlanTable.from_data(data) if is_table else Plan.from_data(data)


def _require_made_for(
    model: torch.nn.Module, plan: Plan, param_dtype: torch.dtype | None
) -> None:
    of_plan = plan.data.get(KEY)
    if of_plan is not None:
        require_made_for(of_plan, model, param_dtype)


def _apply_one(
    model: torch.nn.Module, plan: Plan, strict: bool, param_dtype: torch.dtype | None
) -> torch.nn.Module:
    _require_made_for(model, plan, param_dtype)
    return _apply(model, plan, strict)[0]


def remove(model: torch.nn.Module) -> torch.nn.Module:
    """Removes the plan, in place. Returns the model, which is another object only if the plan
    checkpointed all of it. Without a plan nothing happens.

    A unit that has been sharded, compiled or given hooks since stays in its place, and calls
    its module without a checkpoint.
    """
    require_module(model)
    with uninterrupted():
        return _removed(model)


def _removed(model: torch.nn.Module) -> torch.nn.Module:
    stop_switching(model)
    units = [m for m in model.modules() if isinstance(m, Unit)]
    for unit in units:
        unit.checkpoint_fn = call_plainly
    _let_optimize_again(units)
    kv_caches.switch_on(model)
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and inside_of(child) is not child:
                setattr(parent, name, inside_of(child))
    return inside_of(model)


def _let_optimize_again(units: Iterable["Unit"]) -> None:
    if any(unit._acplan_optimized for unit in units):
        let_optimize(True)
    for unit in units:
        unit._acplan_optimized = False


def has_plan(model: torch.nn.Module) -> bool:
    return any(
        (isinstance(m, Unit) and not is_idle(m)) or switch_of(m) is not None
        for m in model.modules()
    )


@contextlib.contextmanager
def applied(model: torch.nn.Module, plan: Plan) -> Iterator[torch.nn.Module]:
    """Yields the model with the plan, applied strictly; after the block the plan is removed."""
    model_with_plan, undo = _apply(model, plan, strict=True)
    try:
        yield model_with_plan
    finally:
        with uninterrupted():
            _undo(undo)


Undo = list[Callable[[], object]]


def _apply(model: torch.nn.Module, plan: Plan, strict: bool) -> tuple[torch.nn.Module, Undo]:
    root = class_name_of(wrapped_in(model))
    refuse_checkpoints(model, root)
    paths = dict(_paths(model, root))
    wrappers: dict[int, Unit] = {}
    holders = dict(_holders(plan, paths))
    idle: list[tuple[Unit, Callable[..., Any]]] = []
    owners: dict[int, list[PlannedModule]] = {}
    runs: set[str] = set()
    offloads = any(unit_plan.offloads for unit_plan in plan.modules)
    traffic = Traffic() if offloads else None
    for unit_plan in plan.modules:
        if unit_plan.fqn.split(".")[0] != root:
            raise AcplanError(
                f"plan: {unit_plan.fqn} is not in this {root}; apply plans before "
                "torch.compile or DistributedDataParallel wraps the model"
            )
        for module, checkpoint_fn in _calls(unit_plan, paths, strict, traffic):
            owners.setdefault(id(module), []).append(unit_plan)
            if isinstance(checkpoint_fn, Place):
                runs.add(unit_plan.fqn)
            if isinstance(module, Unit):
                idle.append((module, checkpoint_fn))
                module._acplan_planned = (unit_plan.fqn, strict)
            else:
                holder = holders.pop(id(module), None)
                inner = holder if holder and holder.checkpoint_fn is hold else module
                kind = ContainerUnit if hasattr(type(module), "__len__") else Unit
                wrappers[id(module)] = unit = kind(inner)
                unit.checkpoint_fn = checkpoint_fn
                unit._acplan_planned = (unit_plan.fqn, strict)
    require_apart(owners, runs)
    refuse_nested_offload(owners, paths)
    wrappers |= {m: unit for m, unit in holders.items() if _is_within(m, owners, paths)}
    undo: Undo = []
    with _all_or_nothing(undo):
        for parent in list(model.modules()):
            for name, child in list(parent._modules.items()):
                if child is not None and id(child) in wrappers:
                    undo.append(functools.partial(_put_back, parent, name, child))
                    setattr(parent, name, wrappers[id(child)])
        for unit, checkpoint_fn in idle:
            undo.append(functools.partial(_put_back, unit, "checkpoint_fn", call_plainly))
            unit.checkpoint_fn = checkpoint_fn
        if (wrappers or idle) and not kv_caches.are_off(model):
            undo.append(functools.partial(kv_caches.switch_on, model))
            kv_caches.switch_off(model)
        units = [*wrappers.values(), *(unit for unit, _ in idle)]
        undo.append(functools.partial(_let_optimize_again, units))
    return wrappers.get(id(model), model), undo


def _holders(plan: Plan, paths: Mapping[str, torch.nn.Module]) -> Iterator[tuple[int, Unit]]:
    """Yields units for the modules of which gradients within forward are a part, and for other
    modules inside them, with the modules' ids."""
    entries = plan.data.get(DIFFERENTIATES, {})
    for fqn, is_part in entries.items() if isinstance(entries, dict) else ():
        module = paths.get(fqn)
        if module is not None and not isinstance(module, Unit):
            unit = Unit(module)
            unit.checkpoint_fn = hold if is_part else let_go
            yield id(module), unit


def _is_within(
    module: int, owners: Mapping[int, Any], paths: Mapping[str, torch.nn.Module]
) -> bool:
    """Returns whether a module, given by its id, is inside one that a unit has."""
    of_units = (unit for unit in paths.values() if id(unit) in owners)
    return any(id(part) == module for unit in of_units for part in unit.modules())


@contextlib.contextmanager
def _all_or_nothing(undo: Undo) -> Iterator[None]:
    """Restores the model if the block raises, for example because a module refuses to be given
    another one. Signals wait."""
    with uninterrupted():
        try:
            yield
        except BaseException:
            _undo(undo)
            raise


def _undo(undo: Undo) -> None:
    for put_back in reversed(undo):
        put_back()


def _put_back(owner: torch.nn.Module, name: str, value: Any) -> None:
    if getattr(owner, name, None) is not value:
        setattr(owner, name, value)


def _calls(
    unit_plan: PlannedModule,
    paths: Mapping[str, torch.nn.Module],
    strict: bool,
    traffic: Traffic | None,
) -> Iterator[tuple[torch.nn.Module, Any]]:
    """Yields the modules of a unit, each with the function that calls it."""
    module = paths.get(unit_plan.fqn)
    if module is not None:
        refuse_scripted(unit_plan.fqn, module)
        yield module, CheckpointOfUnit(unit_plan, strict, traffic)
        return
    run = _run_of(unit_plan.fqn, paths)
    if run is None:
        raise AcplanError(f"plan: the model has no module {unit_plan.fqn!r}")
    refuse_part(unit_plan)
    for module in run.values():
        refuse_scripted(unit_plan.fqn, module)
    segment = Segment(unit_plan, tuple(run), strict, traffic)
    yield from zip(run.values(), segment.places())


def _run_of(
    fqn: str, paths: Mapping[str, torch.nn.Module]
) -> dict[str, torch.nn.Module] | None:
    """Returns the children from `first` to `last` of the module `parent`, for the name
    parent.first-last."""
    path, _, name = fqn.rpartition(".")
    parent = paths.get(path)
    if parent is None:
        return None
    children = {
        child: module
        for child, module in wrapped_in(parent)._modules.items()
        if module is not None
    }
    names = list(children)
    ends = [
        (first, last)
        for place, sign in enumerate(name)
        for first, last in [(name[:place], name[place + 1 :])]
        if sign == "-" and first in children and last in children
    ]
    if not ends:
        return None
    first, last = ends[0]
    run = names[names.index(first) : names.index(last) + 1]
    if len(ends) > 1 or len(run) < 2:
        raise AcplanError(
            f"plan: {fqn}: expected two children of {path}, the first before the last, "
            f"found {' or '.join(f'{a} and {b}' for a, b in ends)}"
        )
    if len({id(wrapped_in(children[child])) for child in run}) < len(run):
        raise AcplanError(f"plan: {fqn}: expected different modules, found one twice")
    return {child: children[child] for child in run}


def _paths(model: torch.nn.Module, root: str) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yields modules by their names in plans. A unit that stayed stands for the module in
    it."""
    units = [m for m in model.modules() if isinstance(m, Unit)]
    unit_of = {id(unit._checkpoint_wrapped_module): unit for unit in units}
    for path, module in model.named_modules(remove_duplicate=False):
        while id(module) in unit_of:
            module = unit_of[id(module)]
        yield f"{root}.{path}" if path else root, module
