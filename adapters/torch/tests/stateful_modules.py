"""Random modules that read and write state in every way that Python allows, trained with a
plan and without one.

    ACPLAN=... PYTHONPATH=. python tests/stateful_modules.py FIRST COUNT

trains COUNT models, from seed FIRST on, without a plan, with whole units, with policies of
random decisions, and with plans made of their trace. It prints each model whose losses,
gradients, buffers, attributes or random numbers differ, and how many there are of each
outcome.
"""

import collections
import copy
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import nn

import acplan

WIDTH = 6
COUNTER = 0
TABLE = torch.ones(WIDTH)
RECENT: list[torch.Tensor] = []
FACTS: dict[str, float] = {"scale": 1.0}
# The last two steps of an outcome, in which parts run their late actions, too.
IS_LATE = False


class Clock:
    """An object that modules share."""

    def __init__(self) -> None:
        self.ticks = 0
        self.last = torch.ones(WIDTH)
        self.chance = random.Random(3)

    def tick(self, x: torch.Tensor) -> float:
        self.ticks += 1
        self.last = x.detach().mean(0)
        return 1 + 0.01 * self.ticks


class State(nn.Module):
    """The state that an action may read and write."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("code", torch.randn(4, WIDTH))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.scale = nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.hidden = torch.ones(WIDTH)
        self.level = torch.ones(WIDTH)
        self.calls = 0
        self.history: list[torch.Tensor] = [torch.ones(WIDTH)]
        self.facts: dict[str, Any] = {"gain": 1.0, "inner": [1.0, 2.0]}
        self.queue: Any = collections.deque(maxlen=3)
        self.names: set[int] = set()
        self.counts = numpy.ones(3)
        self.chance = numpy.random.default_rng(1)
        self.clock = clock


Action = Callable[[State, torch.Tensor], torch.Tensor]


def reads_code(m: State, x: torch.Tensor) -> torch.Tensor:
    share = (x.detach() @ m.code.t()).softmax(1)
    return x + share @ m.code.clone()


def moves_code(m: State, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        m.code.lerp_(x.detach().mean(0).expand(4, WIDTH), 0.3)
    return x


def moves_code_by_data(m: State, x: torch.Tensor) -> torch.Tensor:
    m.code.data.mul_(0.8).add_(x.detach().mean() * 0.1)
    return x


def makes_code_anew(m: State, x: torch.Tensor) -> torch.Tensor:
    m.code = m.code * 0.9 + x.detach().mean(0) * 0.1
    return x


def writes_a_row(m: State, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        m.code[1:3].copy_(x.detach()[:2])
    return x


def renormalises(m: State, x: torch.Tensor) -> torch.Tensor:
    batch = x.mean(0)
    y = x - 0.5 * m.mean.clone() - 0.5 * batch
    with torch.no_grad():
        m.mean.mul_(0.9).add_(batch.detach(), alpha=0.1)
    return y


def counts_steps(m: State, x: torch.Tensor) -> torch.Tensor:
    m.steps.add_(1)
    return x * (1 + 0.1 / m.steps.float())


def normalises_weight(m: State, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        m.scale.copy_(m.scale / (m.scale.norm() + 0.1) * 2)
    return x * m.scale.clone()


def keeps_hidden(m: State, x: torch.Tensor) -> torch.Tensor:
    y = x * m.hidden + x.sin()
    m.hidden = y.detach().mean(0).tanh()
    return y


def writes_hidden(m: State, x: torch.Tensor) -> torch.Tensor:
    y = x * m.level.clone()
    m.level.mul_(0.9)
    return y


def counts_calls(m: State, x: torch.Tensor) -> torch.Tensor:
    m.calls += 1
    return x * (1 + 0.05 * m.calls)


def appends(m: State, x: torch.Tensor) -> torch.Tensor:
    y = x * m.history[-1].to(x.device)
    m.history.append(y.detach().mean(0).cos())
    return y * (1 + 0.01 * len(m.history))


def turns_queue(m: State, x: torch.Tensor) -> torch.Tensor:
    if not m.queue:
        m.queue.extend([x.detach().mean(0)] * 3)
    y = x + sum(m.queue) * 0.1
    m.queue.append(x.detach().mean(0))
    return y


def changes_facts(m: State, x: torch.Tensor) -> torch.Tensor:
    y = x * m.facts["gain"] * m.facts["inner"][0]
    m.facts["gain"] *= 0.9
    m.facts["inner"][0] += 0.01
    m.facts[f"new{len(m.facts) % 3}"] = 1
    m.names.add(len(m.names))
    return y * (1 + 0.01 * len(m.names))


def counts_in_numpy(m: State, x: torch.Tensor) -> torch.Tensor:
    y = x * float(m.counts.sum() / 3)
    m.counts[1] += 0.1
    return y


def draws_in_numpy(m: State, x: torch.Tensor) -> torch.Tensor:
    return x * (1 + 0.1 * float(m.chance.random())) + float(numpy.random.rand()) * 0.1


def draws_in_python(m: State, x: torch.Tensor) -> torch.Tensor:
    return x * (1 + 0.1 * random.random()) + 0.1 * m.clock.chance.random()


def draws(m: State, x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.3) + 0.1 * torch.rand(WIDTH, device=x.device)


def ticks(m: State, x: torch.Tensor) -> torch.Tensor:
    return x * m.clock.tick(x) + m.clock.last.to(x.device) * 0.1


def counts_globally(m: State, x: torch.Tensor) -> torch.Tensor:
    global COUNTER
    COUNTER += 1
    return x * (1 + 0.02 * COUNTER)


def reads_table(m: State, x: torch.Tensor) -> torch.Tensor:
    return x.tanh() * TABLE.to(x.device, copy=True)


def writes_table(m: State, x: torch.Tensor) -> torch.Tensor:
    TABLE.mul_(0.95)
    return x


def makes_table_anew(m: State, x: torch.Tensor) -> torch.Tensor:
    global TABLE
    y = x * TABLE.to(x.device, copy=True)
    TABLE = TABLE * 0.9 + 0.05
    return y


def keeps_globally(m: State, x: torch.Tensor) -> torch.Tensor:
    RECENT.append(x.detach().mean(0))
    FACTS["scale"] *= 0.99
    return x * FACTS["scale"] + RECENT[-1] * 0.1 + 0.01 * len(RECENT)


def normalises(m: State, x: torch.Tensor) -> torch.Tensor:
    return m.norm(x)


def reads_statistics(m: State, x: torch.Tensor) -> torch.Tensor:
    return x - 0.3 * m.norm.running_mean.clone()


def computes(m: State, x: torch.Tensor) -> torch.Tensor:
    return m.lin(x).sin() + x


def switches_training(m: State, x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.2, m.training)


ACTIONS: tuple[Action, ...] = (
    reads_code, moves_code, moves_code_by_data, makes_code_anew, writes_a_row,
    renormalises, counts_steps, normalises_weight, keeps_hidden, writes_hidden,
    counts_calls, appends, turns_queue, changes_facts, counts_in_numpy, draws_in_numpy,
    draws_in_python, draws, ticks, counts_globally, reads_table, writes_table,
    makes_table_anew, keeps_globally, normalises, computes, switches_training,
    reads_statistics,
)  # fmt: skip


_QUIET: tuple[Action, ...] = (
    reads_code, draws, reads_table, computes, switches_training, draws_in_python
)  # fmt: skip
_CHANGES: tuple[Action, ...] = tuple(a for a in ACTIONS if a not in _QUIET)


class Part(nn.Module):
    """Runs some actions, on its own state or that of another module."""

    def __init__(self, actions: list[Action], state: State) -> None:
        super().__init__()
        self.actions = actions
        self.late: list[Action] = []
        self.state = state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for action in self.actions:
            if IS_LATE or action not in self.late:
                x = action(self.state, x)
        return x


class Block(nn.Module):
    def __init__(self, parts: list[Part]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = part(x)
        return x.exp().log1p()


class Model(nn.Module):
    """Calls its blocks one after the other, some of them twice."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        chance = random.Random(seed)
        clock = Clock()
        states = [State(clock) for _ in range(chance.randint(1, 2))]
        self.blocks = nn.ModuleList(
            Block(
                [
                    Part(
                        chance.choices(ACTIONS, k=chance.randint(1, 4)),
                        chance.choice(states),
                    )
                    for _ in range(chance.randint(1, 2))
                ]
            )
            for _ in range(chance.randint(1, 3))
        )
        self.order = [*range(len(self.blocks))]
        self.order += chance.choices(self.order, k=chance.randint(0, 2))
        if chance.random() < 0.3:
            calls = [0]

            def hook(module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
                calls[0] += 1
                return out * (1 + 0.01 * calls[0])

            self.blocks[0].register_forward_hook(hook)
            self.hook_calls = calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        for place in self.order:
            x = self.blocks[place](x)
        return x


def make(seed: int) -> Model:
    torch.manual_seed(seed)
    return Model(seed).train()


def make_with_late_actions(seed: int) -> Model:
    """Returns a model whose parts change no state before the late steps."""
    model, chance = make(seed), random.Random(seed)
    for part in [module for module in model.modules() if isinstance(module, Part)]:
        part.late = chance.choices(_CHANGES, k=chance.randint(0, 2))
        part.actions = [*chance.choices(_QUIET, k=2), *part.late]
        chance.shuffle(part.actions)
    return model


def batch(seed: int) -> torch.Tensor:
    return torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(seed))


def _reset() -> None:
    global COUNTER, TABLE
    COUNTER, TABLE = 0, torch.ones(WIDTH)
    RECENT.clear()
    FACTS.clear()
    FACTS["scale"] = 1.0
    random.seed(5)
    numpy.random.seed(5)
    torch.manual_seed(5)


def outcome(model: nn.Module, microbatches: int, is_joint: bool, steps: int = 2) -> list[Any]:
    """Returns losses, gradients and all state after some steps. With `is_joint` all
    microbatches run before one backward pass."""
    _reset()
    inner: Any = model
    values: list[Any] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    global IS_LATE
    for step in range(steps):
        IS_LATE = step >= steps - 2
        losses = []
        for k in range(microbatches):
            loss = model(batch(step * 10 + k)).square().mean()
            values.append(loss.detach().clone())
            losses.append(loss)
            if not is_joint:
                loss.backward()
        if is_joint:
            sum(losses).backward()  # type: ignore[union-attr]
        values += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
    values += [t.detach().clone() for t in (*model.parameters(), *model.buffers())]
    for module in inner.modules():
        if isinstance(module, State):
            values += [
                module.hidden,
                module.level,
                *module.history,
                *module.queue,
                module.calls,
            ]
            values += [copy.deepcopy(module.facts), module.counts.copy()]
            values += [module.names, module.chance.random(), module.clock.ticks]
            values += [module.clock.last, module.clock.chance.random()]
    values += [getattr(inner, "hook_calls", None), COUNTER, TABLE, *RECENT, dict(FACTS)]
    return [*values, random.random(), numpy.random.rand(), torch.rand(2)]


def are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        # A value that is not a number is equal to itself.
        return torch.equal(one.nan_to_num(), other.nan_to_num())
    if isinstance(one, numpy.ndarray):
        return bool((one == other).all())
    return bool(one == other)


def whole_units(seed: int) -> acplan.Plan:
    """Returns all blocks or all parts as units, so that units write all state."""
    kind = random.Random(seed).choice([Block, Part])
    names = [name for name, m in make(seed).named_modules() if isinstance(m, kind)]
    return acplan.Plan(tuple(acplan.PlannedModule(f"Model.{name}") for name in names))


def plans_of(seed: int, is_traced: bool) -> dict[str, acplan.Plan]:
    """Returns plans by kind."""
    plans = {"whole": whole_units(seed)}
    if not is_traced:
        return plans
    _reset()
    try:
        trace = acplan.trace(
            make(seed),
            batch(0),
            loss_fn=lambda out: out.square().mean(),
            optimizer="sgd",
            workspaces=False,
        )
    except acplan.AcplanError as error:
        if "keeps more tensors with each step" not in str(error):
            raise
        return plans
    plans["min"] = acplan.plan(trace, "min")
    least, most = plans["min"].peak_bytes, trace.peak_bytes
    plans["60%"] = acplan.plan(trace, least + (most - least) * 6 // 10)
    chance = random.Random(seed)
    plans["decided by chance"] = acplan.Plan(
        tuple(
            acplan.PlannedModule(
                unit.fqn,
                tuple(
                    acplan.PlannedOperator(operator.name, chance.random() < 0.4)
                    for operator in unit.operators
                ),
            )
            for unit in plans["min"].modules
            if "-" not in unit.fqn
        )
    )
    return plans


def result_of(seed: int, is_traced: bool) -> dict[str, str]:
    """Returns by kind of plan: equal, refused: an error before anything is wrong, or what
    differs."""
    chance = random.Random(seed)
    microbatches, is_joint = chance.choice([(1, False), (2, False), (2, True)])
    # A plan is for the step that was traced.
    is_joint = is_joint and not is_traced
    try:
        expected = outcome(make(seed), microbatches, is_joint)
    except RuntimeError:
        return {"all": "no valid step"}  # written to in place what autograd has saved
    results = {}
    for kind, plan in plans_of(seed, is_traced).items():
        model = acplan.apply(make(seed), plan)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", acplan.PlanMismatchWarning)
                values = outcome(model, microbatches, is_joint)
        except (acplan.AcplanError, RuntimeError) as error:
            results[kind] = f"refused: {type(error).__name__}: {error}"
            continue
        places = [k for k, pair in enumerate(zip(expected, values)) if not are_equal(*pair)]
        is_equal = not places and len(values) == len(expected)
        results[kind] = "equal" if is_equal else f"differs at {places[:5]}"
    return results


def main(first: int, count: int) -> None:
    torch.set_num_threads(1)
    outcomes: collections.Counter[tuple[str, str]] = collections.Counter()
    for seed in range(first, first + count):
        try:
            results = result_of(seed, seed % 4 == 0)
        except Exception as error:
            results = {"all": f"raised {type(error).__name__}: {error}"}
        for kind, result in results.items():
            outcomes[kind, result.split(":")[0].split(" at")[0]] += 1
            if result != "equal" and result != "no valid step":
                print(seed, kind, result[:300], flush=True)
    for (kind, result), times in sorted(outcomes.items()):
        print(f"{times:7,} {kind}: {result}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
