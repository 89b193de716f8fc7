"""Models of real sizes beside those of models.py: deeper, autocast, of images, sounds
and noise."""

from collections.abc import Callable

import diffusers
import torch
import transformers
from torch import Tensor, nn

from models import example_of
from zoo import Example, images, tokens

_BF16 = torch.bfloat16


def _llama_like() -> Example:
    config = transformers.LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=64,
        num_attention_heads=16,
        num_key_value_heads=8,
        vocab_size=32000,
        use_cache=False,
    )
    return example_of(
        lambda: transformers.LlamaForCausalLM(config).to(_BF16),
        tokens(8, 1024, 32000),
        "LlamaDecoderLayer",
        "self_attn",
        "mlp",
    )


def _gpt2_xl() -> Example:
    config = transformers.GPT2Config(n_layer=48, n_embd=1600, n_head=25, use_cache=False)
    return example_of(
        lambda: transformers.GPT2LMHeadModel(config),
        tokens(4, 1024, 50257),
        "GPT2Block",
        "attn",
        "mlp",
    )


def _bert_large() -> Example:
    config = transformers.BertConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
    )
    return example_of(
        lambda: transformers.BertForMaskedLM(config),
        tokens(16, 512, 30522),
        "BertLayer",
        "attention",
        "intermediate",
    )


def _qwen3() -> Example:
    config = transformers.Qwen3Config(
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
        use_cache=False,
    )
    return example_of(
        lambda: transformers.Qwen3ForCausalLM(config).to(_BF16),
        tokens(2, 2048, 151936),
        "Qwen3DecoderLayer",
        "self_attn",
        "mlp",
    )


def _whisper() -> Example:
    config = transformers.WhisperConfig(
        d_model=768,
        encoder_layers=12,
        decoder_layers=12,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
        dropout=0.1,
        use_cache=False,
    )

    def inputs() -> dict[str, Tensor]:
        return {
            "input_features": torch.randn(8, 80, 3000),
            "labels": torch.randint(0, 50000, (8, 256)),
        }

    return example_of(
        lambda: transformers.WhisperForConditionalGeneration(config),
        inputs,
        "WhisperEncoderLayer",
        "self_attn",
    )


def _convnext() -> Example:
    config = transformers.ConvNextConfig(drop_path_rate=0.1, num_labels=10)
    return example_of(
        lambda: transformers.ConvNextForImageClassification(config),
        images(32, 224),
        "ConvNextLayer",
        "dwconv",
    )


def _efficientnet() -> Example:
    config = transformers.EfficientNetConfig(
        image_size=224,
        width_coefficient=1.0,
        depth_coefficient=1.0,
        hidden_dim=1280,
        num_labels=10,
    )
    return example_of(
        lambda: transformers.EfficientNetForImageClassification(config),
        images(32, 224),
        "EfficientNetBlock",
        "depthwise_conv",
    )


def _unet() -> Example:
    class Denoiser(nn.Module):
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

    def inputs() -> dict[str, Tensor]:
        return {"noisy": torch.randn(8, 3, 128, 128), "step": torch.randint(0, 999, (8,))}

    return example_of(Denoiser, inputs, "ResnetBlock2D", "conv1")


def _dit() -> Example:
    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.transformer = diffusers.DiTTransformer2DModel(num_layers=28)

        def forward(self, noisy: Tensor, step: Tensor, label: Tensor) -> Tensor:
            output = self.transformer(noisy, timestep=step, class_labels=label)
            return output.sample.square().mean()

    def inputs() -> dict[str, Tensor]:
        return {
            "noisy": torch.randn(16, 4, 32, 32),
            "step": torch.randint(0, 999, (16,)),
            "label": torch.randint(0, 999, (16,)),
        }

    return example_of(Denoiser, inputs, "BasicTransformerBlock", "attn1", "ff")


def _t5_base() -> Example:
    config = transformers.T5Config(
        d_model=768,
        d_ff=3072,
        num_layers=12,
        num_heads=12,
        use_cache=False,
        decoder_start_token_id=0,
    )
    return example_of(
        lambda: transformers.T5ForConditionalGeneration(config),
        tokens(8, 512, 32128),
        "T5Block",
        "layer.0",
    )


# With the data type of autocast, as in models.MODELS.
FURTHER: dict[str, tuple[Callable[[], Example], torch.dtype | None]] = {
    "Llama-like, 64 layers, bf16, 8 x 1024": (_llama_like, None),
    "U-Net of diffusers, 8 x 128": (_unet, None),
    "GPT-2 XL, autocast, 4 x 1024": (_gpt2_xl, _BF16),
    "BERT large, autocast, 16 x 512": (_bert_large, _BF16),
    "T5 base, autocast, 8 x 512": (_t5_base, _BF16),
    "Qwen3 0.6B, bf16, 2 x 2048": (_qwen3, None),
    "Whisper small, 8 x 3000": (_whisper, None),
    "ConvNeXt tiny, 32 x 224": (_convnext, None),
    "EfficientNet B0, 32 x 224": (_efficientnet, None),
    "DiT-XL/2, autocast, 16 x 32": (_dit, _BF16),
}
