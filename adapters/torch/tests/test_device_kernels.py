"""Operators that a device runs, beside attention: what PyTorch and libraries decide
by asking for the device, and shapes that fake tensors lack."""

import pathlib
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from acplan import AcplanError, trace
from acplan._base.tensors import block_bytes
from acplan._device.device_operators import KERNELS_OF_CUDA
from acplan._device.devices import DEVICES, OperatorRun
from acplan._device.fake_cuda import fake_cuda
from acplan._device.gpu_table import kernel_figure

needs_no_cuda = pytest.mark.skipif(
    torch.cuda.is_available(), reason="where CUDA is, nothing is replaced"
)


class Calling(torch.nn.Module):
    """A model that calls a function of a module other than its forward pass."""

    def __init__(
        self, module: torch.nn.Module, function: Callable[[Any, torch.Tensor], Any]
    ) -> None:
        super().__init__()
        self.module = module
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.module, x)


def operators(
    model: torch.nn.Module, *shape: int, device: str = "a100", **options: Any
) -> list[str]:
    dtype = options.pop("dtype", torch.float32)
    x = torch.empty(shape, dtype=dtype, device="meta")
    data = trace(model.to(dtype), x, device=device, **options).data
    return [
        operator["name"].removeprefix("aten.").removesuffix(".default")
        for operator in data["operators"]
    ]


_IMAGE = (4, 8, 16, 16)
_SEQUENCE = (5, 4, 16)


@needs_no_cuda
@pytest.mark.parametrize(
    ("model", "shape", "device", "expected"),
    [
        (torch.nn.BatchNorm2d(8), _IMAGE, "a100", "cudnn_batch_norm"),
        (torch.nn.BatchNorm1d(8), (4, 8), "a100", "native_batch_norm"),
        (torch.nn.BatchNorm2d(8), _IMAGE, "mi300x", "miopen_batch_norm"),
        (
            torch.nn.InstanceNorm2d(8, affine=True),
            _IMAGE,
            "h100",
            "cudnn_batch_norm",
        ),
        (torch.nn.GroupNorm(2, 8), _IMAGE, "a100", "native_group_norm"),
        (torch.nn.LayerNorm(16), (4, 16), "a100", "native_layer_norm"),
        (torch.nn.GRU(16, 16), _SEQUENCE, "a100", "_cudnn_rnn"),
        (torch.nn.RNN(16, 16), _SEQUENCE, "a100", "_cudnn_rnn"),
        (
            torch.nn.LSTM(16, 16, 2, bidirectional=True, proj_size=8, dropout=0.1),
            _SEQUENCE,
            "h100",
            "_cudnn_rnn",
        ),
        pytest.param(
            torch.nn.GRU(16, 16, batch_first=True),
            _SEQUENCE,
            "mi300x",
            "miopen_rnn",
            marks=pytest.mark.skipif(
                not torch._C._dispatch_has_kernel_for_dispatch_key("aten::miopen_rnn", "Meta"),
                reason="needs a PyTorch that knows the shapes of it",
            ),
        ),
        (torch.nn.GRUCell(16, 16), (4, 16), "a100", "_thnn_fused_gru_cell"),
        (torch.nn.GRUCell(16, 16, bias=False), (4, 16), "t4", "_thnn_fused_gru_cell"),
        (torch.nn.LSTMCell(16, 16), (4, 16), "a100", "_thnn_fused_lstm_cell"),
        (torch.nn.Conv2d(8, 8, 3), _IMAGE, "a100", "convolution"),
    ],
    ids=lambda value: type(value).__name__ if callable(value) else "",
)
def test_layers(
    model: torch.nn.Module, shape: tuple[int, ...], device: str, expected: str
) -> None:
    names = operators(model, *shape, device=device)
    assert expected in names
    assert any(name.startswith(expected + "_backward") for name in names)


@needs_no_cuda
@pytest.mark.parametrize(
    ("layer", "reserved"), [(torch.nn.LSTM, 736_000_000), (torch.nn.GRU, 864_000_000)]
)
def test_recurrent_layers_keep_what_a_gpu_was_asked_for(layer: Any, reserved: int) -> None:
    # pytorch/pytorch#2895, P100.
    with torch.device("meta"):
        model = Calling(layer(123, 320, 4), lambda m, x: m(x)[0])
        x = torch.empty(1000, 25, 123)
    traced = trace(model, x, device="v100")
    assert reserved in {storage["bytes"] for storage in traced.data["storages"]}


@needs_no_cuda
@pytest.mark.parametrize("autocast", ["fp16", "bf16"])
def test_autocast_runs_recurrent_layers_in_float16(autocast: str) -> None:
    with torch.device("meta"):
        layer, x = torch.nn.LSTM(123, 320, 4), torch.empty(1000, 25, 123)
    traced = trace(Calling(layer, lambda m, x: m(x)[0]), x, device="rtx3090", autocast=autocast)
    sizes = {storage["bytes"] for storage in traced.data["storages"]}
    weights = sum(w.numel() for w in layer.parameters())
    output = 1000 * 25 * 320
    # The reserve, a flat copy of the weights, and the output.
    assert {736_000_000 // 2, block_bytes(2 * weights), 2 * output} <= sizes
    casts = [o["name"] for o in traced.data["operators"]].count("aten._to_copy.default")
    assert casts >= 3 + 16  # input and states; gradients of the weights


@needs_no_cuda
def test_half_precision_batch_norm_by_its_weights() -> None:
    norm = Calling(torch.nn.BatchNorm2d(8), lambda m, x: m(x.half()))
    assert "cudnn_batch_norm" in operators(norm, *_IMAGE)
    all_half = torch.nn.BatchNorm2d(8)
    assert "native_batch_norm" in operators(all_half, *_IMAGE, dtype=torch.float16)


@needs_no_cuda
def test_cudnn_switched_off() -> None:
    with torch.backends.cudnn.flags(enabled=False):
        names = operators(torch.nn.BatchNorm2d(8), *_IMAGE)
        assert "native_batch_norm" in names
        assert "_cudnn_rnn" not in operators(torch.nn.GRU(16, 16), *_SEQUENCE)


@needs_no_cuda
def test_convolutions_keep_channels_last() -> None:
    def strides(model: Any, x: torch.Tensor) -> torch.Tensor:
        out = model(x.to(memory_format=torch.channels_last))
        assert out.is_contiguous(memory_format=torch.channels_last)
        return out

    operators(Calling(torch.nn.Conv2d(8, 8, 3), strides), *_IMAGE)


def test_gradients_of_activations_have_kernels() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.SiLU(), torch.nn.Mish())
    names = operators(model, 4, 16)
    assert "silu_backward" in names and "mish_backward" in names


@pytest.mark.skipif(
    not hasattr(torch.ops.aten, "_fused_rms_norm"), reason="not in this PyTorch"
)
def test_rms_norm_has_a_kernel() -> None:
    names = operators(torch.nn.RMSNorm(16), 4, 16)
    assert "_fused_rms_norm" in names and "_fused_rms_norm_backward" in names


def test_kernels_of_cuda_beside_a_composite() -> None:
    """The list is that of native_functions.yaml, and of the structured operators."""
    torchgen = pytest.importorskip("torchgen")
    folder = pathlib.Path(torchgen.__file__).parent / "packaged/ATen/native"
    text = (folder / "native_functions.yaml").read_text()
    names = set()
    for block in re.split(r"\n- func: ", text)[1:]:
        name = block.partition("(")[0]
        lines = re.findall(r"^    ([A-Za-z0-9_, ]+): *\S+", block, re.M)
        keys = {key.strip() for line in lines for key in line.split(",")}
        is_structured = "structured_delegate" in block
        if "CompositeImplicitAutograd" in keys and ("CUDA" in keys or is_structured):
            names.add(name)
    assert names == {name for name in KERNELS_OF_CUDA if hasattr(torch.ops.aten, name)}


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="not in this PyTorch")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_grouped_products_of_every_type(dtype: torch.dtype) -> None:
    shapes = []

    def grouped(linear: Any, x: torch.Tensor) -> torch.Tensor:
        offsets = torch.tensor([2, 4], dtype=torch.int32, device=x.device)
        weights = linear.weight[None].expand(2, -1, -1).transpose(1, 2).contiguous()
        out = torch._grouped_mm(linear(x), weights, offs=offsets)
        shapes.append((tuple(out.shape), out.stride(), out.dtype))
        return out

    model = Calling(torch.nn.Linear(16, 16), grouped)
    assert "_grouped_mm" in operators(model, 4, 16, dtype=dtype)
    assert set(shapes) == {((4, 16), (16, 1), dtype)}


@needs_no_cuda
@pytest.mark.parametrize(
    ("device", "expected"),
    [("a100", "_grouped_mm"), ("t4", "transformers.grouped_mm_fallback")],
)
def test_mixtral_in_float32(device: str, expected: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, num_local_experts=4,
        max_position_embeddings=64,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.MixtralForCausalLM(config)
    ids = torch.zeros(2, 16, dtype=torch.long)
    data = trace(model, input_ids=ids, labels=ids, device=device).data
    names = [operator["name"] for operator in data["operators"]]
    assert any(expected in name for name in names)


def test_ctc_loss() -> None:
    def loss(linear: Any, x: torch.Tensor) -> torch.Tensor:
        ones = torch.ones(4, 3, dtype=torch.long, device=x.device)
        steps = torch.full((4,), 5, device=x.device)
        return F.ctc_loss(linear(x).log_softmax(-1), ones, steps, ones.sum(1))

    names = operators(Calling(torch.nn.Linear(16, 16), loss), *_SEQUENCE)
    assert "_ctc_loss.Tensor" in names and "_ctc_loss_backward.Tensor" in names


@needs_no_cuda
def test_shapes_of_the_cpu_where_fake_tensors_have_none() -> None:
    def smallest(linear: Any, x: torch.Tensor) -> torch.Tensor:
        low, high = torch._aminmax(linear(x).detach(), 1)
        assert low.device.type == "cuda" and tuple(high.shape) == (4,)
        return linear(x) * low[:, None]

    assert "_aminmax.dim" in operators(Calling(torch.nn.Linear(16, 16), smallest), 4, 16)


@needs_no_cuda
def test_an_operator_without_any_shapes_is_named() -> None:
    def of_cudnn(linear: Any, x: torch.Tensor) -> torch.Tensor:
        theta = linear(x)[:, :6].reshape(4, 2, 3)
        return torch.ops.aten.cudnn_affine_grid_generator(theta, 4, 1, 8, 8)

    with pytest.raises(AcplanError, match="cudnn_affine_grid_generator.* neither"):
        operators(Calling(torch.nn.Linear(16, 16), of_cudnn), 4, 16)


def test_optimizers_take_lists_as_on_the_device() -> None:
    names = operators(torch.nn.Linear(16, 16), 4, 16, optimizer=torch.optim.Adam)
    assert "_foreach_addcdiv_.ScalarList" in names and "addcdiv_" not in names
    fused = operators(
        torch.nn.Linear(16, 16),
        4,
        16,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, fused=True),
    )
    assert "_fused_sgd_" in fused


@needs_no_cuda
@pytest.mark.parametrize("name", ["h100", "rtx4090", "t4", "mi300x"])
def test_questions_are_answered_as_by_the_device(name: str) -> None:
    device, built_for = DEVICES[name], torch.version.cuda
    with fake_cuda(device):
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        assert torch.cuda.get_device_capability() == device.capability
        assert torch.cuda.get_device_name(0) == device.product
        properties = torch.cuda.get_device_properties("cuda")
        assert (properties.major, properties.minor) == device.capability
        assert properties.multi_processor_count == device.multiprocessors
        assert torch.cuda.is_bf16_supported(including_emulation=False) == (name != "t4")
        assert torch.backends.cudnn.is_available() == (name != "mi300x")
        assert (torch.version.hip is not None) == (name == "mi300x")
        assert (torch.version.cuda is not None) == (name != "mi300x")
    assert not torch.cuda.is_available()
    assert torch.version.cuda == built_for


@needs_no_cuda
def test_one_device_leaves_nothing_to_the_next() -> None:
    norm = torch.nn.BatchNorm2d(8)
    for name in ("a100", "mi300x", "a100"):
        names = operators(norm, *_IMAGE, device=name)
        assert ("miopen_batch_norm" in names) == (name == "mi300x")
    assert torch.ops.aten.silu_backward(torch.ones(2), torch.ones(2)).shape == (2,)


def test_run_times_of_what_pytorch_does_not_count() -> None:
    """The products take longer here than the bytes."""
    aten = torch.ops.aten
    meta = torch.device("meta")
    a = torch.empty(65536, 2048, device=meta, dtype=torch.bfloat16)
    b = torch.empty(8, 2048, 4096, device=meta, dtype=torch.bfloat16)
    device = DEVICES["a100"]

    def milliseconds(func: Any, *args: Any) -> float:
        return device.runtime_ms(OperatorRun(func, args, {}, None), [a], [])

    flops = 2 * 65536 * 2048 * 4096
    one = 1e3 * flops / device.product_rate(torch.bfloat16, False)
    grouped = milliseconds(aten._grouped_mm.default, a, b)
    assert one <= grouped == pytest.approx(one, rel=0.15)
    transposed = b[0].mT.expand(8, 4096, 2048)
    assert milliseconds(aten._grouped_mm.default, transposed, a.mT) == (
        pytest.approx(one, rel=0.15)
    )
    sequence = a.view(64, 1024, 2048)
    weights = [b[0].mT, b[0].mT, b[0, 0]]
    recurrent = one / kernel_figure("recurrent_share")
    assert milliseconds(aten._cudnn_rnn.default, sequence, weights) == (
        pytest.approx(2 * recurrent, rel=0.01)
    )
    assert milliseconds(aten._cudnn_rnn_backward.default, sequence, weights) == (
        pytest.approx(4 * recurrent, rel=0.01)
    )
