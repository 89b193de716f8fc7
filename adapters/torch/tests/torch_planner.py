"""Plans the models by PyTorch's own planner: sac_milp says how much of which module to discard,
and get_optimal_checkpointing_policy_per_module which of its operators.

    ACPLAN=... PYTHONPATH=. python tests/torch_planner.py plans.json

writes its plans for `compare_recipes.py --torch-plans plans.json`; names of models after
it take only those. It needs PuLP and pwlf, and minutes for some models.
"""

import json
import multiprocessing
import os
import pathlib
import queue
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed._tools import ilp_utils
from torch.distributed._tools.sac_estimator import SACStats

import acplan
from models import MODELS
from torch_statistics import (
    estimate_operators,
    estimate_runtimes,
    second_step,
    track_memory,
)

# Shares of what PyTorch takes for the peak, which is without the optimizer.
SHARES = (0.8, 0.6)
# The limit of the statistics, and of each plan, whose solver PyTorch stops by itself.
LIMIT_S = 180

# For what it does before and after.
_MORE_S = 40

TorchPlan = dict[str, Any]


def _torch_plans(name: str) -> Iterator[TorchPlan]:
    from torch.distributed._tools import sac_ilp

    make, autocast = MODELS[name]
    model, inputs = make().on_meta()
    with second_step(model, inputs, autocast) as (step, optimizer):
        memory = track_memory(step, optimizer)
        runtimes = estimate_runtimes(step, optimizer)
        operators = estimate_operators(step)
        for fqn, stats in list(operators.sac_mod_stats.items()):
            if not sum(stats.memory) or not sum(stats.runtimes):
                del operators.sac_mod_stats[fqn]  # as it divides by these
        device = next(
            device for device in memory.get_tracker_snapshot("peak") if device.type == "cuda"
        )
        info = ilp_utils.aggregate_stats(step.model, memory, runtimes, operators, device)
    graph = ilp_utils.parse_module_info(info)
    peak, _ = ilp_utils.get_peak_memory_runtime_baseline(graph)
    yield {"statistics": True}
    for share in SHARES:
        started = time.monotonic()
        discarded, ms, bound = sac_ilp.sac_milp(graph, share * peak / 2**30)
        if bound == -1:
            yield {"share": share, "failed": "no plan fits, it says"}
            continue
        yield {
            "share": share,
            "recompute_ms": ms,
            "units": {
                fqn: {
                    "operators": operators.sac_mod_stats[fqn].func_names,
                    "policy": _policy(operators.sac_mod_stats[fqn], 1 - ratio),
                }
                for fqn, ratio in discarded.items()
            },
            "seconds": round(time.monotonic() - started, 1),
        }


def _policy(stats: SACStats, share: float) -> list[int]:
    from torch.distributed._tools import sac_ilp

    share = min(max(share, 0.0), 1.0)
    try:
        return sac_ilp.get_optimal_checkpointing_policy_per_module(stats, share)
    except TypeError:  # It fails where an operator costs nothing; the same problem:
        return acplan.get_optimal_checkpointing_policy_per_module(stats, share)


def _work(name: str, results: Any) -> None:
    os.setsid()  # The solver is a process of its own.
    torch.set_num_threads(1)
    try:
        for plan in _torch_plans(name):
            results.put(plan)
    except Exception as error:  # Any failure is a row of the table.
        results.put({"failed": f"{type(error).__name__}: {error}".split("\n")[0]})
    results.put(None)


def torch_plans(name: str) -> list[TorchPlan]:
    """Returns a plan for each share, from a process that is ended if it takes too long."""
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    process = spawn.Process(target=_work, args=(name, results))
    process.start()
    plans: list[TorchPlan] = []
    begun = False
    try:
        while (plan := results.get(timeout=LIMIT_S + begun * _MORE_S)) is not None:
            begun = True
            if "statistics" not in plan:
                plans.append(plan)
    except queue.Empty:
        what = "its plan" if begun else "its statistics"
        plans.append({"failed": f"{what} not done after {LIMIT_S} s"})
    finally:
        if process.is_alive() and process.pid:
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return plans


def _main(path: str, names: list[str]) -> None:
    file = pathlib.Path(path)
    plans = json.loads(file.read_text()) if file.exists() else {}
    for name in names or MODELS:
        plans[name] = torch_plans(name)
        for plan in plans[name]:
            print(name, {k: v for k, v in plan.items() if k != "units"}, flush=True)
        file.write_text(json.dumps(plans))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2:])
