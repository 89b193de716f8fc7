"""Models of real sizes beside those of models.py: deeper, autocast, of images, sounds
and noise."""

from collections.abc import Callable

import diffusers
import torch
from torch import Tensor, nn

from zoo import Example, example_of, images, tokens, transformer

_BF16 = torch.bfloat16


def _whisper_inputs() -> dict[str, Tensor]:
    return {
        "input_features": torch.randn(8, 80, 3000),
        "labels": torch.randint(0, 50000, (8, 256)),
    }


class _UNetDenoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.unet = diffusers.UNet2DModel(
            sample_size=128,
            block_out_channels=(128, 128, 256, 256, 512),
            down_block_types=(*["DownBlock2D"] * 3, "AttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "AttnUpBlock2D", *["UpBlock2D"] * 3),
        )

    def forward(self, noisy: Tensor, step: Tensor) -> Tensor:
        return self.unet(noisy, step).sample.square().mean()


def _unet_inputs() -> dict[str, Tensor]:
    return {"noisy": torch.randn(8, 3, 128, 128), "step": torch.randint(0, 999, (8,))}


class _DitDenoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = diffusers.DiTTransformer2DModel(num_layers=28)

    def forward(self, noisy: Tensor, step: Tensor, label: Tensor) -> Tensor:
        output = self.transformer(noisy, timestep=step, class_labels=label)
        return output.sample.square().mean()


def _dit_inputs() -> dict[str, Tensor]:
    return {
        "noisy": torch.randn(16, 4, 32, 32),
        "step": torch.randint(0, 999, (16,)),
        "label": torch.randint(0, 999, (16,)),
    }


# With the data type of autocast, as in models.MODELS.
FURTHER: dict[str, tuple[Callable[[], Example], torch.dtype | None]] = {
    "Llama-like, 64 layers, bf16, 8 x 1024": (
        example_of(
            transformer(
                "LlamaForCausalLM", dtype=_BF16, hidden_size=1024, intermediate_size=2816,
                num_hidden_layers=64, num_attention_heads=16, num_key_value_heads=8,
                vocab_size=32000, use_cache=False,
            ),
            tokens(8, 1024, 32000),
            "LlamaDecoderLayer", "self_attn", "mlp",
        ),
        None,
    ),
    "U-Net of diffusers, 8 x 128": (
        example_of(_UNetDenoiser, _unet_inputs, "ResnetBlock2D", "conv1"), None
    ),
    "GPT-2 XL, autocast, 4 x 1024": (
        example_of(
            transformer(
                "GPT2LMHeadModel", n_layer=48, n_embd=1600, n_head=25, use_cache=False
            ),
            tokens(4, 1024, 50257),
            "GPT2Block", "attn", "mlp",
        ),
        _BF16,
    ),
    "BERT large, autocast, 16 x 512": (
        example_of(
            transformer(
                "BertForMaskedLM", hidden_size=1024, num_hidden_layers=24,
                num_attention_heads=16, intermediate_size=4096,
            ),
            tokens(16, 512, 30522),
            "BertLayer", "attention", "intermediate",
        ),
        _BF16,
    ),
    "T5 base, autocast, 8 x 512": (
        example_of(
            transformer(
                "T5ForConditionalGeneration", d_model=768, d_ff=3072, num_layers=12,
                num_heads=12, use_cache=False, decoder_start_token_id=0,
            ),
            tokens(8, 512, 32128),
            "T5Block", "layer.0",
        ),
        _BF16,
    ),
    "Qwen3 0.6B, bf16, 2 x 2048": (
        example_of(
            transformer(
                "Qwen3ForCausalLM", dtype=_BF16, hidden_size=1024, intermediate_size=3072,
                num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
                head_dim=128, vocab_size=151936, use_cache=False,
            ),
            tokens(2, 2048, 151936),
            "Qwen3DecoderLayer", "self_attn", "mlp",
        ),
        None,
    ),
    "Whisper small, 8 x 3000": (
        example_of(
            transformer(
                "WhisperForConditionalGeneration", d_model=768, encoder_layers=12,
                decoder_layers=12, encoder_attention_heads=12, decoder_attention_heads=12,
                encoder_ffn_dim=3072, decoder_ffn_dim=3072, dropout=0.1, use_cache=False,
            ),
            _whisper_inputs,
            "WhisperEncoderLayer", "self_attn",
        ),
        None,
    ),
    "ConvNeXt tiny, 32 x 224": (
        example_of(
            transformer(
                "ConvNextForImageClassification", drop_path_rate=0.1, num_labels=10
            ),
            images(32, 224),
            "ConvNextLayer", "dwconv",
        ),
        None,
    ),
    "EfficientNet B0, 32 x 224": (
        example_of(
            transformer(
                "EfficientNetForImageClassification", image_size=224, width_coefficient=1.0,
                depth_coefficient=1.0, hidden_dim=1280, num_labels=10,
            ),
            images(32, 224),
            "EfficientNetBlock", "depthwise_conv",
        ),
        None,
    ),
    "DiT-XL/2, autocast, 16 x 32": (
        example_of(_DitDenoiser, _dit_inputs, "BasicTransformerBlock", "attn1", "ff"), _BF16
    ),
}  # fmt: skip
