import pathlib
import re
import subprocess
import sys
from unittest import mock

import pytest
import torch

import acplan
from acplan import AcplanError
from acplan._compile import compile as compiling

_ROOT = pathlib.Path(__file__).parents[3]


def test_the_package_has_the_version_of_the_program() -> None:
    assert acplan.__version__ == (_ROOT / "VERSION").read_text().strip()


def test_a_pytorch_without_fully_shard_is_refused_in_one_line() -> None:
    code = (
        "import torch.distributed.fsdp\ndel torch.distributed.fsdp.FSDPModule\nimport acplan\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 1
    expected = "AcplanError: expected PyTorch 2.6 or later, with torch.distributed, found"
    assert expected in run.stderr.splitlines()[-1]
    assert "ImportError" not in run.stderr


def test_a_pytorch_that_tells_partitioners_too_little_is_refused() -> None:
    message = (
        f"partitioner: PyTorch {torch.__version__} does not tell a partitioner which inputs "
        "are parameters; expected 2.8 or newer"
    )
    with mock.patch.object(compiling, "_TELLS_STATIC_INPUTS", False):
        with pytest.raises(AcplanError, match=f"^{re.escape(message)}$"):
            acplan.partitioner("min")
        with pytest.raises(AcplanError, match=f"^{re.escape(message)}$"):
            acplan.compile(torch.nn.Linear(2, 2), "min")
