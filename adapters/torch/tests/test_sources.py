"""Which line of Python each operator of a trace is from."""

import json
import os
import pathlib
import sys
from typing import Any

import pytest
import torch
from torch import nn

import acplan
from acplan.__main__ import main
from acplan._base.source_lines import SourceLines, file_of
from acplan._files.trace_file import Trace


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sigmoid()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * x.cos()


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(x)
        hidden = hidden.tanh()
        hidden = _Gate.apply(hidden)
        hidden[:, 0] = 1.0
        return self.down(hidden)


def _line_of(text: str) -> int:
    lines = pathlib.Path(__file__).read_text().splitlines()
    numbers = [k + 1 for k, line in enumerate(lines) if line.strip() == text]
    assert len(numbers) == 1, text
    return numbers[0]


@pytest.fixture(scope="module")
def traced() -> Trace:
    return acplan.trace(_Net(), torch.randn(4, 8), loss_fn=_loss)


def _loss(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def _lines_of(traced: Trace, name: str) -> list[tuple[int, str]]:
    """Returns of each operator of that name the line, and where in the step it runs."""
    places = []
    for k, row in enumerate(traced._rows()):
        if row["name"] == name:
            line = traced.source_of(k).rpartition(":")[2]
            places.append((int(line or 0), row["phase"]))
    return places


def test_operators_of_the_forward_pass_have_their_line(traced: Trace) -> None:
    up, down = _line_of("hidden = self.up(x)"), _line_of("return self.down(hidden)")
    assert _lines_of(traced, "aten.addmm.default") == [(up, "forward"), (down, "forward")]
    assert _lines_of(traced, "aten.tanh.default") == [
        (_line_of("hidden = hidden.tanh()"), "forward")
    ]
    assert _lines_of(traced, "aten.sigmoid.default") == [
        (_line_of("return x.sigmoid()"), "forward")
    ]
    functions = {(s["function"], s["file"]) for s in traced.data["sources"]}
    assert {name for name, _ in functions} == {"forward", "backward", "_loss"}
    [file] = {file for _, file in functions}
    assert file == os.path.relpath(__file__)


def test_operators_of_the_backward_pass_have_that_of_the_forward_operator(
    traced: Trace,
) -> None:
    up, down = _line_of("hidden = self.up(x)"), _line_of("return self.down(hidden)")
    assert [line for line, _ in _lines_of(traced, "aten.mm.default")] == [down, down, up]
    assert _lines_of(traced, "aten.tanh_backward.default") == [
        (_line_of("hidden = hidden.tanh()"), "backward")
    ]
    # One that is written in Python has lines of its own.
    assert _lines_of(traced, "aten.cos.default") == [
        (_line_of("return gradients[0] * x.cos()"), "backward")
    ]
    loss = _line_of("return output.square().mean()")
    at = [
        traced.source_of(k)
        for k, row in enumerate(traced._rows())
        if row["phase"] == "backward"
    ]
    # The first gradient is of no operator, the rest of some.
    assert at[0] == "" and at[1].endswith(f":{loss}") and all(at[1:])


def test_what_changes_in_place_is_of_its_line_or_the_one_after(traced: Trace) -> None:
    """PyTorch makes the node of a change to a view after the operator ran."""
    changed = _line_of("hidden[:, 0] = 1.0")
    zeroed = [line for line, phase in _lines_of(traced, "aten.zero_.default")]
    for filled in ("aten.fill_.Tensor", "aten.fill_.Scalar"):
        zeroed += [line for line, _ in _lines_of(traced, filled)]
    assert zeroed and {0 <= line - changed <= 1 for line in zeroed} == {True}


def test_the_update_and_what_torch_runs_by_itself_have_none(traced: Trace) -> None:
    rows = list(traced._rows())
    assert {row["source"] for row in rows if row["phase"] == "optimizer"} == {""}
    plain = acplan.trace(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(2, 8))
    assert plain.data["sources"] == []
    assert not any("source" in operator for operator in plain.data["operators"])


def test_a_trace_without_lines_is_the_same_otherwise(traced: Trace) -> None:
    plain = acplan.trace(_Net(), torch.randn(4, 8), loss_fn=_loss, source=False)
    assert "sources" not in plain.data and "source" in str(traced.data["operators"][0])
    rest = {key: value for key, value in traced.data.items() if key != "sources"}
    rest["operators"] = [
        {key: value for key, value in operator.items() if key != "source"}
        for operator in rest["operators"]
    ]
    assert rest == plain.data


def test_microbatches_before_are_not_mistaken_for_this_one() -> None:
    traced = acplan.trace(_Net(), torch.randn(4, 8), loss_fn=_loss, accumulate=2)
    down = _line_of("return self.down(hidden)")
    assert {line for line, _ in _lines_of(traced, "aten.mm.default")} >= {down}
    assert 0 not in {line for line, _ in _lines_of(traced, "aten.mm.default")}


def test_files_are_told_without_the_folders_of_a_user(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = "/home/ada/.venv/lib/python3.11/site-packages"
    assert file_of(f"{packages}/nets/blocks/mlp.py") == "nets/blocks/mlp.py"
    assert file_of(f"/a/site-packages/b{packages}/nets.py") == "nets.py"
    assert file_of("/home/ada/secret/train.py") == "train.py"
    monkeypatch.chdir(tmp_path)
    assert file_of(str(tmp_path / "nets/mlp.py")) == "nets/mlp.py"
    assert file_of("nets/mlp.py") == "nets/mlp.py"
    assert file_of("<stdin>") == "<stdin>"
    # Code that calls operators for others has no file.
    assert file_of(torch.nn.functional.__file__) == file_of(acplan.__file__) == ""
    assert file_of(json.__file__) == file_of("<eval_with_key>.3") == ""


def test_cells_of_notebooks_have_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    class Compiler:
        def format_code_name(self, name: str) -> tuple[str, str] | None:
            return ("Cell", "In[3]") if name.endswith("7.py") else None

    class Shell:
        compile = Compiler()

        class InteractiveShell:
            initialized = staticmethod(lambda: True)
            instance = staticmethod(lambda: Shell)

    monkeypatch.setitem(sys.modules, "IPython.core.interactiveshell", Shell)  # type: ignore[arg-type]
    assert file_of("/tmp/ipykernel_12/7.py") == "In[3]"
    assert file_of("/tmp/ipykernel_12/8.py") == "8.py"


def test_frames_around_the_step_end_it() -> None:
    def line_outside() -> int:
        return SourceLines(outer_codes=()).of_operator()

    def step() -> int:
        return SourceLines(outer_codes=(step.__code__,)).of_operator()

    assert line_outside() == 0 and step() == -1


def test_the_shell_can_leave_them_out(tmp_path: pathlib.Path) -> None:
    (tmp_path / "made_up.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Linear):\n"
        "    def forward(self, x):\n        return super().forward(x).relu()\n\n\n"
        "def build():\n    return Net(4, 4), (torch.ones(2, 4),)\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        for flags, has_lines in (([], True), (["--no-source"], False)):
            file = tmp_path / "t.json"
            command = ["trace", "--factory", "made_up:build", "-o", str(file)]
            assert main([*command, "--no-progress", *flags]) == 0
            read = Trace.load(file)
            assert ("sources" in read.data) == has_lines
            assert any(map(read.source_of, range(len(read.live_bytes)))) == has_lines
    finally:
        sys.path.remove(str(tmp_path))


def test_explain_and_report_show_them(traced: Trace, tmp_path: pathlib.Path) -> None:
    explanation = acplan.explain(traced)
    peak = explanation.data["baseline"]["peak"]
    assert peak["source"] == traced.source_of(peak["step"])
    lines = explanation.data["baseline"]["lines"]
    assert sum(row["bytes"] for row in lines) == explanation.peak_bytes
    assert explanation.lines == lines and "by line that made it" in str(explanation)
    page = acplan.report(traced, tmp_path / "r.html", points=0).read_text()
    assert f"test_sources.py:{_line_of('return self.down(hidden)')}" in page
