"""acplan.what_fits: each answer is what a trace of exactly its settings simulates."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import peft
import pytest
import torch
import transformers
from torch import nn

import acplan
from acplan._advise.bench import Bench, Case, Limit
from acplan._advise.candidates import Clock
from acplan._advise.combinations import Combination, combinations
from acplan._advise.estimates import Estimator
from acplan._advise.levers import LEVERS, with_levers
from acplan._advise.precision import EARLY_HOST_STATES, HOST_STATES
from acplan._advise.sharding import sharded_step
from acplan._advise.shortened import repeated_count, shortened
from acplan._device.devices import DEVICES
from acplan._step.interpolation import step_ms_of
from acplan._step.training_step import TrainingStep

_H100 = DEVICES["h100"]
_LOSS = "loss: fused with the last layer"
_FAST = {"time_limit": 0.2, "workspaces": False}


def _llama(layers: int = 1) -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=2,
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


def _in_backward(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return acplan.offload_states(torch.optim.AdamW(parameters, fused=True), in_backward=True)


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
        (HOST_STATES, "adamw-fused-on-host"),
        (EARLY_HOST_STATES, _in_backward),
        ("8-bit AdamW", "adamw-8bit"),
        ("paged 8-bit AdamW", "paged-adamw-8bit"),
    ):
        if name in names:
            options["optimizer"] = optimizer
    levers = [LEVERS[_LOSS]] if _LOSS in names else []
    with with_levers(TrainingStep.from_arguments(model, (), options), levers) as step:
        yield step.model, step.options()


@pytest.mark.parametrize("which", ["each lever", "all"])
def test_every_combination_is_the_step_that_one_would_write(which: str) -> None:
    bench = _bench()
    names: list[tuple[str, ...]] = []
    for combination in combinations(bench.step, bench.device):
        earlier_levers = {lever for other in names for lever in other}
        is_new = not names or not {*combination.names} <= earlier_levers
        names.append(combination.names)
        if which == "each lever" and not is_new:
            continue
        if _LOSS in combination.names and not {"8-bit AdamW", "LoRA r=16"} & {*names[-1]}:
            continue  # no other case than those
        is_on_host = combination.in_group("optimizer") in (HOST_STATES, EARLY_HOST_STATES)
        if is_on_host and len(names[-1]) > 1:
            continue
        state = bench.state_of(combination)
        attempt = bench.attempt(Case(combination, 1, state))
        assert attempt.fit is not None and not attempt.fit.plan.modules
        assert attempt.fit.peak_bytes == attempt.traced.peak_bytes >= state.device
        if is_on_host:
            assert state.host > 0  # its copies are in the trace, once
            assert attempt.fit.step_ms == pytest.approx(step_ms_of(attempt.traced))
        if any(name.startswith("QLoRA") for name in combination.names):
            continue  # it has no layers but bitsandbytes' own
        with _by_hand(combination.names) as (model, options):
            expected = acplan.trace(model, device="h100", workspaces=False, **options)
        assert attempt.traced.peak_bytes == expected.peak_bytes, combination.names
    assert len(set(names)) == len(names) == 28


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
    assert all(fit.peak_bytes <= least for fit in fits.fits)
    own = next(fit for fit in fits.fits if fit.settings == ("as it is",))
    assert (own.microbatch or 0) * own.accumulate == 4
    assert any("acplan.apply(model, plan)" in line for line in own.lines)
    # An update in backward cannot wait for gradients of other parts.
    early = [fit for fit in fits.fits if EARLY_HOST_STATES in fit.settings]
    assert all(fit.microbatch == 4 and fit.accumulate == 1 for fit in early)


def test_if_nothing_fits_the_answer_says_what_would() -> None:
    model, inputs = _llama()
    fits = acplan.what_fits(model, device="h100", budget="10kB", seconds=0, **_FAST, **inputs)
    assert not fits and "too much" in fits.verdict
    assert "the smallest card of the table on which it ends is the t4" in fits.verdict
    assert fits.verdict in str(fits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seconds": "a"}, "seconds: expected a number of at least 0, found 'a'"),
        ({"seconds": -1}, "seconds: expected a number of at least 0, found -1"),
        ({"gpus": 0}, "gpus: expected a whole number, 1 or more, found 0"),
        ({"device": "H10"}, "device: expected one of t4, v100"),
        ({"budget": 80}, "which is 80 bytes; did you mean"),
        ({"budget": "1GiB", "device_memory": "1GiB"}, "expected a budget or device_memory"),
        ({"mesh": {"dp": 2}, "parallelize": lambda *_: None}, "gpus= shards it"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    model, inputs = _llama()
    with pytest.raises(acplan.AcplanError, match=message):
        acplan.what_fits(model, **options, **inputs)


# Layers that are alike need the same bytes and milliseconds each.
def test_estimates_are_those_of_a_trace_of_all_layers() -> None:
    model, inputs = _llama(layers=5)
    step = TrainingStep.from_arguments(model, (), {**inputs, "optimizer": "adamw-fused"})
    combination = Combination(())
    bench = Bench(step, _H100, Limit({"budget": "1GiB"}, 1 << 30), {"time_limit": 0.2}, False)
    case = Case(combination, 4, bench.state_of(combination))
    traced = bench.traced(case)
    least = acplan.plan(traced, "min", time_limit=0.2)
    roomy = Estimator(bench).estimate(combination, case.state)
    assert roomy is not None and roomy.fits and roomy.added_ms == 0
    between = (traced.peak_bytes + 2 * least.peak_bytes) // 3
    tight = dataclasses.replace(bench, limit=Limit({"budget": between}, between))
    family = Estimator(tight)
    estimates = {
        parts: family.estimate_in(combination, case.state, parts) for parts in tight.parts
    }
    estimate = estimates[4]
    assert estimate is not None and estimate.fits
    assert estimate.plain_bytes == pytest.approx(traced.peak_bytes, rel=0.001)
    assert estimate.least_bytes == pytest.approx(least.peak_bytes, rel=0.05)
    own_ms = sum(operator["runtime_ms"] for operator in traced.data["operators"])
    assert estimate.step_ms == pytest.approx(4 * own_ms, rel=0.01)
    own_plan = acplan.plan(traced, between, time_limit=0.2)
    assert own_plan.recompute_ms > 0
    assert 1 / 2.5 < estimate.added_ms / (4 * own_plan.recompute_ms) < 2.5
    # In one part there are no gradients of an earlier one.
    assert estimates[2] is not None and estimates[2].least_bytes > estimate.least_bytes


# A long model peaks for other reasons than a short one: here, the update of a foreach optimizer
# needs most with few samples, and the passes of a rank hold the weights of several layers.
@pytest.mark.parametrize("gpus", [1, 2])
def test_estimates_follow_the_peak_to_where_it_is_in_all_layers(gpus: int) -> None:
    model, inputs = _llama(layers=4 if gpus == 1 else 6)
    step = TrainingStep.from_arguments(model, (), inputs)
    if gpus > 1:
        step = sharded_step(step, gpus)
    combination = Combination(())
    bench = Bench(step, _H100, Limit({"budget": "1GiB"}, 1 << 30), {"time_limit": 0.2}, False)
    state = bench.state_of(combination)
    traced = bench.traced(Case(combination, 1, state))
    estimate = Estimator(bench).estimate(combination, state)
    assert estimate is not None
    assert estimate.plain_bytes == pytest.approx(traced.peak_bytes, rel=0.002)
    least = acplan.plan(traced, "min", time_limit=0.2)
    assert estimate.least_bytes == pytest.approx(least.peak_bytes, rel=0.02)


def test_settings_that_no_time_is_left_to_trace_are_marked_as_estimates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Clock, "is_over", lambda _, more=0.0: True)  # a slow machine
    few = {("autocast bf16",), ("bf16 weights",)}
    monkeypatch.setattr(
        "acplan._advise.candidates.combinations",
        lambda step, device: [c for c in combinations(step, device) if c.names in few],
    )
    model, inputs = _llama(layers=4)
    count = len(list(model.modules()))
    fits = acplan.what_fits(
        model, device="h100", budget="1GiB", optimizer="adamw-fused", **_FAST, **inputs
    )
    traced = [fit for fit in fits.fits if fit.is_traced]
    estimated = [fit for fit in fits.fits if not fit.is_traced]
    assert traced and all(fit.plan is not None for fit in traced)
    assert traced[0].per_second > max(fit.per_second for fit in estimated)
    assert estimated and all(fit.plan is None and fit.lines for fit in estimated)
    assert "traces of 2 and 3 of 4 layers" in str(fits) and " estimated\n" in str(fits)
    assert f"and {len(estimated)} more by estimate" in fits.verdict
    assert len(list(model.modules())) == count
    assert {row["traced"] for row in fits.data["fits"]} == {True, False}


def test_adapters_on_rounded_weights_make_weights_of_more_or_fewer_bits_needless() -> None:
    bench = _bench()
    by_names = {c.names: c for c in combinations(bench.step, bench.device)}
    lora = by_names["bf16 weights", "LoRA r=16"]
    in_autocast, of_four_bits = by_names["autocast bf16", "LoRA r=16"], by_names["QLoRA r=16",]
    assert lora.is_milder_than(in_autocast) and lora.is_milder_than(of_four_bits)
    assert in_autocast.is_milder_than(of_four_bits)
    assert not in_autocast.is_milder_than(lora) and not of_four_bits.is_milder_than(lora)
    assert not lora.is_milder_than(by_names["bf16 weights", "8-bit AdamW"])
    assert not by_names["bf16 weights", "fused optimizer"].is_milder_than(lora)
    early, on_host = by_names[EARLY_HOST_STATES,], by_names[HOST_STATES,]
    assert early.is_milder_than(on_host) and by_names["fused optimizer",].is_milder_than(early)
    # A step that waits for copies may be slower than one with a smaller state.
    bf16 = by_names["bf16 weights", HOST_STATES]
    assert not bf16.is_milder_than(by_names["bf16 weights", "8-bit AdamW"])


def test_only_lists_of_layers_that_are_alike_are_cut() -> None:
    model = nn.Sequential(
        nn.Sequential(*(nn.Linear(4, 4) for _ in range(5))),
        nn.ModuleList([nn.Linear(4, n) for n in range(1, 6)]),
    )
    assert repeated_count(model) == 5 and repeated_count(model[1]) is None
    step = TrainingStep.from_arguments(model, (torch.zeros(1, 4),), {})
    cut = shortened(step, 2).model
    assert [len(list(part.children())) for part in cut.children()] == [2, 5]
    assert [len(list(part.children())) for part in model.children()] == [5, 5]


def test_a_model_is_sharded_over_gpus_and_left_unchanged() -> None:
    model, inputs = _llama()
    parameters = [name for name, _ in model.named_parameters()]
    one = acplan.trace(model, device="h100", workspaces=False, **inputs)
    fits = acplan.what_fits(
        model, device="h100", budget="1GiB", gpus=2, seconds=0, **_FAST, **inputs
    )
    assert fits[0].settings == ("as it is",) and fits[0].peak_bytes < one.peak_bytes
    assert [name for name, _ in model.named_parameters()] == parameters
    assert "LoRA r=16" in fits[-1].settings and "samples a step on each" in fits.title
    rows = (*fits.data["fits"], *fits.data["misses"])
    names = {name for row in rows for name in row["settings"].split(", ")}
    assert {name for name in names if "8-bit" in name} == {"8-bit AdamW of torchao"}
