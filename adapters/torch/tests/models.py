"""Models of real sizes, beside the small ones of the zoo with larger batches."""

import dataclasses
from collections.abc import Callable

import torch
import transformers
from torch import nn

from zoo import EXAMPLES, Example, images, tokens


def _paths_of_kind(model: nn.Module, kind: str) -> tuple[str, ...]:
    return tuple(n for n, m in model.named_modules() if type(m).__name__ == kind)


def example_of(
    make: Callable[[], nn.Module],
    inputs: Callable[[], dict[str, torch.Tensor]],
    kind: str,
    *parts: str,
) -> Example:
    with torch.device("meta"):
        blocks = _paths_of_kind(make(), kind)
    return Example(make, inputs, blocks, tuple(f"{b}.{p}" for b in blocks for p in parts))


def _llama_8b() -> Example:
    config = transformers.LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        use_cache=False,
    )
    return example_of(
        lambda: transformers.LlamaForCausalLM(config).to(torch.bfloat16),
        tokens(1, 4096, 128256),
        "LlamaDecoderLayer",
        "self_attn",
        "mlp",
    )


def _gpt2() -> Example:
    config = transformers.GPT2Config(use_cache=False)
    return example_of(
        lambda: transformers.GPT2LMHeadModel(config),
        tokens(8, 1024, 50257),
        "GPT2Block",
        "attn",
        "mlp",
    )


def _mixtral() -> Example:
    config = transformers.MixtralConfig(
        num_hidden_layers=4,
        hidden_size=1024,
        intermediate_size=3584,
        vocab_size=32000,
        use_cache=False,
        output_router_logits=True,
    )
    config._experts_implementation = "batched_mm"
    return example_of(
        lambda: transformers.MixtralForCausalLM(config),
        tokens(1, 512, 32000),
        "MixtralDecoderLayer",
        "self_attn",
        "mlp",
    )


def _bert() -> Example:
    config = transformers.BertConfig()
    return example_of(
        lambda: transformers.BertForMaskedLM(config),
        tokens(16, 512, 30522),
        "BertLayer",
        "attention",
        "intermediate",
    )


def _t5() -> Example:
    config = transformers.T5Config(use_cache=False, decoder_start_token_id=0)
    return example_of(
        lambda: transformers.T5ForConditionalGeneration(config),
        tokens(8, 512, 32128),
        "T5Block",
        "layer.0",
    )


def _vit() -> Example:
    config = transformers.ViTConfig(num_labels=10, hidden_dropout_prob=0.1)
    return example_of(
        lambda: transformers.ViTForImageClassification(config),
        images(32, 224),
        "ViTLayer",
        "attention",
    )


def _resnet() -> Example:
    config = transformers.ResNetConfig(num_labels=10)
    return example_of(
        lambda: transformers.ResNetForImageClassification(config),
        images(16, 224),
        "ResNetBottleNeckLayer",
        "layer",
    )


def _swin() -> Example:
    config = transformers.SwinConfig(num_labels=10, drop_path_rate=0.1)
    return example_of(
        lambda: transformers.SwinForImageClassification(config),
        images(16, 224),
        "SwinLayer",
        "attention",
    )


def _larger(name: str, times: int) -> Callable[[], Example]:
    """Returns a model of the zoo with so many times its batch."""
    example = EXAMPLES[name]()

    def inputs() -> dict[str, torch.Tensor]:
        return {
            key: value.repeat(times, *[1] * (value.dim() - 1))
            for key, value in example.inputs().items()
        }

    return lambda: dataclasses.replace(example, inputs=inputs)


_BF16 = torch.bfloat16
# With the data type of autocast.
MODELS: dict[str, tuple[Callable[[], Example], torch.dtype | None]] = {
    "GPT-2 small, 8 x 1024 (tied weights)": (_gpt2, None),
    "GPT-2 small, autocast": (_gpt2, _BF16),
    "Llama-3-8B, bf16, 1 x 4096": (_llama_8b, None),
    "Mixtral, 4 layers, 1 x 512": (_mixtral, None),
    "BERT base, 16 x 512": (_bert, None),
    "T5 small, 8 x 512": (_t5, None),
    "ViT base, 32 x 224": (_vit, None),
    "ResNet-50, 16 x 224": (_resnet, None),
    "ResNet-50, autocast": (_resnet, _BF16),
    "Swin tiny, 16 x 224": (_swin, None),
    "PyTorch's test Transformer": (_larger("transformer", 16), None),
    "U-Net with skips": (_larger("unet", 16), None),
    "a block called three times, frozen parts": (_larger("shared", 16), None),
    "the same, autocast": (_larger("shared", 16), _BF16),
    "own autograd functions": (_larger("custom", 64), None),
    "attributes, no_grad": (_larger("noted", 64), None),
    "writes in place": (_larger("writing", 64), None),
}
