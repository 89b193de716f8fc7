"""Plans as people make them by rule, for the blocks of a model."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from torch._functorch.partitioners import get_default_op_list

from acplan import Plan, PlannedModule, PlannedOperator, Trace
from zoo import Example

# The operators that torchtitan's selective checkpointing saves, except for every second matrix
# product (torchtitan/distributed/activation_checkpoint.py), of those that models on one device
# run.
_ATTENTION = tuple(
    f"aten._scaled_dot_product_{kind}.default"
    for kind in (
        "efficient_attention",
        "flash_attention",
        "cudnn_attention",
        "attention_math",
        "fused_attention_overrideable",
    )
)
_MATRIX_PRODUCT = "aten.mm.default"
_FIRST_LIST = frozenset({_MATRIX_PRODUCT, *_ATTENTION, "aten.max.default"})


def _later_list() -> frozenset[str]:
    """Returns the list of later versions, which save what torch's partitioner takes for
    compute-intensive."""
    intensive = get_default_op_list().compute_intensive_ops
    return _FIRST_LIST | {f"{op}.default" for op in intensive} | {"aten.topk.default"}


def recipes(example: Example, traced: Trace) -> Iterator[tuple[str, Plan]]:
    """Yields each distinct plan once."""
    plans: list[Plan] = []
    for label, plan in _recipes(example, traced):
        if plan.modules and plan not in plans:
            plans.append(plan)
            yield label, plan


def _recipes(example: Example, traced: Trace) -> Iterator[tuple[str, Plan]]:
    blocks = [f"{root_of(traced)}.{block}" for block in example.blocks]
    yield "every block", _whole(blocks)
    for k, name in ((2, "2nd"), (3, "3rd"), (4, "4th")):
        # As torchtitan counts with `selective_ac_option = "2"`.
        yield f"every {name} block", _whole(blocks[k - 1 :: k])
    for label, saved in (
        ("torchtitan's operators", _FIRST_LIST),
        ("torchtitan's operators, later", _later_list()),
    ):
        units = (PlannedModule(b, _policy(traced, b, saved)) for b in blocks)
        yield label, Plan(tuple(units))


def root_of(traced: Trace) -> str:
    return str(traced.data["modules"][0]["fqn"])


def _whole(blocks: Sequence[str]) -> Plan:
    return Plan(tuple(PlannedModule(block) for block in blocks))


def _policy(traced: Trace, fqn: str, saved: Collection[str]) -> tuple[PlannedOperator, ...]:
    """Saves all random operators, or none: what is drawn after one that is saved is
    something else when the unit runs again."""
    products = 0
    saves = []
    operators = operators_of(traced, fqn)
    for operator in operators:
        name = operator["name"]
        products += name == _MATRIX_PRODUCT
        is_second = name == _MATRIX_PRODUCT and products % 2 == 0
        saves.append(name in saved and not is_second)
    random = [operator.get("random", False) for operator in operators]
    if any(save and draws for save, draws in zip(saves, random)):
        saves = [save or draws for save, draws in zip(saves, random)]
    return tuple(
        PlannedOperator(operator["name"], save) for operator, save in zip(operators, saves)
    )


def operators_of(traced: Trace, fqn: str) -> list[dict[str, Any]]:
    """Returns the operators of the module's first call."""
    data = traced.data
    names = [module["fqn"] for module in data["modules"]]
    call = next(call for call in data["calls"] if names[call["module"]] == fqn)
    operators: list[dict[str, Any]] = data["operators"][call["start"] : call["end"]]
    return operators
