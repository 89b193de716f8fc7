"""Plans under fully_shard, on two processes."""

import json
import pathlib

import pytest
import torch
import torch.multiprocessing

import sharding_cases
from conftest import MakeOnce

pytestmark = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"),
    reason="fully_shard of this PyTorch needs CUDA",
)

Results = list[dict[str, str]]


@pytest.fixture(scope="module")
def results(make_once: MakeOnce) -> Results:
    def run(folder: pathlib.Path) -> None:
        torch.multiprocessing.spawn(sharding_cases.run, (str(folder),), nprocs=2)

    folder = make_once("sharding", run)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("case", sharding_cases.CASES, ids=str)
def test_losses_and_gradients_are_equal_and_units_run_again(
    case: sharding_cases.Case, results: Results
) -> None:
    for of_rank in results:
        assert not (error := of_rank[str(case)]), error


def test_blocks_can_be_compiled_between_plan_and_sharding(results: Results) -> None:
    for of_rank in results:
        assert not (error := of_rank["compiled"]), error


def test_an_epoch_that_runs_other_operators(results: Results) -> None:
    for of_rank in results:
        assert not (error := of_rank["epoch"]), error


def test_replicas_that_offload(results: Results) -> None:
    for of_rank in results:
        assert not (error := of_rank["replicas"]), error


def test_runs_of_modules(results: Results) -> None:
    for of_rank in results:
        assert not (error := of_rank["runs"]), error


def test_strict_plans_refuse_other_operators(results: Results) -> None:
    for of_rank in results:
        assert not (error := of_rank["refusal"]), error
