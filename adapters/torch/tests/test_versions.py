import pathlib
import re
import subprocess
import sys
from unittest import mock

import acplan
import pytest
import torch
from acplan import AcplanError, compiling

_ROOT = pathlib.Path(__file__).parents[3]


def test_the_package_has_the_version_of_the_program() -> None:
    assert acplan.__version__ == (_ROOT / "VERSION").read_text().strip()


def test_a_pytorch_without_fully_shard_is_refused_in_one_line() -> None:
    code = (
        "import torch.distributed.fsdp\n"
        "del torch.distributed.fsdp.FSDPModule\n"
        "import acplan\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 1
    expected = (
        "AcplanError: expected PyTorch 2.6 or later, with torch.distributed, found"
    )
    assert expected in run.stderr.splitlines()[-1]
    assert "ImportError" not in run.stderr


def test_a_pytorch_that_takes_no_partitioner_is_told_which_does() -> None:
    message = f"PyTorch {torch.__version__} takes no partitioner; expected 2.9 or newer"
    model = torch.nn.Linear(2, 2)
    with mock.patch.object(compiling, "_Base", object):
        with pytest.raises(AcplanError, match=f"^compile: {re.escape(message)}$"):
            acplan.compile(model, "min")
        acplan.compile(model, "min", backend="aot_eager")  # takes one in any version
