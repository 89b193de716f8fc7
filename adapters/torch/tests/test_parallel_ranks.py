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
_CASES = ["tp, sequence", "cp", "fsdp x ep, uneven counts"]
_CHECKS = ["values", "operators", "another plan"]


_PIPELINES = ["1F1B", "InterleavedZeroBubble"]


def test_ranks_are_as_traced(tmp_path: pathlib.Path) -> None:
    """All cases and checks in one test, so that processes start once."""
    _check(tmp_path, _CASES, [*_CHECKS, "new meshes"])


def test_further_ranks_are_as_traced(tmp_path: pathlib.Path) -> None:
    """The host of the second case is the device, with copies between."""
    _check(tmp_path, ["fsdp, bfloat16", "on the host, kept, bfloat16"], _CHECKS)


def test_stages_of_pipelines_are_as_traced(tmp_path: pathlib.Path) -> None:
    """In the second schedule, backward passes come in two parts."""
    _check(tmp_path, _PIPELINES, ["values", "operators"])


def _check(folder: pathlib.Path, cases: list[str], checks: list[str]) -> None:
    arguments = (str(folder), 2, cases, checks)
    torch.multiprocessing.spawn(parallel_ranks.run, arguments, nprocs=2)
    for rank in range(2):
        results = json.loads((folder / f"{rank}.json").read_text())
        assert [*results] == cases and all([*results[case]] == checks for case in cases)
