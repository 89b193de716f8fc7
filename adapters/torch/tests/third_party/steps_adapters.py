"""Training steps of adapters and quantised layers: PEFT, bitsandbytes, torchao, loralib."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from acplan._step.training_step import TrainingStep
from third_party.registry import add, entry, words
from third_party.small_models import causal, small_llama


def _peft(make: Callable[[Any], Any], model: Callable[[], Any] = small_llama) -> TrainingStep:
    import peft

    return causal(peft.get_peft_model(model(), make(peft)))


_LAYERS = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj", "v_proj", "down_proj"]}
for _name, _make in {
    "LoRA": lambda p: p.LoraConfig(r=4, lora_dropout=0.1, **_LAYERS),
    "rsLoRA of all layers": lambda p: p.LoraConfig(
        r=4, use_rslora=True, task_type="CAUSAL_LM", target_modules="all-linear"
    ),
    "DoRA": lambda p: p.LoraConfig(r=4, use_dora=True, **_LAYERS),
    "LoHa": lambda p: p.LoHaConfig(r=4, **_LAYERS),
    "LoKr": lambda p: p.LoKrConfig(r=4, **_LAYERS),
    "AdaLoRA": lambda p: p.AdaLoraConfig(init_r=4, target_r=2, total_step=100, **_LAYERS),
    "IA3": lambda p: p.IA3Config(feedforward_modules=["down_proj"], **_LAYERS),
    "OFT": lambda p: p.OFTConfig(oft_block_size=8, **_LAYERS),
    "BOFT": lambda p: p.BOFTConfig(boft_block_size=8, **_LAYERS),
    "VeRA": lambda p: p.VeraConfig(r=4, task_type="CAUSAL_LM", target_modules=["q_proj"]),
    "FourierFT": lambda p: p.FourierFTConfig(n_frequency=16, **_LAYERS),
    "prompt tuning": lambda p: p.PromptTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=4
    ),
    "prefix tuning": lambda p: p.PrefixTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=4
    ),
    "P-tuning": lambda p: p.PromptEncoderConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=4, encoder_hidden_size=16
    ),
    "layer norm tuning": lambda p: p.LNTuningConfig(
        task_type="CAUSAL_LM", target_modules=["input_layernorm", "post_attention_layernorm"]
    ),
}.items():
    add("peft", _name, lambda make=_make: _peft(make))


def _quantised(kind: str) -> Any:
    """Returns the small model, its layers quantised by bitsandbytes."""
    import bitsandbytes as bnb

    model = small_llama(hidden_size=64, intermediate_size=128)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if not isinstance(child, nn.Linear) or name == "lm_head":
                continue
            shape = (child.in_features, child.out_features)
            if kind == "8bit":
                layer = bnb.nn.Linear8bitLt(*shape, bias=False, has_fp16_weights=False)
                layer.weight = bnb.nn.Int8Params(child.weight.data, requires_grad=False)
            else:
                layer = bnb.nn.Linear4bit(
                    *shape, bias=False, compute_dtype=torch.float32, quant_type="nf4"
                )
                layer.weight = bnb.nn.Params4bit(
                    child.weight.data, requires_grad=False, quant_type="nf4"
                )
            setattr(module, name, layer.to("cpu"))
    model.is_loaded_in_8bit = kind == "8bit"
    model.is_loaded_in_4bit = kind == "4bit"
    return model


@entry("bitsandbytes")
def qlora_of_4_bits() -> TrainingStep:
    return _peft(
        lambda p: p.LoraConfig(r=4, lora_dropout=0.1, **_LAYERS), lambda: _quantised("4bit")
    )


@entry("bitsandbytes")
def lora_of_8_bits() -> TrainingStep:
    return _peft(lambda p: p.LoraConfig(r=4, **_LAYERS), lambda: _quantised("8bit"))


@entry("torchao")
def weight_only_int8_with_lora() -> TrainingStep:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = small_llama()
    quantize_(model, Int8WeightOnlyConfig())
    return _peft(lambda p: p.LoraConfig(r=4, **_LAYERS), lambda: model)


@entry("torchao", "torchao.quantization.qat")
def quantisation_aware_training() -> TrainingStep:
    from torchao.quantization import quantize_
    from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

    model = small_llama()
    config = QATConfig(
        activation_config=IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False),
        weight_config=IntxFakeQuantizeConfig(torch.int4, group_size=32),
        step="prepare",
    )
    quantize_(model, config)
    return causal(model)


@entry("loralib")
def lora_layers_by_hand() -> TrainingStep:
    import loralib

    model = nn.Sequential(
        loralib.Embedding(64, 32, r=4),
        *(
            nn.Sequential(loralib.Linear(32, 32, r=4, lora_dropout=0.1), nn.GELU())
            for _ in range(3)
        ),
        loralib.MergedLinear(32, 64, r=4, enable_lora=[True, False]),
    )
    loralib.mark_only_lora_as_trainable(model)
    tokens = words()
    return TrainingStep(
        model,
        (tokens,),
        forward_fn=lambda model, x: F.cross_entropy(model(x).flatten(0, 1), x.flatten()),
    )
