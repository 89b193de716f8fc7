import subprocess
import sys


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
