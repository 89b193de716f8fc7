"""acplan.best_batch beside tracing and planning every size, for random tiny models, sizes,
budgets and devices.

    ACPLAN=... PYTHONPATH=. python tests/random_batches.py 100 7

asks 100 questions from seed 7 on. Prints each answer that differs, and ends with an error if
the largest size does, or if the rate is more than 5% below the best: the search takes run-times
that are off by less for points of a line.
"""

import random
import sys
from typing import Any

import torch
from torch import nn

import acplan
from acplan._step.interpolation import step_ms_of

_Answer = tuple[int, float]  # the largest size, and the most samples in a second


class _Chain(nn.Module):
    """Some models pad their inputs, leave some of them out, or run other operators from a size
    on."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.width = chance.choice([16, 32, 64])
        self.kind = chance.choice(["plain", "plain", "pads", "cuts", "differs", "grows"])
        self.period = chance.choice([2, 3, 4, 8])
        self.layers = nn.ModuleList(
            self._layer(chance, self.width) for _ in range(chance.randrange(1, 5))
        )

    @staticmethod
    def _layer(chance: random.Random, width: int) -> nn.Module:
        wide = width * chance.choice([1, 2, 4])
        between = chance.sample([nn.GELU(), nn.LayerNorm(wide), nn.Dropout(0.1), nn.SiLU()], 2)
        return nn.Sequential(nn.Linear(width, wide), *between, nn.Linear(wide, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.shape[0]
        if self.kind == "pads":
            x = nn.functional.pad(x, (0, 0, 0, 0, 0, -size % self.period))
        if self.kind == "cuts" and size > self.period:
            x = x[: (size + self.period) // 2]
        for layer in self.layers:
            x = x + layer(x)
            if self.kind == "grows" and size > self.period:
                x = x * torch.sigmoid(x)
            if self.kind == "differs" and size % self.period == 1:
                x = torch.sin(x)
        return x.square().mean()


def _sizes(chance: random.Random) -> list[int]:
    kind = chance.randrange(4)
    if kind == 0:
        return sorted(chance.sample(range(1, 40), chance.randrange(1, 10)))
    if kind == 1:
        return [*range(chance.randrange(1, 6), chance.randrange(8, 40), 3)]
    return [*range(1, chance.randrange(2, 16))]


def _answers(seed: int) -> tuple[_Answer, _Answer]:
    """Returns what all sizes give, and what the search finds."""
    chance = random.Random(seed)
    model, sizes, rows = _Chain(chance), _sizes(chance), chance.choice([4, 16, 64])
    limit: dict[str, Any] = {"decisions": "save,recompute"}

    def inputs(size: int) -> torch.Tensor:
        return torch.empty(size, rows, model.width, device="meta")

    traces = {size: acplan.trace(model, inputs(size)) for size in sizes}
    peak = traces[chance.choice(sizes)].peak_bytes * chance.choice([0.8, 0.95, 1, 1.3, 4])
    if chance.random() < 0.5:
        limit |= {"device_memory": (int(peak) >> 20) + 2 << 20, "allocator": "native"}
    else:
        limit["budget"] = int(peak)
    rates: dict[int, float] = {}
    for size, trace in traces.items():
        try:
            plan = acplan.plan(trace, **limit)
        except acplan.AcplanError as error:
            assert error.exit_code in (3, 4), error
            break
        rates[size] = 1000 * size / (step_ms_of(trace) + plan.recompute_ms)
    try:
        search = acplan.best_batch(model, inputs, sizes=sizes, tolerance=0.0, **limit)
    except acplan.AcplanError as error:
        assert error.exit_code in (3, 4), error
        return (max(rates, default=0), max(rates.values(), default=0.0)), (0, 0.0)
    largest, rate = search.largest.size, search.best.per_second
    if largest > max(rates, default=0) and "device_memory" in limit:
        return (0, 0.0), (0, 0.0)  # a larger size fits than one that does not
    return (max(rates), max(rates.values())), (largest, rate)


def main() -> None:
    count, first = map(int, sys.argv[1:])
    wrong = 0
    for seed in range(first, first + count):
        best, answer = _answers(seed)
        if best[0] != answer[0] or abs(answer[1] - best[1]) > 1e-9 * best[1]:
            print(f"seed {seed}: all sizes {best}, the search {answer}", flush=True)
            wrong += best[0] != answer[0] or not 0.95 * best[1] <= answer[1] <= best[1]
    print(f"{count} questions, {wrong} wrong answers")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
