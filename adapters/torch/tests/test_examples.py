"""The scripts in examples/ run."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch

ADAPTER = pathlib.Path(__file__).parents[1]
TESTS = pathlib.Path(__file__).parent
EXAMPLES = pathlib.Path(__file__).parents[3] / "examples"


def _output(*command: str) -> str:
    paths = os.pathsep.join([str(ADAPTER), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, *command],
        cwd=EXAMPLES,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert run.returncode == 0, run.stdout
    return run.stdout


def _output_of_two(*script: str) -> str:
    """Returns what two processes of a group print."""
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    return _output(*launch, str(TESTS / "rank.py"), *script)


def test_first_plan() -> None:
    output = _output("first_plan.py")
    assert "10.00 GiB (10,737,418,240 bytes)" in output
    (retraced_bytes,) = re.findall(r"re-traced ([\d,]+) \(\+0\.0000%\), equal at all", output)
    assert int(retraced_bytes.replace(",", "")) <= 10 << 30


def test_hf_trainer() -> None:
    pytest.importorskip("accelerate")
    output = _output("hf_trainer.py", "--steps", "2")
    assert len(re.findall(r"'loss': '?5\.\d+", output)) == 2, output


@pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"),
    reason="fully_shard of this PyTorch needs CUDA",
)
def test_torchtitan_style_compiled_or_not() -> None:
    losses = []
    for options in ((), ("--compile", "--backend", "aot_eager")):
        output = _output_of_two("torchtitan_style.py", "--steps=2", *options)
        losses.append(re.findall(r"step \d: loss (\d\.\d{3})", output))
    assert len(losses[0]) == 2 and losses[0] == losses[1]
