"""Policies that `acplan emit` prints, applied by the trainers' own code: the operators that run
again and the peak are those that it says."""

import collections
import functools
import importlib.util
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

import acplan
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
