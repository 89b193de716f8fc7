"""gpu-check on the CPU: the same code but for what only CUDA can measure."""

import dataclasses
import io
import json
import pathlib
import re
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from acplan import AcplanError
from acplan.__main__ import main
from acplan._verify import gpu_check
from acplan._verify.gpu_check import blocks_of, fitting_trace
from acplan._verify.gpu_check_models import CheckedModel, checked_models
from acplan._verify.gpu_check_rows import Row, print_header, print_row
from acplan._verify.gpu_check_run import _retries, predicted_run, process_allocator

_SMALL = checked_models(is_small=True)


@pytest.fixture(scope="module")
def of_mlp(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any], str]:
    """The exit code, the file and the table of one model with all plans."""
    file = tmp_path_factory.mktemp("gpu_check") / "found.json"
    table = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", table)
        code = main(
            ["gpu-check", "--device", "cpu", "--models", "mlp", "--steps", "2"]
            + ["-o", str(file)]
        )
    return code, json.loads(file.read_text()), table.getvalue()


def test_a_model_runs_as_its_plans_say(of_mlp: Any) -> None:
    code, data, _ = of_mlp
    assert code == 0
    rows = {row["plan"]: row for row in data["rows"]}
    assert list(rows) == ["none", "blocks", "80%", "60%", "min", "offload"]
    for name in ("none", "blocks", "min"):
        row = rows[name]
        assert row["good"] and row["error"] is None and row["note"] is None
        assert row["operators_differ"] is None and row["losses_differ"] is None
        assert row["operators"] > 100 and row["batch"] == 64
        assert row["measured_ms"] > 0 and row["predicted_ms"] > 0
        assert row["allocated_bytes"] is row["reserved_bytes"] is None
        assert row["memory_error"] is None
    assert rows["blocks"]["predicted_bytes"] < rows["none"]["predicted_bytes"]
    assert rows["blocks"]["operators"] > rows["none"]["operators"]
    assert rows["none"]["predicted_overhead"] == rows["none"]["measured_overhead"] == 0
    assert rows["blocks"]["predicted_overhead"] > 0
    assert rows["min"]["predicted_bytes"] <= rows["min"]["budget_bytes"]
    for name in ("none", "blocks", "min"):
        row = rows[name]
        assert row["predicted_reserved_bytes"] >= row["predicted_bytes"]
        assert row["predicted_retries"] == row["predicted_ooms"] == 0
        assert row["retries"] is row["ooms"] is None


def test_a_budget_that_no_plan_fits_is_a_note(of_mlp: Any) -> None:
    _, data, table = of_mlp
    row = next(row for row in data["rows"] if row["plan"] == "60%")
    assert row["note"].startswith("infeasible") and row["good"]
    assert "  note: infeasible" in table


def test_the_file_and_the_table_say_of_what_they_are(of_mlp: Any) -> None:
    _, data, table = of_mlp
    assert (data["format"], data["version"]) == ("acplan.gpu_check", 1)
    assert data["torch"] == torch.__version__ and data["cuda"] is None
    assert len(data["date"]) == len("2026-01-31")
    lines = table.splitlines()
    assert "memory not measured" in lines[0] and "no CUDA" in lines[0]
    assert lines[2].split()[:4] == ["model", "plan", "batch", "budget"]
    assert "6 of 6 equal and within their budgets" in lines[-1]


def _broken() -> CheckedModel:
    def inputs(batch: int) -> dict[str, torch.Tensor]:
        raise ValueError("no inputs\nat all")

    return CheckedModel(_SMALL["mlp"]().make, inputs, 1)


def test_an_error_of_a_model_is_a_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    models = {"broken": _broken, "mlp": _SMALL["mlp"]}
    monkeypatch.setattr(gpu_check, "checked_models", lambda is_small: models)
    file = tmp_path / "found.json"
    flags = ["--device", "cpu", "--plans", "none", "--steps", "1", "-o", str(file)]
    assert main(["gpu-check", *flags]) == 1
    broken, mlp = json.loads(file.read_text())["rows"]
    assert broken["error"] == "the run raised ValueError: no inputs" and not broken["good"]
    assert mlp["good"]


def test_an_error_of_a_plan_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_plan(*args: Any, **kwargs: Any) -> Any:
        raise AcplanError("the program\nended")

    monkeypatch.setattr(gpu_check, "plan", no_plan)
    rows = list(gpu_check.check("mlp", _SMALL["mlp"], ["none", "min"], "cpu", 1))
    assert rows[0].is_good
    assert rows[1].error == "the program ended" and rows[1].batch == 64


def test_other_operators_are_told() -> None:
    """The CPU has other kernels than the device of the trace."""
    [row] = gpu_check.check("encoder", _SMALL["encoder"], ["none"], "cpu", 1)
    assert row.operators_differ and "measured aten." in row.operators_differ
    assert not row.is_good and row.error is None
    table = io.StringIO()
    print_row(row, table)
    assert "differ" in table.getvalue() and "  operators: " in table.getvalue()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--models", "gpt3"], "--models: expected names of mlp, .* found 'gpt3'"),
        (["--plans", "none,50%"], "--plans: expected names of none, .* found '50%'"),
        (["--steps", "0"], "--steps: expected a number above 0, found 0"),
        (["-o", "no/such/folder.json"], "there is no folder"),
    ],
)
def test_bad_flags(flags: list[str], message: str, capsys: Any) -> None:
    assert main(["gpu-check", "--device", "cpu", *flags]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and re.search(message, error)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_is_needed(capsys: Any) -> None:
    assert main(["gpu-check"]) == 2
    assert "expected a CUDA device" in capsys.readouterr().err


def test_losses_may_differ_as_two_runs_without_a_plan_do() -> None:
    differ = gpu_check._losses_differ
    assert differ([1.0, 2.0], [1.0, 2.0], [1.0, 2.0]) is None
    assert "by 0.5" in str(differ([1.0, 2.5], [1.0, 2.0], [1.0, 2.0]))
    assert differ([1.0, 2.5], [1.0, 2.0], [1.0, 1.75]) is None
    assert differ([1.0, 2.5], [1.0, 2.0], [1.0, 1.9]) is not None


def test_operators_are_compared_one_by_one() -> None:
    differ = gpu_check._difference
    assert differ(["a", "b"], ["a", "b"]) is None
    assert differ(["a", "b"], ["a", "c"]) == "operator 1: predicted b, measured c"
    assert differ(["a", "b"], ["a"]) == "predicted 2 operators, measured 1"


def test_rows_of_a_gpu() -> None:
    row = Row(
        "gpt2", "80%", 8, 8 * 2**30, 7 * 2**30, 8 * 2**30 + 1, 9 * 2**30, 100.0,
        110.0, 0.05, 0.06, 1000, predicted_reserved_bytes=17 * 2**29, retries=0,
        predicted_retries=1, predicted_ooms=0,
    )  # fmt: skip
    assert row.is_over_budget and not row.is_good
    assert row.memory_error == pytest.approx(-1 / 8)
    table = io.StringIO()
    print_row(row, table)
    assert table.getvalue().split() == [
        "gpt2", "80%", "8", "8.000", "7.000", "8.000!", "-12.5%", "8.500", "9.000", "1/0",
        "0/-", "100.00", "110.00", "+5.0%", "+6.0%", "equal", "equal",
    ]  # fmt: skip
    header = {
        "device": "NVIDIA H200", "memory_bytes": 141 * 2**30, "torch": "2.13.0",
        "cuda": "13.0", "cudnn": 92000, "date": "2026-01-31",
    }  # fmt: skip
    print_header(header, table)
    assert "NVIDIA H200, 141.0 GiB, torch 2.13.0, CUDA 13.0, cuDNN 92000" in (table.getvalue())


def test_retries_repeat_as_the_run_does() -> None:
    reclaims = [(0, False), (1, True), (3, True), (4, True), (4, True)]
    run = {
        "iterations": 4,
        "period": 2,
        "reclaims": [{"iteration": at, "retry": retry} for at, retry in reclaims],
    }
    assert [_retries(run, n) for n in range(1, 9)] == [1, 1, 2, 4, 5, 7, 8, 10]
    assert _retries({**run, "period": 0}, 9) == 4


class _FakeCuda:
    """The functions of torch.cuda that say what the allocator has done."""

    counts: ClassVar = {"num_alloc_retries": 3, "num_ooms": 1}

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(torch.cuda, "memory_stats", lambda: dict(self.counts))
        patch.setattr(torch.cuda, "mem_get_info", lambda: (20 << 30, 24 << 30))
        patch.setattr(torch.cuda, "memory_reserved", lambda: 1 << 30)
        patch.setattr(torch.cuda, "memory_allocated", lambda: 1 << 28)


def test_the_allocator_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    _FakeCuda(monkeypatch)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    options = process_allocator("cuda")
    assert options["allocator"] == "expandable_segments:True"
    assert options["device_memory"] == (20 << 30) + (3 << 28)
    assert gpu_check._counts("cuda") == (3, 1)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    assert process_allocator("cpu")["allocator"] == "max_split_size_mb:64"
    assert gpu_check._counts("cpu") == (None, None)


def test_a_run_that_does_not_end_on_the_device() -> None:
    traced, _ = fitting_trace(_SMALL["mlp"](), "cpu", float("inf"))
    options = {"allocator": "native", "torch_version": "2.13"}
    run = predicted_run(traced, None, options, 8)
    assert (run.retries, run.ooms) == (0, 0) and run.reserved_bytes >= traced.peak_bytes
    small = {**options, "device_memory": traced.peak_bytes // 2}
    assert predicted_run(traced, None, small, 8).ooms == 1


def test_batches_are_halved_until_they_fit() -> None:
    model = _SMALL["mlp"]()
    model = dataclasses.replace(model, batch=512)
    whole, batch = fitting_trace(model, "cpu", float("inf"))
    assert batch == 512
    smaller, batch = fitting_trace(model, "cpu", whole.peak_bytes - 1)
    assert batch == 256 and smaller.peak_bytes < whole.peak_bytes
    with pytest.raises(AcplanError, match="a batch of one needs"):
        fitting_trace(dataclasses.replace(model, batch=1), "cpu", 1)


def test_blocks() -> None:
    for name, first, count in (
        ("gpt2", "GPT2LMHeadModel.transformer.h.0", 2),
        ("mlp", "_WithLoss.body.0", 3),
        ("encoder", "_WithLoss.body.layers.0", 2),
        ("unet", "_WithLoss.body.down.0", 6),
        ("lstm", "_WithLoss.body", 1),
    ):
        with torch.device("meta"):
            names = blocks_of(_SMALL[name]().make())
        assert (names[0], len(names)) == (first, count)
    nested = nn.Sequential(nn.Sequential(nn.Sequential(nn.ReLU())), nn.ReLU())
    assert blocks_of(nested) == ["Sequential.0"]


@pytest.mark.parametrize("name", list(_SMALL))
def test_every_model_has_a_loss(name: str) -> None:
    pytest.importorskip("transformers")
    model = _SMALL[name]()
    torch.manual_seed(0)
    loss = model.make()(**model.inputs(2))["loss"]
    assert loss.dim() == 0 and loss.isfinite()
    inputs = model.inputs(2)
    assert all(torch.equal(inputs[key], x) for key, x in model.inputs(2).items())


def test_models_of_real_size_are_told_to_need_transformers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    [row] = gpu_check.check("gpt2", _SMALL["gpt2"], ["none"], "cpu", 1)
    assert "needs transformers" in str(row.error)
