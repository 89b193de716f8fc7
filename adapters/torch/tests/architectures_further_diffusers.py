"""More tiny models of diffusers, for the zoo: compare_zoo.py."""

from typing import Any

import torch

from architectures import Architecture, floats
from architectures_diffusers import CHANNELS, HEADS, hidden, model_of, steps, texts


def _videos(batch: int, channels: int = 4) -> torch.Tensor:
    return floats(batch, channels, 2, 8, 8)


def _padded(batch: int) -> torch.Tensor:
    """Returns a mask of texts, the second of which is shorter."""
    mask = torch.ones(batch, 7, dtype=torch.long)
    mask[1:2, 5:] = 0
    return mask


def _flat_video(batch: int) -> dict[str, Any]:
    return {
        "hidden_states": floats(batch, 2 * 4 * 4, 8),
        "encoder_hidden_states": texts(batch),
        "timestep": steps(batch),
        "encoder_attention_mask": _padded(batch),
        "num_frames": 2,
        "height": 4,
        "width": 4,
    }


def _conditioned_by_image(batch: int) -> dict[str, Any]:
    return {
        "sample": floats(batch, 4, 16, 16),
        "timestep": steps(batch),
        "encoder_hidden_states": texts(batch),
        "controlnet_cond": floats(batch, 3, 128, 128),
    }


def _sized(batch: int) -> torch.Tensor:
    return torch.full((batch, 2), 8.0)


_HEADS_OF_8 = {"num_attention_heads": 2, "attention_head_dim": 8}

ARCHITECTURES: dict[str, Architecture] = {
    "VQModel": model_of(
        "VQModel",
        lambda n: {"sample": floats(n, 3, 16, 16)},
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        num_vq_embeddings=16,
        **CHANNELS,
    ),
    "AutoencoderTiny": model_of(
        "AutoencoderTiny",
        lambda n: {"sample": floats(n, 3, 16, 16)},
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        num_encoder_blocks=(1, 2),
        num_decoder_blocks=(2, 1),
    ),
    "AutoencoderDC": model_of(
        "AutoencoderDC",
        lambda n: {"sample": floats(n, 3, 32, 32)},
        latent_channels=4,
        attention_head_dim=4,
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
    ),
    "AutoencoderKLWan": model_of(
        "AutoencoderKLWan",
        lambda n: {"sample": floats(n, 3, 1, 16, 16)},
        base_dim=4,
        z_dim=4,
        dim_mult=[1, 2],
        num_res_blocks=1,
        temperal_downsample=[False],
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    ),
    "ControlNetModel": model_of(
        "ControlNetModel",
        _conditioned_by_image,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=4,
        conditioning_embedding_out_channels=(4, 8, 8, 8),
        **CHANNELS,
    ),
    "UNet3DConditionModel": model_of(
        "UNet3DConditionModel",
        lambda n: {
            "sample": _videos(n),
            "timestep": steps(n),
            "encoder_hidden_states": texts(n),
        },
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
        up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
        cross_attention_dim=16,
        attention_head_dim=4,
        **CHANNELS,
    ),
    "PriorTransformer": model_of(
        "PriorTransformer",
        lambda n: {
            "hidden_states": floats(n, 16),
            "timestep": steps(n),
            "proj_embedding": floats(n, 16),
            "encoder_hidden_states": texts(n),
        },
        embedding_dim=16,
        num_embeddings=7,
        **HEADS,
    ),
    "SanaTransformer2DModel": model_of(
        "SanaTransformer2DModel",
        hidden(encoder_hidden_states=texts, encoder_attention_mask=_padded),
        in_channels=4,
        out_channels=4,
        num_cross_attention_heads=2,
        cross_attention_head_dim=8,
        cross_attention_dim=16,
        caption_channels=16,
        sample_size=8,
        **HEADS,
    ),
    "AuraFlowTransformer2DModel": model_of(
        "AuraFlowTransformer2DModel",
        hidden(encoder_hidden_states=texts),
        sample_size=8,
        num_mmdit_layers=1,
        num_single_dit_layers=2,
        joint_attention_dim=16,
        caption_projection_dim=16,
        pos_embed_max_size=16,
        **_HEADS_OF_8,
    ),
    "Lumina2Transformer2DModel": model_of(
        "Lumina2Transformer2DModel",
        hidden(encoder_hidden_states=texts, encoder_attention_mask=lambda n: _padded(n).bool()),
        sample_size=8,
        in_channels=4,
        hidden_size=24,
        num_layers=2,
        num_refiner_layers=1,
        num_attention_heads=3,
        num_kv_heads=1,
        multiple_of=16,
        axes_dim_rope=(4, 2, 2),
        axes_lens=(32, 32, 32),
        cap_feat_dim=16,
    ),
    "CogView4Transformer2DModel": model_of(
        "CogView4Transformer2DModel",
        hidden(
            encoder_hidden_states=texts,
            original_size=_sized,
            target_size=_sized,
            crop_coords=_sized,
        ),
        in_channels=4,
        out_channels=4,
        num_layers=2,
        text_embed_dim=16,
        time_embed_dim=16,
        condition_dim=8,
        pos_embed_max_size=8,
        sample_size=8,
        rope_axes_dim=(8, 8),
        **_HEADS_OF_8,
    ),
    "CogVideoXTransformer3DModel": model_of(
        "CogVideoXTransformer3DModel",
        lambda n: {
            "hidden_states": floats(n, 2, 4, 8, 8),
            "encoder_hidden_states": texts(n),
            "timestep": steps(n),
        },
        in_channels=4,
        out_channels=4,
        time_embed_dim=16,
        text_embed_dim=16,
        sample_width=8,
        sample_height=8,
        sample_frames=5,
        max_text_seq_length=7,
        **HEADS,
    ),
    "WanTransformer3DModel": model_of(
        "WanTransformer3DModel",
        lambda n: {
            "hidden_states": _videos(n),
            "encoder_hidden_states": texts(n),
            "timestep": steps(n),
        },
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=16,
        ffn_dim=32,
        num_layers=2,
        rope_max_seq_len=16,
        num_attention_heads=2,
        attention_head_dim=12,
    ),
    "HunyuanVideoTransformer3DModel": model_of(
        "HunyuanVideoTransformer3DModel",
        lambda n: {
            "hidden_states": _videos(n),
            "encoder_hidden_states": texts(n),
            "encoder_attention_mask": _padded(n),
            "pooled_projections": floats(n, 16),
            "timestep": steps(n),
            "guidance": torch.full((n,), 6000.0),
        },
        in_channels=4,
        out_channels=4,
        num_layers=1,
        num_single_layers=1,
        num_refiner_layers=1,
        text_embed_dim=16,
        pooled_projection_dim=16,
        rope_axes_dim=(2, 2, 4),
        **_HEADS_OF_8,
    ),
    "LTXVideoTransformer3DModel": model_of(
        "LTXVideoTransformer3DModel",
        _flat_video,
        in_channels=8,
        out_channels=8,
        cross_attention_dim=16,
        caption_channels=16,
        **HEADS,
    ),
}
