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
# The campaign (compare_parallel.py) runs all cases, on two and on four processes.
_CASES = ["fsdp, bfloat16", "tp, sequence"]

Results = list[dict[str, dict[str, tuple[bool, str]]]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("parallel")
    torch.multiprocessing.spawn(parallel_ranks.run, (str(folder), 2, _CASES), nprocs=2)
    return [json.loads(pathlib.Path(folder, f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("check", parallel_ranks.CHECKS)
@pytest.mark.parametrize("case", _CASES)
def test_ranks_are_as_traced(case: str, check: str, results: Results) -> None:
    for of_rank in results:
        is_equal, text = of_rank[case][check]
        assert is_equal, text
