"""The step that is traced is the trainer's own: its optimizer, precision, microbatches
and clipping; and all is left as it was."""

import functools
import logging
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.utils.checkpoint import checkpoint
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.optimization import Adafactor

import acplan
from acplan import AcplanError, Trace, trace
from acplan.__main__ import main


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


_X = torch.zeros(2, 8)
_WEIGHTS = 4 * (8 * 16 + 16 + 16 * 4 + 4)


def _names(traced: Trace) -> list[str]:
    return [operator["name"] for operator in traced.data["operators"]]


def _update(traced: Trace) -> list[str]:
    """Returns the operators of the update, `aten.` and overloads left out."""
    names = _names(traced)[traced.data["backward_end"] :]
    return [name.split(".")[1] for name in names]


def _before(traced: Trace, category: str) -> int:
    """Returns the bytes of a category that are there before the step."""
    return sum(
        storage["bytes"]
        for storage in traced.data["storages"]
        if storage["category"] == category and storage["born"] < 0
    )


def test_gradients_of_earlier_microbatches_are_there() -> None:
    one, four = trace(_net(), _X), trace(_net(), _X, accumulate=4)
    assert (one.accumulate, four.accumulate) == (1, 4)
    assert four.data["accumulate"] == 4 and "accumulate" not in one.data
    assert _before(one, "gradient") == 0
    assert _before(four, "gradient") == _WEIGHTS
    # They are added to in place, the loss is divided, and at the end they are gone.
    data = four.data
    backward = _names(four)[data["forward_end"] : data["backward_end"]]
    assert backward.count("aten.add_.Tensor") == 4
    assert "aten.div.Tensor" in _names(four)[: data["forward_end"]]
    gradients = [s for s in data["storages"] if s["category"] == "gradient"]
    assert len(gradients) == 4
    assert all(s["born"] < 0 and s["freed"] is not None for s in gradients)
    assert four.peak_bytes > one.peak_bytes


def test_run_times_are_those_of_a_microbatch() -> None:
    def update_ms(traced: Trace) -> float:
        of_update = traced.data["operators"][traced.data["backward_end"] :]
        return sum(operator["runtime_ms"] for operator in of_update)

    one, four = trace(_net(), _X), trace(_net(), _X, accumulate=4)
    assert update_ms(four) == pytest.approx(update_ms(one) / 4)
    assert update_ms(one) > 0


def test_verify_takes_the_microbatches_of_the_trace() -> None:
    model = _net()
    traced = trace(model, _X, accumulate=3)
    plan = acplan.Plan((acplan.PlannedModule("Sequential.0"),))
    verification = acplan.verify(model, plan, _X, trace=traced)
    assert verification.first_difference() is None
    assert str(verification).startswith("predicted peak ")
    assert f" bytes, re-traced {verification.measured_bytes:,} (+0.0000%)" in str(verification)
    assert "one of 3 microbatches" in str(acplan.plan(traced, "100%"))
    with pytest.raises(AcplanError, match="accumulate is 2, and 3 in the trace"):
        acplan.verify(model, plan, _X, trace=traced, accumulate=2)


def _like_trainer(model: nn.Module) -> torch.optim.Optimizer:
    """Makes an optimizer of two groups, already stepped, with a schedule that wraps its
    step."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, fused=True)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    model(_X).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def test_an_optimizer_of_the_model_is_made_again_and_left_alone() -> None:
    model = _net()
    optimizer = _like_trainer(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    moments = {p: s["exp_avg"].clone() for p, s in optimizer.state.items()}
    traced = trace(model, _X, optimizer=optimizer)
    assert _update(traced).count("_fused_adamw_") == 2
    steps = 4 * 4
    assert _before(traced, "optimizer") == 2 * _WEIGHTS + steps
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(torch.equal(m, optimizer.state[p]["exp_avg"]) for p, m in moments.items())
    wrapped = torch.optim.SGD(model.parameters())  # as trainers do
    wrapped.optimizer = optimizer  # type: ignore[attr-defined]
    assert trace(model, _X, optimizer=wrapped).data == traced.data
    with pytest.raises(AcplanError, match="none of its parameters is a trained parameter"):
        trace(_net(), _X, optimizer=optimizer)


@pytest.mark.parametrize(
    ("optimizer", "operator", "states"),
    [
        (None, "_foreach_lerp_", 2 * _WEIGHTS),
        (torch.optim.Adam, "_foreach_lerp_", 2 * _WEIGHTS),
        ("adamw-for-loop", "lerp_", 2 * _WEIGHTS),
        ("adamw_torch_fused", "_fused_adamw_", 2 * _WEIGHTS + 16),
        ("adamw-capturable", "_foreach_pow", 2 * _WEIGHTS + 16),
        ("momentum", "_foreach_add_", _WEIGHTS),
        # Its own `item()` of norms, with the values that gradients are assumed to have.
        (Adafactor, "mean", 4 * (8 + 16 + 16 + 16 + 4 + 4 + 4)),
        ("adafactor", "linalg_vector_norm", 4 * (8 + 16 + 16 + 16 + 4 + 4)),
    ],
)
def test_optimizers(optimizer: Any, operator: str, states: int) -> None:
    traced = trace(_net(), _X, optimizer=optimizer)
    assert operator in _update(traced)
    assert _before(traced, "optimizer") == states


@pytest.mark.parametrize("name", [n for n in acplan.OPTIMIZERS if "fused" in n])
def test_fused_ones_run_their_own_operator(name: str) -> None:
    update = _update(trace(_net(), _X, optimizer=name))
    of_them = [operator for operator in update if operator.startswith("_fused_")]
    assert of_them == [f"_fused_{name.removesuffix('-fused')}_"]
    assert "_foreach_lerp_" not in update


def test_eight_bits_a_moment_and_pages() -> None:
    model = nn.Linear(1000, 1000)
    numbers = 1000 * 1000
    x = torch.zeros(2, 1000)
    small = 2 * 4 * 1000  # the bias, too small for 8 bits
    blocks = 4 * -(-numbers // 256)
    eight = 2 * (numbers + blocks + 4 * 256) + small
    for name, expected in [
        ("adamw-8bit", eight),
        ("adamw_bnb_8bit", eight),
        ("paged-adamw-8bit", eight - 2 * numbers),
        ("paged_adamw_32bit", small),
    ]:
        assert _before(trace(model, x, optimizer=name), "optimizer") == expected, name


def test_torchao_keeps_eight_bits_where_blocks_are_whole() -> None:
    for width, bytes_each in ((1024, 1), (1001, 4)):
        model, x = nn.Linear(width, 1000), torch.zeros(2, width)
        numbers = 1000 * width
        scales = 4 * (numbers // 256) + 4 * 256 if bytes_each == 1 else 0
        expected = 2 * (bytes_each * numbers + scales + 4 * 1000)
        traced = trace(model, x, optimizer="adamw_torch_8bit")
        assert _before(traced, "optimizer") == expected


def test_optimizers_with_kernels_of_their_own() -> None:
    library = torch.library.Library("acplan_test", "DEF")
    library.define("sign_step(Tensor(a!) p, Tensor g, Tensor(b!) m) -> ()")

    class Lion(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for p in self.param_groups[0]["params"]:
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p, dtype=torch.uint8)
                torch.ops.acplan_test.sign_step(p, p.grad, state["m"])
            torch.cuda.synchronize()

    traced = trace(_net(), _X, optimizer=Lion)
    assert _before(traced, "optimizer") == _WEIGHTS // 4


def test_what_cannot_be_faked_says_so() -> None:
    class Pointers(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            raise TypeError("expected a pointer\nand more")

    message = "the update with Pointers does not run on fake tensors: TypeError: expected"
    with pytest.raises(AcplanError, match=message) as raised:
        trace(_net(), _X, optimizer=Pointers)
    assert "\n" not in str(raised.value)

    class Sharpness(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            raise TypeError("expected a closure")

    with pytest.raises(AcplanError, match="a closure; if its step runs the model again, let"):
        trace(_net(), _X, optimizer=Sharpness)


def test_clipping() -> None:
    plain = _update(trace(_net(), _X))
    by_norm = _update(trace(_net(), _X, clip_grad_norm=1.0))
    assert by_norm[:3] == ["_foreach_norm", "stack", "linalg_vector_norm"]
    assert by_norm[-len(plain) :] == plain
    by_value = _update(trace(_net(), _X, clip_grad_value=0.5))
    assert by_value[:2] == ["_foreach_clamp_min_", "_foreach_clamp_max_"]


def test_scaled_losses() -> None:
    options = {"autocast": "fp16", "grad_scaler": True, "clip_grad_norm": 1.0}
    update = _update(trace(_net(), _X, **options))
    unscaled = update.index("_amp_foreach_non_finite_check_and_unscale_")
    assert unscaled < update.index("_foreach_norm") < update.index("_foreach_lerp_")
    assert "_amp_update_scale_" in update
    traced = trace(_net(), _X, autocast="fp16", grad_scaler=True)
    assert _before(traced, "optimizer") == 2 * _WEIGHTS + 8  # its scale and a count
    with pytest.raises(AcplanError, match="ValueError: Attempting to unscale FP16"):
        trace(_net().half(), _X.half(), grad_scaler=True)


def test_averaged_weights() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
    plain, averaged = (trace(model, _X, ema=ema) for ema in (False, 0.99))
    weights = sum(4 * p.numel() for p in model.parameters())
    buffers = 4 * (4 + 4) + 8
    more = _before(averaged, "optimizer") - _before(plain, "optimizer")
    assert more == weights + buffers
    assert _update(averaged).count("_foreach_lerp_") == 2
    assert _update(plain).count("_foreach_lerp_") == 1
    assert _before(averaged, "temporary") == _before(plain, "temporary")


def test_a_step_of_ones_own() -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        if not torch.isfinite(norm) or any(p.grad.isnan().any() for p in model.parameters()):
            raise AssertionError("gradients are finite")
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    traced = trace(_net(), _X, step_fn=step)
    assert "logical_or" in _update(traced) and "_foreach_lerp_" in _update(traced)
    assert _before(traced, "gradient") == _WEIGHTS  # they are zeros, and there
    with pytest.raises(AcplanError, match="ema: cannot be combined with step_fn"):
        trace(_net(), _X, step_fn=step, ema=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulate": 0}, "accumulate: expected a number of microbatches"),
        ({"accumulate": True}, "found True"),
        ({"accumulate": 1.5}, "found 1.5"),
        ({"clip_grad_norm": 0}, "clip_grad_norm: expected a number above 0, found 0"),
        ({"clip_grad_value": "1"}, "clip_grad_value: expected a number above 0"),
        ({"grad_scaler": 2}, "grad_scaler: expected True or False, found 2"),
        ({"ema": 1.5}, "ema: expected True, False or a decay from 0 to 1"),
        ({"step_fn": 3}, "step_fn: expected a function of the model"),
        ({"optimizer": 3}, "optimizer: expected a name, a function"),
        ({"optimizer": "adamw-fusde"}, "found 'adamw-fusde'; did you mean adamw-fused"),
        ({"autocast": "fp8"}, "autocast: expected one of bfloat16.*found 'fp8'"),
        ({"autocast": torch.float32}, "found torch.float32"),
        ({"autocast": torch.autocast("cpu", torch.bfloat16)}, "found one for 'cpu'"),
    ],
)
def test_bad_options_are_told_before_anything_changes(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(AcplanError, match=message):
        trace(_net(), _X, **options)
    assert not torch.is_autocast_enabled("cuda")


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_autocast_by_name_by_type_and_as_it_is() -> None:
    expected = trace(_net(), _X, autocast=torch.bfloat16).data
    for same in ("bf16", "bfloat16", torch.autocast("cuda", torch.bfloat16)):
        assert trace(_net(), _X, autocast=same).data == expected
    # Without its cache a weight is cast wherever it is used.
    forgetful = torch.autocast("cuda", torch.bfloat16, cache_enabled=False)
    shared = nn.Linear(8, 8)
    twice = nn.Sequential(shared, shared)
    once, often = (
        _names(trace(twice, _X, autocast=autocast)).count("aten._to_copy.default")
        for autocast in ("bf16", forgetful)
    )
    assert once < often


@pytest.mark.parametrize("is_nested", [False, True])
def test_autocast_is_as_it_was_whatever_fails(is_nested: bool) -> None:
    class Failing(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cuda", "bf16" if is_nested else torch.bfloat16):  # type: ignore[arg-type]
                raise RuntimeError("it fails")

    before = torch.get_autocast_dtype("cuda")
    with pytest.raises((RuntimeError, TypeError)):
        trace(Failing(8, 8), _X)
    assert not torch.is_autocast_enabled("cuda")
    assert torch.get_autocast_dtype("cuda") == before
    assert torch.is_autocast_cache_enabled()


def _gpt2() -> nn.Module:
    config = GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=50, use_cache=False)
    return GPT2LMHeadModel(config)


class _ByHand(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.inner = _net()
        self.use_reentrant = use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        run = functools.partial(checkpoint, use_reentrant=self.use_reentrant)
        return run(self.run, x)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class _Plain(_ByHand):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)


_TOKENS = {"input_ids": torch.ones(2, 8, dtype=torch.long)}


def _enabled(use_reentrant: bool) -> nn.Module:
    model = _gpt2()
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    return model


def _wrapped() -> nn.Module:
    model = nn.Sequential(_net(), nn.Linear(4, 4))
    model[0][0] = checkpoint_wrapper(model[0][0])
    model[0] = checkpoint_wrapper(model[0])
    return checkpoint_wrapper(model)


def _with_a_plan() -> nn.Module:
    model = _net()
    return acplan.apply(model, acplan.Plan((acplan.PlannedModule("Sequential.0"),)))


@pytest.mark.parametrize(
    ("make", "plain", "inputs", "name"),
    [
        (lambda: _enabled(True), _gpt2, _TOKENS, "transformer"),
        (lambda: _enabled(False), _gpt2, _TOKENS, "transformer"),
        (
            _wrapped,
            lambda: nn.Sequential(_net(), nn.Linear(4, 4)),
            {"input": _X},
            "Sequential",
        ),
        (_with_a_plan, _net, {"input": _X}, r"0\)"),
        (lambda: _ByHand(True), lambda: _Plain(True), {"x": _X}, r"_ByHand\)"),
        (lambda: _ByHand(False), lambda: _Plain(False), {"x": _X}, r"_ByHand\)"),
    ],
)
def test_checkpointing_is_said_and_switched_off(
    make: Callable[[], nn.Module],
    plain: Callable[[], nn.Module],
    inputs: dict[str, Any],
    name: str,
    caplog: Any,
) -> None:
    model = make()
    modules = dict(model.named_modules())
    flags = [vars(m).get("gradient_checkpointing") for m in modules.values()]
    with caplog.at_level(logging.WARNING, "acplan"):
        traced = trace(model, **inputs)
    assert _names(traced) == _names(trace(plain(), **inputs))
    (message,) = (r.getMessage() for r in caplog.records if r.name == "acplan")
    assert re.match(rf"the model uses its own checkpointing \({name}", message), message
    assert dict(model.named_modules()) == modules
    assert [vars(m).get("gradient_checkpointing") for m in modules.values()] == flags


def test_plans_of_models_that_checkpoint_are_verified() -> None:
    model = nn.Sequential(_ByHand(False), nn.Linear(4, 4))
    plan = acplan.Plan((acplan.PlannedModule("Sequential.1"),))
    traced = trace(model, _X)
    verification = acplan.verify(model, plan, _X, trace=traced)
    assert verification.first_difference() is None
    assert len(verification.measured) > len(traced.data["operators"])


def test_threads_trace_one_after_the_other() -> None:
    model = _net()
    expected = trace(model, _X).data
    traces: list[Any] = []

    def run() -> None:
        traces.append(trace(model, _X).data)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert traces == [expected] * 4
    assert all(type(p) is nn.Parameter for p in model.parameters())


def test_all_of_it_from_the_shell(tmp_path: Any) -> None:
    flags = ["--hf-config", "gpt2", "--batch", "2", "--seq", "8"]
    for change in ("n_layer=2", "n_embd=16", "n_head=2", "vocab_size=50"):
        flags += ["--set", change]
    flags += ["--autocast", "fp16", "--grad-scaler", "--accumulate", "4"]
    flags += ["--clip-grad-norm", "1.0", "--ema", "0.99", "--optimizer", "adamw-fused"]
    output = tmp_path / "t.json"
    assert main(["trace", *flags, "-o", str(output)]) == 0
    traced = Trace.load(output)
    assert traced.accumulate == 4
    update = _update(traced)
    assert {"_fused_adamw_", "_foreach_norm", "_amp_update_scale_"} <= {*update}
    assert "_foreach_lerp_" in update
