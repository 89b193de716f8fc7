"""Tiny models of diffusers, from their configurations: nothing is loaded."""

from collections.abc import Callable
from typing import Any

import diffusers
import torch
from torch import nn

from architectures import Architecture, Inputs, batches, floats, seeded

CHANNELS = {"block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1}


def steps(batch: int) -> torch.Tensor:
    return torch.arange(batch) * 7 + 1


_LAID_OUT = {
    "batch of one": "how the result of a convolution of one image lies in memory, the "
    "device decides, and with it whether `contiguous` copies it"
}


def model_of(
    kind: str, inputs: Callable[[int], dict[str, Any]], **options: Any
) -> Architecture:
    def make() -> nn.Module:
        model: nn.Module = getattr(diffusers, kind)(**options)
        return model

    exceptions = _LAID_OUT if kind in ("UNet2DModel", "AutoencoderKL") else {}
    return Architecture("diffusion", seeded(make), batches(inputs), exceptions)


def noisy(channels: int = 4) -> Callable[[int], dict[str, Any]]:
    return lambda n: {"sample": floats(n, channels, 16, 16), "timestep": steps(n)}


def texts(batch: int) -> torch.Tensor:
    return floats(batch, 7, 16)


def _conditioned() -> dict[str, Inputs]:
    def inputs(batch: int, masks: bool) -> dict[str, Any]:
        arguments = noisy()(batch) | {"encoder_hidden_states": texts(batch)}
        if masks:
            mask = torch.ones(batch, 7, dtype=torch.bool)
            mask[0, 5:] = False
            arguments["encoder_attention_mask"] = mask
        return arguments

    return {
        "no mask": lambda: inputs(3, False),
        "padded right": lambda: inputs(3, True),
        "batch of one": lambda: inputs(1, False),
    }


def hidden(**more: Callable[[int], Any]) -> Callable[[int], dict[str, Any]]:
    def inputs(batch: int) -> dict[str, Any]:
        arguments = {"hidden_states": floats(batch, 4, 8, 8), "timestep": steps(batch)}
        return arguments | {name: value(batch) for name, value in more.items()}

    return inputs


HEADS = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2}


def _flux_inputs(batch: int) -> dict[str, Any]:
    at = torch.arange(16)
    places = torch.stack([torch.zeros(16, dtype=torch.long), at // 4, at % 4], 1)
    return {
        "hidden_states": floats(batch, 16, 8),
        "encoder_hidden_states": texts(batch),
        "pooled_projections": floats(batch, 16),
        "timestep": steps(batch) / 1000,
        "img_ids": places,
        "txt_ids": torch.zeros(7, 3, dtype=torch.long),
    }


ARCHITECTURES: dict[str, Architecture] = {
    "UNet2DModel": model_of(
        "UNet2DModel",
        noisy(),
        sample_size=16,
        in_channels=4,
        out_channels=4,
        attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        **CHANNELS,
    ),
    "UNet2DConditionModel": Architecture(
        "diffusion",
        seeded(
            lambda: diffusers.UNet2DConditionModel(
                sample_size=16,
                cross_attention_dim=16,
                attention_head_dim=4,
                down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
                up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
                **CHANNELS,
            )
        ),
        _conditioned(),
    ),
    "AutoencoderKL": model_of(
        "AutoencoderKL",
        lambda n: {"sample": floats(n, 3, 16, 16), "sample_posterior": True},
        sample_size=16,
        latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        **CHANNELS,
    ),
    "DiTTransformer2DModel": model_of(
        "DiTTransformer2DModel",
        hidden(class_labels=lambda n: torch.arange(n)),
        sample_size=8,
        num_embeds_ada_norm=20,
        **HEADS,
    ),
    "PixArtTransformer2DModel": model_of(
        "PixArtTransformer2DModel",
        hidden(
            encoder_hidden_states=texts,
            encoder_attention_mask=lambda n: torch.ones(n, 7, dtype=torch.long),
        ),
        sample_size=8,
        cross_attention_dim=16,
        caption_channels=16,
        out_channels=8,
        **HEADS,
    ),
    "Transformer2DModel": model_of(
        "Transformer2DModel",
        hidden(encoder_hidden_states=texts),
        in_channels=4,
        norm_num_groups=2,
        cross_attention_dim=16,
        **HEADS,
    ),
    "SD3Transformer2DModel": model_of(
        "SD3Transformer2DModel",
        hidden(encoder_hidden_states=texts, pooled_projections=lambda n: floats(n, 16)),
        sample_size=8,
        in_channels=4,
        out_channels=4,
        caption_projection_dim=16,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        pos_embed_max_size=8,
        **HEADS,
    ),
    "FluxTransformer2DModel": model_of(
        "FluxTransformer2DModel",
        _flux_inputs,
        in_channels=8,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        axes_dims_rope=(2, 2, 4),
    ),
}
