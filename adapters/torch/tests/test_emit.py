"""Policies that `acplan emit` prints, applied by the trainers' own code: the operators that run
again and the peak are those that it says."""

import collections
import functools
import importlib.util
import pathlib
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import acplan
from megatron_gpt import discarded_results_count
from trainer_policies import TRAINERS, emitted, truth
from zoo import EXAMPLES

# A policy that is not the best one is as good here.
_QUICK = ("--time-limit", "0.1")


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.wide = nn.Linear(32, 128, bias=False)
        self.narrow = nn.Linear(128, 32, bias=False)
        self.gate = nn.Linear(32, 128, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        hidden = nn.functional.silu(self.gate(normed)) * self.wide(normed)
        out: torch.Tensor = x + self.narrow(hidden)
        return out


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Block() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.pow(2).mean()


def _case(name: str) -> tuple[nn.Module, dict[str, Any]]:
    if name == "net":
        return _Net(), {"x": torch.randn(64, 32)}
    example = EXAMPLES[name]()
    return example.make().train(), example.inputs()


@functools.cache
def _trace(name: str) -> acplan.Trace:
    model, inputs = _case(name)
    return acplan.trace(model, progress=False, optimizer="sgd", **inputs)


# The trainers of transformers' models, and those that wrap modules of any model.
_CASES = [
    *(("llama", trainer) for trainer in ("accelerate", "axolotl", "nemo", "transformers")),
    *(("llama", trainer) for trainer in ("trl", "veomni")),
    *(("net", trainer) for trainer in ("lightning", "torch", "torchtitan")),
]


@pytest.mark.parametrize(("name", "trainer"), _CASES)
def test_a_trainer_does_what_the_configuration_was_said_to_do(name: str, trainer: str) -> None:
    package = {"nemo": "nemo_automodel"}.get(trainer, trainer)
    optional = ("axolotl", "nemo_automodel", "torchtitan", "trl")
    if package in optional and not importlib.util.find_spec(package):
        pytest.skip(f"{trainer} is not installed")
    trace = _trace(name)
    options: dict[str, Any] = {"optimizer": "sgd"}
    least = emitted(trace, trainer, "min", *_QUICK)
    between = (least["budget_bytes"] + trace.peak_bytes) // 2
    emissions = [emitted(trace, trainer, str(between), *_QUICK)]
    if name == "net":
        emissions.append(least)
    for emission in emissions:
        model, inputs = _case(name)
        measured = truth(model, inputs, trace, TRAINERS[trainer], emission["text"], **options)
        assert measured.reruns == collections.Counter(emission["reruns"])
        assert measured.peak_bytes == emission["peak_bytes"]


def _every_second_product(saved: list[str]) -> Any:
    counts = {False: 0, True: 0}

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        is_product = operator is torch.ops.aten.mm.default
        counts[context.is_recompute] += is_product
        is_left_out = is_product and counts[context.is_recompute] % 2 == 0
        is_saved = str(operator) in saved and not is_left_out
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def test_blocks_that_do_not_stop_early_and_save_every_second_product_are_predicted() -> None:
    """Stands in for torchtitan's SelectiveAC, which need not be installed."""
    trace = _trace("net")
    least = emitted(trace, "torchtitan", "min", *_QUICK)["budget_bytes"]
    budget = str((least + trace.peak_bytes) // 2)
    emission = emitted(trace, "torchtitan", budget, *_QUICK)
    contexts = functools.partial(_every_second_product, emission["saved"])

    def apply(model: nn.Module, text: str) -> None:
        for name, layer in list(model.get_submodule("layers").named_children()):
            unit = checkpoint_wrapper(layer, context_fn=contexts, early_stop=False)
            model.set_submodule(f"layers.{name}", unit)

    model, inputs = _case("net")
    measured = truth(model, inputs, trace, apply, emission["text"], optimizer="sgd")
    assert "aten.mm.default" in emission["saved"]
    assert measured.reruns == collections.Counter(emission["reruns"])
    assert measured.peak_bytes == emission["peak_bytes"]


def _saving_places(layer: nn.Module, saved: list[str]) -> Any:
    """Returns the contexts of a checkpoint that saves operators in these places of a layer."""
    path: list[str] = []

    def enter(name: str, module: nn.Module, args: Any) -> None:
        if not name:
            path.clear()  # a rerun may have ended inside of a module
        path.append(name)

    def leave(module: nn.Module, args: Any, out: Any) -> None:
        path.pop()

    for name, module in layer.named_modules():
        module.register_forward_pre_hook(functools.partial(enter, name))
        module.register_forward_hook(leave)

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        is_saved = f"{path[-1] if path else ''}:{operator}" in saved
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    return functools.partial(create_selective_checkpoint_contexts, policy)


@pytest.mark.parametrize(
    "text",
    [
        "remat_policy: full\n",
        "remat_policy: save_qkv_proj\n",
        "remat_policy: save_out_proj\n",
        "remat_policy: minimal_with_context\n",
        "remat_policy: custom\nmlpwi_0: device\nmlpwo: device\ncontext: device\n",
    ],
)
def test_values_that_stay_are_predicted(tmp_path: pathlib.Path, text: str) -> None:
    """PyTorch's checkpoints stand in for MaxText's, which run on JAX."""
    path = tmp_path / "run.yml"
    path.write_text(text)
    audit = acplan.audit(_trace("llama"), path, trainer="maxtext", time_limit=0.1)
    saved = audit.data["saved"]

    def apply(model: nn.Module, text: str) -> None:
        for name, layer in list(model.get_submodule("model.layers").named_children()):
            unit = checkpoint_wrapper(layer, context_fn=_saving_places(layer, saved))
            model.set_submodule(f"model.layers.{name}", unit)

    model, inputs = _case("llama")
    measured = truth(model, inputs, _trace("llama"), apply, text, optimizer="sgd")
    assert bool(saved) == ("full" not in text)
    assert measured.reruns == collections.Counter(audit.data["reruns"])
    assert measured.peak_bytes == audit.effect.peak_bytes


class _Again(torch.autograd.Function):
    """A module that keeps its argument, and a result that was made again from it."""

    @staticmethod
    def forward(ctx: Any, owner: "_Discarding", x: torch.Tensor) -> torch.Tensor:
        ctx.owner = owner
        ctx.save_for_backward(x)
        owner.context = ctx
        out: torch.Tensor = owner.plain(x)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, torch.Tensor | None]:
        (x, out), ctx.rerun = ctx.rerun, None
        torch.autograd.backward(out, gradients)
        return None, x.grad


class _Discarding:
    """Discards the result of a norm when its reader has run, and makes it again when the
    gradient of the reader's result arrives."""

    def __init__(self, norm: nn.Module, reader: nn.Module) -> None:
        self.plain = norm.forward
        self.context: Any = None
        self.out: Any = None
        norm.forward = self._run  # type: ignore[method-assign]  # of this module alone
        reader.register_forward_hook(self._discard)

    def _run(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _Again.apply(self, x)  # type: ignore[no-untyped-call]  # PyTorch's
        self.out = out
        return out

    def _discard(self, reader: nn.Module, args: Any, result: Any) -> None:
        self.out.untyped_storage().resize_(0)
        first = result[0] if isinstance(result, tuple) else result
        first.register_hook(self._make_again)

    def _make_again(self, gradient: torch.Tensor) -> None:
        x = self.context.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            out = self.plain(x)
        self.out.untyped_storage().resize_(out.untyped_storage().nbytes())
        self.context.rerun = x, out
        self.context = self.out = None


class _NormedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(32)
        # The peak is inside of their backward passes, where a norm's result is there twice.
        self.self_attn = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))
        self.pre_mlp_layernorm = nn.LayerNorm(32)
        self.mlp = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        out: torch.Tensor = x + self.mlp(self.pre_mlp_layernorm(x))
        return out


def _normed_net() -> nn.Module:
    net = _Net()
    net.layers = nn.ModuleList(_NormedBlock() for _ in range(4))
    return net


@pytest.mark.parametrize("parts", ["layernorm", "layernorm mlp"])
def test_norms_that_discard_their_results_are_predicted(
    tmp_path: pathlib.Path, parts: str
) -> None:
    """Stands in for Megatron-Core's `layernorm`, which need not be installed."""
    path = tmp_path / "train.sh"
    path.write_text(f"--recompute-granularity selective --recompute-modules {parts}\n")
    batch = {"x": torch.randn(4096, 32, requires_grad=True)}
    trace = acplan.trace(_normed_net(), progress=False, optimizer="sgd", **batch)
    audit = acplan.audit(trace, path, trainer="megatron", time_limit=0.1)

    def apply(model: nn.Module, text: str) -> None:
        for layer in model.get_submodule("layers").children():
            mlp = layer.get_submodule("mlp")
            if "mlp" in text:
                unit = functools.partial(checkpoint, mlp.forward, use_reentrant=True)
                mlp.forward = unit  # type: ignore[method-assign]  # of this module alone
            _Discarding(
                layer.get_submodule("input_layernorm"), layer.get_submodule("self_attn")
            )
            _Discarding(layer.get_submodule("pre_mlp_layernorm"), mlp)

    with discarded_results_count():
        measured = truth(_normed_net(), batch, trace, apply, parts, optimizer="sgd")
    assert measured.reruns == collections.Counter(audit.data["reruns"])
    # A reentrant checkpoint holds the gradient of its result.
    gradient_bytes = 4096 * 32 * 4 if "mlp" in parts else 0
    assert measured.peak_bytes - audit.effect.peak_bytes == gradient_bytes
    assert measured.peak_bytes < trace.peak_bytes
