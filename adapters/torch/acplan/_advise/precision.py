"""Levers that change the precision of what training keeps and computes, and the copy of a model
on which they work."""

import contextlib
import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map

from acplan._advise.levers import (
    NOTHING,
    ROUNDING,
    Lever,
    NotApplicable,
    implemented,
    optimizer_made_again,
    optimizer_setting,
)
from acplan._base.offloaded_states import OffloadedStates, offload_states
from acplan._device.devices import Device
from acplan._step.optimizers import (
    ON_HOST,
    ON_HOST_IN_BACKWARD,
    OptimizerLike,
    innermost,
)
from acplan._step.training_step import TrainingStep


def copy_on_meta(step: TrainingStep) -> TrainingStep:
    """Returns the step with a copy of its model that has no values, and that levers may
    change."""
    memo: dict[int, object] = {}
    for parameter in step.model.parameters():
        data = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = torch.nn.Parameter(data, parameter.requires_grad)
    for buffer in step.model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    optimizer = step.optimizer
    if isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer_made_again(step)  # its own parameters are the model's
    return dataclasses.replace(step, model=copy.deepcopy(step.model, memo), optimizer=optimizer)


def computes_in_float32(step: TrainingStep) -> bool:
    """Returns whether the step has parameters of 32 bits that nothing casts."""
    has_float32 = any(p.dtype == torch.float32 for p in step.model.parameters())
    return has_float32 and step.autocast is None and step.param_dtype is None


# --- Autocast and weights


def autocast_lever(device: Device) -> Lever:
    """Returns the lever for the 16 bits that the device computes with."""
    name = "bf16" if _has_bfloat16(device) else "fp16"

    @contextlib.contextmanager
    def setting(step: TrainingStep) -> Iterator[TrainingStep]:
        if not computes_in_float32(step):
            raise NotApplicable("the step does not compute in float32")
        yield dataclasses.replace(
            step, autocast=name, grad_scaler=step.grad_scaler or name == "fp16"
        )

    dtype = "torch.bfloat16" if name == "bf16" else "torch.float16"
    scaler = "" if name == "bf16" else ", and a torch.amp.GradScaler"
    options = {"autocast": repr(name)} | ({} if name == "bf16" else {"grad_scaler": "True"})
    return Lever(
        f"autocast {name}",
        f'with torch.autocast("cuda", {dtype}): around the forward pass{scaler}',
        setting,
        "precision",
        ROUNDING,
        options,
    )


def _has_bfloat16(device: Device) -> bool:
    return device.is_rocm or device.capability >= (8, 0)


@contextlib.contextmanager
def _half_weights(step: TrainingStep) -> Iterator[TrainingStep]:
    if all(p.dtype != torch.float32 for p in step.model.parameters()):
        raise NotApplicable("the model has no weights in float32")
    yield half_weights(step)


def half_weights(step: TrainingStep) -> TrainingStep:
    """Returns the step with a copy of the model in bfloat16, and inputs to match."""
    changed = copy_on_meta(step)
    changed.model.to(torch.bfloat16)
    if step.autocast is not None:
        return changed
    args, kwargs = tree_map(_in_bfloat16, (step.args, step.kwargs))
    return dataclasses.replace(changed, args=args, kwargs=kwargs)


def _in_bfloat16(value: object) -> object:
    if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
        return torch.empty_like(value, dtype=torch.bfloat16, device="meta")
    return value


def half_weights_lever() -> Lever:
    return Lever(
        "bf16 weights",
        "model = model.to(torch.bfloat16), and inputs of floating point likewise",
        _half_weights,
        "precision",
        ROUNDING,
    )


# --- The optimizer


def optimizer_class(step: TrainingStep) -> type[torch.optim.Optimizer]:
    """Returns the class of the step's optimizer."""
    if isinstance(step.optimizer, torch.optim.Optimizer):
        return type(innermost(step.optimizer))
    return type(optimizer_made_again(step)([torch.nn.Parameter(torch.zeros(1))]))


def optimizer_for_others(step: TrainingStep) -> OptimizerLike:
    """Returns the optimizer for other parameters than the model's own."""
    if not isinstance(step.optimizer, torch.optim.Optimizer):
        return step.optimizer
    inner = innermost(step.optimizer)
    kind: Any = type(inner)
    return lambda parameters: kind(parameters, **inner.defaults)


# Implementations that `optimizer` of acplan.trace may name.
_FUSED_NAMES = {"AdamW": "adamw-fused", "Adam": "adam-fused", "SGD": "sgd-fused"}


def fused_lever(step: TrainingStep) -> Lever:
    """Returns the lever of the optimizer's fused implementation."""
    kind = _class_name(step)
    return Lever(
        "fused optimizer",
        f"optimizer = torch.optim.{kind}(model.parameters(), ..., fused=True)",
        optimizer_setting(implemented(fused=True, foreach=False)),
        "optimizer",
        options={"optimizer": _fused_option(step, kind)},
    )


HOST_STATES = "state on the host"
EARLY_HOST_STATES = "state on the host, update in backward"


def host_states_levers(step: TrainingStep) -> list[Lever]:
    """Returns the levers of the optimizer's states in the host's memory, with the fused
    implementation if there is one. The model must not be sharded."""
    return [_host_states_lever(step, is_early) for is_early in (True, False)]


def _host_states_lever(step: TrainingStep, is_early: bool) -> Lever:
    kind = _class_name(step)
    fused = ", fused=True" if kind in _FUSED_NAMES else ""
    early = ", in_backward=True" if is_early else ""
    own = f"torch.optim.{kind}(model.parameters(), ...{fused})"
    suffix = ON_HOST_IN_BACKWARD if is_early else ON_HOST

    @contextlib.contextmanager
    def setting(step: TrainingStep) -> Iterator[TrainingStep]:
        if is_early and _reads_gradients(step):
            raise NotApplicable("gradients are combined or read before the update")

        def on_host(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
            return _on_host(optimizer, is_early)

        with optimizer_setting(on_host)(step) as changed:
            yield changed

    return Lever(
        EARLY_HOST_STATES if is_early else HOST_STATES,
        f"optimizer = acplan.offload_states({own}{early})",
        setting,
        "optimizer",
        NOTHING,
        {"optimizer": _fused_option(step, kind, suffix)},
    )


def _reads_gradients(step: TrainingStep) -> bool:
    """Returns whether the step has several gradients, or reads them before the update."""
    clips = step.clip_grad_norm is not None or step.clip_grad_value is not None
    return step.accumulate > 1 or clips or step.grad_scaler or step.step_fn is not None


def _on_host(optimizer: torch.optim.Optimizer, is_early: bool) -> torch.optim.Optimizer:
    if isinstance(optimizer, OffloadedStates):
        raise NotApplicable("it is already set")
    if type(optimizer).__name__ in _FUSED_NAMES:
        with contextlib.suppress(NotApplicable):
            optimizer = implemented(fused=True, foreach=False)(optimizer)
    return offload_states(optimizer, in_backward=is_early)


def adam_parameters(step: TrainingStep) -> int | None:
    """Returns the number of trained parameters, or None if the optimizer is no Adam."""
    if "Adam" not in _class_name(step):
        return None
    return sum(p.numel() for p in step.model.parameters() if p.requires_grad)


def _class_name(step: TrainingStep) -> str:
    try:
        return optimizer_class(step).__name__
    except Exception:  # of a function of the user's that needs the model's own parameters
        return "..."


def _fused_option(step: TrainingStep, kind: str, suffix: str = "") -> str:
    """Returns the option `optimizer` of acplan.trace for the fused implementation, as Python: a
    name if the step has its optimizer by name."""
    default = "adamw" if step.optimizer is None else step.optimizer
    is_plain = isinstance(default, str) and default.lower() in ("adamw", "adam", "sgd")
    is_named = is_plain and kind in _FUSED_NAMES
    return repr(_FUSED_NAMES[kind] + suffix) if is_named else "optimizer"


# The option of acplan.trace and the class of each. Paged states wait in the host's memory.
EIGHT_BIT_OPTIMIZERS = {
    "8-bit AdamW": ("adamw-8bit", "bitsandbytes.optim.AdamW8bit"),
    "paged 8-bit AdamW": ("paged-adamw-8bit", "bitsandbytes.optim.PagedAdamW8bit"),
    "8-bit AdamW of torchao": ("torchao-adamw-8bit", "torchao.optim.AdamW8bit"),
}


def eight_bit_levers(step: TrainingStep) -> list[Lever]:
    """Returns the levers of AdamW with states of 8 bits that can step on the parameters: only
    torchao's steps on the shards of fully_shard."""
    is_sharded = step.parallel is not None
    kinds = [kind for kind in EIGHT_BIT_OPTIMIZERS if is_sharded == kind.endswith("torchao")]
    return [_eight_bit_lever(kind) for kind in kinds]


def _eight_bit_lever(kind: str) -> Lever:
    """Returns the lever of AdamW with states of 8 bits, in place of Adam or AdamW. `kind` is a
    name of EIGHT_BIT_OPTIMIZERS."""
    name, own_class = EIGHT_BIT_OPTIMIZERS[kind]

    @contextlib.contextmanager
    def setting(step: TrainingStep) -> Iterator[TrainingStep]:
        own = optimizer_class(step).__name__
        if own not in ("Adam", "AdamW"):
            raise NotApplicable(f"{own} has no implementation with states of 8 bits")
        yield dataclasses.replace(step, optimizer=name)

    return Lever(
        kind,
        f"optimizer = {own_class}(model.parameters(), ...)",
        setting,
        "optimizer",
        ROUNDING,
        {"optimizer": repr(name)},
    )
