"""Steps in which what is computed decides what runs. Each is a model with its inputs."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

ModelAndInputs = tuple[nn.Module, tuple[Any, ...]]


class _Body(nn.Sequential):
    """Layers before what decides, so that there is something to plan."""

    def __init__(self, width: int = 16) -> None:
        super().__init__(
            nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width), nn.LayerNorm(width)
        )


class Experts(nn.Module):
    """Experts by hand: tokens of each one by nonzero, added where they belong."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.gate = _Body(), nn.Linear(16, 4)
        self.experts = nn.ModuleList(_Body() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        weights, expert_of = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            rows, place = torch.nonzero(expert_of == k, as_tuple=True)
            if rows.numel() == 0:
                continue
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, place, None])
        return out.square().mean()


class Masked(nn.Module):
    """Rows above a threshold that comes from the activations."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = _Body(), _Body()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.body(x)
        score = hidden.sum(-1)
        best = hidden[score > score.topk(max(1, int((score > 0).sum())))[0][-1] - 0.5]
        return self.head(best).square().sum() + torch.masked_select(hidden, hidden > 1).sum()


class Detector(nn.Module):
    """Boxes filtered by their scores, and by those that overlap, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.boxes, self.score = _Body(), nn.Linear(16, 4), nn.Linear(16, 1)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        boxes, score = self.boxes(x), self.score(x).squeeze(-1).sigmoid()
        keep = torch.where(score > 0.4)[0]
        order, places = score[keep].argsort(descending=True), []
        while order.numel() > 0:
            first = order[0]
            places.append(keep[first])
            far = (boxes[keep[order]] - boxes[keep[first]]).abs().sum(-1) > 1.5
            order = order[far]
        selection = torch.stack(places)
        return self.head(boxes[selection]).square().mean() - score[selection].log().sum()


class HardExamples(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = _Body(), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = self.head(self.body(x))
        loss = nn.functional.cross_entropy(scores, labels, reduction="none")
        return loss[loss > loss.mean()].mean()


class Halting(nn.Module):
    """A fixed point that is looked for until it is near, and a way out that is early."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.layers = _Body(), nn.ModuleList(_Body() for _ in range(4))
        self.exit = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z, error, steps = torch.zeros_like(x), torch.tensor(9.0), 0
        while error.item() > 1e-1 and steps < 20:
            new = 0.3 * self.body(z) + x
            error, z, steps = (new - z).detach().abs().max(), new, steps + 1
        for layer in self.layers:
            z = z + layer(z)
            if self.exit(z).softmax(-1).max() > 0.95:
                break
        return z.square().mean() + self.exit(z).sum()


class Counting(nn.Module):
    """Clusters that are there, how large they are, and a mean of each."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = _Body(), _Body()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        classes, places = torch.unique(x.argmax(-1), return_inverse=True)
        sizes = torch.bincount(places, minlength=classes.numel())
        means = x.new_zeros(classes.numel(), 16).index_add(0, places, x) / sizes[:, None]
        spread = torch.repeat_interleave(means, sizes, dim=0)
        return self.head(means).sum() + spread.square().mean()


class Process(nn.Module):
    """A Gaussian process, whose matrix is factorised with more jitter until that works."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.noise = _Body(), nn.Parameter(torch.tensor(-20.0))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        kernel = torch.exp(-torch.cdist(x, x).square() / 500)
        jitter = self.noise.exp()
        for _ in range(12):
            matrix = kernel + jitter * torch.eye(len(x), device=x.device)
            factor, info = torch.linalg.cholesky_ex(matrix)
            if not torch.any(info):
                break
            jitter = jitter + 1e-5
        solved = torch.cholesky_solve(y[:, None], factor)
        return (y[:, None] * solved).sum() + factor.diagonal().log().sum()


class Adaptive(nn.Module):
    """Steps of an equation as long as their error allows."""

    def __init__(self) -> None:
        super().__init__()
        self.slope, self.head = _Body(), _Body()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time, step = 0.0, 0.5
        while time < 1:
            step = min(step, 1 - time)
            slope = self.slope(x)
            coarse = x + step * slope
            fine = x + step / 2 * (slope + self.slope(coarse))
            error = (fine - coarse).detach().square().mean().sqrt().item()
            if error < 0.4:
                x, time = fine, time + step
            step *= min(2.0, max(0.3, 0.3 / (error + 1e-6)))
        return self.head(x).square().mean()


class Dropping(nn.Module):
    """Dropout and running statistics before what decides: a recomputation that drew other
    numbers would select other rows."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.5))
        self.head = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Dropout(0.3), _Body())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.body(x)
        some = self.head(hidden[hidden[:, 0] > 0])
        return some.square().mean() + some[some.sum(-1) > 0].sum()


class Blocks(nn.Module):
    """Decisions within modules that are units."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(_Selecting() for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x).square().mean()


class _Selecting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop = _Body(), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(self.body(x))
        rows = torch.where(hidden[:, 0] > 0)[0]
        out = x.clone()
        out[rows] = self.body(hidden[rows])
        return out if float(out.detach().norm()) < 1e9 else x


def _rows(*more: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return (torch.randn(24, 16), *(make() for make in more))


MODELS: Mapping[str, Callable[[], ModelAndInputs]] = {
    "experts": lambda: (Experts(), _rows()),
    "masked": lambda: (Masked(), _rows()),
    "detector": lambda: (Detector(), _rows()),
    "hard_examples": lambda: (HardExamples(), _rows(lambda: torch.randint(5, (24,)))),
    "halting": lambda: (Halting(), _rows()),
    "counting": lambda: (Counting(), _rows()),
    "process": lambda: (Process(), _rows(lambda: torch.randn(24))),
    "adaptive": lambda: (Adaptive(), _rows()),
    "dropping": lambda: (Dropping(), _rows()),
    "blocks": lambda: (Blocks(), _rows()),
}
