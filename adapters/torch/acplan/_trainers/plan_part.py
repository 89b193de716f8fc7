"""The plan of a part of a model, for trainers that apply plans to one part at a time."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from acplan._base.errors import AcplanError
from acplan._base.modules import class_name_of
from acplan._files.fingerprint import KEY, is_made_for
from acplan._files.plan_file import Plan
from acplan._files.trace_file import DIFFERENTIATES


@dataclasses.dataclass(frozen=True)
class PlanPart:
    """The plan of a child of the model that a plan is for, and the child's name."""

    child: str
    plan: Plan


def children_of(plan: Plan) -> list[str]:
    """Returns the names of the children of the model that a plan is for."""
    names = (module["fqn"].split(".") for module in plan.data[KEY]["modules"])
    return [name[1] for name in names if len(name) == 2]


def part_of(plan: Plan, model: torch.nn.Module) -> PlanPart:
    """Returns the part of a plan that acplan made, for the child that has the modules and the
    weights of this model. Raises AcplanError if none has."""
    for child in children_of(plan):
        part = PlanPart(child, _of_child(plan, child, class_name_of(model)))
        if is_made_for(part.plan.data[KEY], model):
            return part
    raise AcplanError(
        f"plan: expected a part of the model that it is for, found another "
        f"{class_name_of(model)}"
    )


def _of_child(plan: Plan, child: str, root: str) -> Plan:
    data = plan.data
    prefix = f"{data[KEY]['modules'][0]['fqn']}.{child}"

    def renamed(modules: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for module in modules:
            if f"{module['fqn']}.".startswith(f"{prefix}."):
                yield {**module, "fqn": root + module["fqn"].removeprefix(prefix)}

    of_child = {
        **data,
        "modules": [*renamed(data["modules"])],
        KEY: {**data[KEY], "modules": [*renamed(data[KEY]["modules"])]},
    }
    if DIFFERENTIATES in data:
        entries = [
            {"fqn": name, "value": value} for name, value in data[DIFFERENTIATES].items()
        ]
        of_child[DIFFERENTIATES] = {e["fqn"]: e["value"] for e in renamed(entries)}
    return Plan.from_data(of_child)
