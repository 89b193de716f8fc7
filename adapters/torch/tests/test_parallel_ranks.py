"""Two real processes of parallel models beside the traces of their ranks."""

import json
import pathlib

import pytest
import torch
import torch.multiprocessing

import parallel_ranks

pytestmark = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"),
    reason="fully_shard of this PyTorch needs CUDA",
)
# The campaign (compare_parallel.py) runs all cases, on two and on four processes, and compares
# the bytes of processes, too: a thread of gloo may let go of a buffer late.
_CASES = ["fsdp, bfloat16", "tp, sequence", "cp", "fsdp x ep, uneven counts"]
_CHECKS = ["values", "operators", "another plan"]


def test_ranks_are_as_traced(tmp_path: pathlib.Path) -> None:
    """All cases and checks in one test, so that processes start once."""
    arguments = (str(tmp_path), 2, _CASES, _CHECKS)
    torch.multiprocessing.spawn(parallel_ranks.run, arguments, nprocs=2)
    for rank in range(2):
        results = json.loads((tmp_path / f"{rank}.json").read_text())
        assert [*results] == _CASES and all([*results[case]] == _CHECKS for case in _CASES)
