"""Ranks of large models: the seconds and the memory of their traces and plans.

    PYTHONPATH=.:tests python tests/compare_parallel_large.py [CASE...]

writes docs/measured/parallel_large.csv. Each case runs in a process of its own, whose CPU seconds
and greatest resident memory are told. Its plan of least memory is compared with the rank that is
traced again, at every operator.
"""

import contextlib
import dataclasses
import functools
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor.parallel import loss_parallel

import acplan
from parallel_deepseek import config_of_deepseek, make_stage, schedule_of, shard_stages
from parallel_llama import LLAMA_70B, llama_on_meta, loss_of_llama, shard_llama, split_llama
from tables import Table, print_versions

_GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Large:
    """A rank: the function that makes its model, the arguments, and the options of its trace."""

    name: str
    make: Callable[[], Any]
    args: Sequence[torch.Tensor]
    options: dict[str, Any]


def _tokens(batch: int, length: int) -> torch.Tensor:
    return torch.zeros(batch, length, dtype=torch.long, device="meta")


def _llama(dp: int, tp: int) -> Large:
    options = {
        "mesh": {"dp": dp, "tp": tp},
        "parallelize": [split_llama, shard_llama],
        "forward_fn": loss_of_llama,
    }
    make = functools.partial(llama_on_meta, LLAMA_70B)
    return Large(f"Llama-3-70B, FSDP {dp} x TP {tp}", make, [_tokens(1, 8192)], options)


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    # PyTorch's lists of tensors take no DTensors of several meshes.
    return torch.optim.AdamW(parameters, foreach=False)


def _deepseek(place: int, microbatches: int) -> Large:
    """Returns the rank of a stage that is neither the first nor the last one."""
    pp, ep, config = 16, 64, config_of_deepseek()
    options = {
        "mesh": {"pp": pp, "ep": ep},
        "rank": place * ep,
        "parallelize": shard_stages,
        "schedule": schedule_of(config, place, pp, 4096, microbatches),
        "optimizer": _adamw,
    }
    name = f"DeepSeek-V3, PP {pp} (1F1B) x EP {ep}, place {place}"
    return Large(name, functools.partial(make_stage, config, place, pp), [], options)


def cases() -> list[Large]:
    return [_llama(8, 8), _deepseek(1, 16)]


def _cells(case: Large) -> list[object]:
    """Traces and plans. Returns the cells of the row."""
    seconds = [time.process_time()]
    options = {**case.options, "device": "h100", "progress": False}
    trace = acplan.trace(case.make, *case.args, **options)
    seconds.append(time.process_time())
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    begin = time.perf_counter()
    plan = acplan.plan(trace, "min", without_host=True, time_limit=30)
    plan_seconds = time.perf_counter() - begin
    seconds.append(time.process_time())
    verification = acplan.verify(case.make, plan, *case.args, trace=trace, **options)
    seconds.append(time.process_time())
    difference = verification.first_difference()
    return [
        len(trace.data["operators"]),
        f"{seconds[1] - seconds[0]:.0f}",
        f"{most:.2f}",
        f"{trace.peak_bytes / _GIB:.2f}",
        f"{plan.peak_bytes / _GIB:.2f}",
        f"{plan.recompute_ms:.1f}",
        plan.status,
        f"{plan_seconds:.1f}",
        f"{seconds[3] - seconds[2]:.0f}",
        len(verification.measured),
        "" if difference is None else str(difference),
    ]


COLUMNS = [
    "case", "operators", "trace_s", "process_gib", "peak_gib", "least_gib", "recompute_ms",
    "status", "plan_s", "verify_s", "compared", "difference",
]  # fmt: skip


def main(names: list[str]) -> None:
    if names[:1] == ["--here"]:
        (case,) = (case for case in cases() if case.name == names[1])
        is_split = "tp" in case.options["mesh"]
        with loss_parallel() if is_split else contextlib.nullcontext():
            print("\t".join(map(str, _cells(case))))
        return
    print_versions("transformers")
    table = Table("parallel_large", COLUMNS, is_partial=bool(names))
    for case in cases():
        if names and case.name not in names:
            continue
        command = [sys.executable, "-W", "ignore", __file__, "--here", case.name]
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        table.add(case.name, *result.stdout.splitlines()[-1].split("\t"))


if __name__ == "__main__":
    main(sys.argv[1:])
