"""Checkpoints of the model's own, by PyTorch and by libraries, are no part of a trace. The
functions of autograd stand for those of libraries, of which they have the form."""

import functools
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed._composable import checkpoint as composable
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    offload_wrapper,
)
from torch.utils.checkpoint import (
    CheckpointFunction,
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import acplan

_X = torch.randn(64, 16)


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(nn.functional.gelu(self.wide(x)))


Call = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def _plainly(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = block(x)
    return out


class _Net(nn.Module):
    def __init__(self, call: Call = _plainly) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block() for _ in range(3))
        self.first = nn.Parameter(torch.zeros(16))
        self.call = [call]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (call,) = self.call
        x = x + self.first
        for block in self.blocks:
            x = call(block, x)
        return x.pow(2).mean()


def _selectively(block: nn.Module, x: torch.Tensor) -> Any:
    def policy(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        is_saved = func is torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.MUST_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)


def _recomputed(ctx: Any, gradients: tuple[Any, ...]) -> list[Any]:
    with torch.enable_grad():
        inputs = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        out = ctx.function(*inputs)
    torch.autograd.backward(out, gradients)
    return [tensor.grad for tensor in inputs]


class _OfMegatronCheckpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Any, shares: bool, *args: Any) -> Any:
        ctx.function = function
        ctx.save_for_backward(*args)
        with torch.no_grad():
            out = function(*args)
        ctx.mark_non_differentiable()
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        with torch.enable_grad():
            return None, None, *_recomputed(ctx, gradients)


def _class_named(module: str, backward: Any) -> Any:
    """Returns a class that is named as the library's. Its forward, which asks a device, is not
    to run."""

    def forward(ctx: Any, *args: Any) -> Any:
        raise AssertionError("no device")

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    body = {**members, "__module__": module}
    return type("CheckpointFunction", (torch.autograd.Function,), body)


_OfDeepSpeed = _class_named(
    "deepspeed.runtime.activation_checkpointing.checkpointing",
    _OfMegatronCheckpoint.backward,
)
_OfFairscale = _class_named(
    "fairscale.nn.checkpoint.checkpoint_activations", _OfMegatronCheckpoint.backward
)


def _of_deepspeed(block: nn.Module, x: torch.Tensor) -> Any:
    outputs: list[Any] = []
    _OfDeepSpeed.apply(block, outputs, x)
    return outputs[0]


def _fairscale() -> _Net:
    net = _Net()

    def forward(original: Any, module: nn.Module, x: torch.Tensor) -> Any:
        dummy = torch.tensor([], requires_grad=True)
        flags: dict[str, Any] = {}
        out = _OfFairscale.apply(dummy, original, flags, ("x",), module, x)
        return out if flags["output_requires_grad"] else out.detach()

    for block in net.blocks:
        block.forward = functools.partial(forward, _Block.forward, block)  # type: ignore
    return net


class _DiffusionCheckpoint(torch.autograd.Function):
    """Is given how many of the arguments are inputs, and then all parameters."""

    @staticmethod
    def forward(ctx: Any, function: Any, length: int, *args: Any) -> Any:
        ctx.function, ctx.inputs = function, list(args[:length])
        ctx.weights = list(args[length:])
        with torch.no_grad():
            return ctx.function(*ctx.inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        inputs = [tensor.detach().requires_grad_() for tensor in ctx.inputs]
        with torch.enable_grad():
            out = ctx.function(*[tensor.view_as(tensor) for tensor in inputs])
        results = torch.autograd.grad(out, [*inputs, *ctx.weights], gradients)
        return None, None, *results


def _of_diffusion(block: nn.Module, x: torch.Tensor) -> Any:
    return _DiffusionCheckpoint.apply(block.forward, 1, x, *block.parameters())


class _OffloadedCheckpointer(torch.autograd.Function):
    """Returns a tuple."""

    @staticmethod
    def forward(ctx: Any, function: Any, x: torch.Tensor) -> Any:
        ctx.function = function
        ctx.save_for_backward(x)
        return (function(x),)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        with torch.enable_grad():
            return None, *_recomputed(ctx, gradients)


def _by_library(net: _Net) -> _Net:
    apply_activation_checkpointing(net, check_fn=lambda module: isinstance(module, _Block))
    return net


def _offloaded() -> _Net:
    net = _Net()
    net.blocks[1] = offload_wrapper(net.blocks[1])
    return net


def _composable() -> _Net:
    net = _Net()
    for block in net.blocks:
        composable(block)
    return net


class _InSequence(_Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inputs = x + self.first
        out = checkpoint_sequential([*self.blocks], 3, inputs, use_reentrant=False)
        loss: torch.Tensor = out.pow(2).mean()
        return loss


_KINDS: dict[str, Callable[[], nn.Module]] = {
    "of a module": lambda: _Net(lambda m, x: checkpoint(m, x, use_reentrant=False)),
    "of a module, re-entrant": lambda: _Net(lambda m, x: checkpoint(m, x, use_reentrant=True)),
    "of a call of a module": lambda: _Net(
        lambda m, x: checkpoint(m.__call__, x, use_reentrant=False)
    ),
    "of a partial": lambda: _Net(
        lambda m, x: checkpoint(functools.partial(m), x, use_reentrant=False)
    ),
    "selective": lambda: _Net(_selectively),
    "CheckpointFunction": lambda: _Net(lambda m, x: CheckpointFunction.apply(m, True, x)),
    "in sequence": _InSequence,
    "composable": _composable,
    "wrappers": lambda: _by_library(_Net()),
    "offload wrapper": _offloaded,
    "Megatron": lambda: _Net(lambda m, x: _OfMegatronCheckpoint.apply(m, False, x)),
    "DeepSpeed": lambda: _Net(_of_deepspeed),
    "fairscale": _fairscale,
    "latent diffusion": lambda: _Net(_of_diffusion),
    "offloaded": lambda: _Net(lambda m, x: _OffloadedCheckpointer.apply(m, x)[0]),
}


def _traced(net: nn.Module) -> acplan.Trace:
    return acplan.trace(net, _X, workspaces=False, optimizer="sgd")


def _operators(traced: acplan.Trace) -> list[str]:
    names = [operator["name"] for operator in traced.data["operators"]]
    # fairscale makes an empty tensor for each call.
    return [name for name in names if name != "aten.lift_fresh.default"]


@pytest.fixture(scope="module")
def plain() -> acplan.Trace:
    return _traced(_Net())


@pytest.mark.parametrize("kind", _KINDS)
def test_each_kind_of_checkpoint_is_switched_off(
    kind: str, plain: acplan.Trace, caplog: Any
) -> None:
    net = _KINDS[kind]()
    apply = vars(torch.autograd.Function)["apply"]
    with caplog.at_level(logging.WARNING, "acplan"):
        traced = _traced(net)
    assert _operators(traced) == _operators(plain)
    assert traced.peak_bytes == plain.peak_bytes
    (message,) = (r.getMessage() for r in caplog.records if r.name == "acplan")
    assert "which is off during the trace" in message
    assert vars(torch.autograd.Function)["apply"] is apply


class _OfASolver(torch.autograd.Function):
    """Runs something else in backward, with gradients: that is no checkpoint."""

    @staticmethod
    def forward(ctx: Any, function: Any, x: torch.Tensor) -> Any:
        ctx.function = function
        ctx.save_for_backward(x)
        for _ in range(2):
            x = function(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        with torch.enable_grad():
            return None, *_recomputed(ctx, (gradient,))


class _CheckpointOfWeights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, module: list[nn.Module], x: torch.Tensor) -> Any:
        ctx.function = module[0]
        ctx.save_for_backward(x)
        return module[0](x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        with torch.enable_grad():
            return None, *_recomputed(ctx, (gradient,))


def test_what_cannot_be_switched_off_is_said(caplog: Any) -> None:
    net = _Net(lambda m, x: _CheckpointOfWeights.apply([m], x))
    with caplog.at_level(logging.WARNING, "acplan"):
        _traced(net)
    (message,) = (r.getMessage() for r in caplog.records if r.name == "acplan")
    assert "_CheckpointOfWeights), which acplan cannot switch off" in message


def test_a_function_that_solves_is_none(plain: acplan.Trace, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "acplan"):
        traced = _traced(_Net(lambda m, x: _OfASolver.apply(m, x)))
    assert len(_operators(traced)) > len(_operators(plain))
    assert not [r for r in caplog.records if r.name == "acplan"]


def test_plans_that_recompute_whole_modules_are_verified() -> None:
    net = _Net(lambda m, x: checkpoint(m, x, use_reentrant=False))
    plan = acplan.Plan((acplan.PlannedModule("_Net.blocks.1"),))
    traced = _traced(net)
    options: dict[str, Any] = {"workspaces": False, "optimizer": "sgd"}
    verification = acplan.verify(net, plan, _X, trace=traced, **options)
    assert verification.first_difference() is None
    assert len(verification.measured) > len(traced.data["operators"])
