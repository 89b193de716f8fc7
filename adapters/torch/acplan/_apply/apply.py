"""acplan.apply: wraps what a plan checkpoints."""

import contextlib
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed._composable.contract import _get_registry
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    _CHECKPOINT_WRAPPED_MODULE as _WRAPPED,
)
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    ActivationWrapper,
    CheckpointWrapper,
)

from acplan._apply.inner_gradients import hold, let_go
from acplan._apply.matching import checkpoint_of, whole_checkpoint_of
from acplan._apply.offload import Traffic
from acplan._apply.segment import Place, Segment
from acplan._base import kv_caches, transforms
from acplan._base.arguments import require_module
from acplan._base.errors import AcplanError, PlanMismatchWarning
from acplan._base.interrupts import uninterrupted
from acplan._base.modules import FSDPModule, borrows_parameters, class_name_of
from acplan._base.torchscript import (
    has_unknown_state,
    is_scripted,
    let_optimize,
    stop_optimizing,
)
from acplan._files.fingerprint import KEY, require_made_for
from acplan._files.plan_file import Plan, PlannedModule, plan_given
from acplan._files.trace_file import DIFFERENTIATES


def apply(
    model: torch.nn.Module,
    plan: Plan | str | os.PathLike[str],
    *,
    strict: bool = False,
    param_dtype: torch.dtype | None = None,
) -> torch.nn.Module:
    """Checkpoints the modules of the plan, or of a plan file, in place; returns the
    model, which is another object only where the plan checkpoints all of it.
    acplan.remove takes it back.

    A plan that acplan made of a trace is for that model: where modules, or their
    parameters' shapes or types, are others, AcplanError names the first difference.
    Devices and ranks may differ. param_dtype: the type in which parameters compute, where
    it is not their own: that of fully_shard's MixedPrecisionPolicy.

    A module that later runs other operators than the plan says recomputes what the
    plan does not know, and a PlanMismatchWarning says so once; losses and gradients
    are those without the plan all the same. strict: it raises AcplanError.

    A model that is checkpointed already is refused with AcplanError. Until the plan is
    removed, models of transformers make no cache in calls with gradients, whatever
    `use_cache` says: a layer that runs again would add to it once more.
    """
    require_module(model)
    plan = plan_given(plan)
    of_plan = plan.data.get(KEY)
    if of_plan is not None:
        require_made_for(of_plan, model, param_dtype)
    return _apply(model, plan, strict)[0]


def remove(model: torch.nn.Module) -> torch.nn.Module:
    """Takes the plan back, in place; returns the model, which is another object only
    where the plan checkpointed all of it. Without a plan nothing happens.

    A unit that was sharded, compiled or given hooks since stays in its place, and
    calls its module without a checkpoint.
    """
    require_module(model)
    with uninterrupted():
        return _removed(model)


def _removed(model: torch.nn.Module) -> torch.nn.Module:
    units = [m for m in model.modules() if isinstance(m, _Unit)]
    for unit in units:
        unit.checkpoint_fn = _call
    _let_optimize_again(units)
    kv_caches.switch_on(model)
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and _inside(child) is not child:
                setattr(parent, name, _inside(child))
    return _inside(model)


def _let_optimize_again(units: Iterable["_Unit"]) -> None:
    if any(unit._acplan_optimized for unit in units):
        let_optimize(True)
    for unit in units:
        unit._acplan_optimized = False


def has_plan(model: torch.nn.Module) -> bool:
    return any(isinstance(m, _Unit) and not _is_idle(m) for m in model.modules())


@contextlib.contextmanager
def applied(model: torch.nn.Module, plan: Plan) -> Iterator[torch.nn.Module]:
    """The model with the plan, strictly, which is taken back at the end."""
    planned, undo = _apply(model, plan, strict=True)
    try:
        yield planned
    finally:
        with uninterrupted():
            _undo(undo)


# Of transformers, the second since its version 5, and of diffusers.
_SWITCHES = (
    "gradient_checkpointing_disable",
    "activation_checkpointing_disable",
    "disable_gradient_checkpointing",
)


# In transformers.utils.output_capturing.
_INSTALLS_HOOKS = "recursively_install_hooks"


_MODE = "training"


_class: Any = vars(object)["__class__"]
# Who is told the class of a unit, and not that of its module.
_HEAR_OF_UNITS = frozenset(
    ["torch", "acplan", "copy", "copyreg", "pickle", "multiprocessing", "weakref"]
)


def _new_unit(kind: type["_Unit"]) -> "_Unit":
    return kind.__new__(kind)


class _Unit(CheckpointWrapper):
    """A module that a plan checkpoints, alone or with others.

    Modules and parameters keep the names that they have without it, by which others
    choose what to save (PEFT) or to decay (transformers): what is in it goes by its own
    name, and it shows the parameters of its module as its own.
    """

    _checkpoint_wrapped_module: Any
    checkpoint_fn: Any

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        self._parameters = module._parameters
        self.training = module.training
        # Of which unit of the plan, and whether strictly. By names that no module has.
        self._acplan_planned = ("", False)
        self._acplan_has_warned = False
        # Whether torch.jit was let optimize until it was called.
        self._acplan_optimized = False

    @property
    def __class__(self) -> type:
        """That of its module, for code of the model that asks what a layer is
        (`isinstance(layer, Block)`); PyTorch, and what copies, hear what it is itself."""
        kind = type(self)
        frame = sys._getframe(1)
        asked_by = frame.f_globals.get("__name__", "").partition(".")[0]
        inside = vars(self).get("_modules", {}).get(_WRAPPED)
        if inside is None or asked_by in _HEAR_OF_UNITS:
            return kind
        # It meets the module as well, and would put its hook on both.
        if frame.f_code.co_name == _INSTALLS_HOOKS:
            return kind
        found: type = inside.__class__
        return found

    @__class__.setter
    def __class__(self, kind: type) -> None:
        # fully_shard gives it another one.
        _class.__set__(self, kind)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _new_unit, (type(self),), self.__getstate__()  # type: ignore[no-untyped-call]

    def named_modules(
        self,
        memo: set[torch.nn.Module] | None = None,
        prefix: str = "",
        remove_duplicate: bool = True,
    ) -> Iterator[tuple[str, torch.nn.Module]]:
        memo = set() if memo is None else memo
        inside = self._checkpoint_wrapped_module
        yield from inside.named_modules(memo, prefix, remove_duplicate)
        # With duplicates its parameters would go by two names.
        if remove_duplicate and self not in memo:
            memo.add(self)
            yield f"{prefix}.{_WRAPPED}" if prefix else _WRAPPED, self

    def named_children(self) -> Iterator[tuple[str, torch.nn.Module]]:
        inside: torch.nn.Module = self._checkpoint_wrapped_module
        # transformers puts hooks on the modules that it meets on this way, by class, to
        # return what they make: the module has to be met. Who asks for names meets its
        # children instead.
        if sys._getframe(1).f_code.co_name == _INSTALLS_HOOKS:
            return iter(((_WRAPPED, inside),))
        return inside.named_children()

    def children(self) -> Iterator[torch.nn.Module]:
        yield self._checkpoint_wrapped_module

    def __setattr__(self, name: str, value: Any) -> None:
        inside = self._owner_of(name)
        if inside is None or name == _MODE:
            super().__setattr__(name, value)
        if inside is not None:
            setattr(inside, name, value)

    def __delattr__(self, name: str) -> None:
        inside = self._owner_of(name)
        if inside is None:
            super().__delattr__(name)
        else:
            delattr(inside, name)

    def _owner_of(self, name: str) -> torch.nn.Module | None:
        """The module inside, where it has the name and the unit has not: who replaces a
        layer (PEFT), or sets a rate, by the path of the module means the module's."""
        own = vars(self)
        inside = own.get("_modules", {}).get(_WRAPPED)
        if inside is None or name == _WRAPPED or (name in own and name != _MODE):
            return None
        places = (vars(inside), inside._parameters, inside._buffers, inside._modules)
        of_class = isinstance(getattr(type(inside), name, None), property)
        is_inside = of_class or any(name in place for place in places)
        if isinstance(inside, _Unit):
            is_inside = inside._owner_of(name) is not None
        return inside if is_inside else None

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "_Unit":
        self._checkpoint_wrapped_module._apply(fn, recurse)
        return self

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        pass  # its module does

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        self._pre_load_state_dict_hook(self, state_dict, prefix)

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        # Hooks of all modules are for the one inside.
        call: Any = super()._call_impl if _has_hooks(self) else self.forward
        return call(*args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        # The compiler leaves out hooks of fully_shard where it knows what calls them.
        call = torch.nn.Module._call_impl.__get__(self)
        self._compiled_call_impl = torch.compile(call, *args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        call = self.checkpoint_fn
        # In a compiled checkpoint nothing may be written to a cache, which there is where
        # nothing runs again.
        is_plain = torch.compiler.is_compiling() and not torch.is_grad_enabled()
        if (
            is_plain
            or _is_exporting()
            or not torch.compiler.is_compiling()
            and transforms.are_under_way()
            or self._may_not_run_again()
        ):
            call = _call
        if isinstance(call, Place) and isinstance(self, FSDPModule):
            call = call.alone
        elif isinstance(call, _Checkpoint):
            call = call.function
        inside = self._checkpoint_wrapped_module
        if call is not _call and not torch.compiler.is_compiling():
            # For good: what is called elsewhere before backward must not change how the
            # same code runs here again.
            self._acplan_optimized |= stop_optimizing()
        return call(inside, *args, **kwargs)

    def _may_not_run_again(self) -> bool:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return False
        if self.checkpoint_fn in (_call, hold, let_go):
            return False
        if not borrows_parameters(self._checkpoint_wrapped_module):
            return False
        text = "it runs with other parameters than its own, which are gone in backward"
        fqn, is_strict = self._acplan_planned
        if is_strict:
            raise AcplanError(f"{fqn}: {text}: it may not run again")
        if not self._acplan_has_warned:
            self._acplan_has_warned = True
            text += "; it does not run again, and the peak may be a larger one"
            warnings.warn(f"{fqn}: {text}", PlanMismatchWarning, stacklevel=2)
        return True


class _ContainerUnit(_Unit):
    """That of a module with a length, such as a Sequential."""

    def __len__(self) -> int:
        return len(self._checkpoint_wrapped_module)

    def __bool__(self) -> bool:
        inside: Any = self._checkpoint_wrapped_module
        return bool(inside)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._checkpoint_wrapped_module)

    def __contains__(self, thing: Any) -> bool:
        return thing in self._checkpoint_wrapped_module


def _is_exporting() -> bool:
    # What torch.compiler.is_exporting() returns, which not every PyTorch has, and which
    # some take for true under torch.compile.
    return bool(getattr(torch.compiler, "_is_exporting_flag", False))


class _Checkpoint:
    """What calls the module of a unit. A copy of it, or one that was pickled, is made
    anew from the plan: what it remembers of calls is its own."""

    def __init__(self, planned: PlannedModule, strict: bool, traffic: Traffic | None) -> None:
        self._made_of = (planned, strict, traffic)
        self.function = _checkpoint_fn(planned, strict, traffic)

    def __reduce__(self) -> Any:
        return _Checkpoint, self._made_of


def _call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)


def _is_idle(module: torch.nn.Module) -> bool:
    return isinstance(module, _Unit) and module.checkpoint_fn is _call


def _inside(module: torch.nn.Module) -> torch.nn.Module:
    while isinstance(module, _Unit) and _is_idle(module) and not _carries_more(module):
        inside: torch.nn.Module = module._checkpoint_wrapped_module
        module = inside
    return module


def _carries_more(unit: torch.nn.Module) -> bool:
    is_compiled = unit._compiled_call_impl is not None
    return is_compiled or isinstance(unit, FSDPModule) or _has_hooks(unit)


def _has_hooks(unit: torch.nn.Module) -> bool:
    return bool(
        unit._forward_hooks
        or unit._forward_pre_hooks
        or unit._backward_hooks
        or unit._backward_pre_hooks
    )


Undo = list[Callable[[], object]]


def _apply(model: torch.nn.Module, plan: Plan, strict: bool) -> tuple[torch.nn.Module, Undo]:
    root = class_name_of(_wrapped_in(model))
    _refuse_checkpoints(model, root)
    paths = dict(_paths(model, root))
    wrappers: dict[int, _Unit] = {}
    holders = dict(_holders(plan, paths))
    idle: list[tuple[_Unit, Callable[..., Any]]] = []
    owners: dict[int, list[PlannedModule]] = {}
    runs: set[str] = set()
    offloads = any(planned.offloads for planned in plan.modules)
    traffic = Traffic() if offloads else None
    for planned in plan.modules:
        if planned.fqn.split(".")[0] != root:
            raise AcplanError(
                f"plan: {planned.fqn} is not in this {root}; apply plans before "
                "torch.compile or DistributedDataParallel wraps the model"
            )
        for module, checkpoint_fn in _calls(planned, paths, strict, traffic):
            owners.setdefault(id(module), []).append(planned)
            if isinstance(checkpoint_fn, Place):
                runs.add(planned.fqn)
            if isinstance(module, _Unit):
                idle.append((module, checkpoint_fn))
                module._acplan_planned = (planned.fqn, strict)
            else:
                holder = holders.pop(id(module), None)
                inside = holder if holder and holder.checkpoint_fn is hold else module
                kind = _ContainerUnit if hasattr(type(module), "__len__") else _Unit
                wrappers[id(module)] = unit = kind(inside)
                unit.checkpoint_fn = checkpoint_fn
                unit._acplan_planned = (planned.fqn, strict)
    _require_apart(owners, runs)
    _refuse_offload_inside(owners, paths)
    wrappers |= {m: unit for m, unit in holders.items() if _is_within(m, owners, paths)}
    undo: Undo = []
    with _all_or_nothing(undo):
        for parent in list(model.modules()):
            for name, child in list(parent._modules.items()):
                if child is not None and id(child) in wrappers:
                    undo.append(functools.partial(_put_back, parent, name, child))
                    setattr(parent, name, wrappers[id(child)])
        for unit, checkpoint_fn in idle:
            undo.append(functools.partial(_put_back, unit, "checkpoint_fn", _call))
            unit.checkpoint_fn = checkpoint_fn
        if (wrappers or idle) and not kv_caches.are_off(model):
            undo.append(functools.partial(kv_caches.switch_on, model))
            kv_caches.switch_off(model)
        units = [*wrappers.values(), *(unit for unit, _ in idle)]
        undo.append(functools.partial(_let_optimize_again, units))
    return wrappers.get(id(model), model), undo


def _holders(plan: Plan, paths: Mapping[str, torch.nn.Module]) -> Iterator[tuple[int, _Unit]]:
    """By the identity of modules of which gradients within forward are a part, and of others
    inside of them: what calls them in units."""
    named = plan.data.get(DIFFERENTIATES, {})
    for fqn, is_part in named.items() if isinstance(named, dict) else ():
        module = paths.get(fqn)
        if module is not None and not isinstance(module, _Unit):
            unit = _Unit(module)
            unit.checkpoint_fn = hold if is_part else let_go
            yield id(module), unit


def _is_within(
    module: int, owners: Mapping[int, Any], paths: Mapping[str, torch.nn.Module]
) -> bool:
    """Whether a module is in one of a unit."""
    of_units = (unit for unit in paths.values() if id(unit) in owners)
    return any(id(part) == module for unit in of_units for part in unit.modules())


def _refuse_scripted(fqn: str, module: torch.nn.Module) -> None:
    if is_scripted(module) or has_unknown_state(module):
        raise AcplanError(
            f"plan: {fqn} is compiled by torch.jit, or has inside what sets attributes in "
            "code that is: it may not run again. Plan for the modules around it, or for "
            "the model before it is compiled"
        )


@contextlib.contextmanager
def _all_or_nothing(undo: Undo) -> Iterator[None]:
    """What raises in the midst, such as a module that refuses to be given another one,
    leaves the model as it was, and signals wait."""
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
    planned: PlannedModule,
    paths: Mapping[str, torch.nn.Module],
    strict: bool,
    traffic: Traffic | None,
) -> Iterator[tuple[torch.nn.Module, Any]]:
    """The modules of a unit, and what calls each of them."""
    module = paths.get(planned.fqn)
    if module is not None:
        _refuse_scripted(planned.fqn, module)
        yield module, _Checkpoint(planned, strict, traffic)
        return
    run = _run_of(planned.fqn, paths)
    if run is None:
        raise AcplanError(f"plan: the model has no module {planned.fqn!r}")
    _refuse_part(planned)
    for module in run.values():
        _refuse_scripted(planned.fqn, module)
    segment = Segment(planned.fqn, tuple(run), planned.operators, strict, traffic)
    yield from zip(run.values(), segment.places())


def _run_of(
    fqn: str, paths: Mapping[str, torch.nn.Module]
) -> dict[str, torch.nn.Module] | None:
    """The children from `first` to `last` of the module `parent`, for the name
    parent.first-last."""
    path, _, name = fqn.rpartition(".")
    parent = paths.get(path)
    if parent is None:
        return None
    children = {
        child: module
        for child, module in _wrapped_in(parent)._modules.items()
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
    if len({id(_wrapped_in(children[child])) for child in run}) < len(run):
        raise AcplanError(f"plan: {fqn}: expected different modules, found one twice")
    return {child: children[child] for child in run}


def _require_apart(owners: dict[int, list[PlannedModule]], runs: set[str]) -> None:
    """A module of a run is in no other unit but those that the run is inside of, or
    that are inside of it."""
    for units in owners.values():
        found = [unit.fqn for unit in units]
        if len(found) > 1 and runs.intersection(found):
            raise AcplanError(
                f"plan: {found[0]} and {found[1]}: expected units that have no module "
                "in common, or one inside a module of the other"
            )


def _refuse_offload_inside(
    owners: Mapping[int, Sequence[PlannedModule]], paths: Mapping[str, torch.nn.Module]
) -> None:
    """What a unit inside another one keeps with the host, it would keep there while the
    one around it runs again."""
    if not any(unit.offloads for units in owners.values() for unit in units):
        return
    found = (
        (outer, inner)
        for module in paths.values()
        for outer in owners.get(id(module), ())
        for part in module.modules()
        for inner in owners.get(id(part), ())
        if inner.offloads and inner is not outer
    )
    for outer, inner in found:
        raise AcplanError(
            f"plan: {inner.fqn} is inside {outer.fqn}: expected offload only in units "
            "that are not inside another one"
        )


def _wrapped_in(module: torch.nn.Module) -> torch.nn.Module:
    while isinstance(module, _Unit):
        module = module._checkpoint_wrapped_module
    return module


def _paths(model: torch.nn.Module, root: str) -> Iterator[tuple[str, torch.nn.Module]]:
    """Modules by their names in plans; units that stayed stand for what is in them."""
    units = [m for m in model.modules() if isinstance(m, _Unit)]
    unit_of = {id(unit._checkpoint_wrapped_module): unit for unit in units}
    for path, module in model.named_modules(remove_duplicate=False):
        while id(module) in unit_of:
            module = unit_of[id(module)]
        yield f"{root}.{path}" if path else root, module


def require_no_checkpoints(model: torch.nn.Module) -> None:
    """Raises AcplanError for a model that `apply` refuses, since it is checkpointed, by a
    plan or otherwise."""
    require_module(model)
    _refuse_checkpoints(model, class_name_of(_wrapped_in(model)))


def _refuse_checkpoints(model: torch.nn.Module, root: str) -> None:
    for path, module in model.named_modules():
        name = f"{root}.{path}" if path else root
        if isinstance(module, _Unit):
            if not _is_idle(module):
                raise AcplanError(
                    "plan: the model has a plan already; take it back first, with "
                    "acplan.remove(model)"
                )
        elif isinstance(module, ActivationWrapper):
            raise AcplanError(
                f"plan: {name} is in a {type(module).__name__} of PyTorch already; "
                "build the model without it"
            )
        elif getattr(module, "gradient_checkpointing", False) is True:
            switch = next((n for n in _SWITCHES if hasattr(model, n)), _SWITCHES[0])
            raise AcplanError(
                f"plan: gradient checkpointing of {name} is on; switch it off first, "
                f"with model.{switch}()"
            )
        elif _is_checkpointed(module):
            raise AcplanError(
                f"plan: {name} is checkpointed already; build the model without its "
                "activation checkpointing"
            )


def _is_checkpointed(module: torch.nn.Module) -> bool:
    """By a library that puts another forward in its place, as fairscale does, or by
    torch.distributed._composable.checkpoint."""
    forward = module.__dict__.get("forward")
    while isinstance(forward, functools.partial):
        forward = forward.func
    name = f"{getattr(forward, '__module__', '')}{getattr(forward, '__qualname__', '')}"
    return "checkpoint" in name or "checkpoint" in (_get_registry(module) or ())


def _checkpoint_fn(
    planned: PlannedModule, strict: bool, traffic: Traffic | None
) -> Callable[..., Any]:
    _refuse_part(planned)
    if planned.operators:
        return checkpoint_of(planned.fqn, planned.operators, strict, traffic)
    return whole_checkpoint_of(planned.fqn, traffic)


def _refuse_part(planned: PlannedModule) -> None:
    if not planned.operators and planned.discard_ratio < 1:
        raise AcplanError(
            f"plan: {planned.fqn} is to discard a part, and the plan does not say "
            "which operators: plan with granularity operator"
        )
