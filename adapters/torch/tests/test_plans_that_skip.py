"""Plans of acplan with skip and segments, end to end: planned, traced again, applied to the
model on the CPU, which runs the same operators here as a GPU, and trained with."""

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from acplan import Plan, apply, plan, trace
from acplan._verify.verify import verifying
from test_skipping import _step
from zoo import EXAMPLES, images, tokens, whole_blocks

# Attention of a few products, and dropout of a single operator, as on any device.
_SAME = {"attn_implementation": "eager", "use_cache": False}
_SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 50,
}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


class _Blocks(nn.Module):
    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(hidden=x)
        return x.square().mean()


class _NoisyBlock(nn.Module):
    """Random numbers, and a result of which one part is needed."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.up = nn.Linear(32, 128)
        self.down = nn.Linear(128, 32)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        wide = self.up(self.norm(hidden)).tanh()
        wide = wide * torch.rand_like(wide)
        out = self.down(wide * (torch.rand_like(wide) > 0.1))
        return hidden + out * torch.rand_like(out)


class _Written(nn.Module):
    """Results that are written to in place, after something was computed from them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_WrittenBlock() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


class _WrittenLinearBlock(nn.Module):
    """A block that writes to what a linear layer returns: with more than two dimensions that is
    another view of the layer's product, which is then written to."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.up, self.relu = nn.Linear(32, 128), nn.ReLU(inplace=True)
        self.down = nn.Linear(128, 32)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.down(self.relu(self.up(self.norm(hidden))))


class _WrittenBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.second = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        gate = y.sigmoid()
        y += y * 2
        return self.first(gate) + self.second(x * 3)


def _llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SHAPE, **_SAME))


def _t5() -> nn.Module:
    config = transformers.T5Config(
        d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, vocab_size=50,
        dropout_rate=0.0, decoder_start_token_id=0, **_SAME,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def _swin() -> nn.Module:
    config = transformers.SwinConfig(
        image_size=32, patch_size=2, window_size=4, embed_dim=16, depths=[2, 2],
        num_heads=[2, 4], drop_path_rate=0.3, num_labels=10, **_NO_DROPOUT,
        attn_implementation="eager",
    )  # fmt: skip
    return transformers.SwinForImageClassification(config)


# Near the best will do.
# Steps of models so small wait for the host.
_SKIPS: dict[str, Any] = {
    "decisions": "save,recompute,skip", "gap": 0.1, "without_host": True
}  # fmt: skip
_Inputs = Callable[[], dict[str, Any]]
_TEXTS = tokens(16, 48, 50)
_CASES: dict[str, tuple[Callable[[], nn.Module], _Inputs]] = {
    "llama": (_llama, _TEXTS),
    "t5": (_t5, _TEXTS),
    "swin": (_swin, images(16, 32)),
    "noisy": (lambda: _Blocks(_NoisyBlock), lambda: {"x": torch.randn(64, 16, 32)}),
    "relu in place": (
        lambda: _Blocks(_WrittenLinearBlock),
        lambda: {"x": torch.randn(64, 16, 32)},
    ),
    "custom": (EXAMPLES["custom"]().make, lambda: {"x": torch.randn(512, 32)}),
}


pytestmark = pytest.mark.usefixtures("one_thread")


def _decisions(plan: Plan) -> Counter[str]:
    return Counter(op.decision for module in plan.modules for op in module.operators)


@pytest.mark.parametrize("name", _CASES)
def test_they_are_exact_and_gradients_are_equal(name: str) -> None:
    make, make_inputs = _CASES[name]
    torch.manual_seed(0)
    model, inputs = make().train(), make_inputs()
    expected = _step(copy.deepcopy(model), inputs, False)
    options: dict[str, Any] = {"optimizer": "sgd", **inputs}
    traced = trace(model, **options)
    decisions: Counter[str] = Counter()
    trial_plans = []
    with verifying(model, model_trace=traced, **options) as verified:
        least = verified(Plan(whole_blocks(model))).predicted_bytes
        for share, segments in ((0.0, "auto"), (0.4, "none")):
            budget = least + round(share * (traced.peak_bytes - least))
            trial_plans.append(plan(traced, budget, segments=segments, **_SKIPS))
            result = verified(trial_plans[-1])
            assert result.first_difference() is None, result
            assert result.measured_bytes == trial_plans[-1].peak_bytes <= budget
            decisions += _decisions(trial_plans[-1])
    assert decisions["skip"] > 0 and decisions["recompute"] > 0
    for trial_plan in trial_plans:
        actual = _step(apply(copy.deepcopy(model), trial_plan, strict=True), inputs, False)
        assert len(actual) == len(expected)
        assert all(map(torch.equal, actual, expected)), trial_plan


def test_what_is_written_to_need_not_be_kept_with_what_read_it() -> None:
    torch.manual_seed(0)
    model, inputs = _Written(), {"x": torch.randn(16384, 32)}
    expected = _step(copy.deepcopy(model), inputs, False)
    skipping_plan = plan(trace(model, optimizer="sgd", **inputs), "95%", **_SKIPS)
    decided = [(op.name, op.decision) for op in skipping_plan.modules[0].operators[:2]]
    assert decided == [("add", "skip"), ("sigmoid", "save")]
    actual = _step(apply(copy.deepcopy(model), skipping_plan, strict=True), inputs, False)
    assert all(map(torch.equal, actual, expected))
