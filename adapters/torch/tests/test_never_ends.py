"""Whatever a plan says, and whatever a model runs: losses and gradients are those
without the plan, bit for bit, and no run ends."""

import contextlib
import copy
import functools
import gc
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed._composable import checkpoint as composable
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.utils.checkpoint import checkpoint

from acplan import AcplanError, Plan, PlanMismatchWarning, PlannedModule, apply, remove
from acplan import PlannedOperator as Op
from acplan._apply.policy import warn_of_cpu
from sharding_cases import Names, operators_of

WIDTH = 8


class Block(nn.Module):
    """Attention, dropout in several ways, views and writes in place."""

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 16), nn.ReLU(inplace=True), nn.Linear(16, WIDTH)
        )
        self.dropout = dropout

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, length, 3, 2, WIDTH // 2)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(
            q, k, v, mask, dropout_p=self.dropout if self.training else 0.0
        )
        mixed = mixed.transpose(1, 2).reshape(batch, length, WIDTH)
        x = x + F.dropout(self.out(mixed), self.dropout, self.training)
        y = self.mlp(x)
        if self.training:
            y = y + torch.rand_like(y)
        return x + F.dropout(y, self.dropout, self.training, inplace=True)


class Net(nn.Module):
    def __init__(self, block: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(2))

    def forward(self, x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        x = self.first(x)
        for block in (*self.blocks, self.blocks[0]):
            x = block(x, **kwargs)
        return x


BLOCKS = ("Net.blocks.0", "Net.blocks.1")


def _net(block: Callable[[], nn.Module] = Block) -> Net:
    torch.manual_seed(0)
    return Net(block)


def _x(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, WIDTH, generator=torch.Generator().manual_seed(batch))


def _plan(operators: Sequence[Op], names: Sequence[str] = BLOCKS) -> Plan:
    return Plan(tuple(PlannedModule(name, tuple(operators)) for name in names))


def _operators(saves: Callable[[str], bool], module: nn.Module | None = None) -> list[Op]:
    names = operators_of(module or _net().blocks[0], _x())
    return [Op(name, saves(name)) for name in names]


Step = Callable[[nn.Module], Any]


def _run(net: nn.Module, step: Step) -> list[torch.Tensor]:
    torch.manual_seed(1)
    values = step(net)
    values = list(values) if isinstance(values, (list, tuple)) else [values]
    # The next random numbers are those without a plan.
    values.append(torch.rand(3))
    values += [p.grad for p in net.parameters() if p.grad is not None]
    return [value.detach().clone() for value in values]


def _forward_backward(net: nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
    loss = net(*(args or (_x(),)), **kwargs).float().square().mean()
    loss.backward()
    return loss


def _equal(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return len(actual) == len(expected) and all(map(torch.equal, actual, expected))


def _same(net: nn.Module, plan: Plan, step: Step = _forward_backward) -> None:
    expected = _run(copy.deepcopy(net), step)
    assert len(expected) > 3
    assert _equal(_run(apply(copy.deepcopy(net), plan), step), expected)


def _first(text: str) -> Callable[[str], bool]:
    return lambda name: text in name


SAVES = {
    "nothing": lambda name: False,
    "all": lambda name: True,
    "products": _first("addmm"),
    "attention": _first("attention"),
    "random numbers": lambda name: "bernoulli" in name or "rand" in name,
    "a draw of three": _first("rand_like"),
    "views": lambda name: "view" in name or "transpose" in name,
    "masks without writes": _first("empty_like"),
    "writes": _first("_."),
}


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlanMismatchWarning)
        yield


@pytest.mark.parametrize("name", SAVES)
def test_any_policy_of_the_right_operators_is_right(name: str) -> None:
    with _silent():
        _same(_net(), _plan(_operators(SAVES[name])))


def test_what_is_saved_does_not_run_again() -> None:
    def run_again(saves: Callable[[str], bool]) -> list[str]:
        net = apply(_net(), _plan(_operators(saves), BLOCKS[1:]))
        loss = net(_x()).sum()
        with Names() as names:
            loss.backward()
        return names.operators

    products = "aten.addmm.default"
    # ReLU overwrites the result of one of them.
    assert run_again(SAVES["nothing"]).count(products) == 4
    assert run_again(SAVES["products"]).count(products) == 1
    relu = "aten.relu_.default"
    reruns = run_again(lambda name: "addmm" in name or name == relu)
    assert reruns.count(relu) == reruns.count(products) == 0


def _blocks(net: nn.Module) -> Iterator[Block]:
    return (module for module in net.modules() if isinstance(module, Block))


def _dropped_elsewhere(net: nn.Module) -> nn.Module:
    for block in _blocks(net):
        block.mlp.insert(1, nn.Dropout(0.5))
    return net


def _without_dropout(net: nn.Module) -> nn.Module:
    for block in _blocks(net):
        block.dropout = 0.0
    return net


def _autocast(net: nn.Module) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        loss = net(_x()).float().square().mean()
    loss.backward()
    return loss


def _accumulated(net: nn.Module) -> list[torch.Tensor]:
    losses = [net(_x(batch)).square().mean() for batch in (2, 1, 3)]
    net(_x(4))  # Its backward never runs.
    sum(losses).backward()
    return losses


def _evaluated(net: nn.Module) -> list[torch.Tensor]:
    losses = [_forward_backward(net)]
    net.eval()
    with torch.no_grad():
        losses.append(net(_x(1)))
    with torch.inference_mode():
        losses.append(net(_x(1)).clone())
    losses.append(_forward_backward(net, _x(1)))
    net.train()
    return losses + [_forward_backward(net)]


def _twice(net: nn.Module) -> torch.Tensor:
    loss = net(_x()).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    return loss


def _in_parts(net: nn.Module) -> list[torch.Tensor]:
    out = net(_x())
    gradient = torch.autograd.grad(out.sum(), net.first.weight, retain_graph=True)[0]
    out.square().mean().backward()
    return [out, gradient]


def _written_later(net: nn.Module) -> torch.Tensor:
    out = net(_x())
    out.mul_(2)
    loss = out.square().mean()
    loss.backward()
    return loss


STEPS: dict[str, Step] = {
    "a batch of one": lambda net: _forward_backward(net, _x(1)),
    "a mask": lambda net: _forward_backward(net, mask=torch.ones(3, 3).bool().tril()),
    "autocast": _autocast,
    "accumulation": _accumulated,
    "evaluation in between": _evaluated,
    "backward twice": _twice,
    "backward in parts": _in_parts,
    "a write after forward": _written_later,
    "double precision": lambda net: _forward_backward(net.double(), _x().double()),
}


@pytest.mark.filterwarnings("ignore::acplan.PlanMismatchWarning")
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("change", [lambda net: net, _dropped_elsewhere, _without_dropout])
def test_steps_that_were_not_planned(
    name: str, change: Callable[[nn.Module], nn.Module]
) -> None:
    for saves in SAVES.values():
        _same(change(_net()), _plan(_operators(saves)), STEPS[name])


@pytest.mark.filterwarnings("ignore::acplan.PlanMismatchWarning")
def test_units_in_units() -> None:
    block = _net().blocks[0]
    of_mlp = operators_of(block.mlp, _x())
    for outer in ("nothing", "all", "products", "random numbers", "writes"):
        for saved in ("addmm", "relu", "view"):
            plan = Plan(
                (
                    *_plan(_operators(SAVES[outer])).modules,
                    PlannedModule("Net.blocks.1.mlp", tuple(Op(n, saved in n) for n in of_mlp)),
                    PlannedModule("Net.blocks.0.out"),
                )
            )
            for step in (_forward_backward, _autocast):
                _same(_net(), plan, step)


class Chance(nn.Module):
    """Operators by chance: products, views, writes in place, random numbers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.chance = random.Random(seed)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.own = torch.Generator()
        self.steps = self.chance.choices(range(12), k=self.chance.randint(3, 9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = self._next(step, x)
        return x

    def _next(self, step: int, x: torch.Tensor) -> torch.Tensor:
        if step == 0:
            return self.linear(x)
        if step == 1:
            return x.relu()
        if step == 2:
            return F.dropout(x, 0.4, self.training)
        if step == 3:
            return x + torch.randn_like(x)
        if step == 4:
            return (x * 1.5).relu_()
        if step == 5:
            return x.view(-1, WIDTH)[:, : WIDTH // 2].repeat(1, 2).view(x.shape)
        if step == 6:
            y = x.sin()
            y.view(-1)[::2].add_(1.0)
            return y
        if step == 7:
            y = torch.zeros_like(x)
            first = y + 1
            y.copy_(x)
            y.mul_(0.5)
            return y * first
        if step == 8:
            return x * torch.empty_like(x).uniform_(0.5, 1.5)
        if step == 9:
            parts = list(x.split(WIDTH // 2, -1))
            return torch.cat([parts[1], torch.rand_like(parts[0]) * parts[0]], -1)
        if step == 10:
            return x * torch.rand(x.shape, generator=self.own.manual_seed(3))
        return F.alpha_dropout(x, 0.2, self.training) + torch.rand(())


def _wrong(chance: random.Random, names: list[str]) -> tuple[Op, ...]:
    """Returns a policy of another model, or of this one."""
    kind = chance.randrange(6)
    names = list(names)
    if kind == 1:
        chance.shuffle(names)
    if kind == 2:
        names = names[: chance.randrange(len(names) + 1)]
    if kind == 3:
        names += chance.choices(names, k=3)
    if kind == 4:
        place = chance.randrange(len(names))
        names[place:place] = ["aten.cos.default", names[-1]]
    if kind == 5:
        names.pop(chance.randrange(len(names)))
    share = chance.choice([0, 0.2, 0.5, 0.8, 1])
    return tuple(Op(name, chance.random() < share) for name in names)


@pytest.mark.filterwarnings("ignore::acplan.PlanMismatchWarning")
@pytest.mark.parametrize("seed", range(4))
def test_random_modules_with_random_policies(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(30):
        module_seed = chance.randrange(1 << 20)
        net = _net(functools.partial(Chance, module_seed))
        names = operators_of(net.blocks[0], _x())
        modules = [PlannedModule(name, _wrong(chance, names)) for name in BLOCKS]
        if chance.random() < 0.3:
            names = operators_of(net, _x())
            modules.append(PlannedModule("Net", _wrong(chance, names)))
        step = chance.choice([_forward_backward, _twice, _accumulated])
        _same(net, Plan(tuple(modules)), step)


class Counting(nn.Module):
    """Keeps statistics, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH, momentum=None)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("shift", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = self.norm(self.linear(x).transpose(1, 2)).transpose(1, 2).relu()
        with torch.no_grad():
            self.shift.lerp_(x.mean((0, 1)), 0.1)
        return x * 2


@pytest.mark.parametrize("saves", [None, *SAVES.values()])
def test_buffers_are_updated_once(saves: Callable[[str], bool] | None) -> None:
    net = _net(Counting)
    plan = _plan(() if saves is None else _operators(saves, net.blocks[0]))
    buffers: list[dict[str, torch.Tensor]] = []

    def step(net: nn.Module) -> list[torch.Tensor]:
        losses = [_forward_backward(net), _forward_backward(net, _x(5))]
        buffers.append({k: v.clone() for k, v in net.named_buffers()})
        return losses + [net.eval()(_x())]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlanMismatchWarning)
        _same(net, plan, step)
    expected, actual = (list(by_name.values()) for by_name in buffers)
    assert len(expected) == 10 and all(map(torch.equal, actual, expected))


def test_one_warning_a_module_and_none_where_all_is_as_planned() -> None:
    plan = _plan(_operators(_first("addmm")))
    net = apply(_net(), plan)
    with _silent():
        for batch in (2, 2):
            _forward_backward(net, _x(batch))
    _without_dropout(net)
    with pytest.warns(PlanMismatchWarning) as caught:
        for batch in (2, 1):
            _forward_backward(net, _x(batch))
    texts = [str(warning.message) for warning in caught]
    assert [text.split(": ")[0] for text in texts] == list(BLOCKS), texts
    for text in texts:
        assert "the plan expects aten." in text and "are recomputed" in text
        assert "4 of the 4 operators that the plan saves here ran" in text
        # There are four linear layers in float32, with 2 x 3 rows; ReLU overwrites one result.
        assert f"{4 * 6 * (3 * WIDTH + WIDTH + WIDTH):,} bytes are saved" in text


def test_strict_plans_raise() -> None:
    plan = _plan(_operators(_first("addmm")))
    net = apply(_net(), plan, strict=True)
    _forward_backward(net)
    with pytest.raises(AcplanError, match=r"Net.blocks.0: operator \d+ is aten"):
        _forward_backward(_without_dropout(net))


def test_a_cpu_saves_attention_as_planned_for_a_gpu_and_one_warning_a_run_says_so() -> None:
    operators = [
        Op("aten._scaled_dot_product_cudnn_attention.default", True)
        if "attention" in op.name
        else op
        for op in _operators(_first("none"), _without_dropout(_net()).blocks[0].eval())
    ]
    net = apply(_without_dropout(_net()), _plan(operators)).eval()
    warn_of_cpu.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loss = net(_x()).sum()
    (text,) = [str(w.message) for w in caught if w.category is PlanMismatchWarning]
    assert "a CPU runs other kernels" in text and "docs/python/apply.md, On a CPU" in text
    with Names() as names:
        loss.backward()
    forwards = [n for n in names.operators if "attention" in n and "backward" not in n]
    assert not forwards, forwards


def test_plans_on_top_of_checkpoints_are_refused() -> None:
    plan = _plan(_operators(_first("addmm")))
    planned_net = apply(_net(), plan)
    with pytest.raises(AcplanError, match=r"acplan.remove\(model\)"):
        apply(planned_net, plan)
    net = _net()
    net.blocks[0].gradient_checkpointing = True
    with pytest.raises(
        AcplanError, match=r"Net.blocks.0 is on.*gradient_checkpointing_disable\(\)"
    ):
        apply(net, plan)
    net.blocks[0].gradient_checkpointing = False
    apply(net, plan)

    wrapped = _net()
    wrapped.blocks[1] = checkpoint_wrapper(wrapped.blocks[1])
    composed = _net()
    composable(composed.blocks[1])
    patched = _net()
    forward = patched.blocks[1].forward

    def checkpointed(*args: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False)

    patched.blocks[1].forward = checkpointed
    for net in (wrapped, composed, patched):
        with pytest.raises(AcplanError, match="Net.blocks.1 is .*build the model"):
            apply(net, plan)
        assert isinstance(net.blocks[0], Block)


def test_remove_takes_a_plan_back() -> None:
    net = _net()
    expected = _run(copy.deepcopy(net), _forward_backward)
    modules = list(net.modules())
    plan = Plan(
        (
            *_plan(_operators(_first("addmm"))).modules,
            PlannedModule("Net.blocks.1.mlp"),
            PlannedModule("Net"),
        )
    )
    planned_net = apply(net, plan)
    assert planned_net is not net and list(planned_net.state_dict()) == list(
        _net().state_dict()
    )
    planned_net.load_state_dict(_net().state_dict())
    assert remove(planned_net) is net and list(net.modules()) == modules
    assert remove(net) is net
    assert _equal(_run(net, _forward_backward), expected)
    net.zero_grad()
    assert _equal(_run(apply(net, plan), _forward_backward), expected)


def test_units_with_hooks_stay_and_can_be_planned_again() -> None:
    plan = _plan(_operators(_first("addmm")))
    net = apply(_net(), plan)
    calls: list[int] = []
    unit = net.blocks[1]
    unit.register_forward_hook(lambda *_: calls.append(1))
    assert remove(net) is net and net.blocks[1] is unit
    loss = net(_x()).sum()
    assert calls == [1] and isinstance(net.blocks[0], Block)
    with Names() as names:
        loss.backward()
    assert "aten.native_layer_norm.default" not in names.operators
    net.zero_grad()
    assert _equal(_run(apply(net, plan), _forward_backward), _run(_net(), _forward_backward))
    with pytest.raises(AcplanError, match="remove"):
        apply(net, plan)


def test_what_is_saved_is_let_go_of() -> None:
    """Without a cycle, so that memory does not wait for the garbage collector."""
    net = apply(_net(), _plan(_operators(lambda name: True)))
    gc.collect()
    gc.disable()
    try:
        before = _alive()
        loss = net(_x()).sum()
        assert _alive() > before + 10
        del loss
        assert _alive() == before
        _forward_backward(net)
        net.zero_grad()
        assert _alive() == before
    finally:
        gc.enable()


def _alive() -> int:
    return sum(type(thing).__name__ == "Saved" for thing in gc.get_objects())
