"""Models of real sizes that are compiled as a whole."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

from zoo import transformer

Case = tuple[Callable[[], nn.Module], Callable[[], dict[str, Any]]]


def _tokens(batch: int, length: int, vocabulary: int) -> Callable[[], dict[str, Any]]:
    def inputs() -> dict[str, Any]:
        tokens = torch.randint(0, vocabulary, (batch, length))
        return {"input_ids": tokens, "labels": tokens}

    return inputs


def _images(batch: int, size: int, *, labels: bool = True) -> Callable[[], dict[str, Any]]:
    def inputs() -> dict[str, Any]:
        arguments = {"pixel_values": torch.rand(batch, 3, size, size)}
        return arguments | ({"labels": torch.randint(0, 10, (batch,))} if labels else {})

    return inputs


def _gpt2(dropout: float) -> Callable[[], nn.Module]:
    dropouts: dict[str, Any] = dict.fromkeys(
        ("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout
    )
    return transformer("GPT2LMHeadModel", use_cache=False, **dropouts)


class _Clip(nn.Module):
    """With the loss of its own, which forward() leaves out unless asked."""

    def __init__(self) -> None:
        super().__init__()
        self.clip = transformers.CLIPModel(transformers.CLIPConfig())

    def forward(self, **inputs: torch.Tensor) -> Any:
        return self.clip(**inputs, return_loss=True)


def _clip_inputs() -> dict[str, Any]:
    return {"input_ids": torch.randint(0, 49408, (32, 77))} | _images(32, 224, labels=False)()


def _whisper_inputs() -> dict[str, Any]:
    return {
        "input_features": torch.rand(8, 80, 3000),
        "labels": torch.randint(0, 51865, (8, 128)),
    }


MODELS: dict[str, Case] = {
    "GPT-2 small, 8 x 1024": (_gpt2(0.0), _tokens(8, 1024, 50257)),
    "GPT-2 small with dropout, 8 x 1024": (_gpt2(0.1), _tokens(8, 1024, 50257)),
    "BERT base, 16 x 512": (
        transformer(
            "BertForMaskedLM", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        ),
        _tokens(16, 512, 30522),
    ),
    "ResNet-50, 16 x 224": (
        transformer("ResNetForImageClassification", num_labels=10), _images(16, 224)
    ),
    "Llama, 8 layers, bf16, 2 x 4096": (
        transformer(
            "LlamaForCausalLM", dtype=torch.bfloat16, hidden_size=4096,
            intermediate_size=14336, num_hidden_layers=8, num_attention_heads=32,
            num_key_value_heads=8, vocab_size=128256, use_cache=False,
        ),
        _tokens(2, 4096, 128256),
    ),
    "ViT base, 32 x 224": (
        transformer("ViTForImageClassification", num_labels=10), _images(32, 224)
    ),
    "T5 small, 8 x 512": (
        transformer("T5ForConditionalGeneration", use_cache=False, decoder_start_token_id=0),
        _tokens(8, 512, 32128),
    ),
    "Mixtral, 4 layers, 8 x 1024": (
        transformer(
            "MixtralForCausalLM", experts="grouped_mm", num_hidden_layers=4,
            hidden_size=1024, intermediate_size=3584, vocab_size=32000, use_cache=False,
        ),
        _tokens(8, 1024, 32000),
    ),
    "ConvNeXt tiny, 32 x 224": (
        transformer("ConvNextForImageClassification", num_labels=10), _images(32, 224)
    ),
    "Whisper base, 8 x 30 s": (
        transformer(
            "WhisperForConditionalGeneration", use_cache=False, d_model=512, encoder_layers=6,
            decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
            encoder_ffn_dim=2048, decoder_ffn_dim=2048, vocab_size=51865,
        ),
        _whisper_inputs,
    ),
    "Swin tiny, 32 x 224": (
        transformer("SwinForImageClassification", num_labels=10), _images(32, 224)
    ),
    "CLIP, 32 x 224": (_Clip, _clip_inputs),
}  # fmt: skip
