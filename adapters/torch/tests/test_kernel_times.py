"""Times of kernels beside public measurements, and rules that they must obey."""

import csv
import math
import pathlib
import statistics
from typing import Any

import pytest
import torch
from torch import nn

from acplan import DEVICES, Device, trace
from acplan._device.devices import OperatorRun
from gpu_truth_fused import fused_kernel_ms
from gpu_truth_operators import GPUS, operator_ms

_MEASURED = pathlib.Path(__file__).parents[3] / "data" / "devices" / "times.csv"

aten = torch.ops.aten
A100 = DEVICES["a100-80gb"]


def _ms(device: Device, func: Any, *args: Any) -> float:
    out = func(*args)
    read = [t for t in args if isinstance(t, torch.Tensor)]
    results = out if isinstance(out, (list, tuple)) else [out]
    results = [t for t in results if isinstance(t, torch.Tensor)]
    return device.runtime_ms(OperatorRun(func, args, {}, out), read, results)


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


# Rows of NeuSight's tables (sitar-lab/NeuSight), in milliseconds.
@pytest.mark.parametrize(
    ("gpu", "name", "sizes", "measured"),
    [
        ("NVIDIA A100 80GB PCIe", "bmm", "B=2560, M=128, N=384, K=384", 5.29424),
        ("NVIDIA A100 80GB PCIe", "linear", "B=1, M=8192, N=4800, K=1600", 7.30122),
        ("NVIDIA A100 80GB PCIe", "softmax", "B=32768, H=6400", 1.1814),
        ("NVIDIA A100 80GB PCIe", "ln", "B=65536, H=12288", 6.0463),
        ("NVIDIA A100 80GB PCIe", "add", "B=32768, H=1600", 0.384595),
        ("NVIDIA H100 80GB HBM3", "linear", "B=1, M=1600, N=16384, K=50272", 53.5028),
        ("NVIDIA H100 80GB HBM3", "bmm", "B=640, M=256, N=196, K=196", 0.414549),
        ("NVIDIA L4", "linear", "B=1, M=1536, N=4096, K=6144", 7.7654),
        ("NVIDIA L4", "softmax", "B=8192, H=10240", 2.83084),
        ("NVIDIA L4", "gelu", "B=65536, H=2560", 5.71865),
        ("Tesla V100-PCIE-32GB", "linear", "B=1, M=32768, N=3072, K=768", 11.589),
        ("Tesla V100-PCIE-32GB", "ln", "B=65536, H=12288", 11.8998),
        ("Tesla V100-PCIE-32GB", "pow", "B=393216, H=2048", 11.6506),
    ],
)
def test_an_operator_takes_what_was_measured(
    gpu: str, name: str, sizes: str, measured: float
) -> None:
    row = {"gpu": gpu, "model": name, "build": sizes}
    assert operator_ms(row, GPUS[gpu]) == pytest.approx(measured, rel=0.25)


# vidur's profiles (microsoft/vidur) of Llama-2's layers in float16, SimuMax's of products in
# bfloat16 (MooreThreads/SimuMax, share of the peak).
@pytest.mark.parametrize(
    ("name", "shape", "measured"),
    [
        ("h100", (4096, 4096, 12288), 0.584),
        ("h100", (4096, 4096, 22016), 0.987),
        ("h100", (4096, 11008, 4096), 0.441),
        ("b200", (4096, 8192, 57344), 2 * 4096 * 8192 * 57344 / (2250e9 * 0.4867)),
    ],
)
def test_a_product_on_matrix_units_takes_what_was_measured(
    name: str, shape: tuple[int, int, int], measured: float
) -> None:
    rows, inner, columns = shape
    operands = (_empty(rows, inner).half(), _empty(inner, columns).half())
    assert _ms(DEVICES[name], aten.mm.default, *operands) == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_product_is_faster_than_the_peak_or_memory(name: str, dtype: torch.dtype) -> None:
    device = DEVICES[name]
    peak = device.product_rate(dtype, False) * 1.08  # batches reach a little more
    for groups, rows, inner, columns in [
        (1, 1, 1, 1),
        (1, 8192, 8192, 8192),
        (1, 17, 100000, 33),
        (64, 100, 64, 300),
        (1, 100000, 16, 64),
    ]:
        a = _empty(groups, rows, inner, dtype=dtype)
        b = _empty(groups, inner, columns, dtype=dtype)
        seconds = _ms(device, aten.bmm.default, a, b) / 1e3
        flops = 2 * groups * rows * inner * columns
        traffic = dtype.itemsize * groups * (rows * inner + inner * columns + rows * columns)
        assert seconds >= max(flops / peak, traffic / device.bandwidth)


def test_elements_that_are_expanded_are_read_once() -> None:
    row, whole = _empty(1, 4096), _empty(65536, 4096)
    alone = _ms(A100, aten.relu.default, whole)
    assert _ms(A100, aten.add.Tensor, whole, row.expand(65536, 4096)) == pytest.approx(
        alone, rel=0.01
    )
    assert _ms(A100, aten.add.Tensor, whole, whole.clone()) > 1.4 * alone
    assert _ms(A100, aten.mul.Tensor, whole, whole) == pytest.approx(alone)


@pytest.mark.parametrize("kernel", ["flash attention", "cuDNN attention", "rms norm"])
def test_fused_kernels_take_what_was_measured(kernel: str) -> None:
    with _MEASURED.open() as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == kernel]
    long = [row for row in rows if float(row["value"]) > 0.1][::4]
    assert long
    errors = []
    for row in long:
        predicted = fused_kernel_ms(row, GPUS[row["gpu"]])
        assert predicted is not None
        errors.append(abs(predicted / float(row["value"]) - 1))
    assert statistics.median(errors) < 0.12
    assert statistics.quantiles(errors, n=10)[-1] < 0.45


def test_short_sequences_reach_a_smaller_share_of_the_rate() -> None:
    def ms(queries: int) -> float:
        query = _empty(2**16 // queries, 16, queries, 128, dtype=torch.bfloat16)
        func = aten._scaled_dot_product_flash_attention.default
        return _ms(A100, func, query, query, query, 0.0, True)

    assert ms(512) / 512 > 1.5 * ms(8192) / 8192


def test_a_causal_mask_leaves_half_of_the_scores_of_long_sequences() -> None:
    def ms(is_causal: bool) -> float:
        shape = (1, 16, 65536, 128)
        query = _empty(*shape, dtype=torch.bfloat16)
        func = aten._scaled_dot_product_flash_attention.default
        return _ms(A100, func, query, query, query, 0.0, is_causal)

    assert ms(True) == pytest.approx(ms(False) / 2, rel=0.05)


def test_float32_is_rounded_where_the_settings_say_so() -> None:
    image, weight = _empty(64, 256, 56, 56), _empty(256, 256, 3, 3)
    a = _empty(8192, 8192)

    def ms() -> tuple[float, float]:
        args = (image, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        return _ms(A100, aten.convolution.default, *args), _ms(A100, aten.mm.default, a, a)

    convolution, product = ms()
    matmul: Any = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    try:
        matmul.allow_tf32 = True
        with torch.backends.cudnn.flags(allow_tf32=False):
            exact_convolution, rounded_product = ms()
    finally:
        matmul.allow_tf32 = before
    assert exact_convolution > 3 * convolution and product > 3 * rounded_product


def test_channels_last_need_no_transposing() -> None:
    image, weight = _empty(64, 64, 56, 56).half(), _empty(256, 64, 1, 1).half()
    rest = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    last = image.to(memory_format=torch.channels_last)
    assert _ms(A100, aten.convolution.default, last, weight, *rest) < _ms(
        A100, aten.convolution.default, image, weight, *rest
    )


def test_a_table_is_read_where_rows_are_asked_for() -> None:
    tokens = torch.empty(1024, dtype=torch.long, device="meta")
    small, large = _empty(1000, 768), _empty(1000000, 768)
    times = [_ms(A100, aten.embedding.default, table, tokens) for table in (small, large)]
    assert times[0] == times[1] < 0.05


@pytest.mark.parametrize("fused", [False, True])
def test_an_update_takes_the_time_of_what_it_reads_and_writes(fused: bool) -> None:
    model = nn.Linear(2048, 2048, bias=False, device="meta")
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    data = trace(
        model, torch.empty(8, 2048, device="meta"), device=A100, optimizer=optimizer
    ).data
    update = data["operators"][data["backward_end"] :]
    least = 7 * 4 * 2048**2 / A100.bandwidth * 1e3  # four tensors read, three written
    total = math.fsum(operator["runtime_ms"] for operator in update)
    assert least < total < (2 if fused else 6) * least


def test_devices_are_keys() -> None:
    assert len(set(DEVICES.values())) == len(DEVICES)
