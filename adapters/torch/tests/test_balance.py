"""Splits of layers over the ranks of a pipeline."""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import acplan
from acplan import AcplanError
from parallel_pipelines import mean_loss

pytestmark = pytest.mark.skipif(
    not hasattr(PipelineStage, "_recv_meta"), reason="pipelines of this PyTorch are not traced"
)

_RANKS = 3
_LAYERS = 6
_WIDTH = 64
_WORDS = 200
_BATCH, _LENGTH, _MICROBATCHES = 8, 16, 4


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.b(F.gelu(self.a(x)))


def _make_stage(rank: int, count: int) -> nn.Module:
    layers: list[nn.Module] = [_Layer() for _ in range(count)]
    if rank == 0:
        layers.insert(0, nn.Embedding(_WORDS, _WIDTH))
    if rank == _RANKS - 1:
        layers.append(nn.Linear(_WIDTH, _WORDS))
    return nn.Sequential(*layers)


@functools.cache
def _trace_rank(rank: int, count: int) -> acplan.Trace:
    def schedule(model: nn.Module, mesh: Any) -> Any:
        group, device = mesh["pp"].get_group(), torch.device(mesh.device_type)
        inputs = torch.empty(_BATCH, _LENGTH, _WIDTH, device="meta") if rank else None
        stage = PipelineStage(model, rank, _RANKS, device, input_args=inputs, group=group)
        return Schedule1F1B(stage, _MICROBATCHES, loss_fn=mean_loss)

    def make() -> nn.Module:
        with torch.device("meta"):
            return _make_stage(rank, count)

    tokens = torch.zeros(_BATCH * _MICROBATCHES, _LENGTH, dtype=torch.long)
    return acplan.trace(
        make, *([tokens] if rank == 0 else []), mesh={"pp": _RANKS}, rank=rank,
        schedule=schedule, workspaces=False, source=False,
        **({"target": tokens} if rank == _RANKS - 1 else {}),
    )  # fmt: skip


# Searches that end by themselves.
_OPTIONS: dict[str, Any] = {"without_host": True, "time_limit": "none"}


@functools.cache
def _ms(rank: int, count: int, budget: int) -> float:
    """Returns the time of a rank, without acplan.balance_stages."""
    trace = _trace_rank(rank, count)
    try:
        plan = acplan.plan(trace, budget, **_OPTIONS)
    except AcplanError:
        return math.inf
    assert plan.status == "optimal"
    operators = trace.data["operators"][: trace.data["backward_end"]]
    return float(sum(o["runtime_ms"] for o in operators)) + plan.recompute_ms


def _slowest_ms(split: Sequence[int], budget: int) -> float:
    return max(_ms(rank, count, budget) for rank, count in enumerate(split))


def _all_splits() -> list[tuple[int, ...]]:
    counts = range(1, _LAYERS)
    return [split for split in itertools.product(counts, repeat=3) if sum(split) == _LAYERS]


@pytest.mark.parametrize(
    ("today", "budget", "layers"),
    [
        # The first rank has the embedding.
        ((2, 2, 2), 6_000_000, (1, 3, 2)),
        ((1, 2, 3), 2_900_000, (1, 3, 2)),
        # No rank has room for three layers, and today's split for none of its four.
        ((4, 1, 1), 2_500_000, (2, 2, 2)),
    ],
)
def test_no_split_has_a_faster_slowest_rank(
    today: tuple[int, ...], budget: int, layers: tuple[int, ...]
) -> None:
    balance = acplan.balance_stages(_trace_rank, today, budget, **_OPTIONS)
    assert balance.layers == layers
    assert balance.best_ms == _slowest_ms(layers, budget)
    assert balance.today_ms == _slowest_ms(today, budget)
    best_ms = min(_slowest_ms(split, budget) for split in _all_splits())
    assert balance.best_ms == balance.bound_ms == pytest.approx(best_ms)
    for one in balance.best:
        assert one.plan is not None and one.plan.peak_bytes <= budget


def test_today_stands_beside_the_proposal() -> None:
    budgets = [6_000_000, 6_000_000, "2.5MB"]
    lines = str(acplan.balance_stages(_trace_rank, (3, 1, 2), budgets, **_OPTIONS)).splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("   ")] == [
        ["0", "3"], ["1", "1"], ["2", "2"], ["0", "1"], ["1", "3"], ["2", "2"],
    ]  # fmt: skip
    assert lines[0] == "today" and lines[6] == "proposed"
    assert lines[5] == f"rank 0 is the slowest, {_ms(0, 3, 6_000_000):.2f} ms"
    assert lines[-1].startswith(f"no split takes less than {_ms(0, 1, 6_000_000):.2f} ms")


def _fails(rank: int, count: int) -> Any:
    raise ValueError("no such stage")


@pytest.mark.parametrize(
    ("trace_rank", "layers", "budget", "options", "message"),
    [
        (3, [2, 2, 2], "1GiB", {}, "trace_rank: expected a function of a rank"),
        (_trace_rank, [2], "1GiB", {}, "layers: expected the numbers of layers of two ranks"),
        (_trace_rank, [2, 1.5], "1GiB", {}, "layers: expected a whole number"),
        (_trace_rank, [2, 2], ["1GiB"], {}, "budget: expected one, or one for each of 2 ranks"),
        (_trace_rank, [2, 2], "75%", {}, "budget: expected a size such as '40GiB'"),
        (_trace_rank, [2, 2], "1GiB", {"mesh": {}}, "mesh: expected an option of acplan.plan"),
        (_trace_rank, [2, 2], "1GiB", {"device_memory": "8GiB"}, "expected a budget"),
        (_fails, [2, 2], "1GiB", {}, "rank 0 with 2 layers: ValueError: no such stage"),
        (lambda *_: None, [2, 2], "1GiB", {}, "2 layers: expected a Trace, found NoneType"),
    ],
)
def test_errors_are_told_in_a_line(
    trace_rank: Any, layers: Any, budget: Any, options: Any, message: str
) -> None:
    with pytest.raises(AcplanError, match=message) as error:
        acplan.balance_stages(trace_rank, layers, budget, **options)
    assert "\n" not in str(error.value)


def test_a_budget_that_no_split_keeps_is_an_error() -> None:
    with pytest.raises(
        AcplanError, match="(?s)rank . with . layers: .*smallest feasible"
    ) as error:
        acplan.balance_stages(_trace_rank, [2, 2, 2], 1_500_000, **_OPTIONS)
    assert error.value.exit_code == 3
