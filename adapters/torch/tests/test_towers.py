"""Vision towers in the cost model beside the modules of transformers.

The parameters of a whole model must be the same number, and so must be the operations that
an image adds to a forward pass: PyTorch counts those of the tower and its projector.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from acplan._base.program import run_acplan

transformers = pytest.importorskip("transformers")

_TEXT = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 128,
    "head_dim": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_TOWER = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 160,
    "image_size": 64,
    "patch_size": 8,
}
_QWEN = {"depth": 2, "hidden_size": 64, "num_heads": 4, "patch_size": 8}
_GRID = torch.tensor([[1, 16, 16]])  # of patches of 8 x 8 pixels and two frames


@dataclasses.dataclass(frozen=True)
class _Case:
    """The sizes of a type's parts, its way from pixels to tokens, and an image's patches."""

    text: dict[str, Any]
    tower: dict[str, Any]
    read: Callable[[Any], Any]
    patches: int = 64
    whole: dict[str, Any] = dataclasses.field(default_factory=dict)


def _pixels() -> torch.Tensor:
    return torch.zeros(1, 3, 64, 64)


def _features(model: Any) -> Any:
    return model.model.get_image_features(_pixels())


def _qwen_features(model: Any) -> Any:
    return model.model.get_image_features(torch.zeros(256, 3 * 2 * 64), _GRID)


def _pixtral_features(model: Any) -> Any:
    return model.model.get_image_features(_pixels(), image_sizes=torch.tensor([[64, 64]]))


def _llama_features(model: Any) -> Any:
    hidden = model.vision_model(_pixels()).last_hidden_state
    return model.multi_modal_projector(hidden.view(-1, hidden.shape[-1]))


_CASES = {
    "gemma3": _Case(
        {}, {"vision_use_head": False}, _features, whole={"mm_tokens_per_image": 16}
    ),
    "idefics3": _Case(
        {"model_type": "llama"},
        {},
        lambda m: m.model.get_image_features(torch.ones(1, 1, 3, 64, 64)),
    ),
    "internvl": _Case(
        {"model_type": "qwen2"}, {"image_size": [64, 64], "patch_size": [8, 8]}, _features
    ),
    "llama4": _Case(
        {"num_local_experts": 2, "intermediate_size_mlp": 96},
        {
            "intermediate_size": 256,
            "projector_input_dim": 128,
            "projector_output_dim": 128,
            "vision_output_dim": 128,
        },
        _llama_features,
    ),
    "llava": _Case({"model_type": "llama"}, {"model_type": "clip_vision_model"}, _features),
    "mistral3": _Case(
        {"model_type": "mistral"}, {"model_type": "pixtral", "head_dim": 16}, _pixtral_features
    ),
    "qwen2_5_vl": _Case(
        {},
        _QWEN
        | {
            "fullatt_block_indexes": [1],
            "window_size": 64,
            "out_hidden_size": 64,
            "intermediate_size": 160,
        },
        _qwen_features,
        256,
    ),
    "qwen2_vl": _Case(
        {},
        {"depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 4, "patch_size": 8},
        _qwen_features,
        256,
    ),
    "qwen3_vl": _Case(
        {},
        _QWEN
        | {
            "deepstack_visual_indexes": [0],
            "num_position_embeddings": 64,
            "out_hidden_size": 64,
            "intermediate_size": 160,
        },
        _qwen_features,
        256,
    ),
}


@pytest.mark.parametrize("kind", _CASES)
def test_parameters_and_operations_are_those_of_the_modules(
    kind: str, tmp_path: pathlib.Path
) -> None:
    case = _CASES[kind]
    is_qwen = kind.startswith("qwen")
    config = transformers.CONFIG_MAPPING[kind](
        text_config=_TEXT | case.text,
        vision_config=case.tower if is_qwen else _TOWER | case.tower,
        **case.whole,
    )
    # The counter knows products, and no fused kernel of the CPU.
    model = transformers.AutoModelForImageTextToText.from_config(
        config, attn_implementation="eager"
    )
    with FlopCounterMode(display=False) as counter:
        case.read(model)
    file = tmp_path / "config.json"
    file.write_text(config.to_json_string())

    def report(images: int) -> dict[str, Any]:
        command = f"train show {file} --gpu h100 --gpus 1 --gbs 1 --seq 512"
        more = f"--images {images} --image-patches {case.patches} --json"
        answer: dict[str, Any] = json.loads(run_acplan(f"{command} {more}".split()))
        return answer

    text, image = report(0), report(1)
    assert image["parameters"] == sum(p.numel() for p in model.parameters())
    assert (image["model_flops"] - text["model_flops"]) / 3 == counter.get_total_flops()
    assert image["iteration_s"] > text["iteration_s"]
