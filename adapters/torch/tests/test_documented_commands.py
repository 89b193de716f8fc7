"""The commands `python -m acplan ...` of the pages run; tests/docs has those of the program."""

import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from acplan.__main__ import _parser, main

ROOT = pathlib.Path(__file__).parents[3]
PACKAGE = pathlib.Path(__file__).parents[1]

# A GPU, or a file that a GPU's process has written: the flags are parsed.
PARSED = ("gpu-check", "measure-system", "snapshot")
FACTORY = """
import torch
def make():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), (torch.zeros(2, 8),)
"""


def _commands() -> Iterator[list[str]]:
    """Yields the arguments of each command, once."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = [re.sub(r"\\\n\s*", "", page.read_text()) for page in pages]
    pattern = re.compile(r"^(?:    )?python -m acplan (\S.*?)(?: +#.*)?$", re.MULTILINE)
    yield from map(shlex.split, dict.fromkeys(c for t in texts for c in pattern.findall(t)))


def _with_few_layers(arguments: list[str]) -> list[str]:
    """Returns the arguments with a model of few layers and words; nothing else differs."""
    setting = {"llama": "num_hidden_layers=1", "gpt2": "n_layer=2"}
    configs = [b for a, b in zip(arguments, arguments[1:], strict=False) if a == "--hf-config"]
    settings = ["vocab_size=512", *map(setting.__getitem__, configs)] if configs else []
    return [*arguments, *(x for text in settings for x in ("--set", text))]


@pytest.mark.usefixtures("one_thread")
def test_every_documented_command_runs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_models.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    commands = list(_commands())
    assert {"trace", "plan", "verify", "gpu-check"} <= {arguments[0] for arguments in commands}
    for arguments in commands:
        if arguments[0] in PARSED:
            _parser().parse_args(arguments)
            continue
        code = main(_with_few_layers(arguments))
        assert code == 0, (arguments, capsys.readouterr().err)


@pytest.mark.parametrize("command", [["-m", "acplan", "plan"], ["acplan-torch"]])
def test_without_pytorch_the_commands_say_so(
    command: list[str], tmp_path: pathlib.Path
) -> None:
    (tmp_path / "acplan-torch").write_text("from acplan.__main__ import main\nmain()\n")
    run = subprocess.run(
        [sys.executable, "-S", *command],
        cwd=tmp_path,
        env={"PYTHONPATH": str(PACKAGE)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2
    assert run.stderr == (
        f"acplan: torch: {sys.executable} has no package torch: pip install torch\n"
    )
