"""acplan.apply of a table: plans that are switched by the length of the inputs."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from acplan._apply.refusals import SWITCHED
from acplan._apply.unit import Unit, call_plainly, wrapped_in
from acplan._base.errors import AcplanError, PlanMismatchWarning
from acplan._base.modules import arguments_by_name, tensors_by_name
from acplan._files.plan_file import Plan
from acplan._files.plan_table import PlanTable, Switch
from acplan._files.trace_file import DIFFERENTIATES

# A unit under a plan: the function that calls its module, and its name and strictness.
_Role = tuple[Any, tuple[str, bool]]


class PlanSwitch:
    """A hook before the model's forward that gives each unit its role in the plan for the
    length of the inputs. It is copied with the model.

    follows_calls: set to False if a trainer calls `follow` in place of the model's calls.
    """

    def __init__(self, table: PlanTable, switch: Switch) -> None:
        self._table = table
        self._switch = switch
        self.follows_calls = True
        self._roles: list[list[tuple[Unit, _Role]]] = []  # by entry
        self._place = -1
        self._warned: set[str] = set()
        self.handle: Any = None

    def add(self, model: torch.nn.Module) -> None:
        """Notes the roles of the model's units as the next entry's, and makes them idle."""
        units = [module for module in model.modules() if isinstance(module, Unit)]
        self._roles.append([(u, (u.checkpoint_fn, u._acplan_planned)) for u in units])
        for unit in units:
            unit.checkpoint_fn = call_plainly

    def use(self, place: int) -> None:
        """Makes an entry's plan the one that the model has."""
        if place == self._place:
            return
        for unit, _ in self._roles[-1]:  # the last one knows all units
            unit.checkpoint_fn = call_plainly
        for unit, (function, name) in self._roles[place]:
            unit.checkpoint_fn = function
            unit._acplan_planned = name
        self._place = place

    def __call__(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if self.follows_calls:
            self.follow(arguments_by_name(wrapped_in(module), args, kwargs))

    def follow(self, arguments: Mapping[str, Any]) -> None:
        """Makes the plan for these arguments the one that the model has."""
        value = tensors_by_name(arguments).get(self._switch.argument)
        dimension = self._switch.dimension
        if value is None or value.dim() <= dimension:
            self._warn(
                f"the model is called without {self._switch.argument}, whose size is the length"
            )
            self.use(len(self._roles) - 1)
            return
        length = int(value.shape[dimension])
        longest = self._table.entries[-1][0]
        if length > longest:
            self._warn(f"inputs of length {length} are longer than all planned, {longest}")
        self.use(self._table.place_of(length))

    def _warn(self, text: str) -> None:
        kind = text.split()[0]
        if kind in self._warned:
            return
        self._warned.add(kind)
        warnings.warn(
            f"table of plans: {text}; the plan of the longest is used",
            PlanMismatchWarning,
            stacklevel=3,
        )


def switched(
    model: torch.nn.Module,
    table: PlanTable,
    apply_plan: Callable[[torch.nn.Module, Plan], torch.nn.Module],
) -> torch.nn.Module:
    """Applies all plans of the table, and returns the model, which switches between them."""
    if table.switch is None:
        raise AcplanError(
            "table: it does not name the input whose size is the length: expected a table that "
            "acplan.plan made of traces with their inputs"
        )
    if any(plan.data.get(DIFFERENTIATES) for _, plan in table.entries):
        raise AcplanError(
            "table: the model computes gradients within forward: plans cannot be switched"
        )
    switch = PlanSwitch(table, table.switch)
    for _, plan in table.entries:
        model = apply_plan(model, plan)
        switch.add(model)
    switch.use(len(table.entries) - 1)
    switch.handle = model.register_forward_pre_hook(switch, prepend=True, with_kwargs=True)
    model.__dict__[SWITCHED] = switch
    return model


def switch_of(model: torch.nn.Module) -> PlanSwitch | None:
    """Returns the switch of a model with a table of plans, None for other models."""
    switch: PlanSwitch | None = model.__dict__.get(SWITCHED)
    return switch


def stop_switching(model: torch.nn.Module) -> None:
    """Removes the hook that switches plans, if the model has one."""
    for module in list(model.modules()):
        hooks = module._forward_pre_hooks
        for key in [key for key, hook in hooks.items() if isinstance(hook, PlanSwitch)]:
            del hooks[key]
            module._forward_pre_hooks_with_kwargs.pop(key, None)
        module.__dict__.pop(SWITCHED, None)
