"""Encoders with decoders in the cost model beside the modules of transformers: parameters, and
the operations of a forward pass over sources and targets of different lengths."""

import json
import pathlib
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from acplan._base.program import run_acplan

transformers = pytest.importorskip("transformers")

_SOURCE, _TARGET = 24, 16
_T5 = {"d_model": 32, "d_kv": 24, "d_ff": 80, "num_heads": 2, "vocab_size": 128}
_T5_LAYERS = {"num_layers": 3, "num_decoder_layers": 2}
_BART = {
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_ffn_dim": 80,
    "decoder_ffn_dim": 72,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "vocab_size": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
_POSITIONS = {"max_position_embeddings": 24}
_WHISPER = {"max_source_positions": _SOURCE, "max_target_positions": 16, "num_mel_bins": 20}
_CASES = {
    "bart": _BART | _POSITIONS,
    "m2m_100": _BART | _POSITIONS,
    "mt5": _T5 | _T5_LAYERS,
    "pegasus": _BART | _POSITIONS,
    "t5": _T5 | _T5_LAYERS,
    "whisper": _BART | _WHISPER,
}


def _inputs(config: Any) -> dict[str, torch.Tensor]:
    target = torch.ones(1, _TARGET, dtype=torch.long)
    if config.model_type == "whisper":
        sound = torch.zeros(1, config.num_mel_bins, 2 * _SOURCE)
        return {"input_features": sound, "decoder_input_ids": target}
    source = torch.ones(1, _SOURCE, dtype=torch.long)
    return {"input_ids": source, "decoder_input_ids": target}


@pytest.mark.parametrize("kind", _CASES)
def test_parameters_and_operations_are_those_of_the_modules(
    kind: str, tmp_path: pathlib.Path
) -> None:
    config = transformers.CONFIG_MAPPING[kind](**_CASES[kind])
    auto = "SpeechSeq2Seq" if kind == "whisper" else "Seq2SeqLM"
    # The counter knows products, and no fused kernel of the CPU.
    model = getattr(transformers, f"AutoModelFor{auto}").from_config(
        config, attn_implementation="eager"
    )
    with FlopCounterMode(display=False) as counter:
        model(**_inputs(config), use_cache=False)
    file = tmp_path / "config.json"
    file.write_text(config.to_json_string())
    command = f"train show {file} --gpu h100 --gpus 1 --gbs 1 --seq {_TARGET}"
    report = json.loads(run_acplan(f"{command} --source-seq {_SOURCE} --json".split()))
    assert report["parameters"] == sum(p.numel() for p in model.parameters())
    # The modules compute all scores of the decoder, the model only the causal half.
    width = 48 if kind.endswith("t5") else 32
    unseen_scores = 2 * 2 * _TARGET**2 * width
    assert report["model_flops"] / 3 + unseen_scores == counter.get_total_flops()
