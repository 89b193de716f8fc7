"""Models whose blocks share weights, run twice, count, or run without gradients as well:
their least budget is no more than PyTorch's plain checkpoint of each block needs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu

_WIDTH = 32


class _Block(nn.Module):
    def __init__(self, shared: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.shared, self.norm = shared, norm
        self.out = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + torch.tanh(self.out(gelu(self.shared(self.norm(x)))))
        return out


class _Net(nn.Module):
    """`shares`: all blocks have a layer in common."""

    def __init__(self, norm: Callable[[int], nn.Module], shares: bool = False) -> None:
        super().__init__()
        shared = nn.Linear(_WIDTH, _WIDTH)
        self.blocks = nn.ModuleList(
            _Block(shared if shares else nn.Linear(_WIDTH, _WIDTH), norm(_WIDTH))
            for _ in range(4)
        )

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self.run(x).float().pow(2).mean()


class _Siamese(_Net):
    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return (self.run(x) - self.run(other)).float().pow(2).mean()


class _WithTarget(_Net):
    """Runs the same blocks without gradients, too."""

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = self.run(other)
        return (self.run(x) - target).float().pow(2).mean()


class _Counting(nn.Module):
    """Counts its calls, and averages what it sees, for logs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.calls: torch.Tensor
        self.mean: torch.Tensor
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.mean.lerp_(x.detach().float().mean(0), 0.1)
        return x * 2


def _inputs() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    x, other = torch.randn(2, 1024, _WIDTH, generator=generator)
    return {"x": x, "other": other}


_KINDS: dict[str, Callable[[], nn.Module]] = {
    "shared": lambda: _Net(nn.LayerNorm, shares=True),
    "shared, batch norm": lambda: _Net(nn.BatchNorm1d, shares=True),
    "siamese, batch norm": lambda: _Siamese(nn.BatchNorm1d),
    "siamese, counters": lambda: _Siamese(_Counting),
    "target, batch norm": lambda: _WithTarget(nn.BatchNorm1d),
    "target, counters": lambda: _WithTarget(_Counting, shares=True),
}
MODELS: dict[str, Any] = {
    name + how: (make, _inputs, options)
    for name, make in _KINDS.items()
    for how, options in (("", {}), (", autocast", {"autocast": "bf16"}))
}
