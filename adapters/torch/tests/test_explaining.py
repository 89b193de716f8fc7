"""acplan.explain: figures are those of traces, and the model is as it was."""

import dataclasses
import json
import pathlib
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F

import acplan
from acplan.__main__ import main
from acplan._advise.explain import _helpful
from acplan._advise.levers import LEVERS, NotApplicable, with_levers
from acplan._files.display import size
from acplan._step.training_step import TrainingStep

_FAST = {"time_limit": 0.2}


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))


def _gpt2(vocabulary: int = 2048, **more: Any) -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.GPT2Config(
        n_layer=1, n_embd=32, n_head=2, vocab_size=vocabulary, use_cache=False, **more
    )
    tokens = torch.randint(0, vocabulary, (4, 32))
    return transformers.GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}


def test_bytes_add_up_and_levers_are_traces() -> None:
    model, x = _net(), torch.randn(16, 64)
    explanation = acplan.explain(
        model, x, levers=["optimizer: fused", "half the microbatch"], **_FAST
    )
    traced = acplan.trace(model, x)
    for account in (explanation.data["baseline"], explanation.data["least"]):
        assert sum(account["by_kind"].values()) == account["peak_bytes"]
    assert explanation.peak_bytes == traced.peak_bytes
    own, fused, half, *_ = explanation.levers
    assert own.peak_bytes == traced.peak_bytes
    assert fused.peak_bytes == acplan.trace(model, x, optimizer="adamw-fused").peak_bytes
    halved = acplan.trace(model, x[:8].clone(), accumulate=2)
    assert half.peak_bytes == halved.peak_bytes
    step_ms = sum(operator["runtime_ms"] for operator in halved.data["operators"])
    assert half.step_ms == pytest.approx(2 * step_ms)
    least = acplan.plan(halved, "min", **_FAST).peak_bytes
    assert half.least_bytes == least
    text = str(explanation)
    assert "optimizer: fused" in text and max(map(len, text.splitlines())) <= 100


# Whatever the optimizer is given as, a lever is what one would have written.
@pytest.mark.parametrize("kind", ["name", "class", "instance"])
@pytest.mark.parametrize(
    ("lever", "options"),
    [
        ("optimizer: fused", {"fused": True}),
        ("optimizer: for-loop", {"foreach": False}),
    ],
)
def test_an_implementation_is_that_of_the_optimizer(
    kind: str, lever: str, options: dict[str, bool]
) -> None:
    model, x = _net(), torch.randn(4, 64)
    optimizer: Any = {
        "name": "adam",
        "class": torch.optim.Adam,
        "instance": torch.optim.Adam(model.parameters()),
    }[kind]
    step = TrainingStep.from_arguments(model, (x,), {"optimizer": optimizer})
    with with_levers(step, [LEVERS[lever]]) as changed:
        actual = acplan.trace(model, x, **changed.options())
    expected = acplan.trace(model, x, optimizer=lambda p: torch.optim.Adam(p, **options))
    assert actual.data == expected.data
    if kind == "instance":
        assert optimizer.param_groups[0]["foreach"] is None and not optimizer.state


def test_bf16_state_halves_it() -> None:
    model, x = _net(), torch.randn(4, 64)
    step = TrainingStep.from_arguments(model, (x,), {})

    def state_of(trace: acplan.Trace) -> int:
        return sum(s["bytes"] for s in trace.data["storages"] if s["category"] == "optimizer")

    with with_levers(step, [LEVERS["optimizer: bf16 state"]]) as changed:
        half = acplan.trace(model, x, **changed.options())
    moments = 8 * sum(p.numel() for p in model.parameters())
    assert state_of(acplan.trace(model, x)) - state_of(half) == moments // 2


# On real tensors: the update is AdamW's, of moments rounded to bfloat16.
def test_bf16_state_is_the_optimizer_with_rounded_moments() -> None:
    torch.manual_seed(0)
    plain, half = _net(), _net()
    half.load_state_dict(plain.state_dict())
    step = TrainingStep.from_arguments(half, (), {"optimizer": "adamw"})
    with with_levers(step, [LEVERS["optimizer: bf16 state"]]) as changed:
        assert callable(changed.optimizer)
        optimizer = changed.optimizer(list(half.parameters()))
    plain_optimizer = torch.optim.AdamW(plain.parameters(), foreach=False)
    for _ in range(3):
        x = torch.randn(8, 64)
        for model, its in ((plain, plain_optimizer), (half, optimizer)):
            model(x).square().mean().backward()
            its.step()
            its.zero_grad()
        for state in plain_optimizer.state.values():
            for key in ("exp_avg", "exp_avg_sq"):
                state[key] = state[key].bfloat16().float()
    for a, b in zip(plain.parameters(), half.parameters()):
        assert torch.equal(a, b)
    assert {s["exp_avg"].dtype for s in optimizer.state.values()} == {torch.bfloat16}


@pytest.mark.parametrize("rows", [None, 1, 5, 100])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_loss_without_logits_is_the_loss(rows: int | None, reduction: str) -> None:
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(37, 16), torch.randn(50, 16), torch.randn(50)
    leaves = [t.requires_grad_() for t in (hidden, weight, bias)]
    target = torch.randint(0, 50, (37,))
    target[3] = -100
    expected = F.cross_entropy(F.linear(*leaves), target, reduction=reduction)
    actual = acplan.linear_cross_entropy(
        hidden, weight, target, bias, reduction=reduction, rows=rows
    )
    torch.testing.assert_close(actual, expected)
    for a, b in zip(
        torch.autograd.grad(3 * actual, leaves), torch.autograd.grad(3 * expected, leaves)
    ):
        torch.testing.assert_close(a, b)


def _masked() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.DistilBertConfig(
        dim=32, hidden_dim=64, n_layers=1, n_heads=2, vocab_size=2048
    )
    tokens = torch.randint(0, 2048, (4, 32))
    model = transformers.DistilBertForMaskedLM(config)
    return model, {"input_ids": tokens, "labels": tokens}


def _with_lora() -> tuple[nn.Module, dict[str, Any]]:
    peft = pytest.importorskip("peft")
    model, inputs = _gpt2()
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    return peft.get_peft_model(model, config), inputs


# The model's own loss and gradients, on real tensors.
@pytest.mark.parametrize("make", [_gpt2, _masked, _with_lora])
def test_the_fused_loss_is_the_models(make: Any) -> None:
    torch.manual_seed(0)
    model, inputs = make()
    model.eval()
    expected = model(**inputs).loss
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(expected, trained)
    step = TrainingStep.from_arguments(model, (), inputs)
    with with_levers(step, [LEVERS["loss: fused with the last layer"]]) as changed:
        assert changed.loss_fn is not None
        actual = changed.loss_fn(model(**inputs))
        fused_gradients = torch.autograd.grad(actual, trained)
        traced = acplan.trace(model, **changed.options())
    torch.testing.assert_close(actual, expected)
    for a, b in zip(fused_gradients, gradients):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    model.train()
    before = acplan.trace(model, **inputs)
    logits = 4 * 4 * 32 * 2048
    assert max(s["bytes"] for s in before.data["storages"]) >= logits
    # Gradients that the loss makes are read by the program as well.
    assert acplan.explain(traced, **_FAST).peak_bytes == traced.peak_bytes
    assert traced.peak_bytes < before.peak_bytes
    assert not any(s["bytes"] >= logits and s["born"] >= 0 for s in traced.data["storages"])
    # And afterwards the model is as it was.
    model.eval()
    torch.testing.assert_close(model(**inputs).loss, expected)


def test_attention_and_layout_are_put_back() -> None:
    model, inputs = _gpt2()
    was = model.config._attn_implementation
    step = TrainingStep.from_arguments(model, (), inputs)
    with with_levers(step, [LEVERS["attention: eager"]]) as changed:
        eager = acplan.trace(model, **changed.options())
    assert model.config._attn_implementation == was
    assert len(eager.data["operators"]) > len(acplan.trace(model, **inputs).data["operators"])
    convolution = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    before = list(convolution.parameters())
    x = torch.randn(2, 3, 16, 16)
    optimizer = torch.optim.AdamW(before)
    step = TrainingStep.from_arguments(convolution, (x,), {"optimizer": optimizer})
    with with_levers(step, [LEVERS["channels_last"]]) as changed:
        assert not convolution[0].weight.is_contiguous()
        acplan.trace(convolution, *changed.args, **changed.options())
    assert all(a is b for a, b in zip(before, convolution.parameters(), strict=True))


@pytest.mark.parametrize(
    ("lever", "why"),
    [
        ("channels_last", "no two-dimensional convolution"),
        ("attention: sdpa", "not one of transformers"),
        ("loss: fused with the last layer", "not one of transformers"),
        ("half the microbatch", "is 3, which cannot be halved"),
        ("optimizer: foreach", "already set"),
        ("gradients: None after the update", "already"),
    ],
)
def test_what_does_not_apply_has_no_figures(lever: str, why: str) -> None:
    explanation = acplan.explain(_net(), torch.randn(3, 64), levers=[lever], **_FAST)
    (_, of_lever) = explanation.levers
    assert not of_lever.is_measured and of_lever.step_ms is None
    assert why in of_lever.why_not and why in str(explanation)


# Errors of other libraries may be a bare number, as that of a key that is missing.
def test_a_reason_has_the_type_of_the_error_and_what_was_tried() -> None:
    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        calls.append(len(parameters))
        if len(calls) > 1:
            raise KeyError(2854)
        return torch.optim.AdamW(parameters)

    calls: list[int] = []
    explanation = acplan.explain(
        _net(),
        torch.randn(4, 64),
        optimizer=optimizer,
        levers=["optimizer: fused"],
        budget="1GiB",
        **_FAST,
    )
    (_, of_lever) = explanation.levers
    assert of_lever.why_not == "tracing the step with it raised KeyError: 2854"
    assert str(explanation).endswith("1 of 1 rows fit in 1.00 GiB with a plan.\n")


def test_a_sentence_says_that_no_lever_fits() -> None:
    explanation = acplan.explain(
        _net(), torch.randn(4, 64), levers=["optimizer: fused"], budget="1kB", **_FAST
    )
    least = min(m.least_bytes or 0 for m in explanation.levers)
    assert "no row fits in 1000 B: the least is " in str(explanation)
    assert size(least) in str(explanation).splitlines()[-1]


def test_a_loss_that_is_not_of_logits_alone_is_refused() -> None:
    model, inputs = _gpt2()
    step = TrainingStep.from_arguments(
        model, (), {**inputs, "loss_fn": lambda output: output.logits.square().mean()}
    )
    del step.kwargs["labels"]
    fails = pytest.raises(NotApplicable, match="cross entropy of its logits")
    with fails, with_levers(step, [LEVERS["loss: fused with the last layer"]]) as changed:
        acplan.trace(model, **changed.options())


def test_the_best_of_each_sort_is_set_together() -> None:
    names = ["optimizer: fused", "optimizer: for-loop", "half the microbatch"]
    levers = [LEVERS[name] for name in names]
    own = acplan.explain(_net(), torch.randn(4, 64), levers=[names[0]], **_FAST).levers[0]
    measurements = [dataclasses.replace(own, least_bytes=least) for least in (90, 80, 10)]
    own = dataclasses.replace(own, least_bytes=100)
    assert _helpful(own, levers, measurements) == [levers[1]]


def test_a_trace_is_explained_without_levers(tmp_path: pathlib.Path) -> None:
    traced = acplan.trace(_net(), torch.randn(4, 64))
    explanation = acplan.explain(traced, budget="1MiB", **_FAST)
    assert not explanation.levers and not explanation.data["fits"]
    with pytest.raises(acplan.AcplanError, match="cannot be combined with a trace"):
        acplan.explain(traced, torch.randn(4, 64))
    with pytest.raises(acplan.AcplanError, match="levers: expected some of"):
        acplan.explain(_net(), torch.randn(4, 64), levers=["magic"])


def test_infeasible_says_what_matters_most() -> None:
    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean()

    traced = acplan.trace(_net(), torch.randn(4096, 64), forward_fn=loss)
    with pytest.raises(acplan.AcplanError, match="every plan keeps") as error:
        acplan.plan(traced, "1MiB")
    assert "at tests/test_explaining.py:" in str(error.value)
    assert str(error.value).endswith("acplan explain shows what takes the memory, line by line")


class _Transformed(nn.Module):
    """Its gradient is a transform's, so that it is no unit."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        energy = torch.func.grad(lambda one: self.inner(one).square().sum())
        return torch.tanh(x + self.inner(x) + torch.func.vmap(energy)(x)).sigmoid()


def test_modules_that_the_trace_bars_are_listed(tmp_path: pathlib.Path) -> None:
    model = nn.Sequential(_Transformed(), _Transformed(), nn.Linear(64, 64))
    explanation = acplan.explain(acplan.trace(model, torch.randn(512, 64)))
    (barred,) = (
        row for row in explanation.data["no_units"] if "Sequential.*" in row["modules"]
    )
    assert barred["count"] == 2 and barred["bytes"] > 0
    assert "may not run again: more than one backward pass" in barred["why"]


def test_from_the_shell(tmp_path: pathlib.Path, capsys: Any) -> None:
    flags = ["--hf-config", "gpt2", "--set", "n_layer=1", "--batch", "2", "--seq", "16"]
    flags += ["--time-limit", "0.2", "--levers", "optimizer: fused"]
    output = tmp_path / "explanation.json"
    assert main(["explain", *flags, "-o", str(output)]) == 0
    assert "optimizer: fused" in capsys.readouterr().out
    assert json.loads(output.read_text())["levers"][1]["lever"] == "optimizer: fused"
    assert main(["explain", "--levers", "none"]) == 2
    assert "expected one of TRACE" in capsys.readouterr().err
