"""Optimizers of a traced step: by name, by class, by a function, or like one that the user
has."""

import difflib
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from acplan._base.errors import AcplanError
from acplan._base.offloaded_states import OffloadedStates, offload_states

OptimizerFn = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
OptimizerLike = OptimizerFn | torch.optim.Optimizer | str | None


class _Blockwise(torch.optim.Optimizer):
    """A stand-in for bitsandbytes' AdamW (0.45), whose own kernels need a GPU: it has the
    memory that AdamW keeps for each parameter, and takes no other while it steps."""

    def __init__(self, parameters: list[torch.nn.Parameter], bits: int, is_paged: bool) -> None:
        super().__init__(parameters, {})
        self._bits = bits
        self._is_paged = is_paged
        self._maps: list[torch.Tensor] = []

    # Traces pass no closure; PyTorch declares an overload for each.
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state |= self._states_of(parameter)
                parameter.add_(parameter.grad)
                for moment in ("state1", "state2"):
                    state[moment].zero_()

    def _states_of(self, parameter: torch.nn.Parameter) -> dict[str, Any]:
        count = parameter.numel()
        is_small = self._bits == 32 or count < 4096
        # Paged memory is managed memory, which is not the allocator's.
        device = "cpu" if self._is_paged and count >= 1e5 else parameter.device
        state = {
            moment: torch.zeros_like(
                parameter,
                dtype=torch.float32 if is_small else torch.uint8,
                device=device,
            )
            for moment in ("state1", "state2")
        }
        if is_small:
            return state
        if not self._maps:
            self._maps = [torch.empty(256, device=parameter.device) for _ in range(2)]
        blocks = -(-count // 256)
        for place, of_map in enumerate(self._maps, 1):
            state[f"qmap{place}"] = of_map
            state[f"absmax{place}"] = torch.zeros(blocks, device=parameter.device)
        return state


class _Torchao(torch.optim.Optimizer):
    """A stand-in for torchao's AdamW8bit (0.18), which steps on the shards of fully_shard. Its
    own step is compiled; a stand-in takes what Inductor allocates: two buffers in float32."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {})

    # Traces pass no closure; PyTorch declares an overload for each.
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                # A shard is a DTensor.
                local = getattr(parameter, "to_local", parameter.detach)()
                state = self.state[parameter]
                if not state:
                    state |= self._states_of(local)
                buffers: list[torch.Tensor] = []
                if "scale1" in state:
                    buffers = [torch.empty_like(local, dtype=torch.float32) for _ in range(2)]
                parameter.add_(parameter.grad)
                for moment in ("state1", "state2"):
                    state[moment].zero_()
                del buffers

    def _states_of(self, local: torch.Tensor) -> dict[str, Any]:
        count = local.numel()
        is_small = count < 4096 or count % 256 != 0
        dtype = local.dtype if is_small else torch.uint8
        state = {f"state{n}": torch.zeros_like(local, dtype=dtype) for n in (1, 2)}
        if is_small:
            return state
        for n in (1, 2):
            state[f"scale{n}"] = torch.zeros(count // 256, device=local.device)
            state[f"qmap{n}"] = torch.empty(256, device=local.device)
        return state


def _from_torch(name: str, **options: Any) -> OptimizerFn:
    # It is looked up when it is used: not every PyTorch has all optimizers.
    return lambda parameters: getattr(torch.optim, name)(parameters, **options)


def _blockwise(bits: int, is_paged: bool) -> OptimizerFn:
    return lambda parameters: _Blockwise(parameters, bits, is_paged)


# If the name does not choose an implementation, PyTorch chooses it as on CUDA.
OPTIMIZERS: Mapping[str, OptimizerFn] = {
    "adamw": _from_torch("AdamW"),
    "adamw-fused": _from_torch("AdamW", fused=True),
    "adamw-foreach": _from_torch("AdamW", foreach=True),
    "adamw-for-loop": _from_torch("AdamW", foreach=False),
    "adamw-capturable": _from_torch("AdamW", capturable=True),
    "adamw-8bit": _blockwise(8, False),
    "torchao-adamw-8bit": _Torchao,
    "paged-adamw": _blockwise(32, True),
    "paged-adamw-8bit": _blockwise(8, True),
    "adam": _from_torch("Adam"),
    "adam-fused": _from_torch("Adam", fused=True),
    "sgd": _from_torch("SGD", lr=1e-3),
    "sgd-fused": _from_torch("SGD", lr=1e-3, fused=True),
    "momentum": _from_torch("SGD", lr=1e-3, momentum=0.9),
    "rmsprop": _from_torch("RMSprop"),
    "adagrad": _from_torch("Adagrad"),
    "adafactor": _from_torch("Adafactor"),
}

# The ends of names whose states wait in the host's memory, as in "adamw-fused-on-host", or in
# "adamw-fused-50%-on-host" where half of them do.
ON_HOST, ON_HOST_IN_BACKWARD = "-on-host", "-on-host-in-backward"
_SHARE = re.compile(r"(.*)-(\d{1,3})%")

# The names that transformers' TrainingArguments have for some of them.
_ALIASES: Mapping[str, str] = {
    "adamw-torch": "adamw",
    "adamw-torch-fused": "adamw-fused",
    "adamw-torch-8bit": "torchao-adamw-8bit",
    "adamw-bnb-8bit": "adamw-8bit",
    "paged-adamw-32bit": "paged-adamw",
}


def make_optimizer(
    optimizer: OptimizerLike,
    model: torch.nn.Module,
    fake: Callable[[Any], Any],
) -> torch.optim.Optimizer:
    """Returns the optimizer of the model. The model's parameters are fakes of those that an
    optimizer of the user's has."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise AcplanError("no parameter of the model requires a gradient")
    if isinstance(optimizer, torch.optim.Optimizer):
        return optimizer_like(optimizer, {id(p) for p in trained}, fake)
    if isinstance(optimizer, str):
        optimizer = named_optimizer(optimizer)
    if optimizer is None:
        optimizer = OPTIMIZERS["adamw"]
    if not callable(optimizer):
        several = isinstance(optimizer, (list, tuple, dict))
        hint = (
            "; if there are several optimizers, trace the step of each with its own loss"
            if several
            else ""
        )
        raise AcplanError(
            "optimizer: expected a name, a function of the parameters, a class or a "
            f"torch.optim.Optimizer, found {type(optimizer).__name__}{hint}"
        )
    return optimizer(trained)


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether an optimizer's step runs forward and backward by itself, as that of LBFGS
    does."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def named_optimizer(name: str) -> OptimizerFn:
    key = name.lower().replace("_", "-")
    for end in (ON_HOST, ON_HOST_IN_BACKWARD):
        if key.endswith(end):
            key, share, is_early = key.removesuffix(end), 1.0, end != ON_HOST
            if match := _SHARE.fullmatch(key):
                key, share = match[1], int(match[2]) / 100
            own = named_optimizer(key)
            return lambda parameters: offload_states(
                own(parameters), in_backward=is_early, share=share
            )
    key = _ALIASES.get(key, key)
    if key in OPTIMIZERS:
        return OPTIMIZERS[key]
    near = difflib.get_close_matches(key, OPTIMIZERS, 1)
    raise AcplanError(
        f"optimizer: expected one of {', '.join(OPTIMIZERS)}, which may end in {ON_HOST} or "
        f"{ON_HOST_IN_BACKWARD}, found {name!r}"
        + (f"; did you mean {near[0]}?" if near else "")
    )


def innermost(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Returns the optimizer inside the wrappers of trainers."""
    inner = getattr(optimizer, "optimizer", None)
    return innermost(inner) if isinstance(inner, torch.optim.Optimizer) else optimizer


def optimizer_like(
    optimizer: torch.optim.Optimizer, trained: set[int], fake: Callable[[Any], Any]
) -> torch.optim.Optimizer:
    """Returns another optimizer of the same class, with the same groups and options, in the
    state before its first step. `trained` are the ids of the fakes that it may step."""
    optimizer = innermost(optimizer)
    if isinstance(optimizer, OffloadedStates):
        return optimizer.wrap(optimizer_like(optimizer.inner, trained, fake))
    groups: Sequence[dict[str, Any]] = optimizer.param_groups
    of_it = {id(p): p for group in groups for p in group["params"]}

    def faked(value: Any) -> Any:
        return fake(value) if id(value) in of_it else value

    faked_ids = {id(fake(p)) for p in of_it.values() if p.requires_grad}
    if not faked_ids & trained:
        raise AcplanError(
            "optimizer: none of its parameters is a trained parameter of the model: create "
            "it from the parameters of the model that is traced"
        )
    # It is not made by its __init__, whose arguments are not known. An attribute that hides a
    # method is bound to the original: schedulers and trainers hide `step` so.
    attributes = {
        name: value
        for name, value in vars(optimizer).items()
        if not callable(getattr(type(optimizer), name, None))
    }
    copy = object.__new__(type(optimizer))
    vars(copy).update(tree_map(faked, attributes))
    copy.param_groups = [tree_map(faked, group) for group in groups]
    copy.state = defaultdict(dict)
    return copy
