"""Policies that `acplan emit` prints, applied by the trainers' own code: the operators that run
again and the peak are those that it says."""

import collections
import functools
import importlib.util
from typing import Any

import pytest
import torch
from torch import nn

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
    *(("llama", trainer) for trainer in ("accelerate", "axolotl", "transformers", "trl")),
    *(("net", trainer) for trainer in ("lightning", "torch", "torchtitan")),
]


@pytest.mark.parametrize(("name", "trainer"), _CASES)
def test_a_trainer_does_what_the_configuration_was_said_to_do(name: str, trainer: str) -> None:
    if trainer in ("axolotl", "torchtitan", "trl") and not importlib.util.find_spec(trainer):
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
