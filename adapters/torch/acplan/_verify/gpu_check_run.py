"""The run that gpu-check measures, simulated on PyTorch's allocator."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import torch

from acplan._base.question import question_folder
from acplan._files.plan_file import Plan
from acplan._files.trace_file import Trace
from acplan._program.plan import installed_allocator
from acplan._program.visible_device import process_allocator_text


@dataclasses.dataclass(frozen=True)
class PredictedRun:
    """The demands of a run of training steps on its device: the most bytes that the allocator
    reserves, how often it empties its cache for a request, and how often it fails."""

    reserved_bytes: int
    retries: int
    ooms: int


def process_allocator(device: str) -> dict[str, Any]:
    """Returns the allocator of this process as options of the program: its settings and, on a
    GPU, the memory that PyTorch can have beyond what it holds now."""
    options: dict[str, Any] = {
        "allocator": process_allocator_text(),
        "torch_version": installed_allocator(),
    }
    if device == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info()
        cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        options["device_memory"] = free_bytes + cached
    return options


def predicted_run(
    traced: Trace, run_plan: Plan | None, options: Mapping[str, Any], iterations: int
) -> PredictedRun:
    """Returns the run of so many iterations on the allocator, by `acplan simulate`."""
    with question_folder() as folder:
        question = {
            "trace": folder.add("trace", traced),
            "without_least_device": True,
            "output": "run",
            **options,
        }
        if run_plan is not None:
            run_plan.save(folder.path_of("plan"), model=traced.data["model"]["name"])
            question["plan"] = "plan"
        folder.ask("simulate", question).require_success()
        run = json.loads(folder.path_of("run").read_text())["run"]
    return PredictedRun(
        reserved_bytes=run["reserved_bytes"],
        retries=_retries(run, iterations),
        ooms=0 if run["failure"] is None else 1,
    )


def _retries(run: Mapping[str, Any], iterations: int) -> int:
    """Returns the retries of so many iterations. The iterations after the simulated ones
    repeat the last `period` of them."""
    simulated, period = run["iterations"], run["period"]
    by_iteration: dict[int, int] = {}
    for reclaim in run["reclaims"]:
        at = reclaim["iteration"]
        by_iteration[at] = by_iteration.get(at, 0) + reclaim["retry"]
    count = sum(n for at, n in by_iteration.items() if at <= iterations)
    if period:
        for later in range(iterations - simulated):
            count += by_iteration.get(simulated - period + 1 + later % period, 0)
    return count
