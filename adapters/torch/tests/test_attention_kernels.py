"""The attention kernel of each device, row by row of PyTorch's own rules, and the
operators that it runs."""

import dataclasses
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from acplan import trace
from acplan._device.attention_kernels import (
    DEFAULT_ORDER,
    Attention,
    Kernel,
    Layout,
    Platform,
    Switches,
    choose,
    cudnn_version_of,
)
from acplan._device.devices import DEVICES
from acplan._device.fake_cuda import platform_of, switches_now

MATH, FLASH, EFFICIENT, CUDNN = Kernel
BF16, FP16, FP32, FP64 = (
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
)
A100, H100, ADA, BLACKWELL, RTX50 = (8, 0), (9, 0), (8, 9), (10, 0), (12, 0)
TURING, VOLTA, B300 = (7, 5), (7, 0), (10, 3)


def _layout(shape: tuple[int, ...], dtype: torch.dtype, requires_grad: bool = True) -> Layout:
    return dataclasses.replace(
        Layout.from_tensor(torch.empty(shape, dtype=dtype, device="meta")),
        requires_grad=requires_grad,
    )


def _call(
    dtype: torch.dtype = BF16,
    heads: int = 8,
    key_heads: int | None = None,
    value_heads: int | None = None,
    rows: int = 128,
    columns: int | None = None,
    width: int = 64,
    value_width: int | None = None,
    mask: tuple[int, ...] | None = None,
    mask_dtype: torch.dtype = torch.bool,
    mask_grad: bool = False,
    trains: bool = True,
    **rest: Any,
) -> Attention:
    columns = rows if columns is None else columns
    keys = heads if key_heads is None else key_heads
    values = keys if value_heads is None else value_heads
    return Attention(
        query=_layout((2, heads, rows, width), dtype, trains),
        key=_layout((2, keys, columns, width), dtype, trains),
        value=_layout((2, values, columns, value_width or width), dtype, trains),
        mask=None if mask is None else _layout(mask, mask_dtype, mask_grad),
        **rest,
    )


def _on(
    capability: tuple[int, int] = A100,
    pytorch: tuple[int, int] = (2, 13),
    cudnn: int | None = None,
    is_rocm: bool = False,
) -> Platform:
    return Platform(
        pytorch,
        capability,
        cudnn_version_of(pytorch) if cudnn is None else cudnn,
        is_rocm,
    )


_MASK = (2, 1, 128, 128)
ROWS = [
    # Which kernel is asked first, by device and version.
    ("a100", _call(), _on(), FLASH),
    ("h100", _call(), _on(H100), CUDNN),
    ("b200", _call(), _on(BLACKWELL), CUDNN),
    ("b300", _call(), _on(B300), CUDNN),
    ("ada", _call(), _on(ADA), FLASH),
    ("rtx50", _call(), _on(RTX50), FLASH),
    ("h100, torch 2.12", _call(), _on(H100, (2, 12)), CUDNN),
    ("h100, torch 2.11", _call(), _on(H100, (2, 11)), CUDNN),
    ("h100, torch 2.10", _call(), _on(H100, (2, 10)), FLASH),
    ("h100, torch 2.9", _call(), _on(H100, (2, 9)), FLASH),
    ("h100, torch 2.9, new cuDNN", _call(), _on(H100, (2, 9), 92000), FLASH),
    ("h100, old cuDNN", _call(), _on(H100, cudnn=91002), FLASH),
    ("h100, cuDNN 9.15.0", _call(), _on(H100, cudnn=91500), FLASH),
    ("sm 10.1 before 2.13", _call(), _on((10, 1), (2, 12)), FLASH),
    ("sm 10.1", _call(), _on((10, 1)), CUDNN),
    # flash
    ("fp16", _call(FP16), _on(), FLASH),
    ("mask", _call(mask=_MASK), _on(), EFFICIENT),
    ("head of 60", _call(width=60), _on(), FLASH),
    ("head of 256", _call(width=256), _on(), FLASH),
    ("head of 264", _call(width=264), _on(), EFFICIENT),
    ("another width of values", _call(value_width=128), _on(), EFFICIENT),
    ("turing", _call(FP16), _on(TURING), EFFICIENT),
    ("turing, bf16", _call(), _on(TURING), MATH),
    ("volta", _call(FP16), _on(VOLTA), EFFICIENT),
    ("rtx50, torch 2.6", _call(), _on(RTX50, (2, 6)), MATH),
    ("causal", _call(is_causal=True), _on(), FLASH),
    (
        "causal, other rows",
        _call(rows=64, columns=128, is_causal=True),
        _on(),
        EFFICIENT,
    ),
    ("grouped heads", _call(key_heads=2, enable_gqa=True), _on(), FLASH),
    ("grouped heads, not said", _call(key_heads=2), _on(), MATH),
    ("grouped heads, no divisor", _call(key_heads=3, enable_gqa=True), _on(), MATH),
    (
        "grouped heads, values apart",
        _call(key_heads=2, value_heads=4, enable_gqa=True),
        _on(),
        MATH,
    ),
    ("small chip, 192", _call(width=192), _on(ADA), FLASH),
    ("small chip, 200", _call(width=200), _on(ADA), EFFICIENT),
    ("small chip, 200, no training", _call(width=200, trains=False), _on(ADA), FLASH),
    (
        "small chip, 200, no gradients",
        _call(width=200, is_grad_enabled=False),
        _on(ADA),
        FLASH,
    ),
    ("small chip, 256", _call(width=256), _on((8, 6)), FLASH),
    ("small chip, 256, dropout", _call(width=256, dropout=0.1), _on((8, 6)), EFFICIENT),
    ("rtx50, 200", _call(width=200), _on(RTX50), EFFICIENT),
    ("a100, 200", _call(width=200), _on(), FLASH),
    ("dropout", _call(dropout=0.1), _on(), FLASH),
    # memory-efficient
    ("fp32", _call(FP32), _on(), EFFICIENT),
    ("fp32, mask", _call(FP32, mask=_MASK), _on(), EFFICIENT),
    ("fp32, head of 60", _call(FP32, width=60), _on(), EFFICIENT),
    ("fp32, head of 62", _call(FP32, width=62), _on(), MATH),
    ("mask, head of 60", _call(width=60, mask=_MASK), _on(), MATH),
    ("turing, fp32, head of 62", _call(FP32, width=62), _on(TURING), EFFICIENT),
    ("turing, fp16, head of 60", _call(FP16, width=60), _on(TURING), MATH),
    ("fp64", _call(FP64), _on(), MATH),
    (
        "grouped heads, mask",
        _call(key_heads=2, enable_gqa=True, mask=_MASK),
        _on(),
        MATH,
    ),
    (
        "grouped heads, mask, 2.14",
        _call(key_heads=2, enable_gqa=True, mask=_MASK),
        _on(pytorch=(2, 14)),
        EFFICIENT,
    ),
    ("no rows", _call(rows=0), _on(), MATH),
    # cuDNN
    ("h100, mask", _call(mask=_MASK), _on(H100), CUDNN),
    ("h100, mask of all", _call(mask=(128, 128)), _on(H100), CUDNN),
    ("h100, mask of one row", _call(mask=(2, 1, 1, 128)), _on(H100), CUDNN),
    ("h100, mask, three dimensions", _call(mask=(8, 128, 128)), _on(H100), EFFICIENT),
    (
        "h100, bias with a gradient",
        _call(mask=_MASK, mask_dtype=BF16, mask_grad=True),
        _on(H100),
        EFFICIENT,
    ),
    ("h100, fp32", _call(FP32), _on(H100), EFFICIENT),
    ("h100, head of 60", _call(width=60), _on(H100), FLASH),
    ("h100, head of 256", _call(width=256), _on(H100), CUDNN),
    ("b200, head of 256", _call(width=256), _on(BLACKWELL), FLASH),
    ("b200, 192 and 128", _call(width=192, value_width=128), _on(BLACKWELL), CUDNN),
    ("h100, 2.14, 200", _call(width=200), _on(H100, (2, 14)), FLASH),
    ("h100, 2.14, 256", _call(width=256), _on(H100, (2, 14)), CUDNN),
    (
        "h100, 2.14, 200, no training",
        _call(width=200, trains=False),
        _on(H100, (2, 14)),
        CUDNN,
    ),
    ("h100, 2.14, older cuDNN", _call(width=256), _on(H100, (2, 14), 92000), FLASH),
    ("h100, dropout of .1", _call(dropout=0.1), _on(H100), FLASH),
    ("h100, dropout of 1/16", _call(dropout=0.0625), _on(H100), CUDNN),
    ("h100, dropout of .1, 2.12", _call(dropout=0.1), _on(H100, (2, 12)), CUDNN),
    (
        "h100, grouped heads",
        _call(key_heads=2, value_heads=4, enable_gqa=True),
        _on(H100),
        CUDNN,
    ),
    ("h100, one key", _call(columns=1), _on(H100), FLASH),
    ("h100, one query", _call(rows=1, columns=64), _on(H100), CUDNN),
    # ROCm
    ("mi300x", _call(), _on((9, 4), is_rocm=True), FLASH),
    ("mi300x, mask", _call(mask=_MASK), _on((9, 4), is_rocm=True), EFFICIENT),
    (
        "mi300x, bias of another type",
        _call(mask=_MASK, mask_dtype=FP32),
        _on((9, 4), is_rocm=True),
        MATH,
    ),
    ("mi300x, head of 512", _call(width=512), _on((9, 4), is_rocm=True), FLASH),
]


@pytest.mark.parametrize(
    ("call", "on", "expected"),
    [row[1:] for row in ROWS],
    ids=[row[0] for row in ROWS],
)
def test_takes_the_kernel_that_pytorch_does(
    call: Attention, on: Platform, expected: Kernel
) -> None:
    assert choose(call, on, Switches()) is expected


def test_switches_of_the_program() -> None:
    on = _on(H100)
    without_cudnn = Switches(frozenset({MATH, FLASH, EFFICIENT}))
    assert choose(_call(), on, without_cudnn) is FLASH
    assert choose(_call(), on, Switches(frozenset({MATH}))) is MATH
    assert choose(_call(mask=_MASK), on, Switches(frozenset({FLASH}))) is None
    math_first = Switches(order=(MATH, *DEFAULT_ORDER))
    assert choose(_call(), on, math_first) is MATH
    assert choose(_call(), on, Switches(is_deterministic=True)) is FLASH
    assert choose(_call(), on, Switches(keeps_cudnn_last=True)) is FLASH


def test_switches_are_read_from_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", raising=False)
    assert switches_now() == Switches()
    backend = torch.nn.attention.SDPBackend
    with torch.nn.attention.sdpa_kernel([backend.MATH, backend.FLASH_ATTENTION]):
        assert switches_now().enabled == {MATH, FLASH}
    order = [backend.EFFICIENT_ATTENTION, backend.FLASH_ATTENTION]
    with torch.nn.attention.sdpa_kernel(order, set_priority=True):
        assert switches_now().order[:2] == (EFFICIENT, FLASH)
        assert choose(_call(), _on(H100), switches_now()) is EFFICIENT
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    torch.use_deterministic_algorithms(True)
    try:
        switches = switches_now()
        assert switches.is_deterministic and switches.keeps_cudnn_last
        torch.use_deterministic_algorithms(True, warn_only=True)
        assert not switches_now().is_deterministic
    finally:
        torch.use_deterministic_algorithms(False)


def test_strides_decide() -> None:
    call = _call()
    transposed = dataclasses.replace(call.key, stride=(65536, 8192, 1, 128))
    assert choose(dataclasses.replace(call, key=transposed), _on(), Switches()) is MATH
    spread = dataclasses.replace(_layout(_MASK, FP32), stride=(0, 0, 0, 0))
    masked = dataclasses.replace(call, mask=spread)
    assert choose(masked, _on(), Switches()) is MATH


def test_addresses_decide_from_2_14_on() -> None:
    call = _call(FP32)
    offset_call = dataclasses.replace(call, query=dataclasses.replace(call.query, offset=2))
    assert choose(offset_call, _on(), Switches()) is EFFICIENT
    assert choose(offset_call, _on(pytorch=(2, 14)), Switches()) is MATH


def test_other_batches_or_dimensions_take_the_mathematical_form() -> None:
    call = _call()
    smaller = dataclasses.replace(call, key=_layout((1, 8, 128, 64), BF16))
    assert choose(smaller, _on(), Switches()) is MATH
    flat = _layout((8, 128, 64), BF16)
    assert choose(Attention(flat, flat, flat), _on(H100), Switches()) is MATH


class _Attending(torch.nn.Module):
    def __init__(self, width: int, **options: Any) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width, dtype=BF16)
        self.options = options

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        y = self.linear(x)
        return F.scaled_dot_product_attention(y, y, y, attn_mask=mask, **self.options)


def _traced(device: str, width: int = 64, **options: Any) -> list[str]:
    mask = options.pop("mask", None)
    x = torch.empty(2, 4, 100, width, dtype=BF16, device="meta")
    data = trace(_Attending(width, **options), x, mask, device=device).data
    names = [operator["name"] for operator in data["operators"]]
    start = names.index("aten.addmm.default") + 2  # and the view of its result
    return [name.removeprefix("aten.") for name in names[start : data["forward_end"]]]


def _kernel(name: str) -> str:
    return f"_scaled_dot_product_{name}_attention.default"


@pytest.mark.parametrize(
    ("device", "kernel"),
    [
        ("a100", "flash"),
        ("a10", "flash"),
        ("rtx4090", "flash"),
        ("rtx5090", "flash"),
        ("mi300x", "flash"),
        ("h100", "cudnn"),
        ("h200", "cudnn"),
        ("b200", "cudnn"),
    ],
)
def test_a_trace_is_of_the_device_named(device: str, kernel: str) -> None:
    if kernel == "cudnn" and platform_of(DEVICES[device]).pytorch < (2, 11):
        kernel = "flash"
    assert _traced(device)[0] == _kernel(kernel)


def test_flash_pads_heads_to_eight() -> None:
    assert _traced("a100", 60, is_causal=True)[:5] == [
        "constant_pad_nd.default",
        "constant_pad_nd.default",
        "constant_pad_nd.default",
        _kernel("flash"),
        "slice.Tensor",
    ]


def test_a_mask_is_converted_padded_and_spread() -> None:
    mask = torch.empty(2, 1, 100, 100, dtype=torch.bool, device="meta")
    names = _traced("a100", mask=mask)
    assert names[names.index(_kernel("efficient")) - 3 :][:4] == [
        "constant_pad_nd.default",
        "slice.Tensor",
        "expand.default",
        _kernel("efficient"),
    ]
    # cuDNN, where PyTorch takes it, takes the mask as it is but for its type.
    is_cudnn = platform_of(DEVICES["h100"]).pytorch >= (2, 11)
    converted = _traced("h100", mask=mask)
    assert _kernel("cudnn" if is_cudnn else "efficient") in converted
    assert ("constant_pad_nd.default" in converted) is not is_cudnn


def test_mathematical_form_of_an_old_device() -> None:
    names = _traced("t4")
    assert "bmm.default" in names
    assert not any(name.startswith("_scaled_dot_product") for name in names)


def test_the_programs_choice_is_respected() -> None:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert "bmm.default" in _traced("h100")
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION):
        assert _kernel("efficient") in _traced("h100")


def test_no_kernel_is_the_devices_error() -> None:
    x = torch.empty(2, 4, 100, 62, device="meta", dtype=BF16)
    only = torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION
    fails = pytest.raises(RuntimeError, match="No available kernel")
    with warnings.catch_warnings(), torch.nn.attention.sdpa_kernel(only), fails:
        trace(_Attending(62), x)


def test_every_device_has_what_a_choice_needs() -> None:
    for name, device in DEVICES.items():
        assert device.name == name
        assert len(device.capability) == 2
        assert device.multiprocessors > 0 and device.memory > 2**30
        choice = choose(_call(FP16), platform_of(device), Switches())
        assert choice is not None
