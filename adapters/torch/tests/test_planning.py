import json
import logging
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointWrapper,
)

import acplan
from acplan import AcplanError, Plan, PlannedModule, Profile
from acplan._base import progress
from acplan._base.program import Outcome, call_acplan, find_program

_DATA = pathlib.Path(__file__).parents[3] / "data" / "profiles"
_GPT2 = _DATA / "gpt2_small.json.gz"
_TRANSFORMER = _DATA / "transformer4.json.gz"
_GIB = 1 << 30


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: Any) -> Iterator[pathlib.Path]:
    """A working folder in which nothing may be left behind."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not list(tmp_path.iterdir())


def test_figures_are_those_of_the_program(folder: pathlib.Path) -> None:
    plan = acplan.plan(_GPT2, "10GiB")
    run = call_acplan(["plan", str(_GPT2), "--budget", "10GiB", "--json"])
    expected = json.loads(run.out)
    assert plan.data["modules"] == expected["modules"]
    assert plan.status == "optimal"
    assert plan.budget_bytes == 10 * _GIB >= plan.peak_bytes == expected["peak_bytes"]
    assert plan.baseline_peak_bytes == expected["baseline"]["peak_bytes"]
    assert plan.recompute_ms == plan.bound_ms == expected["recompute_ms"] > 0
    assert plan.gap == 0
    assert plan.overhead == expected["overhead"]
    assert len(plan.modules) == 24
    assert all(module.operators for module in plan.modules)


def test_the_text_is_that_of_the_program(tmp_path: pathlib.Path) -> None:
    plan = acplan.plan(_GPT2, "10GiB")
    assert str(plan).startswith("gpt2_small, 151 modules")
    assert "optimal: no plan within the budget recomputes less" in str(plan)
    plan.save(tmp_path / "plan.json.gz")
    loaded = Plan.load(tmp_path / "plan.json.gz")
    assert loaded == plan
    assert "24 modules to checkpoint" in str(loaded)
    assert f"{plan.peak_bytes:,} bytes of {10 * _GIB:,}" in str(loaded)


@pytest.mark.parametrize("budget", ["1.6GiB", 1717986918])
def test_profiles_and_paths_and_bytes_mean_the_same(budget: Any) -> None:
    expected = acplan.plan(str(_TRANSFORMER), "1.6GiB").data
    actual = acplan.plan(Profile.load(_TRANSFORMER), budget).data
    assert actual["modules"] == expected["modules"]
    assert actual["budget_bytes"] == expected["budget_bytes"]


def test_shares_and_the_minimum_are_budgets() -> None:
    whole = acplan.plan(_TRANSFORMER, "100%")
    assert whole.modules == () and whole.recompute_ms == 0
    least = acplan.plan(_TRANSFORMER, "min")
    with pytest.raises(AcplanError, match="the smallest feasible budget"):
        acplan.plan(_TRANSFORMER, least.budget_bytes - 1)


def test_what_is_infeasible_says_what_would_fit(folder: pathlib.Path) -> None:
    with pytest.raises(AcplanError, match="infeasible: no plan fits in 100") as raised:
        acplan.plan(_TRANSFORMER, "100MiB")
    lines = str(raised.value).splitlines()
    assert len(lines) > 1 and lines[1].startswith("the smallest feasible budget: ")
    assert raised.value.exit_code == 3


def _layers(*numbers: int) -> list[str]:
    return [f"Transformer.layers.{k}" for k in numbers]


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({"world_size": 4}, ["--world-size", "4"]),
        ({"reserve": "100MiB"}, ["--reserve", "100MiB"]),
        ({"reserve": 100 << 20}, ["--reserve", "100MiB"]),
        ({"memory_model": "torch"}, ["--memory-model", "torch"]),
        ({"without_states": True}, ["--without-states"]),
        ({"without_states": False}, []),
        ({"ac_units": _layers(0, 2, 3)}, ["--ac-units", ",".join(_layers(0, 2, 3))]),
        ({"fsdp_units": _layers(1)}, ["--fsdp-units", "Transformer.layers.1"]),
        ({"fsdp_units": "Transformer.layers.1"}, ["--fsdp-units=Transformer.layers.1"]),
        ({"max_units": 3}, ["--max-units", "3"]),
        ({"granularity": "module"}, ["--granularity", "module"]),
        ({"tradeoff": "fit"}, ["--tradeoff", "fit"]),
        ({"save": ["gelu", "*_efficient_*"]}, ["--save", "gelu|*_efficient_*"]),
        ({"recompute": "native_dropout"}, ["--recompute", "native_dropout"]),
        ({"engine": "cbc", "seed": 3, "gap": 0.2}, ["--engine=cbc", "--gap=0.2"]),
        ({"time_limit": 20, "ac_units": None}, []),
        ({"ac_units": []}, []),
    ],
)
def test_options_are_the_flags(options: dict[str, Any], flags: list[str]) -> None:
    run = call_acplan(["plan", str(_TRANSFORMER), "--budget", "1.6GiB", "--json", *flags])
    expected = json.loads(run.out)
    actual = acplan.plan(_TRANSFORMER, "1.6GiB", **options).data
    for data in (expected, actual):
        del data["solver"]
    assert actual == expected


@pytest.mark.parametrize(
    ("source", "budget", "options", "message"),
    [
        (_TRANSFORMER, "1GiB", {"gaps": 1}, "unknown option 'gaps'; did you mean gap"),
        (_TRANSFORMER, "1GiB", {"zzz": 1}, "unknown option 'zzz'; known are reserve"),
        (_TRANSFORMER, 1.5, {}, 'budget: expected bytes or a size such as "60GiB"'),
        (_TRANSFORMER, "1 gallon", {}, "^plan: budget: expected"),
        (_TRANSFORMER, "-1", {}, "^plan: budget: expected"),
        (_TRANSFORMER, "1GiB", {"gap": 2}, "^plan: gap: expected a number from 0 to 1"),
        (_TRANSFORMER, "1GiB", {"gap": True}, "gap: expected a number"),
        (_TRANSFORMER, "1GiB", {"gap": [1]}, "gap: expected a number"),
        (_TRANSFORMER, "1GiB", {"ac_units": 3}, "^plan: ac_units: expected a string, found 3"),
        (_TRANSFORMER, "1GiB", {"ac_units": [3]}, r"ac_units\[0\]: expected a string"),
        (_TRANSFORMER, "1GiB", {"ac_units": ["Transformer.layer.0"]}, "nearest: Trans"),
        (_TRANSFORMER, "1GiB", {"without_states": 1}, "expected true or false"),
        (_TRANSFORMER, "1GiB", {"save": ["no_such_op"]}, "expected a pattern that"),
        ("missing.json", "1GiB", {}, "missing.json: cannot be opened: No such"),
        (__file__, "1GiB", {}, "test_planning.py: line 1, column 1"),
        (3, "1GiB", {}, "expected a Trace, a Profile or a path, found int"),
        (Profile({"format": "acplan.profile"}), "1GiB", {}, 'the key "version"'),
    ],
)
def test_tells_what_is_wrong(
    folder: pathlib.Path,
    source: Any,
    budget: Any,
    options: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(AcplanError, match=message) as raised:
        acplan.plan(source, budget, **options)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 2


def test_module_plans_are_figures_and_not_applied() -> None:
    plan = acplan.plan(_TRANSFORMER, "1.6GiB", granularity="module")
    assert any(module.discard_ratio < 1 for module in plan.modules)
    model = nn.Sequential(nn.Linear(2, 2))
    part = Plan((PlannedModule("Sequential.0", (), 0.5),))
    with pytest.raises(AcplanError, match="plan with granularity operator"):
        acplan.apply(model, part)
    assert type(model[0]) is nn.Linear


def test_warnings_of_the_program_are_logged(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "acplan"):
        acplan.plan(_TRANSFORMER, "3GiB", ac_units=["Transformer.layers.0.attention_norm"])
    assert any("leaf" in record.message for record in caplog.records)


def test_profiles_are_files(tmp_path: pathlib.Path) -> None:
    profile = Profile.load(_TRANSFORMER)
    assert len(profile.modules) == 62
    for name in ("p.json", "p.json.gz"):
        profile.save(tmp_path / name)
        assert Profile.load(tmp_path / name) == profile
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.json", "p.json.gz"]
    for text, message in [("3", "expected a dict"), ('{"format": 1}', "found 1, None")]:
        (tmp_path / "p.json").write_text(text)
        with pytest.raises(AcplanError, match=message):
            Profile.load(tmp_path / "p.json")


def _program(path: pathlib.Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_the_program_is_found_in_order(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    program = _program(tmp_path / "chosen", "exit 0")
    scripts = tmp_path / "prefix" / "bin"
    on_path = tmp_path / "path"
    for place in (scripts, on_path):
        place.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "none"))
    monkeypatch.setattr("acplan._base.program._build_path", lambda: str(tmp_path / "built"))
    monkeypatch.setenv("PATH", str(on_path))
    monkeypatch.delenv("ACPLAN", raising=False)
    with pytest.raises(AcplanError) as raised:
        find_program()
    for place in ("$ACPLAN", str(scripts / "acplan"), "PATH", str(tmp_path / "built")):
        assert place in str(raised.value)
    for place in (tmp_path / "built", on_path / "acplan", scripts / "acplan"):
        _program(place, "exit 0")
        assert find_program() == str(place)
    monkeypatch.setenv("ACPLAN", program)
    assert find_program() == program
    monkeypatch.setenv("ACPLAN", str(tmp_path / "gone"))
    with pytest.raises(AcplanError, match=r"\$ACPLAN: .*gone' is not a program"):
        find_program()


@pytest.mark.parametrize("body", ["exit 0", "echo other; exit 0", "exit 2"])
def test_other_programs_and_old_ones_are_refused(
    tmp_path: pathlib.Path, monkeypatch: Any, body: str
) -> None:
    monkeypatch.setenv("ACPLAN", _program(tmp_path / "old", body))
    with pytest.raises(AcplanError, match="does not know the command 'plan'"):
        acplan.plan(_TRANSFORMER, "1GiB")


def test_a_program_that_says_nothing_is_reported() -> None:
    message = Outcome(7, "").message
    assert "exit code 7" in message


_HELP = 'if [ "$2" = --help ]; then echo "acplan $1"; exit 0; fi'


def _interrupted(tmp_path: pathlib.Path, on_signal: str) -> subprocess.CompletedProcess:
    """Plans with a program that waits for Ctrl-C, which only Python gets."""
    program = _program(
        tmp_path / "slow",
        f'{_HELP}\ntrap "{on_signal}" INT\ntouch {tmp_path}/started\n'
        "for k in $(seq 600); do sleep 0.1; done\nexit 9",
    )
    code = f"import acplan; print(acplan.plan({str(_TRANSFORMER)!r}, '1GiB').status)"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "ACPLAN": program},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background has them ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess([], process.returncode, out, err)


def test_ctrl_c_gives_the_best_so_far(tmp_path: pathlib.Path) -> None:
    data = {"format": "acplan.plan", "version": 1, "status": "feasible", "modules": []}
    (tmp_path / "best.json").write_text(json.dumps(data))
    ended = _interrupted(tmp_path, f"cp {tmp_path}/best.json plan; exit 0")
    assert ended.stdout == "feasible\n", ended.stderr


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("nodes", "plan: feasible, stopped by the nodes limit: it recomputes 2.000 ms"),
        ("unproven", "plan: feasible, without a proof: it recomputes 2.000 ms"),
        ("gap", None),
    ],
)
def test_plans_without_a_proof_say_so_and_warnings_come_once(
    limit: str, said: str | None, tmp_path: pathlib.Path, monkeypatch: Any, caplog: Any
) -> None:
    figures = {"recompute_ms": 2.0, "bound_ms": 1.5, "gap": 0.25, "limit": limit}
    data = {"format": "acplan.plan", "version": 1, "status": "feasible", "modules": []}
    (tmp_path / "best.json").write_text(json.dumps({**data, **figures}))
    warning = json.dumps({"warning": f"a model of {limit}"})
    body = f"{_HELP}\ncp {tmp_path}/best.json plan\necho '{warning}' >&2"
    monkeypatch.setenv("ACPLAN", _program(tmp_path / "limited", body))
    with caplog.at_level(logging.WARNING, "acplan"):
        plans = [acplan.plan(_TRANSFORMER, "1GiB") for _ in range(2)]
    assert plans[0].status == "feasible"
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count(f"a model of {limit}") == 1
    plan_messages = [message for message in messages if message.startswith("plan: ")]
    assert len(plan_messages) == (0 if said is None else 2)
    assert all(m.startswith(str(said)) and m.endswith("(gap 25.00%)") for m in plan_messages)


def test_ctrl_c_with_nothing_found_is_an_interrupt(tmp_path: pathlib.Path) -> None:
    ended = _interrupted(tmp_path, "echo interrupted >&2; exit 4")
    assert ended.stdout == ""
    assert "KeyboardInterrupt" in ended.stderr


class _Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def test_traces_are_planned_as_traces_or_by_their_profile(
    tmp_path: pathlib.Path,
) -> None:
    traced = acplan.trace(_Blocks(), torch.randn(4096, 64))
    traced.save(tmp_path / "t.json.gz")
    profile = acplan.profile(traced)
    assert {module["fqn"] for module in profile.modules} > {"_Blocks.blocks.0"}
    assert acplan.profile(tmp_path / "t.json.gz") == profile
    expected = acplan.plan(profile, "80%").data["modules"]
    assert expected
    for source in (traced, tmp_path / "t.json.gz", str(tmp_path / "t.json.gz")):
        plan = acplan.plan(source, "80%", without_host=True)
        assert plan.data["memory_model"] == "trace" and plan.host is None
        assert plan.peak_bytes == max(
            step.live_bytes for step in acplan._verify.simulated.simulate(traced, plan)
        )
        by_profile = acplan.plan(source, "80%", memory_model="snapshot")
        assert by_profile.data["memory_model"] == "snapshot"
        assert by_profile.data["modules"] == expected
        assert plan.recompute_ms <= by_profile.recompute_ms
    with pytest.raises(AcplanError, match="memory_model"):
        acplan.plan(profile, "80%", memory_model="trace")


def _on_meta() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return _Blocks().to("meta"), {"x": torch.empty(4096, 64, device="meta")}


def test_auto_checkpoint_lowers_the_peak() -> None:
    model, inputs = _on_meta()
    traced = acplan.trace(model, **inputs)
    plan = acplan.plan(traced, "min")
    assert plan.modules
    assert acplan.verify(model, plan, trace=traced, **inputs).measured_bytes < (
        traced.peak_bytes
    )
    result = acplan.auto_checkpoint(model, budget="min", progress=False, **inputs)
    assert result is model
    wrapped = [m for m in model.modules() if isinstance(m, CheckpointWrapper)]
    assert len(wrapped) == len(plan.modules)


def test_auto_checkpoint_verifies_and_refuses() -> None:
    model, inputs = _on_meta()
    options = {"progress": False, **inputs}
    assert acplan.auto_checkpoint(model, budget="200%", verify=True, **options) is model
    with pytest.raises(AcplanError, match="the smallest feasible budget"):
        acplan.auto_checkpoint(model, budget=1000, **options)
    assert not any("Checkpoint" in type(m).__name__ for m in model.modules())


def test_auto_checkpoint_keeps_the_gradients() -> None:
    torch.manual_seed(0)
    x = torch.randn(4096, 64)
    model, planned_model = _Blocks(), _Blocks()
    planned_model.load_state_dict(model.state_dict())
    planned_model = acplan.auto_checkpoint(
        planned_model, x, budget="80%", max_units=2, gap=0.0, progress=False
    )
    for net in (model, planned_model):
        net(x).square().mean().backward()
    for expected, actual in zip(model.parameters(), planned_model.parameters()):
        assert torch.equal(expected.grad, actual.grad)
    assert any(isinstance(m, CheckpointWrapper) for m in planned_model.modules())


def test_verify_raises_over_the_budget(monkeypatch: Any) -> None:
    model, x = _Blocks(), torch.randn(4096, 64)

    class Over:
        measured_bytes = 1 << 50

    monkeypatch.setattr(
        "acplan._trainers.planned_step.verify_plan", lambda *args, **kwargs: Over()
    )
    with pytest.raises(AcplanError, match="over|peaks at 1,125,899,906,842,624 bytes"):
        acplan.auto_checkpoint(model, x, budget="80%", verify=True, progress=False)
    assert not any("Checkpoint" in type(m).__name__ for m in model.modules())
    with pytest.raises(AcplanError, match="for several ranks"):
        acplan.auto_checkpoint(
            model, x, budget="80%", verify=True, progress=False, world_size=2
        )


def test_progress_counts_operators(capsys: Any) -> None:
    pytest.importorskip("tqdm")
    traced = acplan.trace(_Blocks(), torch.randn(8, 64), progress=True)
    output = capsys.readouterr()
    assert output.out == ""
    assert "trace: kept tensors" in output.err
    assert f"/{len(traced.data['operators'])} " in output.err
    acplan.trace(_Blocks(), torch.randn(8, 64))
    assert capsys.readouterr().err == ""


def test_without_tqdm_it_is_silent(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    assert progress._tqdm() is None
    acplan.trace(_Blocks(), torch.randn(8, 64), progress=True)
    assert capsys.readouterr().err == ""


def test_arguments_are_known_by_their_old_names() -> None:
    model, inputs = _on_meta()
    traced = acplan.trace(model, **inputs)
    plan = acplan.plan(traced, "min")
    with pytest.warns(FutureWarning, match="verify: of= is now trace=") as warns:
        check = acplan.verify(model, plan, of=traced, **inputs)
    assert len(warns) == 1 and check.measured_bytes == plan.peak_bytes
    with pytest.warns(FutureWarning, match="partitioner: held= is now other_memory="):
        acplan.partitioner("min", held="1GiB")  # type: ignore[call-arg]
