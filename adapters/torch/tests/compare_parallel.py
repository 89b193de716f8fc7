"""Ranks of parallel models beside their traces.

    PYTHONPATH=.:tests python tests/compare_parallel.py

writes docs/measured/parallel.csv: first ranks on fake tensors, whose steps with plans are traced
again and whose requests to the allocator are compared; then real processes on the CPU. With names
of cases after it, it prints only those.
"""

import contextlib
import dataclasses
import json
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
from parallel_models import CASES, Case
from parallel_ranks import plans_of
from run_events import difference, predicted_requests, real_requests
from tables import Table, print_versions
from test_parallel import step_with

_TOKENS = torch.zeros(4, 16, dtype=torch.long)


@dataclasses.dataclass(frozen=True)
class Row:
    """What was compared of a case on a mesh, how many of it, and the first difference."""

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
            case.make_on_meta, _TOKENS, workspaces=False, progress=False, **case.arguments
        )
        plans = plans_of(trace)
        operators, first = 0, ""
        for plan in plans:
            verification = acplan.verify(
                case.make_on_meta, plan, _TOKENS, trace=trace, **case.arguments
            )
            operators += len(verification.measured)
            found = verification.first_difference()
            first = first or ("" if found is None else str(found))
        yield Row(case.name, where, "bytes with two plans", operators, first)
        requests, first = 0, ""
        for plan in (None, *plans):
            real = real_requests(step_with(case, trace, plan, _TOKENS))
            requests += len(real)
            first = first or difference(real, predicted_requests(trace, plan))
        yield Row(case.name, where, "requests by stream", requests, first)


def on_processes(count: int, names: list[str]) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(parallel_ranks.run, (folder, count, names), nprocs=count)
        results: list[dict[str, Any]] = [
            json.loads(pathlib.Path(folder, f"{rank}.json").read_text())
            for rank in range(count)
        ]
    for name in results[0]:
        for check in parallel_ranks.CHECKS:
            of_ranks = [of_rank[name][check] for of_rank in results]
            failed = [
                text.strip().splitlines()[-1] for is_equal, text in of_ranks if not is_equal
            ]
            counted = sum(int(text.split()[0]) for is_equal, text in of_ranks if is_equal)
            first = failed[0] if failed else ""
            yield Row(name, f"{count} processes", check, counted, first)


def main(names: list[str]) -> None:
    print_versions()
    columns = [field.name for field in dataclasses.fields(Row)]
    table = Table("parallel", columns, is_partial=bool(names))
    rows: list[Row] = []

    def add(row: Row) -> None:
        rows.append(row)
        table.add(*dataclasses.astuple(row))

    for case in CASES:
        if names and case.name not in names:
            continue
        try:
            for row in on_fakes(case):
                add(row)
        except Exception as error:  # Whatever it is, it is this case's result.
            add(Row(case.name, "", "", 0, f"{type(error).__name__}: {error}"))
    for count in (2, 4):
        for row in on_processes(count, names):
            add(row)
    equal = sum(not row.difference for row in rows)
    print(f"{len(rows)} rows, {equal} without a difference")


if __name__ == "__main__":
    main(sys.argv[1:])
