"""The run that `acplan simulate --allocator` simulates beside one on fake tensors: every
allocation and every free of three iterations, in order."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import acplan
from acplan._step.training_step import TrainingStep
from run_events import (
    Request,
    difference,
    predicted_requests,
    real_requests,
    tiny_bert,
    tiny_gpt2,
)

Case = tuple[nn.Module, dict[str, Any]]


def _gpt2() -> Case:
    return tiny_gpt2(), _tokens(8, 64)


def _bert() -> Case:
    inputs = _tokens(16, 32)
    inputs["attention_mask"] = torch.ones_like(inputs["labels"])
    return tiny_bert(), inputs


def _t5() -> Case:
    config = transformers.T5Config(
        d_model=64,
        d_kv=32,
        d_ff=128,
        num_layers=2,
        num_heads=2,
        vocab_size=128,
        use_cache=False,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config), _tokens(16, 32)


def _resnet() -> Case:
    config = transformers.ResNetConfig(
        num_labels=10,
        embedding_size=8,
        hidden_sizes=[16, 32],
        depths=[2, 2],
        layer_type="basic",
    )
    inputs = {
        "pixel_values": torch.zeros(16, 3, 32, 32),
        "labels": torch.zeros(16, dtype=torch.long),
    }
    return transformers.ResNetForImageClassification(config), inputs


def _tokens(batch: int, length: int) -> dict[str, torch.Tensor]:
    tokens = torch.zeros(batch, length, dtype=torch.long)
    return {"input_ids": tokens, "labels": tokens.clone()}


@functools.cache
def _step_of(make: Callable[[], Case], **options: Any) -> tuple[TrainingStep, acplan.Trace]:
    with torch.device("meta"):
        model, inputs = make()
    step = TrainingStep.from_arguments(model, (), {**options, **inputs})
    # Workspaces are no results of operators: a run on fake tensors does not show them.
    trace = acplan.trace(model, progress=False, workspaces=False, **step.options())
    return step, trace


def _compare(
    make: Callable[[], Case], budget: str | None, is_state_first: bool = False, **options: Any
) -> str:
    step, trace = _step_of(make, **options)
    plan = None if budget is None else acplan.plan(trace, budget, time_limit=2)
    assert plan is None or plan.modules
    real = real_requests(step, plan, is_state_first=is_state_first)
    predicted = predicted_requests(trace, plan, is_state_first=is_state_first)
    assert len(predicted) > len(real) // 2 > 100
    return difference(real, predicted)


@pytest.mark.parametrize(
    ("make", "budget"),
    [
        (_gpt2, None), (_gpt2, "min"), (_bert, "60%"), (_bert, "min"),
        (_t5, None), (_t5, "50%"), (_resnet, "80%"), (_resnet, "min"),
    ],
)  # fmt: skip
def test_a_run_asks_for_what_is_predicted(make: Callable[[], Case], budget: str | None) -> None:
    assert _compare(make, budget) == ""


@pytest.mark.parametrize(
    ("options", "budget"),
    [
        ({"accumulate": 3}, None),
        ({"accumulate": 3}, "min"),
        ({"clip_grad_norm": 1.0}, None),
        ({"grad_scaler": True}, "min"),
        ({"ema": 0.9}, None),
        ({"optimizer": "momentum"}, "min"),
        ({"optimizer": "adamw-fused"}, "min"),
        ({"optimizer": "adamw-for-loop"}, None),
        ({"autocast": "bf16"}, None),
        ({"autocast": "bf16"}, "min"),
    ],
    ids=str,
)
def test_other_steps(options: dict[str, Any], budget: str | None) -> None:
    assert _compare(_gpt2, budget, **options) == ""


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"optimizer": "momentum"}])
def test_a_state_that_is_made_first(options: dict[str, Any]) -> None:
    assert _compare(_gpt2, "min", is_state_first=True, **options) == ""


def test_a_difference_is_told() -> None:
    requests = [
        Request(8, frozenset(), place="a"),
        Request(16, frozenset({0}), place="b"),
    ]
    assert difference(requests, requests) == difference(requests, requests[:1]) == ""
    larger = [requests[0], dataclasses.replace(requests[1], bytes=32)]
    assert "request 1: 16 bytes at b, predicted 32" in difference(requests, larger)
    later = [requests[0], dataclasses.replace(requests[1], freed=frozenset())]
    assert "freed before 0 (8 bytes, a), predicted -" in difference(requests, later)
    assert difference(requests[:1], requests) == "1 requests, predicted 2"


class _TwoTypes(nn.Module):
    """Parameters of two types, in branches that backward visits in turn, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.single = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)), nn.BatchNorm1d(64))
        self.short = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).bfloat16()
        self.unused = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.single(x).sum() + self.short(x.bfloat16()).float().sum()


def _two_types() -> Case:
    return _TwoTypes(), {"x": torch.zeros(32, 64)}


def _two_types_all_used() -> Case:
    model, inputs = _two_types()
    del model.unused
    return model, inputs


def _compare_in_ddp(
    make: Callable[[], Case], ddp: dict[str, Any], budget: str | None = None, **options: Any
) -> str:
    step, trace = _step_of(make, **options)
    plan = None if budget is None else acplan.plan(trace, budget, time_limit=2)
    real = real_requests(step, plan, ddp=ddp)
    plain = real_requests(step, plan)
    assert len(real) > len(plain)
    return difference(real, predicted_requests(trace, plan, ddp=ddp))


_VIEWS = {"gradient_as_bucket_view": True}


@pytest.mark.parametrize(
    ("make", "ddp"),
    [
        (_gpt2, {}),
        (_gpt2, _VIEWS),
        (_gpt2, {"bucket_cap_mb": 0.1}),
        (_bert, {}),
        (_bert, _VIEWS | {"bucket_cap_mb": 0.02}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_run_in_ddp(make: Callable[[], Case], ddp: dict[str, Any]) -> None:
    assert _compare_in_ddp(make, ddp) == ""


@pytest.mark.parametrize(
    "ddp",
    [
        {"find_unused_parameters": True, "bucket_cap_mb": 0.1},
        _VIEWS | {"find_unused_parameters": True},
        {"static_graph": True},
        _VIEWS | {"static_graph": True, "bucket_cap_mb": 0.1},
        {"static_graph": True, "find_unused_parameters": True},
        _VIEWS | {"broadcast_buffers": False},
        {"init_sync": False},
    ],
    ids=str,
)
def test_arguments_of_ddp(ddp: dict[str, Any]) -> None:
    assert _compare_in_ddp(_gpt2, ddp) == ""


@pytest.mark.parametrize(
    ("ddp", "budget", "options"),
    [
        (_VIEWS, "min", {}),
        ({}, None, {"accumulate": 3}),
        (_VIEWS, None, {"accumulate": 3}),
        (_VIEWS, "min", {"accumulate": 2}),
        ({}, None, {"grad_scaler": True, "clip_grad_norm": 1.0}),
        (_VIEWS, None, {"ema": 0.9, "autocast": "bf16"}),
    ],
    ids=str,
)
def test_steps_in_ddp(ddp: dict[str, Any], budget: str | None, options: dict[str, Any]) -> None:
    assert _compare_in_ddp(_gpt2, ddp, budget, **options) == ""


@pytest.mark.parametrize("cap", [1, 0.02])
def test_buckets_of_several_types(cap: float) -> None:
    assert _compare_in_ddp(_two_types_all_used, _VIEWS | {"bucket_cap_mb": cap}) == ""
    options = {"find_unused_parameters": True, "bucket_cap_mb": cap}
    assert _compare_in_ddp(_two_types, options) == ""


def test_unused_parameters_need_an_argument_of_ddp() -> None:
    _, trace = _step_of(_two_types)
    with pytest.raises(acplan.AcplanError, match="2 parameters get no gradient"):
        acplan.plan(trace, device_memory="1GiB", ddp={})


def test_a_plan_for_a_device_counts_ddp() -> None:
    _, trace = _step_of(_gpt2)
    plan = acplan.plan(trace, device_memory="12MiB", ddp=_VIEWS, time_limit=2)
    assert plan.device is not None and plan.device.ddp == "gradient_as_bucket_view:True"
    plain = acplan.plan(trace, device_memory="12MiB", time_limit=2)
    assert plain.device is not None and plain.device.ddp == ""
    assert plain.device.allocated_bytes < plan.device.allocated_bytes
