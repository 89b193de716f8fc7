"""More tiny models of transformers, for the zoo: compare_zoo.py."""

from typing import Any

import torch
import transformers
from torch import Tensor

from architectures import LENGTH, Architecture, batches, floats, masked_variants, tokens
from architectures_transformers import (
    BART,
    EXPERTS,
    GROUPED,
    SMALL,
    SPECIAL,
    T5,
    VIT,
    causal,
    classifier,
    ctc,
    encoder,
    images,
    model_of,
    seq2seq,
    text_inputs,
    vision,
)

_MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
    "mamba_n_groups": 1,
}


def _inputs_only(kind: str, auto: str, group: str, **options: Any) -> Architecture:
    """Returns a model of texts whose loss is the mean of its output."""

    def inputs(batch: int, mask: Tensor | None) -> dict[str, Any]:
        arguments = text_inputs(batch, mask)
        del arguments["labels"]
        return arguments

    make = model_of(kind, auto, **(SMALL | options))
    return Architecture(group, make, masked_variants(inputs))


def _laid_out_text(kind: str, **options: Any) -> Architecture:
    """Returns a model of words and the boxes that they stand in."""

    def inputs(batch: int, mask: Tensor | None) -> dict[str, Any]:
        arguments = text_inputs(batch, mask)
        boxes = torch.arange(batch * LENGTH * 4).view(batch, LENGTH, 4) % 20
        boxes[..., 2:] += 20
        return arguments | {"bbox": boxes}

    auto = options.pop("auto", "AutoModelForMaskedLM")
    make = model_of(kind, auto, **(SMALL | options))
    return Architecture("vision and language", make, masked_variants(inputs))


def _videos(kind: str, **options: Any) -> Architecture:
    def inputs(batch: int) -> dict[str, Any]:
        return {
            "pixel_values": floats(batch, 4, 3, 32, 32),
            "labels": torch.arange(batch),
        }

    make = model_of(
        kind, "AutoModelForVideoClassification", **VIT, num_frames=4, num_labels=10, **options
    )
    return Architecture("video", make, batches(inputs))


def _reconstruction(kind: str, auto: str, size: int = 32, **options: Any) -> Architecture:
    make = model_of(kind, auto, **options)
    return Architecture("vision", make, images(size, None))


def _detection(kind: str, **options: Any) -> Architecture:
    backbone = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        out_features=["stage1", "stage2"],
    )
    make = model_of(
        kind,
        "AutoModelForObjectDetection",
        **BART,
        use_timm_backbone=False,
        backbone_config=backbone,
        num_queries=5,
        **options,
    )

    def inputs(batch: int) -> dict[str, Any]:
        return {"pixel_values": floats(batch, 3, 32, 32)}

    return Architecture("vision", make, batches(inputs))


def _spectrogram() -> Architecture:
    make = model_of(
        "audio-spectrogram-transformer",
        "AutoModelForAudioClassification",
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        num_mel_bins=32,
        max_length=64,
        num_labels=10,
    )
    return Architecture(
        "speech",
        make,
        batches(lambda n: {"input_values": floats(n, 64, 32), "labels": torch.arange(n)}),
    )


def _bert_of_speech() -> Architecture:
    def inputs(batch: int, mask: Tensor | None) -> dict[str, Any]:
        arguments: dict[str, Any] = {"input_features": floats(batch, 48, 16)}
        if mask is not None:
            arguments["attention_mask"] = mask
        return arguments | {"labels": tokens(batch, 8, 32)}

    make = model_of(
        "wav2vec2-bert",
        "AutoModelForCTC",
        **(SMALL | {"vocab_size": 32, "num_hidden_layers": 3}),
        feature_projection_input_dim=16,
        layerdrop=0.0,
        ctc_loss_reduction="mean",
        mask_time_length=4,
    )
    return Architecture("speech", make, masked_variants(inputs, 48, ("right",)))


def _codec() -> Architecture:
    make = model_of(
        "encodec",
        "AutoModel",
        hidden_size=16,
        codebook_dim=16,
        num_filters=4,
        upsampling_ratios=[4, 2],
        num_lstm_layers=1,
        codebook_size=32,
    )
    return Architecture("speech", make, batches(lambda n: {"input_values": floats(n, 1, 320)}))


def _moonshine() -> Architecture:
    make = model_of(
        "moonshine",
        "AutoModelForSpeechSeq2Seq",
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4,
        decoder_num_attention_heads=4,
        encoder_num_key_value_heads=4,
        decoder_num_key_value_heads=4,
    )
    return Architecture(
        "speech",
        make,
        batches(lambda n: {"input_values": floats(n, 8000), "labels": tokens(n, 12)}),
    )


def _series(kind: str, inputs: Any, **options: Any) -> Architecture:
    make = model_of(kind, options.pop("auto"), **options)
    return Architecture("time series", make, batches(inputs))


def _past_and_future(batch: int) -> dict[str, Any]:
    return {
        "past_values": floats(batch, 20),
        "past_time_features": floats(batch, 20, 1),
        "past_observed_mask": torch.ones(batch, 20),
        "future_values": floats(batch, 6),
        "future_time_features": floats(batch, 6, 1),
    }


_SERIES = {
    "prediction_length": 6,
    "context_length": 13,
    "num_time_features": 1,
    "d_model": 16,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
}


def _questions_about_images() -> Architecture:
    def inputs(batch: int, mask: Tensor | None) -> dict[str, Any]:
        arguments = text_inputs(batch, mask)
        arguments["labels"] = floats(batch, 10)
        return arguments | {"pixel_values": floats(batch, 3, 32, 32)}

    make = model_of(
        "vilt", "ViltForQuestionAnswering", **(SMALL | VIT | {"num_hidden_layers": 3}),
        num_labels=10,
    )  # fmt: skip
    return Architecture("vision and language", make, masked_variants(inputs, sides=("right",)))


def _decoder_with_images(
    kind: str, auto: str, towers: dict[str, Any], patches: int, **options: Any
) -> Architecture:
    """Returns a language model that reads an image's patches in place of a repeated token."""
    image = 7

    def inputs(batch: int, mask: Tensor | None) -> dict[str, Any]:
        arguments = text_inputs(batch, mask)
        ids = arguments["input_ids"].masked_fill(arguments["input_ids"] == image, image + 1)
        arguments["input_ids"] = torch.cat(
            [ids[:, :1], torch.full((batch, patches), image), ids[:, 1:]], 1
        )
        arguments["labels"] = torch.cat(
            [arguments["labels"][:, :1], torch.full((batch, patches), -100),
             arguments["labels"][:, 1:]], 1
        )  # fmt: skip
        if mask is not None:
            image_mask = torch.ones(batch, patches, dtype=torch.long)
            arguments["attention_mask"] = torch.cat([mask[:, :1], image_mask, mask[:, 1:]], 1)
        if kind == "paligemma":
            arguments["token_type_ids"] = (arguments["input_ids"] != image).long()
        if kind == "qwen2_vl":
            arguments["mm_token_type_ids"] = (arguments["input_ids"] == image).long()
        return arguments | _pixels(kind, batch)

    make = model_of(
        kind, auto, **towers, image_token_id=image, image_token_index=image, **options
    )
    return Architecture("vision and language", make, masked_variants(inputs, sides=("right",)))


def _pixels(kind: str, batch: int) -> dict[str, Any]:
    if kind != "qwen2_vl":
        return {"pixel_values": floats(batch, 3, 32, 32)}
    # 8 x 8 patches of two frames, four of which become one token.
    grid = torch.tensor([[1, 4, 4]] * batch)
    return {"pixel_values": floats(batch * 16, 3 * 2 * 8 * 8), "image_grid_thw": grid}


def _decisions() -> Architecture:
    def inputs(batch: int) -> dict[str, Any]:
        return {
            "states": floats(batch, 8, 5),
            "actions": floats(batch, 8, 3),
            "rewards": floats(batch, 8, 1),
            "returns_to_go": floats(batch, 8, 1),
            "timesteps": torch.arange(8).repeat(batch, 1),
            "attention_mask": torch.ones(batch, 8, dtype=torch.long),
        }

    make = model_of(
        "decision_transformer", "AutoModel", state_dim=5, act_dim=3, hidden_size=32,
        n_layer=3, n_head=2, max_ep_len=32,
    )  # fmt: skip
    return Architecture("decisions", make, batches(inputs))


def _perceiver() -> Architecture:
    def inputs(batch: int, mask: Tensor | None) -> dict[str, Any]:
        arguments = text_inputs(batch, mask)
        return {"inputs": arguments.pop("input_ids"), **arguments}

    make = model_of(
        "perceiver", "PerceiverForMaskedLM", vocab_size=100, d_model=32, d_latents=32,
        num_latents=8, num_self_attends_per_block=3, num_self_attention_heads=4,
        num_cross_attention_heads=4, max_position_embeddings=LENGTH, qk_channels=32,
        v_channels=32,
    )  # fmt: skip
    return Architecture("encoder", make, masked_variants(inputs))


_LONG = {"d_model": 32, "encoder_layers": 3, "decoder_layers": 3}

ARCHITECTURES: dict[str, Architecture] = {
    # Decoders.
    "codegen": causal("codegen", n_embd=32, n_layer=3, n_head=4, rotary_dim=4, n_positions=64),
    "ctrl": causal("ctrl", packs=False, n_embd=32, n_layer=3, n_head=4, dff=64),
    "xglm": causal(
        "xglm", d_model=32, ffn_dim=64, num_layers=3, attention_heads=4
    ),
    "biogpt": causal("biogpt", num_hidden_layers=3),
    "openai-gpt": causal("openai-gpt", n_embd=32, n_layer=3, n_head=4, n_positions=64),
    "gpt_bigcode": causal("gpt_bigcode", n_embd=32, n_layer=3, n_head=4, n_positions=64),
    "nemotron": causal("nemotron", **GROUPED),
    "glm": causal("glm", **GROUPED),
    "glm4": causal("glm4", **GROUPED),
    "helium": causal("helium", **GROUPED),
    "smollm3": causal("smollm3", num_key_value_heads=2, no_rope_layer_interval=2),
    "exaone4": causal("exaone4", num_key_value_heads=2, sliding_window=8),
    "olmo3": causal("olmo3", num_key_value_heads=2, sliding_window=8),
    "seed_oss": causal("seed_oss", **GROUPED),
    "persimmon": causal("persimmon"),
    "diffllama": causal("diffllama", num_key_value_heads=2),
    # Experts.
    "qwen2_moe": causal(
        "qwen2_moe", num_key_value_heads=2, num_experts=4, moe_intermediate_size=32,
        shared_expert_intermediate_size=32, num_experts_per_tok=2,
    ),
    "phimoe": causal("phimoe", num_key_value_heads=2, num_local_experts=4),
    "dbrx": causal(
        "dbrx", d_model=32, n_heads=4, n_layers=2, max_seq_len=64,
        attn_config={"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        ffn_config={"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2,
                    "hidden_size": 32},
    ),
    "glm4_moe": causal(
        "glm4_moe", **GROUPED, **EXPERTS, n_routed_experts=4, n_shared_experts=1,
    ),
    "granitemoe": causal("granitemoe", num_key_value_heads=2, num_local_experts=4),
    "jetmoe": causal(
        "jetmoe", num_key_value_heads=2, kv_channels=8, num_local_experts=4,
        num_experts_per_tok=2,
    ),
    "switch_transformers": seq2seq(
        "switch_transformers", **T5, num_experts=4, num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1, expert_capacity=8,
    ),
    # State spaces, recurrences, convolutions.
    "falcon_mamba": causal(
        "falcon_mamba", packs=False, state_size=4, time_step_rank=4,
        use_associative_scan=False,
    ),
    "zamba2": causal(
        "zamba2", packs=False, num_hidden_layers=3, mamba_d_state=8, n_mamba_heads=8,
        mamba_headdim=8, mamba_ngroups=1, chunk_size=8, num_key_value_heads=4,
        num_mem_blocks=1, use_mem_rope=False, adapter_rank=4,
        layers_block_type=["mamba", "mamba", "hybrid"],
    ),
    "bamba": causal(
        "bamba", packs=False, num_key_value_heads=2, attn_layer_indices=[1], **_MAMBA
    ),
    "granitemoehybrid": causal(
        "granitemoehybrid", packs=False, num_key_value_heads=2, num_local_experts=4,
        num_experts_per_tok=2, shared_intermediate_size=32,
        layer_types=["mamba", "attention"], **_MAMBA,
    ),
    "falcon_h1": causal(
        "falcon_h1", packs=False, num_key_value_heads=2, mamba_d_ssm=64, **_MAMBA
    ),
    "recurrent_gemma": causal(
        "recurrent_gemma", packs=False, num_hidden_layers=3, lru_width=32, head_dim=8,
        attention_window_size=8, num_key_value_heads=2,
    ),
    "qwen3_next": causal(
        "qwen3_next", packs=False, **GROUPED, **EXPERTS, num_experts=4,
        shared_expert_intermediate_size=32, linear_num_key_heads=2,
        linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"],
    ),
    "minimax": causal(
        "minimax", packs=False, **GROUPED, num_local_experts=4, block_size=8,
        layer_types=["linear_attention", "full_attention"],
    ),
    "lfm2": causal(
        "lfm2", packs=False, num_key_value_heads=2,
        layer_types=["conv", "full_attention"],
    ),
    "xlstm": causal(
        "xlstm", packs=False, num_heads=4, num_blocks=2, mode="train", chunk_size=8,
        embedding_dim=32,
    ),
    # Encoders.
    "camembert": encoder("camembert"),
    "xlm-roberta": encoder("xlm-roberta"),
    "mpnet": encoder("mpnet"),
    "squeezebert": encoder("squeezebert", embedding_size=32),
    "mobilebert": encoder(
        "mobilebert", embedding_size=32, intra_bottleneck_size=32, true_hidden_size=32
    ),
    "convbert": encoder("convbert", embedding_size=32, conv_kernel_size=3),
    "roformer": encoder("roformer", embedding_size=32),
    "rembert": encoder(
        "rembert", input_embedding_size=16, output_embedding_size=32
    ),
    "fnet": classifier("fnet"),
    "nystromformer": encoder(
        "nystromformer", segment_means_seq_len=LENGTH, num_landmarks=LENGTH
    ),
    "big_bird": encoder("big_bird", attention_type="original_full"),
    "funnel": classifier(
        "funnel", {"vocab_size": SMALL["vocab_size"]}, block_sizes=[1, 1],
        num_decoder_layers=1, d_model=32, n_head=4, d_head=8, d_inner=64,
    ),
    "canine": classifier(
        "canine", downsampling_rate=4, local_transformer_stride=8, num_hash_buckets=64,
        pad_token_id=0,
    ),
    "esm": encoder("esm", position_embedding_type="rotary"),
    "ibert": encoder("ibert", quant_mode=False),
    "dpr": _inputs_only("dpr", "DPRQuestionEncoder", "encoder"),
    "splinter": _inputs_only("splinter", "AutoModel", "encoder"),
    "layoutlm": _laid_out_text("layoutlm", max_2d_position_embeddings=64),
    "perceiver": _perceiver(),
    # Encoders with decoders.
    "umt5": seq2seq("umt5", **T5),
    "longt5": seq2seq("longt5", **T5, local_radius=7),
    "m2m_100": seq2seq("m2m_100", **BART, encoder_layerdrop=0.0, decoder_layerdrop=0.0),
    "blenderbot": seq2seq("blenderbot", **BART),
    "plbart": seq2seq("plbart", **BART),
    "led": seq2seq(
        "led", **{k: v for k, v in BART.items() if k != "max_position_embeddings"},
        attention_window=8, max_encoder_position_embeddings=64,
        max_decoder_position_embeddings=64,
    ),
    "prophetnet": seq2seq(
        "prophetnet", hidden_size=32, encoder_ffn_dim=64, decoder_ffn_dim=64,
        num_encoder_layers=2, num_decoder_layers=2, num_encoder_attention_heads=4,
        num_decoder_attention_heads=4, max_position_embeddings=64,
    ),
    # Vision.
    "vit_mae": _reconstruction(
        "vit_mae", "AutoModelForPreTraining", **VIT, decoder_num_attention_heads=4,
        decoder_hidden_size=16, decoder_num_hidden_layers=2, decoder_intermediate_size=32,
    ),
    "dinov2_with_registers": vision("dinov2_with_registers", **VIT),
    "hiera": vision(
        "hiera", image_size=[32, 32], embed_dim=8, depths=[1, 1, 1], num_heads=[1, 2, 4],
        patch_size=[3, 3], patch_stride=[2, 2], patch_padding=[1, 1], query_stride=[2, 2],
        num_query_pool=2, masked_unit_size=[4, 4], masked_unit_attention=[True, True, False],
    ),
    "pvt_v2": vision(
        "pvt_v2", image_size=32, num_encoder_blocks=2, depths=[1, 2], sr_ratios=[2, 1],
        hidden_sizes=[8, 16], patch_sizes=[7, 3], strides=[4, 2],
        num_attention_heads=[1, 2], mlp_ratios=[2, 2], out_indices=[1],
        out_features=["stage2"],
    ),
    "levit": vision(
        "levit", image_size=64, size=64, hidden_sizes=[16, 16, 16],
        num_attention_heads=[2, 2, 2], depths=[1, 1, 1], key_dim=[4, 4, 4],
        down_ops=[["Subsample", 4, 4, 2, 2, 2], ["Subsample", 4, 4, 2, 2, 2]],
    ),
    "regnet": vision(
        "regnet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], groups_width=4
    ),
    "convnextv2": vision("convnextv2", hidden_sizes=[8, 16], depths=[1, 2], num_stages=2),
    "focalnet": vision(
        "focalnet", image_size=32, embed_dim=8, hidden_sizes=[8, 16], depths=[1, 2],
        focal_levels=[1, 1], focal_windows=[3, 3],
    ),
    "poolformer": vision(
        "poolformer", depths=[1, 2], hidden_sizes=[8, 16], patch_sizes=[7, 3],
        strides=[4, 2], padding=[2, 1], num_encoder_blocks=2,
    ),
    "swiftformer": vision(
        "swiftformer", image_size=64, size=64, depths=[1, 1], embed_dims=[8, 16],
        downsamples=[True, True],
    ),
    "mobilenet_v2": vision("mobilenet_v2", image_size=32, depth_multiplier=0.35),
    "efficientnet": vision(
        "efficientnet", image_size=32, width_coefficient=0.25, depth_coefficient=0.3,
        hidden_dim=320,
    ),
    "yolos": _reconstruction(
        "yolos", "AutoModelForObjectDetection", **(VIT | {"image_size": [32, 32]}),
        num_detection_tokens=4,
    ),
    "dpt": _reconstruction(
        "dpt", "AutoModelForDepthEstimation", **(VIT | {"num_hidden_layers": 4}),
        backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8,
    ),
    "deformable_detr": _detection(
        "deformable_detr", num_feature_levels=2, encoder_n_points=2, decoder_n_points=2,
        disable_custom_kernels=True,
    ),
    "conditional_detr": _detection("conditional_detr"),
    "videomae": _videos("videomae", tubelet_size=2),
    "vivit": _videos("vivit", tubelet_size=[2, 8, 8]),
    "timesformer": _videos("timesformer"),
    # Speech.
    "wavlm": ctc("wavlm", layerdrop=0.0),
    "data2vec-audio": ctc(
        "data2vec-audio", layerdrop=0.0, conv_pos_kernel_size=3
    ),
    "unispeech": ctc("unispeech", layerdrop=0.0),
    "wav2vec2-conformer": ctc("wav2vec2-conformer", layerdrop=0.0),
    "wav2vec2-bert": _bert_of_speech(),
    "audio-spectrogram-transformer": _spectrogram(),
    "moonshine": _moonshine(),
    "encodec": _codec(),
    # Series of numbers, decisions.
    "time_series_transformer": _series(
        "time_series_transformer", _past_and_future,
        auto="TimeSeriesTransformerForPrediction", **_SERIES,
    ),
    "informer": _series("informer", _past_and_future, auto="InformerForPrediction", **_SERIES),
    "patchtst": _series(
        "patchtst",
        lambda n: {"past_values": floats(n, 32, 2), "future_values": floats(n, 6, 2)},
        auto="PatchTSTForPrediction", num_input_channels=2, context_length=32,
        patch_length=4, patch_stride=4,
        d_model=16, ffn_dim=32, prediction_length=6, num_targets=2,
    ),
    "decision_transformer": _decisions(),
    # Images with texts.
    "vilt": _questions_about_images(),
    "git": _decoder_with_images(
        "git", "AutoModelForCausalLM", SMALL | {"vision_config": VIT}, 0
    ),
    "paligemma": _decoder_with_images(
        "paligemma", "AutoModelForImageTextToText",
        {
            "text_config": SMALL | GROUPED | SPECIAL | {"model_type": "gemma"},
            "vision_config": VIT | {"model_type": "siglip_vision_model"},
        },
        16, projection_dim=32,
    ),
    "qwen2_vl": _decoder_with_images(
        "qwen2_vl", "AutoModelForImageTextToText",
        {
            "text_config": SMALL | SPECIAL | {
                "num_key_value_heads": 2,
                "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2],
                                    "rope_theta": 10000.0},
            },
            "vision_config": {"depth": 2, "embed_dim": 32, "hidden_size": 32,
                              "num_heads": 4, "patch_size": 8, "mlp_ratio": 2},
        },
        4, vision_start_token_id=3, vision_end_token_id=4, video_token_id=5,
    ),
}  # fmt: skip
