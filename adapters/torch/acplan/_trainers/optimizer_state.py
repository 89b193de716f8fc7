"""acplan.make_optimizer_state: the state of an optimizer, before the first step.

PyTorch's optimizers make the state of a parameter in `_init_group`, the first time that the
parameter has a gradient, and use the gradient's shape, type and layout alone. So the same
function makes the same state earlier, with the parameter itself in place of the gradient:
nothing is computed and no memory is used except the state's. SGD is the exception: its momentum
begins as a copy of the first gradient. A step adds the gradient to a momentum that is there, so
a momentum of -0.0 becomes that copy, bit for bit.
"""

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from acplan._base.errors import AcplanError
from acplan._files.plan_file import Plan
from acplan._files.plan_table import PlanTable
from acplan._step.optimizers import innermost, named_optimizer

# The optimizers whose state does not depend on the time at which it is made. Rprop and ASGD
# note the learning rate.
_EXACT = (
    "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Muon", "NAdam", "RAdam",
    "RMSprop", "SGD",
)  # fmt: skip


def make_optimizer_state(optimizer: torch.optim.Optimizer) -> None:
    """Makes the state of an optimizer before its first step, for every parameter that requires
    a gradient; without this function, the first step makes it. The training is bit for bit the
    same.

    It must come after the model is on its device and before the first backward pass, and after
    `load_state_dict` if there is one. Parameters that have a state keep it.

    The state stays until the training ends. If it is there first, it lies together; if the
    first step makes it, PyTorch's allocator puts it into holes between activations, which can
    then not be given back (docs/python/device.md).

    Optimizers of torch.optim are supported, except SGD with dampening, LBFGS, Rprop, ASGD and
    SparseAdam; AcplanError says so.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise AcplanError(
            "make_optimizer_state: expected a torch.optim.Optimizer, found "
            f"{type(optimizer).__name__}"
        )
    optimizer = innermost(optimizer)
    _require_exact(optimizer)
    with torch.no_grad():
        for group, parameter in _without_state(optimizer):
            with _gradient(parameter):
                _make_state(optimizer, group, parameter)


def options_for(optimizer: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of acplan.plan for a step with this optimizer, as acplan.trace takes
    it: if they leave open when its state is made, and make_optimizer_state refuses it, its
    first update makes the state."""
    is_open = options.get("device_memory") is not None
    if not is_open or options.get("optimizer_state") is not None:
        return {**options}
    if isinstance(optimizer, str):
        optimizer = named_optimizer(optimizer)([torch.nn.Parameter(torch.zeros(1))])
    if not isinstance(optimizer, torch.optim.Optimizer):
        return {**options}
    try:
        _require_exact(innermost(optimizer))
    except AcplanError:
        return {**options, "optimizer_state": "update"}
    return {**options}


def make_state_of_plan(plan: Plan | PlanTable, optimizer: torch.optim.Optimizer) -> None:
    """Makes the optimizer's state if the plan says that it is there before the first step."""
    if plan.device is not None and plan.device.optimizer_state_first:
        make_optimizer_state(optimizer)


def is_on_device(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether the parameters are where the training will have them, not on the host."""
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return all(p.device.type not in ("cpu", "meta") for p in parameters)


def _require_exact(optimizer: torch.optim.Optimizer) -> None:
    kind = type(optimizer)
    bases = [getattr(torch.optim, name, None) for name in _EXACT]
    if not any(base is not None and _is_like(kind, base) for base in bases):
        raise AcplanError(
            f"make_optimizer_state: {kind.__name__} may make another state at another time; "
            f"expected one of torch.optim's {', '.join(_EXACT)}"
        )
    if not issubclass(kind, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        if group["momentum"] != 0 and group["dampening"] != 0:
            raise AcplanError(
                "make_optimizer_state: SGD with dampening does not dampen its first step, and "
                f"would with a momentum made before; expected 0, found {group['dampening']}"
            )


def _is_like(kind: type, base: type) -> bool:
    """Returns whether a class makes and uses its state as `base` does."""
    if not issubclass(kind, base):
        return False
    names = ("step", "_init_group")
    functions = [[inspect.unwrap(getattr(c, name)) for name in names] for c in (kind, base)]
    return functions[0] == functions[1]


def _without_state(
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
    """Yields the parameters that require a gradient and have no state, with their groups, in
    the order of a step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and not optimizer.state.get(parameter):
                yield group, parameter


@contextlib.contextmanager
def _gradient(parameter: torch.Tensor) -> Iterator[None]:
    """Gives the parameter a gradient within the block, which is the parameter itself."""
    if parameter.grad is not None:
        raise AcplanError(
            "make_optimizer_state: expected parameters without gradients, found one of shape "
            f"{list(parameter.shape)} with one; make the state before the first backward pass"
        )
    parameter.grad = parameter.detach()
    try:
        yield
    finally:
        parameter.grad = None


def _make_state(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: torch.Tensor
) -> None:
    if isinstance(optimizer, torch.optim.SGD):
        if group["momentum"] != 0:
            # clone() of a gradient keeps its layout, too.
            momentum = torch.full_like(
                parameter, -0.0, memory_format=torch.preserve_format, requires_grad=False
            )
            optimizer.state[parameter]["momentum_buffer"] = momentum
        return
    init_group: Any = getattr(optimizer, "_init_group")  # noqa: B009 - it has no public name
    lists: list[list[Any]] = [[] for _ in inspect.signature(init_group).parameters]
    try:
        init_group({**group, "params": [parameter]}, *lists[1:])
    except RuntimeError as error:
        raise AcplanError(f"make_optimizer_state: {error}") from error
