"""Real training by torchtitan's own trainer with what `acplan emit` prints."""

import importlib.util
import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

import acplan
from trainer_policies import emitted

_SCRIPT = pathlib.Path(__file__).with_name("torchtitan_training.py")

if not importlib.util.find_spec("torchtitan"):
    pytest.skip("torchtitan is not installed", allow_module_level=True)


def _run(folder: pathlib.Path, task: str) -> str:
    folder.mkdir()
    command = [sys.executable, str(_SCRIPT), str(folder), task]
    outcome = subprocess.run(command, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr[-2000:]
    return outcome.stdout


def _trained(folder: pathlib.Path, task: str) -> dict[str, Any]:
    trained: dict[str, Any] = json.loads(_run(folder, task).splitlines()[-1])
    return trained


def test_losses_are_those_without_checkpoints(tmp_path: pathlib.Path) -> None:
    _run(tmp_path / "trace", "trace")
    trace = acplan.Trace.load(tmp_path / "trace" / "step.trace.json.gz")
    emission = emitted(trace, "torchtitan", "min", "--time-limit", "0.1")
    config = tmp_path / "config.py"
    config.write_text(emission["text"])
    trained = _trained(tmp_path / "planned", str(config))
    plain = _trained(tmp_path / "plain", "none")
    assert trained.pop("wrapped") == len(emission["units"])
    assert plain.pop("wrapped") == 0
    assert trained == plain
    assert len(set(plain["losses"])) == 3
