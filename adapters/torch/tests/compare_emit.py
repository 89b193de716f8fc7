"""Compares what `acplan emit` prints with what the trainers' own code makes of it.

    ACPLAN=... PYTHONPATH=.:tests python tests/compare_emit.py [MODEL...]

writes docs/measured/emit.csv, or with names of models prints their rows: for each model, budget
and trainer the policy's peak and recomputation, those of the free plan, and the peak of the step
traced with the trainer's checkpoints. A trainer that is not installed, or does not take the
model, has no traced peak.
"""

import collections
import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import peft
import torch
import transformers
from diffusers import UNet2DModel
from torch import nn

import acplan
from acplan import AcplanError
from megatron_gpt import discarded_results_count
from tables import Table, print_versions
from trainer_policies import TRAINERS, Truth, emitted, truth
from zoo import images, tokens, transformer

_COLUMNS = (
    "model", "budget", "trainer", "status", "budget_bytes", "peak_bytes", "recompute_ms",
    "overhead", "plan_ms", "traced_peak_bytes", "reruns_equal", "saved_names",
)  # fmt: skip
# Shares of the way from the peak of whole blocks to the peak without a policy.
_BUDGETS = (0.7, 0.4, 0.1)
# The time limit of each search of `acplan emit`.
_SECONDS = "1"
_OF_TRANSFORMERS = frozenset(("axolotl", "nemo", "transformers", "trl", "veomni"))
# The trainers that switch on the model's own checkpoints, which NeMo AutoModel does not.
_OWN_CHECKPOINTS = _OF_TRANSFORMERS - {"nemo"}


@dataclasses.dataclass(frozen=True)
class Model:
    make: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Any]]
    # The trainers that can run it.
    trainers: frozenset[str]
    loss_fn: Callable[[Any], torch.Tensor] | None = None

    def options(self) -> dict[str, Any]:
        loss = {} if self.loss_fn is None else {"loss_fn": self.loss_fn}
        return {"optimizer": "adamw", **loss}


_LLAMA = transformer(
    "LlamaForCausalLM", dtype=torch.bfloat16, hidden_size=1024, intermediate_size=2816,
    num_hidden_layers=4, num_attention_heads=16, num_key_value_heads=8, vocab_size=8192,
)  # fmt: skip
_MIXTRAL = transformer(
    "MixtralForCausalLM", dtype=torch.bfloat16, experts="batched_mm", hidden_size=512,
    intermediate_size=1024, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=4,
    num_local_experts=8, vocab_size=8192,
)  # fmt: skip


def _lora() -> nn.Module:
    config = peft.LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model: nn.Module = peft.get_peft_model(_LLAMA(), config)
    model.enable_input_require_grads()
    return model


def _unet() -> nn.Module:
    return UNet2DModel(
        sample_size=64, block_out_channels=(64, 128, 256),
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip


def _t5_inputs() -> dict[str, Any]:
    ids = torch.randint(0, 8192, (8, 512))
    return {"input_ids": ids, "labels": ids}


def _megatron_gpt() -> nn.Module:
    # Only this model needs Megatron-Core.
    from megatron_gpt import MegatronGpt

    return MegatronGpt(layers=4, hidden=1024, length=1024)


def _megatron_inputs() -> dict[str, Any]:
    from megatron_gpt import inputs

    return inputs(4, 1024)


_WRAPPING = frozenset(("accelerate", "lightning", "torch"))
MODELS = {
    "dense LLM": Model(
        _LLAMA, tokens(4, 1024, 8192), _WRAPPING | _OF_TRANSFORMERS | {"torchtitan"}
    ),
    "MoE": Model(_MIXTRAL, tokens(2, 256, 8192), _WRAPPING | _OF_TRANSFORMERS | {"torchtitan"}),
    "ViT": Model(
        transformer("ViTForImageClassification", num_labels=10, num_hidden_layers=6),
        images(16, 224),
        _WRAPPING | _OF_TRANSFORMERS,
    ),
    "U-Net": Model(
        _unet,
        lambda: {"sample": torch.randn(8, 3, 64, 64), "timestep": torch.zeros(8).long()},
        _WRAPPING,
        lambda out: out.sample.pow(2).mean(),
    ),
    "encoder-decoder": Model(
        transformer(
            "T5ForConditionalGeneration",
            vocab_size=8192,
            num_layers=3,
            pad_token_id=0,
            decoder_start_token_id=0,
        ),
        _t5_inputs,
        _WRAPPING | _OF_TRANSFORMERS,
    ),
    "LoRA": Model(_lora, tokens(4, 1024, 8192), _WRAPPING | _OF_TRANSFORMERS),
    "Megatron-Core GPT": Model(_megatron_gpt, _megatron_inputs, frozenset(("megatron",))),
}


def _on_meta(model: Model) -> tuple[nn.Module, dict[str, Any]]:
    with torch.device("meta"):
        module = model.make().train()
    return module, model.inputs()


def _enable_hollow_checkpoints(model: nn.Module, text: str) -> None:
    """Switches on a model's own checkpoints, and makes each of them a plain call."""
    enable: Any = model.gradient_checkpointing_enable
    enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in model.modules():
        if hasattr(module, "_gradient_checkpointing_func"):
            module._gradient_checkpointing_func = lambda function, *args: function(*args)


def _more_operators(model: Model, trace: acplan.Trace) -> collections.Counter[str]:
    """Returns the operators that are no reruns and run only if the model's own checkpoints are
    on: T5's cross-attention then asks for the gradient of a bias of zeros."""
    module, inputs = _on_meta(model)
    return truth(
        module, inputs, trace, _enable_hollow_checkpoints, "", **model.options()
    ).reruns


def _truth(
    model: Model, trainer: str, trace: acplan.Trace, emission: dict[str, Any],
    more_operators: Callable[[], collections.Counter[str]],
) -> Truth | str:  # fmt: skip
    if trainer not in model.trainers:
        return ""
    try:
        module, inputs = _on_meta(model)
        is_discarding = trainer == "megatron"
        with discarded_results_count() if is_discarding else contextlib.nullcontext():
            measured = truth(
                module, inputs, trace, TRAINERS[trainer], emission["text"], **model.options()
            )
        if emission["units"] and trainer in _OWN_CHECKPOINTS:
            measured.reruns.subtract(more_operators())
        return measured
    except ModuleNotFoundError:
        return ""
    except (AcplanError, RuntimeError, ValueError) as error:
        return type(error).__name__


def rows(name: str) -> Iterator[tuple[object, ...]]:
    model = MODELS[name]
    module, inputs = _on_meta(model)
    trace = acplan.trace(module, progress=False, **model.options(), **inputs)
    whole = emitted(trace, "transformers", "min", "--time-limit", _SECONDS)["budget_bytes"]
    more_operators = functools.cache(functools.partial(_more_operators, model, trace))
    for share in _BUDGETS:
        budget = str(round(whole + share * (trace.peak_bytes - whole)))
        for trainer in sorted({*TRAINERS, "maxtext", "prime-rl"}):
            emission = emitted(trace, trainer, budget, "--time-limit", _SECONDS)
            first = (name, share, trainer, emission["status"], emission["budget_bytes"])
            plan_ms = emission["plan"].get("recompute_ms", "")
            if "text" not in emission:
                yield (*first, "", "", "", plan_ms)
                continue
            traced = _truth(model, trainer, trace, emission, more_operators)
            measured: tuple[object, object] = (traced, "")
            if isinstance(traced, Truth):
                is_equal = traced.reruns == collections.Counter(emission["reruns"])
                measured = (traced.peak_bytes, "yes" if is_equal else "no")
            yield (
                *first, emission["peak_bytes"], round(emission["recompute_ms"], 4),
                round(emission["overhead"], 5), plan_ms and round(plan_ms, 4), *measured,
                " ".join(emission["saved"]),
            )  # fmt: skip


def main(names: list[str]) -> int:
    transformers.logging.set_verbosity_error()
    print_versions("transformers", "accelerate", "lightning", "peft", "diffusers")
    table = Table("emit", _COLUMNS, is_partial=bool(names))
    compared = equal = 0
    for name in names or MODELS:
        for row in rows(name):
            table.add(*row)
            if len(row) > 10 and isinstance(row[9], int):
                compared += 1
                equal += row[5] == row[9] and row[10] == "yes"
    print(f"peak and reruns equal: {equal} of {compared}")
    return int(equal != compared)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
