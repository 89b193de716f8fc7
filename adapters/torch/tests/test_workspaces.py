"""The memory that kernels allocate beside their results, by the formulas of
docs/workspaces.md."""

import pathlib
import re
from typing import Any

import pytest
import torch

import acplan
from acplan._device import workspaces
from acplan._device.devices import DEVICES
from acplan._device.workspaces import persistent_bytes, workspace_bytes

aten = torch.ops.aten
BF16 = torch.bfloat16
KIB, MIB = 2**10, 2**20


def _empty(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _bytes(func: Any, *args: Any, device: str = "a100", **kwargs: Any) -> int:
    return workspace_bytes(func, args, kwargs, None, DEVICES[device])


def _blocks(*sizes: int) -> int:
    return sum(-(-size // 512) * 512 for size in sizes)


def _heads(heads: int = 4, rows: int = 256, width: int = 64, **options: Any) -> torch.Tensor:
    """Returns heads as projections make them: [batch, heads, rows, width] of rows of all
    heads."""
    return _empty(2, rows, heads, width, **options).transpose(1, 2)


def _flash(
    query: torch.Tensor, key: torch.Tensor, gradient: torch.Tensor | None = None
) -> tuple[Any, ...]:
    gradient = query if gradient is None else gradient
    return (
        aten._scaled_dot_product_flash_attention_backward.default,
        gradient, query, key, key, query, _empty(2, 4, 256, dtype=torch.float32),
        None, None, 256, 256, 0.0, True, _empty(), _empty(),
    )  # fmt: skip


def test_flash_backward() -> None:
    query = _heads()
    accumulated, sums = 4 * 2 * 256 * 4 * 64, 4 * 2 * 4 * 256
    assert _bytes(*_flash(query, query)) == accumulated + sums
    # Rows round to 128, a head to 32, those above 192 to 256.
    odd = _heads(rows=130, width=72)
    assert _bytes(*_flash(odd, odd)) == 4 * 2 * 256 * 4 * 96 + sums
    wide = _heads(width=200)
    assert _bytes(*_flash(wide, wide)) == 4 * 2 * 256 * 4 * 256 + sums
    assert _bytes(*_flash(query, query), device="mi300x") == 0


def test_flash_backward_of_grouped_heads() -> None:
    query, key = _heads(), _heads(1)
    expanded = 2 * (2 * 256 * 4 * 64 * 2)
    same = _bytes(*_flash(query, query))
    assert _bytes(*_flash(query, key)) == same + expanded


def test_flash_backward_copies_what_is_not_contiguous() -> None:
    query = _heads()
    gradient = _empty(2, 4, 256, 64)
    assert _bytes(*_flash(query, query, gradient)) == (
        _bytes(*_flash(query, query)) + 2 * 4 * 256 * 64 * 2
    )


def test_deterministic_flash_backward_has_a_sum_for_each_split() -> None:
    query = _heads()
    torch.use_deterministic_algorithms(True)
    try:
        workspace = _bytes(*_flash(query, query))
    finally:
        torch.use_deterministic_algorithms(False)
    splits = 14  # of 108 multiprocessors among 8 heads
    assert workspace == splits * 4 * 2 * 256 * 4 * 64 + 4 * 2 * 4 * 256


def test_flash_forward_splits_keys_where_blocks_are_few() -> None:
    forward = aten._scaled_dot_product_flash_attention.default
    many = _heads(heads=32, rows=1024)
    assert _bytes(forward, many, many, many) == 0
    few = _heads(rows=256)
    # One block of keys cannot be split.
    assert _bytes(forward, few, few, few) == 0
    long = _empty(2, 2048, 4, 64).transpose(1, 2)
    # 32 blocks of 216 processors, 8 of keys: six waves would not be better than 4.
    assert workspaces._flash_splits(32, 216, 8) == 4
    assert _bytes(forward, few, long, long) == 4 * 4 * 2 * 4 * 256 * (1 + 64)
    assert _bytes(forward, few, long, long, 0.1) == 0


def _efficient(query: torch.Tensor, dropout: float = 0.0) -> tuple[Any, ...]:
    return (
        aten._scaled_dot_product_efficient_attention_backward.default,
        query, query, query, query, None, query,
        _empty(2, 4, 256, dtype=torch.float32), _empty(), _empty(), dropout,
        [True, True, True, False], True,
    )  # fmt: skip


def test_efficient_backward() -> None:
    delta = 4 * 2 * 4 * 256
    # A tile of 64 x 64 sums for each 64 rows, after four numbers.
    tiles = 4 * 2 * 4 * (4 * (4 + 64 * 64))
    assert _bytes(*_efficient(_heads())) == _blocks(delta, tiles)
    large = 4 * 2 * 4 * (2 * (4 + 128 * 128))
    assert _bytes(*_efficient(_heads(width=128))) == _blocks(delta, large)

    def on_a_small_chip(width: int, dropout: float = 0.0) -> int:
        return _bytes(*_efficient(_heads(width=width), dropout), device="rtx4090")

    # In global memory where 128 rows do not fit: four splits of 64 keys.
    small = 4 * 2 * 4 * (2 * (4 * 64 * 128) + 4 * 2 * (4 + 64 * 64))
    assert on_a_small_chip(128) == _blocks(delta, small)
    # A kernel of their own, without dropout, for heads up to 96.
    assert on_a_small_chip(80) == _blocks(delta, large)
    assert on_a_small_chip(80, 0.1) == _blocks(delta, small)


def test_efficient_backward_in_float32_multiplies_first() -> None:
    query = _heads(dtype=torch.float32)
    rows = 4 * 2 * 4 * 256
    tiles = 4 * 2 * 4 * (4 * (4 + 64 * 64))
    assert _bytes(*_efficient(query)) == max(rows * 64 + rows, rows + tiles)


def test_cudnn_attention_backward() -> None:
    query = _heads()

    def bytes_with(key: torch.Tensor) -> int:
        return _bytes(
            aten._scaled_dot_product_cudnn_attention_backward.default,
            query, query, key, key, query, _empty(2, 4, 256, 1), _empty(), _empty(),
            None, None, None, 256, 256, 0.0, True, device="h100",
        )  # fmt: skip

    rows = 4 * 2 * 4 * 256
    assert bytes_with(query) == rows * 64 + rows
    assert bytes_with(_heads(1)) == rows * 64 + rows + 2 * (2 * 4 * 256 * 64 * 2)


def test_embedding_backward() -> None:
    backward = aten.embedding_dense_backward.default
    indices = torch.empty(8, 1024, dtype=torch.long, device="meta")
    gradient = _empty(8, 1024, 768)
    count = 8192
    partials = count // 10 + count
    expected = 2 * 8 * count + 3 * 8 * count + 8 * partials + 4 * 768 * partials
    workspace = _bytes(backward, gradient, indices, 50257, -1, False)
    assert expected <= workspace < expected + 4 * 512
    # As many segments as there are weights.
    few = _bytes(backward, gradient, indices, 2, -1, False)
    assert few < 4 * 768 * (count // 10 + 2) + 8 * 8 * count
    assert _bytes(backward, gradient[:2], indices[:2], 50257, -1, False) == 0


def test_index_put() -> None:
    index_put = aten._index_put_impl_.default
    places = torch.empty(4096, dtype=torch.long, device="meta")
    table, values = _empty(100, 64), _empty(4096, 64)
    assert _bytes(index_put, table, [places], values, True) == 6 * 8 * 4096
    assert _bytes(index_put, table, [places], values, False) == 0


def test_group_norm() -> None:
    image = _empty(4, 64, 8, 8)
    forward = aten.native_group_norm.default
    workspace = _bytes(forward, image, None, None, 4, 64, 64, 8, 1e-5)
    assert workspace == 2 * 4 * 4 * 64
    statistics = _empty(4, 8)
    backward = aten.native_group_norm_backward.default
    workspace = _bytes(
        backward, image, image, statistics, statistics, None, 4, 64, 64, 8, [True] * 3
    )
    assert workspace == 3 * 4 * 4 * 64 + 2 * 512


def test_norms_of_lists() -> None:
    tensors = [_empty(100), _empty(200_000)]
    assert _bytes(aten._foreach_norm.Scalar, tensors, 2) == 512
    assert _bytes(aten._foreach_norm.Scalar, [_empty(2**30)] * 3, 2) == 3 * 2**14 * 4


def test_sums_of_long_columns_are_staged() -> None:
    """Biases' gradients: a block holds 32 vectors of four columns and 4 rows."""
    gradient = _empty(8192, 768)
    workspace = _bytes(aten.sum.dim_IntList, gradient, [0], True)
    assert workspaces._block_of(192, 8192, 128, 32) == (32, 4)
    # 2,048 rows a thread; 6 blocks side by side, of which 108 * 16 fit.
    blocks = 128
    assert workspace == 4 * 768 * blocks * 32 * 4 + 512
    assert _bytes(aten.sum.dim_IntList, _empty(256, 768), [0], True) == 0


def test_sums_of_rows() -> None:
    # A row is a block's own.
    assert _bytes(aten.sum.dim_IntList, _empty(8192, 768), [1], True) == 0
    everything = _bytes(aten.mean.default, _empty(8192, 50257, dtype=torch.float32))
    assert 0 < everything < MIB
    assert _bytes(aten.sum.default, _empty(0, 5)) == 0


def test_softmax_backward_makes_a_product_first() -> None:
    x = _empty(2, 4, 256, 256)
    assert _bytes(aten._softmax_backward_data.default, x, x, -1, BF16) == x.nbytes
    wide = _empty(2, 4, 256, 256, dtype=torch.float32)
    assert _bytes(aten._softmax_backward_data.default, wide, x, -1, BF16) == wide.nbytes
    assert _bytes(aten._log_softmax_backward_data.default, x, x, -1, BF16) == 0


def test_losses_are_reduced_from_those_of_elements() -> None:
    x, row = _empty(64, 1024, dtype=torch.float32), _empty(1024, dtype=torch.float32)
    none, mean, total = range(3)
    for loss in (
        aten.mse_loss,
        aten.smooth_l1_loss,
        aten.huber_loss,
        aten.binary_cross_entropy,
    ):
        assert _bytes(loss.default, x, x) == x.nbytes
    assert _bytes(aten.mse_loss.default, x, row, mean) == x.nbytes
    assert _bytes(aten.mse_loss.default, row, x, total) == x.nbytes
    assert _bytes(aten.mse_loss.default, x, x, none) == 0


def test_products_copy_matrices_that_cublas_does_not_take() -> None:
    x, weight = _empty(64, 128), _empty(256, 128)
    assert _bytes(aten.mm.default, x, weight.t()) == 0
    assert _bytes(aten.mm.default, _empty(64, 256)[:, :128], weight.t()) == 0
    # The gradient of a sum is one element.
    assert _bytes(aten.mm.default, _empty(1, 1).expand(64, 256), weight) == 64 * 256 * 2
    every_second = _empty(64, 256)[:, ::2]
    assert _bytes(aten.addmm.default, _empty(256), every_second, weight.t()) == 64 * 128 * 2
    heads = _heads().flatten(0, 1)
    batched = _empty(8, 64, 256)
    assert _bytes(aten.bmm.default, heads, batched) == 0
    repeated = _empty(8, 256, 1).expand(8, 256, 64)
    assert _bytes(aten.bmm.default, repeated, batched) == 8 * 256 * 64 * 2


def test_masked_scatter_has_a_place_for_each_element() -> None:
    x = _empty(4, 1000)
    mask = torch.empty(4, 1000, dtype=torch.bool, device="meta")
    assert _bytes(aten.masked_scatter_.default, x, mask, x) == _blocks(8 * 4000)


class _Composed(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.empty(128, 64, device="meta"))
        self._function = function

    def forward(self) -> torch.Tensor:
        result: torch.Tensor = self._function(self.x)
        return result.mean()


X, ROWS = 128 * 64 * 4, 512  # bytes of the parameter, and of an element for each of its rows


@pytest.mark.parametrize(
    ("name", "function", "size"),
    [
        # -inf or not, by element and by row; a zero
        ("_safe_softmax", lambda x: aten._safe_softmax(x, -1), 128 * 64 + 2 * ROWS),
        ("isinf", lambda x: x * x.isinf(), X),  # the absolute value
        ("dist", lambda x: torch.dist(x, x.detach()), X),  # the difference
        # the logarithm of the sigmoid, and the loss of each element
        (
            "binary_cross_entropy_with_logits",
            lambda x: torch.nn.functional.binary_cross_entropy_with_logits(x, x.detach()),
            2 * X,
        ),
        ("masked_scatter", lambda x: x.masked_scatter(x > 0, x.detach()), 2 * X),
        ("masked_fill", lambda x: x.masked_fill(x > 0, 0), 0),
    ],
)
def test_composed_operators_have_the_memory_of_their_parts(
    name: str, function: Any, size: int
) -> None:
    data = acplan.trace(_Composed(function), source=False).data
    operators = data["operators"]
    first = next(k for k, o in enumerate(operators) if o["name"].split(".")[1] == name)
    storages = [s for s in data["storages"] if (s["born"], s["freed"]) == (first, first + 1)]
    assert sum(s["bytes"] for s in storages) == size


def test_a_composed_operator_takes_the_time_of_its_parts() -> None:
    data = acplan.trace(
        _Composed(lambda x: x.masked_fill(torch.isinf(x), 0)), source=False
    ).data
    times = {o["name"].split(".")[1]: o["runtime_ms"] for o in data["operators"]}
    launch = 0.004
    assert times["isinf"] > 2 * launch < times["masked_fill"]


def test_workspaces_of_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert persistent_bytes(DEVICES["a100"]) == 2 * 8_519_680
    assert persistent_bytes(DEVICES["h100"]) == 2 * 32 * MIB
    assert persistent_bytes(DEVICES["mi300x"]) == 2 * 128 * MIB
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    assert persistent_bytes(DEVICES["a100"]) == 2 * 32 * MIB


def test_operators_without_a_workspace() -> None:
    assert _bytes(aten.mm.default, _empty(8, 8), _empty(8, 8)) == 0
    on_the_cpu = torch.empty(8192, 768)
    assert _bytes(aten.sum.dim_IntList, on_the_cpu, [0], True) == 0


def test_every_formula_is_documented() -> None:
    docs = pathlib.Path(__file__).parents[3] / "docs" / "workspaces.md"
    names = set(re.findall(r"`([a-z0-9_]+)`", docs.read_text()))
    assert set(workspaces._MODELS) <= names


def test_are_part_of_a_trace_unless_told_not_to() -> None:
    model, x = torch.nn.Linear(8, 8), torch.zeros(2, 8)
    with_workspaces = acplan.trace(model, x)
    plain = acplan.trace(model, x, workspaces=False)
    assert with_workspaces.workspaces and not plain.workspaces
    cublas_bytes = 2 * 8_519_680  # cuBLAS', of a handle each for two threads
    assert with_workspaces.peak_bytes - plain.peak_bytes == cublas_bytes
    names = [op["name"] for op in with_workspaces.data["operators"]]
    assert names == [op["name"] for op in plain.data["operators"]]


def test_are_in_use_while_their_operator_runs() -> None:
    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = torch.nn.Linear(64, 192)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).view(2, 16, 3, 4, 16).permute(2, 0, 3, 1, 4)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    x = torch.randn(2, 16, 64, dtype=torch.bfloat16)
    data = acplan.trace(Attention().bfloat16(), x).data
    name = "aten._scaled_dot_product_flash_attention_backward.default"
    place = [op["name"] for op in data["operators"]].index(name)
    storages = [data["storages"][index] for index in data["operators"][place]["creates"]]
    extra = [s for s in storages if s["category"] == "temporary" and s["freed"] == place + 1]
    sums = 4 * 2 * 128 * 4 * 32 + 4 * 2 * 4 * 128
    assert [storage["bytes"] >= sums for storage in extra] == [True]
