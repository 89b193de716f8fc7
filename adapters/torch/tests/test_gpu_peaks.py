"""Peaks of memory beside those that others measured on GPUs."""

import json
from typing import Any

import pytest

from gpu_truth_modules import measured_bytes, peak_bytes
from gpu_truth_operators import GPUS

A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"
FLOAT32, BFLOAT16 = {"dtype": "torch.float32"}, {"dtype": "torch.bfloat16"}
GEGLU = BFLOAT16 | {"bsz": 8, "hidden_size": 4096, "intermediate_size": 11008}
MLP = BFLOAT16 | {"bsz": 2, "hidden_size": 2048, "intermediate_size": 4096}
ROWS = BFLOAT16 | {"M": 2048, "eps": 1e-6}


# Rows of Liger's table (linkedin/Liger-Kernel, benchmark/data/all_benchmark_data.csv), plain
# PyTorch, in MiB.
@pytest.mark.parametrize(
    ("name", "gpu", "settings", "size", "mode", "measured"),
    [
        ("cross_entropy", A100, {"B": 8, "T": 2048}, "V=4096", "full", 1280.1259765625),
        ("kl_div", "NVIDIA H100 PCIe", {"B": 8, "T": 2048}, "V=4096", "full", 1792.0),
        ("tvd", H100, {"B": 8, "T": 2048}, "V=4096", "full", 2048.0009765625),
        ("geglu", A100, GEGLU, "T=1024", "full", 1992.25),
        ("geglu", A100, GEGLU, "T=1024", "forward", 1090.25),
        ("tiled_swiglu", "NVIDIA GeForce RTX 4090", MLP, "T=1024", "backward", 264.25),
        ("rms_norm", A100, ROWS, "H=1024", "full", 80.01953125),
        ("layer_norm", A100, FLOAT32 | {"M": 4096}, "N=1024", "full", 80.0625),
        (
            "group_norm", "NVIDIA B200",
            FLOAT32 | {"M": 128, "H": 512, "channels_per_group": 4}, "C=32", "full",
            40.06640625,
        ),
        (
            "megatron_swiglu", H100, {"S": 2048, "B": 4}, "ffn_local=1024", "full",
            112.0009765625,
        ),
        (
            "fused_linear_cross_entropy", A100, BFLOAT16 | {"H": 4096, "V": 128256}, "BT=4096",
            "full", 6092.2822265625,
        ),
    ],
)  # fmt: skip
def test_a_module_has_the_peak_that_was_measured(
    name: str, gpu: str, settings: dict[str, Any], size: str, mode: str, measured: float
) -> None:
    row = {
        "source": "liger",
        "model": name,
        "build": f"provider huggingface, {json.dumps(settings)}",
        "size": size,
        "note": f"{mode}, liger",
    }
    peak = peak_bytes(row, GPUS[gpu])
    assert peak is not None
    assert peak / 2**20 == pytest.approx(measured, abs=0.1)


# mgmalek/efficient_cross_entropy, benchmark_data: projection and cross entropy in float32.
@pytest.mark.parametrize(
    ("batch", "inner", "classes", "measured"),
    [
        (8192, 1024, 32768, "3.389064192"),
        (8192, 8192, 32768, "4.563469312"),
        (16384, 2048, 32768, "6.845236224"),
    ],
)
def test_a_projection_has_the_peak_that_was_measured(
    batch: int, inner: int, classes: int, measured: str
) -> None:
    row = {
        "source": "efficient_cross_entropy",
        "build": f"dim {inner}, classes {classes}",
        "batch": str(batch),
        "value": measured,
        "unit": "GB",
    }
    assert peak_bytes(row, None) == measured_bytes(row)
