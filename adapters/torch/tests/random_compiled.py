"""Random models, trained by plans of acplan.compile and plainly: losses, gradients, buffers
and numbers drawn are equal, and what is predicted is what the graphs need.

    python tests/random_compiled.py 200 [SEED]

Models have blocks with views, writes in place, tied weights, statistics, hooks, graph breaks
and control flow by values; their steps have other sizes, several calls, accumulation,
evaluation in between, frozen parameters and checkpoints.
"""

import collections
import copy
import random
import sys
import warnings
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch.utils.checkpoint import checkpoint

import acplan

WIDTH = 8


class Part(nn.Module):
    """Operators by chance."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.steps = chance.choices(range(10), k=chance.randint(2, 6))

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        for step in self.steps:
            x = self._next(step, x)
        return scale * x

    def _next(self, step: int, x: torch.Tensor) -> torch.Tensor:
        if step == 0:
            return self.linear(x)
        if step == 1:
            return self.norm(x)
        if step == 2:
            return self.linear(x).relu_()
        if step == 3:
            return x.view(-1, 2, WIDTH // 2).transpose(1, 2).reshape(-1, WIDTH)
        if step == 4:
            y = x.sin()
            y += x.cos()
            return y
        if step == 5:
            first, second = x.chunk(2, -1)
            return torch.cat([first * second, second.exp().clamp(max=3)], -1)
        if step == 6:
            return x + checkpoint(self.linear, x, use_reentrant=False)
        if step == 7:
            return x.softmax(-1) @ self.linear.weight
        if step == 8:
            return nn.functional.layer_norm(x, [WIDTH])
        return x.detach() * x + x.mean(0)


class Whole(nn.Module):
    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Part(chance) for _ in range(chance.randint(2, 3)))
        if chance.random() < 0.3:
            self.parts[1] = self.parts[0]
        elif chance.random() < 0.3:
            self.parts[1].linear.weight = self.parts[0].linear.weight
        self.breaks, self.asks = chance.random() < 0.5, chance.random() < 0.2
        self.returns = chance.choice(["tensor", "loss", "tuple", "dict"])
        self.calls = 0

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> Any:
        for place, part in enumerate(self.parts):
            x = part(x, scale=scale)
            if self.breaks and place == 0:
                self._note()
            if self.asks and x.sum() > 0:
                x = -x
        if self.returns == "tuple":
            return x, None, self.calls
        if self.returns == "dict":
            return {"loss": x.square().mean(), "logits": x}
        return x if self.returns == "tensor" else x.square().mean()

    @torch._dynamo.disable
    def _note(self) -> None:
        self.calls += 1


def _loss(out: Any) -> torch.Tensor:
    if isinstance(out, dict):
        return out["loss"]
    return (out[0] if isinstance(out, tuple) else out).square().mean()


def run(call: Any, model: nn.Module, seed: int) -> list[torch.Tensor]:
    """Runs steps by chance, and returns all values that they leave."""
    chance = random.Random(seed)
    values: list[torch.Tensor] = []
    for k in range(4):
        torch.manual_seed(seed + k)
        x = torch.randn(chance.choice([4, 4, 6]), WIDTH)
        way = chance.choice(["plain", "plain", "twice", "evaluated", "frozen", "input"])
        if way == "evaluated":
            model.eval()
            with torch.no_grad():
                values.append(_loss(call(x)))
            model.train()
        if way == "frozen":
            model.parts[0].linear.weight.requires_grad_(False)
        if way == "input":
            x.requires_grad_()
        loss = _loss(call(x))
        if way == "twice":
            loss = loss + _loss(call(2 * x, scale=0.5))
        if loss.requires_grad:
            loss.backward()
        values += [loss.detach(), torch.rand(2), *([] if x.grad is None else [x.grad])]
        model.parts[0].linear.weight.requires_grad_(True)
    values += [p.grad for p in model.parameters() if p.grad is not None]
    return [*values, *(b.clone() for b in model.buffers())]


def compare(seed: int) -> tuple[str, str]:
    """Returns how the step was planned, and what is wrong."""
    torch._dynamo.reset()
    chance = random.Random(seed)
    torch.manual_seed(seed)
    model = Whole(chance)
    plain, by_torch = copy.deepcopy(model), copy.deepcopy(model)
    blocks = model.parts if chance.random() < 0.5 else None
    budget = chance.choice(["100%", "80%", "60%", "min"])
    expected = run(plain, plain, seed)
    calls = plain.calls
    options = {
        "blocks": blocks,
        "backend": "aot_eager",
        "dynamic": chance.choice([None, False]),
    }
    compiled = acplan.compile(model, budget, **options)
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        try:
            actual = run(compiled, model, seed)
        except Exception as error:
            return "raised", _unless_torch_does(by_torch, blocks is not None, seed, error)
    ours = sorted({str(w.message)[:60] for w in caught_warnings if "planned" in str(w.message)})
    how = ", ".join([type(p).__name__ for p in acplan.compiled_plans(compiled)][:1]) or "none"
    how += f" {ours[0]}" if ours else ""
    if len(actual) != len(expected):
        return how, "other results"
    pairs = enumerate(zip(actual, expected, strict=True))
    for k, (a, b) in pairs:
        if not torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True):
            return how, f"result {k} of {len(actual)} differs by {(a - b).abs().max()}"
    if model.calls != calls:
        return how, f"{model.calls} calls, {calls} without"
    for verification in acplan.verify_compiled(compiled):
        if verification.first_difference() is not None:
            return how, f"memory: {verification.first_difference()}"
    return how, ""


def _unless_torch_does(model: Any, by_block: bool, seed: int, error: Exception) -> str:
    torch._dynamo.reset()
    for part in model.parts if by_block else ():
        part.compile(backend="aot_eager")
    call = model if by_block else torch.compile(model, backend="aot_eager")
    try:
        run(call, model, seed)
    except Exception:
        return ""
    return f"{type(error).__name__}: {str(error)[:300]}"


def main(count: int, seed: int) -> int:
    wrong = 0
    ways: collections.Counter[str] = collections.Counter()
    for k in range(seed, seed + count):
        how, complaint = compare(k)
        ways[how] += 1
        if complaint:
            wrong += 1
            print(f"seed {k}: {how}: {complaint}", flush=True)
    for how, times in ways.most_common():
        print(f"{times}: {how}")
    print(f"{count} models, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int((sys.argv[2:] or ["0"])[0])))
