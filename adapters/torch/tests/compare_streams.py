"""Plans of a rank whose all-gathers are exposed, beside the plans that recompute least.

    PYTHONPATH=.:tests python tests/compare_streams.py

writes docs/measured/streams.csv: blocks of Llama-3-8B, each in `fully_shard` over 64 H100 (8 nodes),
a sequence of 4,096 tokens for each rank, and networks that take collectives longer by a factor.
The plan that recomputes least is that of the same trace with all operators on one stream; its
step is simulated on the streams. The device's times alone count (`without_host`).
"""

import copy
import functools
import json
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import acplan
from acplan._base.process_groups import NAMESPACES
from acplan._base.question import question_folder
from parallel_llama import LLAMA_8B, llama_on_meta, loss_of_llama
from parallel_models import MIXED
from tables import Table, print_versions

_LAYERS = 16
_FACTORS = (1, 2, 3, 4)
_SHARES = ("80%", "65%", "50%", "min")


def _shard(model: nn.Module, mesh: DeviceMesh) -> None:
    for block in model.model.layers:  # type: ignore[union-attr]  # mypy takes a ModuleList for a Tensor
        fully_shard(block, mesh=mesh["dp"], mp_policy=MIXED)
    fully_shard(model, mesh=mesh["dp"], mp_policy=MIXED)


def _trace() -> acplan.Trace:
    sizes = LLAMA_8B | {"num_hidden_layers": _LAYERS}
    tokens = torch.zeros(1, 4096, dtype=torch.long, device="meta")
    arguments: dict[str, Any] = {"mesh": {"dp": 64}, "parallelize": _shard}
    return acplan.trace(
        functools.partial(llama_on_meta, sizes),
        tokens,
        forward_fn=loss_of_llama,
        device="h100",
        **arguments,
    )


def _with_slower(trace: acplan.Trace, factor: float) -> acplan.Trace:
    data = copy.copy(trace.data)
    data["operators"] = [
        o | {"runtime_ms": o["runtime_ms"] * factor}
        if o["name"].split(".")[0] in NAMESPACES
        else o
        for o in trace.data["operators"]
    ]
    return acplan.Trace(data)


def _on_one_stream(trace: acplan.Trace) -> acplan.Trace:
    data = copy.copy(trace.data)
    data["operators"] = [
        {key: value for key, value in o.items() if key not in ("stream", "waits")}
        for o in trace.data["operators"]
    ]
    return acplan.Trace(data)


def _simulated(trace: acplan.Trace, plan: acplan.Plan) -> dict[str, float]:
    """Returns the times on streams of a plan's step."""
    with question_folder() as folder:
        question: dict[str, Any] = {"trace": folder.add("trace", trace), "json": True}
        plan.save(folder.path_of("plan"))
        out = folder.ask("simulate", question | {"plan": "plan"}).require_success().out
    streams: dict[str, float] = json.loads(out)["planned"]["streams"]
    return streams


_COLUMNS = (
    "collectives", "budget", "step ms", "communication ms", "exposed ms",
    "least recomputation ms", "makes the step longer by ms",
    "recomputation ms", "makes the step longer by ms", "exposed with the plan ms",
    "no plan makes it longer by less than ms", "status",
)  # fmt: skip


def _rows(trace: acplan.Trace) -> Iterator[list[object]]:
    for factor in _FACTORS:
        slower = _with_slower(trace, factor)
        for share in _SHARES:
            own = acplan.plan(slower, share, without_host=True)
            plain = acplan.plan(_on_one_stream(slower), share, without_host=True)
            assert own.streams is not None
            of_plain = _simulated(slower, plain)
            before_ms = own.streams.baseline_ms
            figures = (
                before_ms,
                own.streams.communication_ms,
                own.streams.baseline_exposed_ms,
                plain.recompute_ms,
                of_plain["step_ms"] - before_ms,
                own.recompute_ms,
                own.streams.step_ms - before_ms,
                own.streams.exposed_ms,
                (own.streams.least_step_ms or 0) - before_ms,
            )
            cells = [f"{ms + 0.0:.2f}" for ms in figures]
            yield [f"{factor} times", share, *cells, own.status]


def main() -> None:
    print_versions()
    table = Table("streams", _COLUMNS)
    for row in _rows(_trace()):
        table.add(*row)


if __name__ == "__main__":
    main()
