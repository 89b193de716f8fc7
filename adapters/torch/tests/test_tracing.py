import gc
import gzip
import json
import pathlib
import subprocess
import sys

import pytest
import torch
from torch import nn

from acplan import AcplanError, trace


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def test_knows_phases_modules_and_storages() -> None:
    data = trace(_net(), torch.randn(2, 8)).data
    assert [m["fqn"] for m in data["modules"]] == [
        "Sequential",
        "Sequential.0",
        "Sequential.1",
        "Sequential.2",
    ]
    names = [op["name"] for op in data["operators"]]
    assert names[: data["forward_end"]].count("aten.addmm.default") == 2
    assert 0 < data["forward_end"] < data["backward_end"] < len(names)
    categories = {s["category"] for s in data["storages"]}
    assert categories >= {"parameter", "gradient", "optimizer", "input", "activation"}
    gradients = [s for s in data["storages"] if s["category"] == "gradient"]
    assert sorted(s["bytes"] for s in gradients) == [16, 64, 256, 512]


def test_leaves_the_model_as_it_was() -> None:
    model = _net().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    parameters = list(model.parameters())
    trace(model, torch.randn(2, 8))
    assert not model.training
    assert all(a is b for a, b in zip(parameters, model.parameters()))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in parameters)
    assert not model._forward_hooks and not model[0]._forward_pre_hooks
    # PyTorch is as it was, too.
    assert not torch.cuda.is_available() or torch.backends.cuda.is_built()
    model(torch.randn(2, 8)).sum().backward()


def test_takes_no_memory_for_large_models() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(1 << 15, 1 << 15) for _ in range(16)))
        x = torch.randn(1024, 1 << 15)
    assert trace(model, x).peak_bytes > 16 * 4 * (1 << 32)


def test_does_not_move_the_random_state() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout())
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    trace(model, torch.zeros(2, 8))
    assert torch.equal(torch.rand(3), expected)


def test_cuda_kernels_are_chosen() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(64, 192)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).view(2, 16, 3, 4, 16).permute(2, 0, 3, 1, 4)
            return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def kernels(dtype: torch.dtype) -> set[str]:
        x = torch.randn(2, 16, 64, dtype=dtype)
        data = trace(Attention().to(dtype), x).data
        return {o["name"] for o in data["operators"] if "attention" in o["name"]}

    assert any("flash" in name for name in kernels(torch.bfloat16))
    assert any("efficient" in name for name in kernels(torch.float32))


def test_saves_whole_files(tmp_path: pathlib.Path) -> None:
    traced = trace(_net(), torch.randn(2, 8))
    traced.save(tmp_path / "t.json")
    traced.save(tmp_path / "t.json.gz")
    assert json.loads((tmp_path / "t.json").read_text()) == traced.data
    assert json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes())) == (traced.data)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.json", "t.json.gz"]


def test_is_the_same_every_time() -> None:
    x = torch.randn(2, 8)
    assert trace(_net(), x).data == trace(_net(), x).data


class _InCycles(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cycle: list[object] = [x * 2]
        cycle.append(cycle)
        del cycle
        return self.body(x).sum()


@pytest.mark.parametrize("values", ["known", "real"])
def test_is_the_same_whenever_python_collects_cycles(values: str) -> None:
    thresholds = gc.get_threshold()
    traces = []
    for often in (1, 1_000_000):
        gc.set_threshold(often)
        try:
            traces.append(trace(_InCycles(), torch.ones(64, 4), values=values))
        finally:
            gc.set_threshold(*thresholds)
        assert gc.isenabled()
    assert traces[0].data == traces[1].data


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (nn.Identity(), {}, "no parameter"),
        (_net(), {"device": "abacus"}, "expected one of t4"),
        (_net(), {"loss_fn": lambda out: out}, "expected a scalar tensor"),
        (nn.Embedding(4, 4, dtype=torch.float32), {"loss_fn": lambda _: 3}, "scalar"),
    ],
)
def test_tells_what_is_wrong(
    model: nn.Module, options: dict[str, object], message: str
) -> None:
    x = torch.zeros(2, 8)
    if isinstance(model, nn.Embedding):
        x = x.long()
    with pytest.raises(AcplanError, match=message):
        trace(model, x, **options)  # type: ignore[arg-type]


def test_tells_that_the_step_differs() -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            for _ in range(self.calls):
                x = self.layer(x)
            return x

    with pytest.raises(AcplanError, match="differs between runs"):
        trace(Moody(), torch.zeros(2, 8))


def test_tells_that_values_are_needed() -> None:
    class Curious(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.layer(x)
            return x if x.sum() > 0 else self.layer(x)

    with pytest.raises(AcplanError, match="depend on values.*truth.*test_tracing.py"):
        trace(Curious(), torch.zeros(2, 8), values="known")


def test_works_whatever_came_first() -> None:
    for before in (
        "import torch, acplan",  # the other way round in examples/first_plan.py
        "import torch, acplan; torch.ones(2, requires_grad=True).sum().backward()",
    ):
        code = (
            f"{before}\n"
            "trace = acplan.trace(torch.nn.Linear(4, 4), torch.zeros(2, 4))\n"
            "assert trace.peak_bytes > 0\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
