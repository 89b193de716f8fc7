"""Measures what the decisions of a plan cost the host, for each operator of a unit.

    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/compare_host_times.py

prints the table of README.md: microseconds for each operator in forward and in backward,
beyond the same step without a checkpoint. Tensors have one element, so that kernels take
next to nothing, and for each decision all operators of a kind have it.
"""

import time
from collections.abc import Callable

import torch
from acplan import Plan, PlannedModule, PlannedOperator, apply
from torch import nn

from sharding_cases import operators_of

_COUNT = 300
_REPEATS = 25

Forward = Callable[[torch.Tensor], torch.Tensor]


def _plain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(_COUNT):
        x = x * 1.01
    return x


def _views(x: torch.Tensor) -> torch.Tensor:
    x = x * 2
    for _ in range(_COUNT):
        x.unsqueeze(0)
    return x


def _random(x: torch.Tensor) -> torch.Tensor:
    for _ in range(_COUNT):
        torch.rand_like(x)
    return x


def _in_place(x: torch.Tensor) -> torch.Tensor:
    x = x * 2
    for _ in range(_COUNT):
        x.mul_(1.01)
    return x


_KINDS: dict[str, Forward] = {
    "most": _plain, "views": _views, "random": _random, "in place": _in_place
}  # fmt: skip
_POLICIES = ("whole", "recompute", "save", "skip")


class _Unit(nn.Module):
    def __init__(self, run: Forward) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # What asks for a recomputation, of all that there is.
        return self.run(x).sum() + x.exp()


class _Model(nn.Module):
    def __init__(self, run: Forward) -> None:
        super().__init__()
        self.unit = _Unit(run)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.unit(x)


def _planned(run: Forward, policy: str) -> nn.Module:
    model = _Model(run)
    x = torch.ones(1, requires_grad=True)
    names = operators_of(model.unit, x)
    if policy == "none":
        return model
    operators = tuple(
        PlannedOperator(name, policy == "save", policy == "skip" and "exp" not in name)
        for name in names
    )
    listed = () if policy == "whole" else operators
    return apply(model, Plan((PlannedModule("_Model.unit", listed),)), strict=True)


def _times(models: list[nn.Module]) -> list[tuple[float, float]]:
    """The best of many, forward and backward, in turns."""
    best = [(float("inf"), float("inf"))] * len(models)
    for _ in range(_REPEATS):
        for index, model in enumerate(models):
            x = torch.ones(1, requires_grad=True)
            start = time.perf_counter()
            out = model(x)
            middle = time.perf_counter()
            out.backward()
            end = time.perf_counter()
            forward, backward = best[index]
            best[index] = (min(forward, middle - start), min(backward, end - middle))
    return best


def _main() -> None:
    torch.set_num_threads(1)
    kinds = "".join(f" {kind}: forward | backward |" for kind in _KINDS)
    print(f"| all operators |{kinds}\n|---|{'---:|' * 2 * len(_KINDS)}")
    rows: dict[str, str] = dict.fromkeys(_POLICIES, "")
    for run in _KINDS.values():
        models = [_planned(run, policy) for policy in ("none", *_POLICIES)]
        count = len(operators_of(models[0], torch.ones(1, requires_grad=True)))
        (forward, backward), *others = _times(models)
        for policy, (of_forward, of_backward) in zip(_POLICIES, others):
            rows[policy] += f" {(of_forward - forward) / count * 1e6:.1f} |"
            rows[policy] += f" {(of_backward - backward) / count * 1e6:.1f} |"
    for policy, row in rows.items():
        print(f"| {policy} |{row}")


if __name__ == "__main__":
    _main()
