"""From a step that does not fit to one that does: the commands that somebody types, the seconds
that they take, and what they answer.

    ACPLAN=... PYTHONPATH=. python tests/compare_stories.py [STORY...]

writes docs/measured/stories.csv.
"""

import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time
from typing import Any

import diffusers
import torch
from torch import nn

from acplan._files.display import size
from tables import Table, print_versions

_MODELS = pathlib.Path("../../data/training/models")
_QWEN3 = json.dumps(
    {
        "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True,
        "max_position_embeddings": 40960,
    }
)  # fmt: skip
_VIT_L = (
    "--set", "hidden_size=1024", "--set", "num_hidden_layers=24", "--set",
    "num_attention_heads=16", "--set", "intermediate_size=4096",
)  # fmt: skip


def sdxl_unet() -> dict[str, Any]:
    """Returns a step of SDXL's U-Net for pictures of 1024 x 1024, as trainers run it."""
    with torch.device("meta"):
        unet = diffusers.UNet2DConditionModel(
            sample_size=128, block_out_channels=(320, 640, 1280),
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            transformer_layers_per_block=(1, 2, 10), attention_head_dim=(5, 10, 20),
            cross_attention_dim=2048, addition_embed_type="text_time",
            addition_time_embed_dim=256, projection_class_embeddings_input_dim=2816,
            use_linear_projection=True,
        )  # fmt: skip
        inputs = {
            "sample": torch.zeros(4, 4, 128, 128),
            "timestep": torch.zeros(4, dtype=torch.long),
            "encoder_hidden_states": torch.zeros(4, 77, 2048),
            "added_cond_kwargs": {
                "text_embeds": torch.zeros(4, 1280),
                "time_ids": torch.zeros(4, 6),
            },
        }
    model: nn.Module = unet
    return {"model": model, "kwargs": inputs}


_STORIES = {
    "8B on one H100": (
        "--hf-config", str(_MODELS / "llama-3.1-8b.json"), "--batch", "8", "--seq", "4096",
        "--device", "h100",
    ),
    "SDXL's U-Net on 24 GB": ("--factory", "compare_stories:sdxl_unet", "--device", "rtx4090"),
    "ViT-L on 16 GB": ("--hf-config", "vit", *_VIT_L, "--batch", "64", "--device", "t4"),
    "Qwen3-0.6B on 8 GB": (
        "--hf-config", _QWEN3, "--batch", "4", "--seq", "2048", "--device", "rtx3090",
        "--device-memory", "7.5GiB",
    ),
    "70B on 8 x 80 GB": (
        "--hf-config", str(_MODELS / "llama-3.1-70b.json"), "--batch", "1", "--seq", "4096",
        "--device", "h100", "--gpus", "8",
    ),
}  # fmt: skip


def _row(flags: tuple[str, ...]) -> tuple[object, ...]:
    with tempfile.TemporaryDirectory() as folder:
        answer = pathlib.Path(folder) / "answer.json"
        command = ["what-fits", *flags, "--no-progress", "-o", str(answer)]
        start, times = time.monotonic(), os.times()
        tests = pathlib.Path(__file__).resolve().parent
        subprocess.run(
            [sys.executable, "-m", "acplan", *command],
            env=os.environ | {"PYTHONPATH": f"{tests.parent}:{tests}"},
            check=False,
        )
        seconds, after = time.monotonic() - start, os.times()
        cpu = sum(after[2:4]) - sum(times[2:4])
        data = json.loads(answer.read_text())
    fits = [
        f"{fit['settings']} ({fit['changes']}, {'traced' if fit['traced'] else 'estimated'}): "
        f"{fit['microbatch']} x {fit['accumulate']}, {size(fit['peak_bytes'])}, "
        f"{fit['per_second']:.3g} a second"
        for fit in data["fits"]
    ]
    traced = sum(row["traced"] for row in (*data["fits"], *data["misses"]))
    answer = f"{data['verdict']} {data['about_estimates']}".strip()
    typed = shlex.join(("what-fits", *flags))
    return typed, f"{seconds:.0f}", f"{cpu:.0f}", traced, "; ".join(fits), answer


def main(names: list[str]) -> None:
    print_versions("transformers", "diffusers", "peft")
    columns = ("story", "command", "seconds", "CPU seconds", "traced", "fits", "answer")
    table = Table("stories", columns, is_partial=bool(names))
    for name in names or _STORIES:
        table.add(name, *_row(_STORIES[name]))


if __name__ == "__main__":
    main(sys.argv[1:])
