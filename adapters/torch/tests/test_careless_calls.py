"""Calls as careless users make them: wrong types, data that have ended, files that are
none, models on the meta device. Each is told in one line."""

import contextlib
import html
import json
import os
import pathlib
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import acplan
from acplan import AcplanError
from acplan.__main__ import main
from acplan._base.errors import first_line
from acplan._compile.fake_step import compiles_fakes
from acplan._files.json_files import require_writable, write_json

_FAST = {"decisions": "save,recompute", "progress": False}


def _layers() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))


def _best(
    inputs_of: Callable[[int], Any], model: nn.Module | None = None, **changes: Any
) -> Any:
    options = {"budget": "20MiB", **_FAST, **changes}
    return acplan.best_batch(model or _layers(), inputs_of, **options)


def _batch(size: int) -> torch.Tensor:
    return torch.empty(size, 16, device="meta")


def test_slices_of_data_that_have_ended_are_no_batches() -> None:
    data = torch.empty(100, 16)
    with pytest.raises(AcplanError, match="expected inputs that grow with the size"):
        _best(lambda size: data[:size])
    with pytest.raises(AcplanError, match="size 2: inputs_of: expected inputs that grow"):
        _best(lambda _: data, sizes=[1, 2])
    assert _best(lambda size: data[:size], sizes=[50, 100]).largest.size == 100


def test_the_size_is_told_with_what_a_model_refuses() -> None:
    normed = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16))
    with pytest.raises(AcplanError, match="^size 1: ValueError: .* [(]give the possible sizes"):
        _best(_batch, normed)
    assert _best(_batch, normed, sizes=[2, 4]).largest.size == 4
    with pytest.raises(AcplanError, match="^size 1: infeasible: no plan fits") as raised:
        _best(_batch, budget="1KiB")
    assert raised.value.exit_code == 3


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sizes": 8}, "sizes: expected numbers above 0, ascending, found 8"),
        ({"sizes": "124"}, "sizes: expected numbers above 0, ascending, found '124'"),
        ({"sizes": [1.5, 2]}, "sizes: expected a whole number, 1 or more, found 1.5"),
        ({"tolerance": "0.1"}, "tolerance: expected a number of at least 0, found '0.1'"),
        ({"budget": " min"}, "the same for every batch"),
        ({"budget": "75% "}, "the same for every batch"),
        ({"budget": "lots"}, "budget: expected bytes"),
    ],
)
def test_wrong_questions_about_batches(options: dict[str, Any], message: str) -> None:
    with pytest.raises(AcplanError, match=message):
        _best(_batch, **options)


@pytest.mark.parametrize("sizes", [(k for k in (1, 2, 4)), torch.tensor([1, 2, 4])])
def test_sizes_of_any_kind(sizes: Any) -> None:
    assert _best(_batch, sizes=sizes).largest.size == 4


def test_sequences_end_with_the_models_positions(capsys: Any) -> None:
    flags = ["--hf-config", "gpt2", "--set", "n_layer=1", "--set", "n_embd=48"]
    flags += ["--set", "n_head=2", "--set", "vocab_size=100", "--no-progress"]
    flags += ["--set", "n_positions=24", "--decisions", "save,recompute", "--batch", "1"]
    assert main(["batch", *flags, "--over", "seq", "--budget", "1GiB"]) == 0
    assert "largest         24:" in capsys.readouterr().out
    more = ["--over", "batch", "--budget", "1GiB", "--most", "4", "--multiple-of", "8"]
    assert main(["batch", *flags[:-2], *more]) == 2
    assert "--multiple-of: expected 4 or less" in capsys.readouterr().err


_X = torch.empty(4, 16)
_CALLS: list[tuple[Callable[[], Any], str]] = [
    (lambda: acplan.trace(3), "model: expected a module, found int"),
    (lambda: acplan.auto_checkpoint(3, budget="min"), "model: expected a module"),
    (lambda: acplan.auto_checkpoint(_layers(), _X, budget=True), "budget: expected bytes"),
    (lambda: acplan.apply(3, acplan.Plan(())), "model: expected a module"),
    (lambda: acplan.remove(None), "model: expected a module, found NoneType"),
    (lambda: acplan.apply(_layers(), {}), "plan: expected a Plan or the path of one"),
    (lambda: acplan.verify(_layers(), 3, _X), "plan: expected a Plan or the path of one"),
    (lambda: acplan.explain(_layers(), _X, plan=3, levers=False), "plan: expected a Plan"),
    (lambda: acplan.explain(_layers(), _X, levers=3), "levers: expected True, False or names"),
    (lambda: acplan.trace(_layers(), _X, loss_fn=3), "loss_fn: expected a function of"),
    (lambda: acplan.trace(_layers(), _X, device=3), "device: expected one of"),
    (lambda: acplan.frontier("t.json", budgets=[]), "budgets: expected one or more"),
    (lambda: acplan.Plan.load(3), "path: expected a file's path, found int"),
    (lambda: acplan.Plan(()).save(None, "A"), "path: expected a file's path, found NoneType"),
    (lambda: acplan.report("t.json", None), "output: expected a file's path, found NoneType"),
    (lambda: acplan.profile(3), "profile: expected a file's path, found int"),
    (lambda: acplan.compare("t.json", [3]), "plans: expected a file's path, found list"),
]


@pytest.mark.parametrize("call", range(len(_CALLS)))
def test_wrong_arguments_are_told(call: int) -> None:
    wrong, message = _CALLS[call]
    with pytest.raises(AcplanError, match=message) as raised:
        wrong()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "figures, message",
    [
        ({"peak_bytes": "abc"}, "plan: peak_bytes: expected a number, found 'abc'"),
        ({"peak_bytes": float("nan")}, "plan: peak_bytes: expected a number, found nan"),
        ({"recompute_ms": 10**400}, "plan: recompute_ms: expected a number, found 1000"),
    ],
)
def test_plans_that_tell_no_numbers(figures: dict[str, Any], message: str) -> None:
    whole = {"format": "acplan.plan", "version": 1, "status": "optimal", "modules": []}
    whole |= {"peak_bytes": 5, "budget_bytes": 6, "recompute_ms": 1.0}
    plan = acplan.Plan.from_data(whole | figures)
    with pytest.raises(AcplanError, match=message):
        _ = plan.peak_bytes, plan.recompute_ms
    assert message in repr(plan) and message in html.unescape(plan._repr_html_())
    assert str(plan) == "0 modules to checkpoint: none"


def test_plans_of_units_without_names() -> None:
    whole = {"format": "acplan.plan", "version": 1, "status": "optimal"}
    with pytest.raises(AcplanError, match="fqn: expected a name, found 3"):
        acplan.Plan.from_data({**whole, "modules": [{"fqn": 3}]})


@pytest.mark.parametrize("missing", ["model", "operators", "storages", "measured"])
def test_traces_that_lack_a_part(missing: str, tmp_path: pathlib.Path) -> None:
    data = acplan.trace(_layers(), _X).data
    (tmp_path / "t.json").write_text(json.dumps({k: data[k] for k in data if k != missing}))
    with pytest.raises(AcplanError, match=f"t.json: {missing}: expected a .*, found none"):
        acplan.Trace.load(tmp_path / "t.json")


class Padded(nn.Module):
    """Asks for values, as transformers does of masks."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(4, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.words(tokens).sum() if (tokens == 0).all() else self.words(tokens).mean()


def test_inputs_that_are_too_large_for_values_are_told() -> None:
    tokens = torch.zeros(1 << 20, 5, dtype=torch.long, device="meta")
    with pytest.raises(AcplanError, match="an input of 5,242,880 whole numbers is too large"):
        acplan.trace(Padded().to("meta"), tokens)
    assert acplan.trace(Padded().to("meta"), tokens[:4]).peak_bytes > 0


def test_what_others_announce_is_said() -> None:
    assert first_line(ValueError("\nfield 'n':\n  is a text\nmore")) == "field 'n': is a text"
    assert first_line(ValueError("")) == "no message"
    assert first_line(ValueError("a:")) == "a:"


def test_errors_name_no_file_of_ours() -> None:
    model = type("A\nB", (nn.Sequential,), {})(nn.Linear(16, 16))
    with pytest.raises(AcplanError, match="^trace: modules") as raised:
        acplan.plan(acplan.trace(model, _X), "min")
    assert "\n" not in str(raised.value)


def test_what_is_no_regular_file_stays(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.daemon = True  # where nobody writes to the pipe
    reader.start()
    for name in ("pipe", "link"):
        require_writable(tmp_path / name)
        write_json(tmp_path / name, [1])
    reader.join(5)
    assert read == [b"[1]"] and (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "[1]"
    with pytest.raises(AcplanError, match="cannot be written as JSON"):
        write_json(tmp_path / "link", [float("nan")])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "real"]


@pytest.mark.skipif(not compiles_fakes(), reason="needs PyTorch 2.11")
def test_a_compiled_model_on_meta_is_told() -> None:
    with torch.device("meta"):
        model = _layers()
    compiled = acplan.compile(model, "100%", backend="aot_eager")
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        with contextlib.suppress(RuntimeError):
            compiled(torch.empty(4, 16, device="meta")).sum().backward()
    assert any("0.weight is on the meta device" in str(w.message) for w in caught_warnings)
