"""torchtitan's own trainer on four processes (gloo), with plans and without.

    PYTHONPATH=.:tests python tests/compare_torchtitan.py [CASE...]

writes docs/measured/torchtitan.csv: for each way in which a debug model is parallel, whether
the losses of 20 steps and the weights after them are those without a plan. It needs torchtitan.
"""

import dataclasses
import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
from typing import Any

import torch
import torch.multiprocessing

import torchtitan_training
from rank import leave
from tables import Table, print_versions

_PROCESSES, _STEPS = 4, 20
_DTENSORS = {"spmd_backend": "partial_dtensor"}


@dataclasses.dataclass(frozen=True)
class Case:
    """A debug model, the function of its configuration, its degrees of parallelism, the number
    of its layers (0: all), and the length and the number of the sequences of a process."""

    name: str
    package: str
    function: str
    degrees: dict[str, Any]
    layers: int = 0
    length: int = 128
    batch: int = 2
    # The backend of torch.compile for each block; "": none is compiled.
    backend: str = ""


CASES = [
    Case(
        "llama3, fsdp x tp",
        "llama3",
        "llama3_debugmodel",
        {"tensor_parallel_degree": 2, **_DTENSORS},
    ),
    Case(
        "deepseek_v3, fsdp x ep",
        "deepseek_v3",
        "deepseek_v3_debugmodel",
        {"expert_parallel_degree": 2, **_DTENSORS},
    ),
    Case(
        "qwen3 with experts, fsdp x ep x tp",
        "qwen3",
        "qwen3_moe_debug",
        {"expert_parallel_degree": 2, "tensor_parallel_degree": 2, **_DTENSORS},
        layers=2,
        length=64,
    ),
    Case(
        "llama3, fsdp x cp",
        "llama3",
        "llama3_debugmodel",
        {"context_parallel_degree": 2, **_DTENSORS},
        layers=3,
    ),
    Case(
        "llama3, fsdp x pp",
        "llama3",
        "llama3_debugmodel",
        {"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "1F1B", **_DTENSORS},
        layers=3,
        batch=4,
    ),
    Case(
        "llama3, fsdp x pp, interleaved",
        "llama3",
        "llama3_debugmodel",
        {
            "pipeline_parallel_degree": 2,
            "pipeline_parallel_schedule": "Interleaved1F1B",
            **_DTENSORS,
        },
        layers=4,
        batch=4,
    ),
    Case(
        "llama3, pp x tp",
        "llama3",
        "llama3_debugmodel",
        {
            "pipeline_parallel_degree": 2,
            "pipeline_parallel_schedule": "1F1B",
            "tensor_parallel_degree": 2,
            **_DTENSORS,
        },
        layers=3,
        batch=4,
    ),
    Case(
        "qwen3, hsdp x tp",
        "qwen3",
        "qwen3_debugmodel",
        {"tensor_parallel_degree": 2, "data_parallel_replicate_degree": 2, **_DTENSORS},
        layers=3,
        batch=8,
    ),
    Case(
        "llama3, fsdp, compiled",
        "llama3",
        "llama3_debugmodel",
        _DTENSORS,
        layers=3,
        backend="inductor",
    ),
]


def run(rank: int, folder: str, case: Case, budget: str, steps: int) -> None:
    """Trains, and writes the results of this process."""
    import acplan.torchtitan

    os.chdir(folder)
    torchtitan_training.prepare(rank, _PROCESSES, f"file://{folder}/rendezvous")
    if "context_parallel_degree" in case.degrees:
        torchtitan_training.attention_on_cpu()
    config = torchtitan_training.config_of(case.package, case.function, steps)
    config.training.seq_len, config.training.local_batch_size = case.length, case.batch
    for name, value in case.degrees.items():
        setattr(config.parallelism, name, value)
    if case.layers:
        model = config.model_spec.model
        model.layers = model.layers[: case.layers]
    if case.backend:
        config.compile.enable, config.compile.components = True, ["model"]
        config.compile.backend = case.backend
    config.activation_checkpoint = None
    if budget:
        policy = acplan.torchtitan.Policy.from_config(config, budget, time_limit=2)
        config.activation_checkpoint = policy
    results = torchtitan_training.train(config)
    pathlib.Path(folder, f"{rank}.json").write_text(json.dumps(results))
    leave()


def results_of(case: Case, budget: str, steps: int = _STEPS) -> list[dict[str, Any]]:
    """Returns the losses, the weights and the number of units of each process."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        torchtitan_training.write_assets()
        arguments = (folder, case, budget, steps)
        multiprocessing.set_forkserver_preload(["torchtitan_loaded"])
        torch.multiprocessing.start_processes(
            run, arguments, nprocs=_PROCESSES, start_method="forkserver"
        )
        paths = (pathlib.Path(folder, f"{rank}.json") for rank in range(_PROCESSES))
        return [json.loads(path.read_text()) for path in paths]


def main(names: list[str]) -> None:
    print_versions("torchtitan")
    columns = ["case", "units", "steps", "losses", "weights"]
    table = Table("torchtitan", columns, is_partial=bool(names))
    folder = os.getcwd()
    for case in CASES:
        if names and case.name not in names:
            continue
        plain, with_plan = results_of(case, ""), results_of(case, "min")
        os.chdir(folder)
        words = [
            "equal" if all(a[key] == b[key] for a, b in zip(plain, with_plan)) else "other"
            for key in ("losses", "weights")
        ]
        assert not any(result["wrapped"] for result in plain)
        table.add(case.name, with_plan[0]["wrapped"], len(plain[0]["losses"]), *words)


if __name__ == "__main__":
    main(sys.argv[1:])
