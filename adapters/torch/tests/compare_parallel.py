"""Ranks of parallel models beside their traces.

    PYTHONPATH=.:tests python tests/compare_parallel.py fakes
    PYTHONPATH=.:tests python tests/compare_parallel.py processes

The first writes docs/measured/parallel.csv: ranks on fake tensors, whose steps with plans are
traced again and whose requests to the allocator are compared. The second writes
parallel_processes.csv: real processes on the CPU. With names of cases after it, each prints only
those.
"""

import contextlib
import dataclasses
import functools
import json
import math
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
import torch.multiprocessing
from torch.distributed.tensor.parallel import loss_parallel

import acplan
import parallel_ranks
from acplan._step.training_step import training_step
from parallel_attention import context_cases
from parallel_experts import expert_cases
from parallel_models import CASES, Case
from parallel_pipelines import IN_V, PipelineCase, pipeline_cases
from parallel_ranks import plans_of
from run_events import difference, predicted_requests, real_requests
from tables import Table, print_versions
from test_parallel import step_with, tokens_of

# Two processes have one rank of "dp" in this case, and the other cases.
_ON_FOUR = ("fsdp x tp", "fsdp x cp", "fsdp x ep", "fsdp x ep x tp")
# Eight have experts that two ranks share, each of which is split among two.
_ON_EIGHT = ("fsdp x ep x tp",)


@dataclasses.dataclass(frozen=True)
class Row:
    """A comparison: the case and its mesh, the number of things compared, the first difference."""

    case: str
    where: str
    compared: str
    count: int
    difference: str = ""


def on_fakes(case: Case) -> Iterator[Row]:
    """Compares two plans of a rank: bytes at every operator, and requests of three
    iterations."""
    where = f"rank of {' x '.join(f'{name} {size}' for name, size in case.mesh.items())}"
    with loss_parallel() if case.loss_is_split else contextlib.nullcontext():
        trace = acplan.trace(
            case.make_on_meta,
            tokens_of(case),
            workspaces=False,
            progress=False,
            **case.arguments,
        )
        plans = plans_of(trace)
        operators, first = 0, ""
        for plan in plans:
            verification = acplan.verify(
                case.make_on_meta, plan, tokens_of(case), trace=trace, **case.arguments
            )
            operators += len(verification.measured)
            place = verification.first_difference()
            first = first or ("" if place is None else str(place))
        yield Row(case.name, where, "bytes with two plans", operators, first)
        if "microbatch_context" in case.options:
            # A run repeats the last microbatch, and has ring attention as one operator.
            return
        requests, first = 0, ""
        for plan in (None, *plans):
            real = real_requests(step_with(case, trace, plan, tokens_of(case)))
            requests += len(real)
            first = first or difference(real, predicted_requests(trace, plan))
        yield Row(case.name, where, "requests by stream", requests, first)


def on_fakes_of_stage(case: PipelineCase, rank: int) -> Iterator[Row]:
    """Compares two plans of a rank of a pipeline."""
    where = f"rank {rank} of {' x '.join(f'{name} {size}' for name, size in case.mesh.items())}"
    place = case.place_of(rank)
    args, kwargs = case.inputs(place, case.tokens_of(0))
    make: Any = functools.partial(case.make_on_meta_of, place)
    options = {**case.options_of(rank), **kwargs}
    trace = acplan.trace(make, *args, workspaces=False, progress=False, **options)
    plans = plans_of(trace, time_limit=2)
    operators, first = 0, ""
    for plan in plans:
        verification = acplan.verify(make, plan, *args, trace=trace, **options)
        operators += len(verification.measured)
        difference_of_bytes = verification.first_difference()
        first = first or ("" if difference_of_bytes is None else str(difference_of_bytes))
    yield Row(case.name, where, "bytes with two plans", operators, first)
    # Runs in V begin with buffers that later iterations do not have.
    if case.schedule in IN_V or case.functions:
        return
    training = training_step(make, args, dict(options))
    assert training.parallel is not None
    requests, first = 0, ""
    for each in (None, *plans):
        now = training
        if each is not None:
            functions = training.parallel.with_plan(
                functools.partial(acplan.apply, plan=each, strict=True), False
            )
            now = dataclasses.replace(training, parallelize=functions)
        real = real_requests(now)
        requests += len(real)
        first = first or difference(real, predicted_requests(trace, each))
    yield Row(case.name, where, "requests by stream", requests, first)


def on_processes(count: int, names: list[str]) -> Iterator[Row]:
    """Yields what processes compared. Bytes may differ for once if a thread of gloo lets go of
    a buffer late; then the case is to be repeated."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (folder, count, names, [*parallel_ranks.CHECKS])
        torch.multiprocessing.spawn(parallel_ranks.run, arguments, nprocs=count)
        results: list[dict[str, Any]] = [
            json.loads(pathlib.Path(folder, f"{rank}.json").read_text())
            for rank in range(count)
        ]
    for name, of_case in results[0].items():
        for check in of_case:
            total = sum(int(of_rank[name][check].split()[0]) for of_rank in results)
            yield Row(name, f"{count} processes", check, total, "")


def _rows(part: str, names: list[str]) -> Iterator[Row]:
    if part == "processes":
        yield from on_processes(2, names)
        on_four = [*_ON_FOUR, *(case.name for case in pipeline_cases(4))]
        yield from on_processes(4, names or on_four)
        on_eight = [name for name in _ON_EIGHT if not names or name in names]
        if on_eight:
            yield from on_processes(8, on_eight)
        return
    for case in (*pipeline_cases(2), *pipeline_cases(4)):
        if not names or case.name in names:
            for rank in range(0, math.prod(case.mesh.values()), case.ranks_of_stage):
                yield from on_fakes_of_stage(case, rank)
    for case in (*CASES, *context_cases(4), *expert_cases(4)):
        if names and case.name not in names:
            continue
        try:
            yield from on_fakes(case)
        except Exception as error:  # Whatever it is, it is this case's result.
            yield Row(case.name, "", "", 0, f"{type(error).__name__}: {error}")


def main(part: str, names: list[str]) -> None:
    print_versions()
    columns = [field.name for field in dataclasses.fields(Row)]
    name = "parallel_processes" if part == "processes" else "parallel"
    table = Table(name, columns, is_partial=bool(names))
    count = equal = things = 0
    for row in _rows(part, names):
        table.add(*dataclasses.astuple(row))
        count += 1
        equal += not row.difference
        things += row.count
    print(f"{count} rows of {things:,} things, {equal} without a difference")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
