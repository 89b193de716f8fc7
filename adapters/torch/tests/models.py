"""Models of real sizes, beside the small ones of the zoo with larger batches."""

import dataclasses
from collections.abc import Callable

import torch

from zoo import EXAMPLES, Example, example_of, images, tokens, transformer


def _larger(name: str, times: int) -> Callable[[], Example]:
    """Returns a model of the zoo with so many times its batch."""
    example = EXAMPLES[name]()

    def inputs() -> dict[str, torch.Tensor]:
        return {
            key: value.repeat(times, *[1] * (value.dim() - 1))
            for key, value in example.inputs().items()
        }

    return lambda: dataclasses.replace(example, inputs=inputs)


_GPT2 = example_of(
    transformer("GPT2LMHeadModel", use_cache=False),
    tokens(8, 1024, 50257),
    "GPT2Block", "attn", "mlp",
)  # fmt: skip
_RESNET = example_of(
    transformer("ResNetForImageClassification", num_labels=10),
    images(16, 224),
    "ResNetBottleNeckLayer", "layer",
)  # fmt: skip
_BF16 = torch.bfloat16
# With the data type of autocast.
MODELS: dict[str, tuple[Callable[[], Example], torch.dtype | None]] = {
    "GPT-2 small, 8 x 1024 (tied weights)": (_GPT2, None),
    "GPT-2 small, autocast": (_GPT2, _BF16),
    "Llama-3-8B, bf16, 1 x 4096": (
        example_of(
            transformer(
                "LlamaForCausalLM", dtype=_BF16, hidden_size=4096, intermediate_size=14336,
                num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
                vocab_size=128256, use_cache=False,
            ),
            tokens(1, 4096, 128256),
            "LlamaDecoderLayer", "self_attn", "mlp",
        ),
        None,
    ),
    "Mixtral, 4 layers, 1 x 512": (
        example_of(
            transformer(
                "MixtralForCausalLM", experts="batched_mm", num_hidden_layers=4,
                hidden_size=1024, intermediate_size=3584, vocab_size=32000, use_cache=False,
                output_router_logits=True,
            ),
            tokens(1, 512, 32000),
            "MixtralDecoderLayer", "self_attn", "mlp",
        ),
        None,
    ),
    "BERT base, 16 x 512": (
        example_of(
            transformer("BertForMaskedLM"),
            tokens(16, 512, 30522),
            "BertLayer", "attention", "intermediate",
        ),
        None,
    ),
    "T5 small, 8 x 512": (
        example_of(
            transformer(
                "T5ForConditionalGeneration", use_cache=False, decoder_start_token_id=0
            ),
            tokens(8, 512, 32128),
            "T5Block", "layer.0",
        ),
        None,
    ),
    "ViT base, 32 x 224": (
        example_of(
            transformer("ViTForImageClassification", num_labels=10, hidden_dropout_prob=0.1),
            images(32, 224),
            "ViTLayer", "attention",
        ),
        None,
    ),
    "ResNet-50, 16 x 224": (_RESNET, None),
    "ResNet-50, autocast": (_RESNET, _BF16),
    "Swin tiny, 16 x 224": (
        example_of(
            transformer("SwinForImageClassification", num_labels=10, drop_path_rate=0.1),
            images(16, 224),
            "SwinLayer", "attention",
        ),
        None,
    ),
    "PyTorch's test Transformer": (_larger("transformer", 16), None),
    "U-Net with skips": (_larger("unet", 16), None),
    "a block called three times, frozen parts": (_larger("shared", 16), None),
    "the same, autocast": (_larger("shared", 16), _BF16),
    "own autograd functions": (_larger("custom", 64), None),
    "attributes, no_grad": (_larger("noted", 64), None),
    "writes in place": (_larger("writing", 64), None),
}  # fmt: skip
