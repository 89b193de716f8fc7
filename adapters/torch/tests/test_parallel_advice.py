"""Explanations, batches, reports and devices of ranks and of stages of pipelines."""

import functools
import pathlib
from typing import Any

import pytest
import torch

import acplan
from parallel_models import CASES
from parallel_pipelines import PipelineCase
from test_parallel import tokens_of

_RANK = next(case for case in CASES if case.name == "fsdp x tp")
_STAGE = PipelineCase("1F1B", {"pp": 2}, [], schedule="1F1B", microbatches=2)
_MIB = 1 << 20


@functools.cache
def _trace_of_stage(rank: int) -> acplan.Trace:
    args, kwargs = _STAGE.inputs(rank, _STAGE.tokens_of(0))
    make: Any = functools.partial(_STAGE.make_on_meta_of, rank)
    options = {**_STAGE.options_of(rank), **kwargs}
    return acplan.trace(make, *args, progress=False, **options)


@functools.cache
def _trace_of_rank() -> acplan.Trace:
    return acplan.trace(_RANK.make_on_meta, tokens_of(_RANK), progress=False, **_RANK.arguments)


def test_a_rank_is_explained_as_its_trace() -> None:
    explanation = acplan.explain(_RANK.make_on_meta, tokens_of(_RANK), **_RANK.arguments)
    assert explanation.by_kind == acplan.explain(_trace_of_rank()).by_kind
    assert explanation.peak_bytes == _trace_of_rank().peak_bytes
    assert not explanation.levers


def test_the_fullest_stage_is_the_first_one() -> None:
    """It has as much in flight as there are stages."""
    first, last = (_trace_of_stage(rank) for rank in range(2))
    kinds = [acplan.explain(trace).by_kind for trace in (first, last)]
    assert kinds[0]["saved for backward"] > kinds[1]["saved for backward"]


@pytest.mark.parametrize("trace_of", [_trace_of_rank, functools.partial(_trace_of_stage, 1)])
def test_a_rank_has_reports_and_plans_for_a_device(
    trace_of: Any, tmp_path: pathlib.Path
) -> None:
    trace = trace_of()
    memory = trace.peak_bytes + 16 * _MIB
    plan = acplan.plan(trace, device_memory=memory, time_limit=2)
    assert plan.device is not None and plan.device.least_device_bytes <= memory
    page = acplan.report(trace, tmp_path / "page.html", plan, points=0)
    assert page.stat().st_size > 10_000


def test_the_best_batch_of_a_rank() -> None:
    def tokens(size: int) -> torch.Tensor:
        return torch.zeros(size, 16, dtype=torch.long, device="meta")

    result = acplan.best_batch(
        _RANK.make_on_meta, tokens, budget="1GiB", sizes=[2, 4], progress=False,
        **_RANK.arguments,
    )  # fmt: skip
    assert result.largest.size == 4 and result.traced == (2, 4)
    for step in (result.best, result.largest):
        assert step.plan.streams is not None
        assert step.step_ms == pytest.approx(step.plan.streams.step_ms)


def test_what_is_for_one_gpu_refuses_ranks_in_a_line() -> None:
    options = _RANK.arguments
    make: Any = _RANK.make_on_meta
    tokens = tokens_of(_RANK)
    with pytest.raises(acplan.AcplanError, match="levers: expected the model of one GPU"):
        acplan.explain(make, tokens, levers=["accumulate"], **options)
    with pytest.raises(acplan.AcplanError, match="what_fits: mesh: expected the model of one"):
        acplan.what_fits(make, tokens, budget="1GiB", **options)
    with pytest.raises(acplan.AcplanError, match="best_batch: schedule: expected a model"):
        acplan.best_batch(make, lambda size: tokens, schedule=lambda *_: None, **options)
