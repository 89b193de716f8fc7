"""The wrapper of a module that a plan checkpoints."""

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    _CHECKPOINT_WRAPPED_MODULE as _WRAPPED,
)
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointWrapper,
)

from acplan._apply.checkpoint import checkpoint_of, whole_checkpoint_of
from acplan._apply.inner_gradients import hold, let_go
from acplan._apply.offload import Traffic
from acplan._apply.segment import Place
from acplan._apply.writes_without_grad import watching_writes
from acplan._base import transforms
from acplan._base.errors import AcplanError, PlanMismatchWarning
from acplan._base.modules import FSDPModule, borrows_parameters
from acplan._base.torchscript import (
    stop_optimizing,
)
from acplan._files.plan_file import PlannedModule, PlannedOperator

# This function is in transformers.utils.output_capturing.
_INSTALLS_HOOKS = "recursively_install_hooks"


_MODE = "training"


_class: Any = vars(object)["__class__"]


# Packages that see the class of a unit, and not that of its module.
_HEAR_OF_UNITS = frozenset(
    ["torch", "acplan", "copy", "copyreg", "pickle", "multiprocessing", "weakref"]
)


def _new_unit(kind: type["Unit"]) -> "Unit":
    return kind.__new__(kind)


class Unit(CheckpointWrapper):
    """A module that a plan checkpoints, alone or with others.

    Modules and parameters keep the names that they have without the unit, by which others
    choose what to save (PEFT) or to decay (transformers): the modules in it go by their own
    names, and it shows the parameters of its module as its own.
    """

    _checkpoint_wrapped_module: Any
    checkpoint_fn: Any

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        # torchtitan halves the tokens of experts in layers with this attribute, as a plain
        # checkpoint counts them twice. A unit counts once.
        del self.checkpoint_impl
        self._parameters = module._parameters
        self.training = module.training
        # The name of the plan's unit, and whether it is strict. No module has attributes of
        # these names.
        self._acplan_planned = ("", False)
        self._acplan_has_warned = False
        # True if torch.jit was allowed to optimize before the unit was called.
        self._acplan_optimized = False

    @property
    def __class__(self) -> type:
        """The class of its module, for code of the model that asks what a layer is
        (`isinstance(layer, Block)`); PyTorch, and code that copies, see the unit's own
        class."""
        kind = type(self)
        frame = sys._getframe(1)
        asked_by = frame.f_globals.get("__name__", "").partition(".")[0]
        inner = vars(self).get("_modules", {}).get(_WRAPPED)
        if inner is None or asked_by in _HEAR_OF_UNITS:
            return kind
        # This function meets the module as well, and would put its hook on both.
        if frame.f_code.co_name == _INSTALLS_HOOKS:
            return kind
        inner_class: type = inner.__class__
        return inner_class

    @__class__.setter
    def __class__(self, kind: type) -> None:
        # fully_shard gives it another class.
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
        inner = self._checkpoint_wrapped_module
        yield from inner.named_modules(memo, prefix, remove_duplicate)
        # With duplicates, its parameters would go by two names.
        if remove_duplicate and self not in memo:
            memo.add(self)
            yield f"{prefix}.{_WRAPPED}" if prefix else _WRAPPED, self

    def named_children(self) -> Iterator[tuple[str, torch.nn.Module]]:
        inner: torch.nn.Module = self._checkpoint_wrapped_module
        # transformers puts hooks on the modules that it meets on this way, by class, to return
        # their outputs: it has to meet the module. Other callers, which ask for names, meet the
        # module's children instead.
        if sys._getframe(1).f_code.co_name == _INSTALLS_HOOKS:
            return iter(((_WRAPPED, inner),))
        return inner.named_children()

    def children(self) -> Iterator[torch.nn.Module]:
        yield self._checkpoint_wrapped_module

    def __setattr__(self, name: str, value: Any) -> None:
        inner = self._owner_of(name)
        if inner is None or name == _MODE:
            super().__setattr__(name, value)
        if inner is not None:
            setattr(inner, name, value)

    def __delattr__(self, name: str) -> None:
        inner = self._owner_of(name)
        if inner is None:
            super().__delattr__(name)
        else:
            delattr(inner, name)

    def _owner_of(self, name: str) -> torch.nn.Module | None:
        """Returns the module inside, if it has the name and the unit does not: code that
        replaces a layer (PEFT), or sets a rate, by the path of the module means the module's
        attribute."""
        own = vars(self)
        inner = own.get("_modules", {}).get(_WRAPPED)
        if inner is None or name == _WRAPPED or (name in own and name != _MODE):
            return None
        places = (vars(inner), inner._parameters, inner._buffers, inner._modules)
        of_class = isinstance(getattr(type(inner), name, None), property)
        is_inside = of_class or any(name in place for place in places)
        if isinstance(inner, Unit):
            is_inside = inner._owner_of(name) is not None
        return inner if is_inside else None

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "Unit":
        self._checkpoint_wrapped_module._apply(fn, recurse)
        return self

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        pass  # its module does

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        self._pre_load_state_dict_hook(self, state_dict, prefix)

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        # Hooks of all modules are for the module inside.
        call: Any = super()._call_impl if _has_hooks(self) else self.forward
        return call(*args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        # The compiler leaves out hooks of fully_shard if it knows what calls them.
        call = torch.nn.Module._call_impl.__get__(self)
        self._compiled_call_impl = torch.compile(call, *args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        call = self.checkpoint_fn
        # A compiled checkpoint must not write to a cache, which exists if nothing runs again.
        is_plain = torch.compiler.is_compiling() and not torch.is_grad_enabled()
        if (
            is_plain
            or _is_exporting()
            or not torch.compiler.is_compiling()
            and transforms.are_under_way()
            or self._may_not_run_again()
        ):
            call = call_plainly
        if isinstance(call, Place) and isinstance(self, FSDPModule):
            call = call.alone
        elif isinstance(call, CheckpointOfUnit):
            call = call.function
        inner = self._checkpoint_wrapped_module
        if call is not call_plainly and not torch.compiler.is_compiling():
            # This is for good: code that is called elsewhere before backward must not change
            # how the same code runs here again.
            self._acplan_optimized |= stop_optimizing()
            if not torch.is_grad_enabled():
                with watching_writes(inner):
                    return call(inner, *args, **kwargs)
        return call(inner, *args, **kwargs)

    def _may_not_run_again(self) -> bool:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return False
        if self.checkpoint_fn in (call_plainly, hold, let_go):
            return False
        if not borrows_parameters(self._checkpoint_wrapped_module):
            return False
        text = "it runs with parameters that are not its own and do not exist in backward"
        fqn, is_strict = self._acplan_planned
        if is_strict:
            raise AcplanError(f"{fqn}: {text}: it cannot run again")
        if not self._acplan_has_warned:
            self._acplan_has_warned = True
            text += "; it does not run again, so the peak may be larger"
            warnings.warn(f"{fqn}: {text}", PlanMismatchWarning, stacklevel=2)
        return True


class ContainerUnit(Unit):
    """A unit of a module with a length, such as a Sequential."""

    def __len__(self) -> int:
        return len(self._checkpoint_wrapped_module)

    def __bool__(self) -> bool:
        inner: Any = self._checkpoint_wrapped_module
        return bool(inner)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._checkpoint_wrapped_module)

    def __contains__(self, thing: Any) -> bool:
        return thing in self._checkpoint_wrapped_module


def _is_exporting() -> bool:
    # torch.compiler.is_exporting() returns this flag, but not every PyTorch has that function,
    # and in some it is true under torch.compile.
    return bool(getattr(torch.compiler, "_is_exporting_flag", False))


class CheckpointOfUnit:
    """The function that calls the module of a unit. A copy, or one that was pickled, is made
    anew from the plan: it remembers only its own calls."""

    def __init__(self, unit_plan: PlannedModule, strict: bool, traffic: Traffic | None) -> None:
        self._made_of = (unit_plan, strict, traffic)
        self.function = _checkpoint_fn(unit_plan, strict, traffic)

    def __reduce__(self) -> Any:
        return CheckpointOfUnit, self._made_of


def call_plainly(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)


def is_idle(module: torch.nn.Module) -> bool:
    return isinstance(module, Unit) and module.checkpoint_fn is call_plainly


def inside_of(module: torch.nn.Module) -> torch.nn.Module:
    while isinstance(module, Unit) and is_idle(module) and not _carries_more(module):
        inner: torch.nn.Module = module._checkpoint_wrapped_module
        module = inner
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


def wrapped_in(module: torch.nn.Module) -> torch.nn.Module:
    while isinstance(module, Unit):
        module = module._checkpoint_wrapped_module
    return module


def _checkpoint_fn(
    unit_plan: PlannedModule, strict: bool, traffic: Traffic | None
) -> Callable[..., Any]:
    refuse_part(unit_plan)
    fqn, operators, arguments = (
        unit_plan.fqn, unit_plan.operators_seen, unit_plan.offloaded_arguments
    )  # fmt: skip
    # A strict unit has a mode, which sees each of its operators.
    if operators and (strict or not all(map(_only_runs_again, operators))):
        return checkpoint_of(fqn, operators, strict, traffic, arguments)
    return whole_checkpoint_of(fqn, strict, traffic, arguments, operators)


def _only_runs_again(operator: PlannedOperator) -> bool:
    return not (operator.save or operator.skip or operator.offload)


def refuse_part(unit_plan: PlannedModule) -> None:
    if not unit_plan.operators and unit_plan.discard_ratio < 1:
        raise AcplanError(
            f"plan: {unit_plan.fqn} discards a share, but the plan does not name the "
            "operators: plan with granularity operator"
        )
