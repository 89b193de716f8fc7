"""acplan.what_fits: each answer is what a trace of exactly its settings simulates."""

import contextlib
from collections.abc import Iterator
from typing import Any

import peft
import pytest
import torch
import transformers
from torch import nn

import acplan
from acplan._advise.bench import Bench, Case, Limit
from acplan._advise.combinations import Combination, combinations
from acplan._advise.levers import LEVERS, with_levers
from acplan._device.devices import DEVICES
from acplan._step.training_step import TrainingStep

_H100 = DEVICES["h100"]
_LOSS = "loss: fused with the last layer"
_FAST = {"time_limit": 0.2, "workspaces": False}


def _llama() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=512, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        tokens = torch.zeros(4, 32, dtype=torch.long)
        model = transformers.LlamaForCausalLM(config)
    return model, {"input_ids": tokens, "labels": tokens}


def _bench(**options: Any) -> Bench:
    model, inputs = _llama()
    step = TrainingStep.from_arguments(model, (), {**inputs, **options})
    return Bench(step, _H100, Limit({"budget": "1GiB"}, 1 << 30), {"time_limit": 0.2}, False)


# A user would write the step in this way.
@contextlib.contextmanager
def _by_hand(names: tuple[str, ...]) -> Iterator[tuple[nn.Module, dict[str, Any]]]:
    model, options = _llama()
    if "bf16 weights" in names:
        model = model.to(torch.bfloat16)
    if "LoRA r=16" in names:
        config = peft.LoraConfig(r=16, target_modules="all-linear")
        model = peft.get_peft_model(model, config)
    if "autocast bf16" in names:
        options["autocast"] = "bf16"
    for name, optimizer in (
        ("fused optimizer", lambda p: torch.optim.AdamW(p, fused=True)),
        ("8-bit AdamW", "adamw-8bit"),
        ("paged 8-bit AdamW", "paged-adamw-8bit"),
    ):
        if name in names:
            options["optimizer"] = optimizer
    levers = [LEVERS[_LOSS]] if _LOSS in names else []
    with with_levers(TrainingStep.from_arguments(model, (), options), levers) as step:
        yield step.model, step.options()


def test_every_combination_is_the_step_that_one_would_write() -> None:
    bench = _bench()
    names = []
    for combination in combinations(bench.step, bench.device):
        names.append(combination.names)
        if _LOSS in combination.names and not {"8-bit AdamW", "LoRA r=16"} & {*names[-1]}:
            continue  # no other case than those
        state = bench.state_of(combination)
        attempt = bench.attempt(Case(combination, 1, state))
        assert attempt.fit is not None and not attempt.fit.plan.modules
        assert attempt.fit.peak_bytes == attempt.traced.peak_bytes >= state.device
        if any(name.startswith("QLoRA") for name in combination.names):
            continue  # it has no layers but bitsandbytes' own
        with _by_hand(combination.names) as (model, options):
            expected = acplan.trace(model, device="h100", workspaces=False, **options)
        assert attempt.traced.peak_bytes == expected.peak_bytes, combination.names
    assert len(set(names)) == len(names) == 20


# The update needs all of it at once: nothing but its temporaries comes on top.
@pytest.mark.parametrize("optimizer", ["adamw-fused", "adamw-8bit", "sgd-fused"])
def test_the_state_is_that_of_the_trace(optimizer: str) -> None:
    bench = _bench(optimizer=optimizer)
    state = bench.state_of(Combination(()))
    traced = acplan.trace(
        bench.step.model, device="h100", workspaces=False, **bench.step.options()
    )
    sizes = [
        -(-s["bytes"] // 512) * 512
        for s in traced.data["storages"]
        if s["category"] in ("parameter", "gradient", "buffer", "input", "optimizer")
        and (s["category"] != "optimizer" or s["bytes"] > 4)
    ]
    # The counters of steps, and tables of 8-bit values, are small.
    assert state.device <= sum(sizes) <= state.device + 8192


def test_settings_that_fit_come_with_their_plan_and_lines() -> None:
    model, inputs = _llama()
    whole = acplan.trace(model, device="h100", workspaces=False, **inputs)
    fits = acplan.what_fits(
        model, device="h100", budget=whole.peak_bytes, seconds=0, **_FAST, **inputs
    )
    assert fits and [fit.change for fit in fits.fits] == ["nothing", "rounding", "the method"]
    first = fits[0]
    assert first.settings == ("as it is",) and first.peak_bytes == whole.peak_bytes
    assert first.per_second == pytest.approx(4000 / first.step_ms)
    assert "trains fastest" in str(fits) and "not traced" in str(fits)


def test_a_microbatch_is_divided_until_it_fits() -> None:
    model, inputs = _llama()
    quarters = acplan.trace(
        model, device="h100", workspaces=False, accumulate=4, optimizer="adamw-fused",
        **{name: t[:1].clone() for name, t in inputs.items()},
    )  # fmt: skip
    least = acplan.plan(quarters, "min", time_limit=0.2).peak_bytes
    fits = acplan.what_fits(
        model,
        device="h100",
        budget=least,
        seconds=60,
        optimizer="adamw-fused",
        **_FAST,
        **inputs,
    )
    first = fits[0]
    assert first.change == "nothing" and first.peak_bytes <= least
    assert (first.microbatch or 0) * first.accumulate == 4
    assert any("acplan.apply(model, plan)" in line for line in first.lines)


def test_if_nothing_fits_the_answer_says_what_would() -> None:
    model, inputs = _llama()
    fits = acplan.what_fits(model, device="h100", budget="10kB", seconds=0, **_FAST, **inputs)
    assert not fits and "too much" in fits.verdict
    assert "the smallest card of the table on which it ends is the t4" in fits.verdict
    assert fits.verdict in str(fits)


def test_a_model_is_sharded_over_gpus_and_left_unchanged() -> None:
    model, inputs = _llama()
    names = [name for name, _ in model.named_parameters()]
    one = acplan.trace(model, device="h100", workspaces=False, **inputs)
    fits = acplan.what_fits(
        model, device="h100", budget="1GiB", gpus=2, seconds=0, **_FAST, **inputs
    )
    assert fits[0].settings == ("as it is",) and fits[0].peak_bytes < one.peak_bytes
    assert [name for name, _ in model.named_parameters()] == names
    assert "LoRA r=16" in fits[-1].settings and "samples a step on each" in fits.title
