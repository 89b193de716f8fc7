"""Tiny models of transformers, from their configurations: nothing is loaded."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from architectures import (
    LENGTH,
    VOCABULARY,
    Architecture,
    Inputs,
    batches,
    floats,
    masked_variants,
    seeded,
    tokens,
)

SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_OF_ANY_LENGTH = {k: v for k, v in SMALL.items() if k != "max_position_embeddings"}
SPECIAL = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}


def model_of(kind: str, auto: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        config = transformers.AutoConfig.for_model(kind, **(SPECIAL | options))
        if hasattr(config, "use_cache"):
            config.use_cache = False
        model_class = getattr(transformers, auto)
        model: nn.Module = getattr(model_class, "from_config", model_class)(config)
        return model

    return seeded(make)


def text_inputs(batch: int, mask: Tensor | None) -> dict[str, Any]:
    """Returns what a collator gives a language model: padded ids, with labels of -100 there."""
    ids = tokens(batch)
    if mask is None:
        return {"input_ids": ids, "labels": ids.clone()}
    padded = ids.masked_fill(mask == 0, 0)
    labels = ids.masked_fill(mask == 0, -100)
    return {"input_ids": padded, "attention_mask": mask, "labels": labels}


def _packed() -> dict[str, Any]:
    """Returns three sequences in one row, which their positions tell apart."""
    ids = tokens(1)
    positions = torch.cat([torch.arange(n) for n in (10, 8, LENGTH - 18)])
    return {"input_ids": ids, "position_ids": positions[None], "labels": ids.clone()}


def causal(kind: str, packs: bool = True, **options: Any) -> Architecture:
    variants = masked_variants(text_inputs)
    if packs:
        variants["packed"] = _packed
    make = model_of(kind, "AutoModelForCausalLM", **(SMALL | options))
    return Architecture("language model", make, variants)


def encoder(kind: str, **options: Any) -> Architecture:
    make = model_of(kind, "AutoModelForMaskedLM", **(SMALL | options))
    return Architecture("encoder", make, masked_variants(text_inputs))


def classifier(kind: str, sizes: Mapping[str, Any] = SMALL, **options: Any) -> Architecture:
    def inputs(batch: int, mask: Tensor | None) -> dict[str, Any]:
        arguments = text_inputs(batch, mask)
        return arguments | {"labels": torch.arange(batch) % 2}

    make = model_of(kind, "AutoModelForSequenceClassification", **(dict(sizes) | options))
    return Architecture("encoder", make, masked_variants(inputs))


_OF_ONE = ("batch of one", "batch of one, evaluated")
_SHIFTED = "a single number is written to a row by `fill_` on the CPU, on CUDA by `copy_`"


def seq2seq(kind: str, **options: Any) -> Architecture:
    def inputs(batch: int, mask: Tensor | None) -> dict[str, Any]:
        targets = tokens(batch, 15)
        if mask is not None and not mask.all():
            targets[1, 11:] = -100
        return text_inputs(batch, mask) | {"labels": targets}

    make = model_of(kind, "AutoModelForSeq2SeqLM", vocab_size=VOCABULARY, **options)
    exceptions = {}
    if kind == "mbart":
        exceptions = dict.fromkeys(_OF_ONE, _SHIFTED)
    return Architecture("encoder and decoder", make, masked_variants(inputs), exceptions)


T5 = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
}
BART = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
}
_SAMPLES = 1200


def ctc(kind: str, auto: str = "AutoModelForCTC", **options: Any) -> Architecture:
    """Returns a model of speech as samples, with texts of different lengths as labels."""

    def inputs(batch: int, mask: Tensor | None) -> dict[str, Any]:
        targets = tokens(batch, 8, 32)
        if batch > 1:
            targets[1, 5:] = -100
        arguments: dict[str, Any] = {"input_values": floats(batch, _SAMPLES)}
        if mask is not None:
            arguments["attention_mask"] = mask
        return arguments | {"labels": targets}

    make = model_of(
        kind,
        auto,
        **(SMALL | {"vocab_size": 32}),
        conv_dim=(16, 16, 16),
        conv_kernel=(10, 3, 2),
        conv_stride=(5, 4, 2),
        num_feat_extract_layers=3,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        ctc_loss_reduction="mean",
        mask_time_length=4,
        **options,
    )
    return Architecture("speech", make, masked_variants(inputs, _SAMPLES, ("right",)))


def _features(kind: str, width: int, length: int, **options: Any) -> Architecture:
    """Returns a model of speech as a spectrogram, with texts as labels."""

    def inputs(batch: int, mask: Tensor | None) -> dict[str, Any]:
        shape = (width, length) if kind == "whisper" else (length, width)
        arguments: dict[str, Any] = {"input_features": floats(batch, *shape)}
        if mask is not None:
            arguments["attention_mask"] = mask
        return arguments | {"labels": tokens(batch, 12)}

    make = model_of(
        kind,
        "AutoModelForSpeechSeq2Seq",
        **(BART | {"vocab_size": VOCABULARY}),
        **options,
    )
    return Architecture("speech", make, masked_variants(inputs, length, ("right",)))


def images(size: int, labels: Callable[[int], Any] | None) -> dict[str, Inputs]:
    def inputs(batch: int) -> dict[str, Any]:
        arguments: dict[str, Any] = {"pixel_values": floats(batch, 3, size, size)}
        return arguments if labels is None else arguments | {"labels": labels(batch)}

    return batches(inputs)


VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}


def vision(
    kind: str,
    auto: str = "AutoModelForImageClassification",
    size: int = 32,
    **options: Any,
) -> Architecture:
    make = model_of(kind, auto, num_labels=10, **options)
    return Architecture("vision", make, images(size, lambda n: torch.arange(n)))


_LAID_OUT = (
    "how the result of a depthwise convolution of one image lies in memory, the device "
    "decides, and with it whether a linear layer adds its bias by `addmm` or by `add`"
)


def _segmentation(kind: str, size: int = 64, **options: Any) -> Architecture:
    make = model_of(kind, "AutoModelForSemanticSegmentation", num_labels=5, **options)

    def labels(batch: int) -> Tensor:
        return torch.arange(batch * size * size).view(batch, size, size) % 5

    exceptions = dict.fromkeys(_OF_ONE, _LAID_OUT)
    return Architecture("vision", make, images(size, labels), exceptions)


def detection() -> Architecture:
    backbone = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        out_features=["stage2"],
    )

    def inputs(batch: int, mask: Tensor | None) -> dict[str, Any]:
        arguments: dict[str, Any] = {"pixel_values": floats(batch, 3, 24, 24)}
        if mask is not None:
            arguments["pixel_mask"] = mask[:, None, :].expand(-1, 24, -1).contiguous()
        return arguments

    make = model_of(
        "detr",
        "AutoModelForObjectDetection",
        **BART,
        use_timm_backbone=False,
        backbone_config=backbone,
        num_queries=5,
    )
    return Architecture("vision", make, masked_variants(inputs, 24, ("right",)))


_TOWERS = {
    "text_config": SMALL | SPECIAL | {"projection_dim": 32},
    "vision_config": VIT | {"projection_dim": 32},
}


def pairs(kind: str, auto: str = "AutoModel", **more: Any) -> Architecture:
    """Images with their texts."""

    def inputs(batch: int, mask: Tensor | None) -> dict[str, Any]:
        arguments = text_inputs(batch, mask)
        if auto == "AutoModel":
            del arguments["labels"]
            arguments["return_loss"] = True
        return arguments | {"pixel_values": floats(batch, 3, 32, 32)}

    make = model_of(kind, auto, **_TOWERS, **more)
    return Architecture("vision and language", make, masked_variants(inputs, sides=("right",)))


def _llava() -> Architecture:
    image = 7

    def inputs(batch: int, mask: Tensor | None) -> dict[str, Any]:
        arguments = text_inputs(batch, mask)
        ids = arguments["input_ids"]
        ids[ids == image] = image + 1
        # 16 patches, after the padding on the left and before that on the right.
        length = ids.shape[1]
        wide = torch.full((batch, 16), image)
        arguments["input_ids"] = torch.cat([ids[:, :1], wide, ids[:, 1:]], 1)
        arguments["labels"] = torch.cat(
            [arguments["labels"][:, :1], torch.full((batch, 16), -100),
             arguments["labels"][:, 1:]], 1
        )  # fmt: skip
        if mask is not None:
            arguments["attention_mask"] = torch.cat(
                [mask[:, :1], torch.ones(batch, 16, dtype=torch.long), mask[:, 1:]], 1
            )
        assert arguments["input_ids"].shape[1] == length + 16
        return arguments | {"pixel_values": floats(batch, 3, 32, 32)}

    make = model_of(
        "llava",
        "AutoModelForImageTextToText",
        text_config=SMALL | SPECIAL | {"model_type": "llama"},
        vision_config=VIT | {"model_type": "clip_vision_model"},
        image_token_index=image,
        image_token_id=image,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
    )
    return Architecture("vision and language", make, masked_variants(inputs, sides=("right",)))


def _sam() -> Architecture:
    def inputs(batch: int) -> dict[str, Any]:
        return {
            "pixel_values": floats(batch, 3, 64, 64),
            "input_points": floats(batch, 1, 2, 2).abs(),
            "input_labels": torch.ones(batch, 1, 2, dtype=torch.long),
        }

    make = model_of(
        "sam",
        "AutoModel",
        vision_config=VIT
        | {
            "image_size": 64,
            "output_channels": 16,
            "window_size": 4,
            "global_attn_indexes": [1],
            "mlp_dim": 64,
            "num_pos_feats": 8,
        },
        prompt_encoder_config={
            "hidden_size": 16,
            "image_size": 64,
            "patch_size": 8,
            "mask_input_channels": 4,
        },
        mask_decoder_config={
            "hidden_size": 16,
            "num_attention_heads": 2,
            "mlp_dim": 32,
            "iou_head_hidden_dim": 16,
        },
    )
    return Architecture("vision", make, batches(inputs))


_LATENT = {
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}

ARCHITECTURES: dict[str, Architecture] = {
    "gpt2": causal("gpt2"),
    "llama": causal("llama", **GROUPED),
    "qwen2": causal("qwen2", **GROUPED),
    "qwen3": causal("qwen3", **GROUPED),
    "qwen3_moe": causal("qwen3_moe", **GROUPED, **EXPERTS, num_experts=4),
    "mistral": causal("mistral", **GROUPED),
    "mistral, short window": causal("mistral", **GROUPED, sliding_window=8),
    "mixtral": causal("mixtral", **GROUPED, num_local_experts=4),
    "gemma": causal("gemma", **GROUPED),
    "gemma2": causal("gemma2", **GROUPED, sliding_window=8),
    "gemma3_text": causal("gemma3_text", **GROUPED),
    "gemma3_text, short window": causal(
        "gemma3_text", **GROUPED, sliding_window=8, num_hidden_layers=6
    ),
    "phi": causal("phi"),
    "phi3": causal("phi3", num_key_value_heads=2, sliding_window=8),
    "opt": causal("opt", ffn_dim=64, word_embed_proj_dim=32),
    "bloom": causal("bloom", packs=False, n_layer=2, n_head=4),
    "gpt_neox": causal("gpt_neox"),
    "gpt_neo": causal(
        "gpt_neo", attention_types=[[["global", "local"], 1]], window_size=8
    ),
    "gptj": causal("gptj", rotary_dim=4),
    "falcon": causal("falcon", multi_query=True),
    "falcon with alibi": causal("falcon", packs=False, alibi=True),
    "mpt": causal(
        "mpt", packs=False, d_model=32, n_layers=2, n_heads=4, max_seq_len=64
    ),
    "olmo2": causal("olmo2", num_key_value_heads=2),
    "olmoe": causal(
        "olmoe", num_key_value_heads=2, num_experts=4, num_experts_per_tok=2
    ),
    "starcoder2": causal("starcoder2", num_key_value_heads=2, sliding_window=8),
    "deepseek_v2": causal("deepseek_v2", **_LATENT, **EXPERTS),
    "deepseek_v3": causal(
        "deepseek_v3", **_LATENT, **EXPERTS, n_group=2, topk_group=1
    ),
    "gpt_oss": causal(
        "gpt_oss",
        **GROUPED,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=8,
    ),
    "granite": causal("granite", num_key_value_heads=2),
    "cohere": causal("cohere", num_key_value_heads=2),
    "stablelm": causal("stablelm", num_key_value_heads=2),
    "mamba": causal(
        "mamba", packs=False, state_size=4, time_step_rank=4, num_hidden_layers=1
    ),
    "mamba2": causal(
        "mamba2", packs=False, state_size=8, num_heads=8, head_dim=8, n_groups=1,
        chunk_size=8,
    ),
    "jamba": causal(
        "jamba", packs=False, num_key_value_heads=2, num_experts=2,
        attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
        expert_layer_offset=1, mamba_d_state=4, mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "rwkv": causal("rwkv", packs=False, attention_hidden_size=32, context_length=64),
    "bert": encoder("bert"),
    "bert, classifier": classifier("bert"),
    "roberta": encoder("roberta"),
    "distilbert": encoder("distilbert", dim=32, hidden_dim=64, n_layers=2, n_heads=4),
    "albert": encoder("albert", embedding_size=16),
    "electra": classifier("electra", embedding_size=16),
    "deberta_v2": encoder(
        "deberta-v2", relative_attention=True, position_buckets=8,
        pos_att_type=["p2c", "c2p"], type_vocab_size=0,
    ),
    "modernbert": encoder(
        "modernbert", local_attention=8, global_attn_every_n_layers=2,
        cls_token_id=1, sep_token_id=2,
    ),
    "xlnet": classifier(
        "xlnet", _OF_ANY_LENGTH, d_model=32, n_layer=2, n_head=4, d_inner=64
    ),
    "longformer": encoder("longformer", attention_window=[8, 8]),
    "llama, classifier": classifier("llama", **GROUPED),
    "t5": seq2seq("t5", **T5),
    "mt5": seq2seq("mt5", **T5),
    "bart": seq2seq("bart", **BART),
    "mbart": seq2seq("mbart", **BART),
    "pegasus": seq2seq("pegasus", **BART),
    "marian": seq2seq("marian", **BART),
    "whisper": _features(
        "whisper", 16, 48, num_mel_bins=16, max_source_positions=24,
        max_target_positions=32,
    ),
    "speech_to_text": _features(
        "speech_to_text", 16, 48, input_feat_per_channel=16, conv_channels=16,
        max_source_positions=64, max_target_positions=64,
    ),
    "wav2vec2": ctc("wav2vec2", layerdrop=0.0),
    "hubert": ctc("hubert", layerdrop=0.0),
    "vit": vision("vit", **VIT),
    "deit": vision("deit", "DeiTForImageClassification", **VIT),
    "beit": vision("beit", **VIT, use_relative_position_bias=True),
    "dinov2": vision("dinov2", **VIT),
    "swin": vision(
        "swin", image_size=32, patch_size=2, window_size=4, embed_dim=16,
        depths=[2, 2], num_heads=[2, 4],
    ),
    "swinv2": vision(
        "swinv2", image_size=32, patch_size=2, window_size=4, embed_dim=16,
        depths=[2, 2], num_heads=[2, 4],
    ),
    "convnext": vision("convnext", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    "resnet": vision(
        "resnet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
        layer_type="basic",
    ),
    "mobilevit": vision(
        "mobilevit", size=64, image_size=64, hidden_sizes=[16, 16, 16],
        neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 8], num_attention_heads=2,
    ),
    "segformer": _segmentation(
        "segformer", num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1],
        hidden_sizes=[8, 16], patch_sizes=[7, 3], strides=[4, 2],
        num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=16,
    ),
    "detr": detection(),
    "sam": _sam(),
    "clip": pairs("clip", projection_dim=32),
    "siglip": pairs("siglip"),
    "blip": pairs("blip", "AutoModelForImageTextToText", projection_dim=32),
    "llava": _llava(),
}  # fmt: skip
