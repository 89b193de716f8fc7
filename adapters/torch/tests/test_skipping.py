"""Plans that skip operators: gradients bit for bit, what runs again, and what is refused.
A step on the CPU is recorded on the CPU, as its kernels are others than a GPU's."""

import copy
import functools
import inspect
import itertools
import pathlib
import random
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from acplan import AcplanError, Plan, PlanMismatchWarning, PlannedModule, apply, trace
from acplan import PlannedOperator as Op
from acplan._base import kv_caches
from acplan._base.stand_ins import StandIn
from acplan._step.training_step import default_loss
from acplan._verify.verify import verifying
from architectures import architectures
from random_steps import legal_plan, outcome, require_equal_outcomes
from sharding_cases import Names, operators_of
from skipping import Unit, plan_by_chance, recorded_step, shares, units_by_chance
from test_never_ends import STEPS, Counting, _forward_backward, _net, _x
from zoo import EXAMPLES

_ARCHITECTURES = (
    "albert", "bart", "deberta_v2", "deepseek_v3", "distilbert", "electra", "falcon",
    "llava", "longformer", "mamba", "mistral", "opt", "roberta", "wav2vec2",
)  # fmt: skip
_MODELS = (*EXAMPLES, *_ARCHITECTURES)


pytestmark = pytest.mark.usefixtures("one_thread")


def _model(name: str) -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    if name in EXAMPLES:
        example = EXAMPLES[name]()
        return example.make().train(), example.inputs()
    architecture = architectures()[name]
    inputs = next(iter(architecture.variants.values()))
    model = architecture.make().train()
    # As apply does.
    kv_caches.switch_off(model)
    return model, inputs()


def _loss(model: nn.Module, inputs: dict[str, Any], autocast: bool) -> torch.Tensor:
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        return default_loss(model(**inputs))


def _step(model: nn.Module, inputs: dict[str, Any], autocast: bool) -> list[torch.Tensor]:
    """Returns all that a step leaves behind, and the random numbers after it."""
    loss = _loss(model, inputs, autocast)
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    return [loss.detach(), torch.rand(3), *gradients, *model.buffers()]


@pytest.mark.parametrize("name", _MODELS)
def test_gradients_are_equal_with_any_legal_plan(name: str) -> None:
    model, inputs = _model(name)
    autocast = _MODELS.index(name) % 3 == 2
    if name in _ARCHITECTURES:
        _step(model, inputs, autocast)  # makes what later steps find
        model.zero_grad()
    expected = _step(copy.deepcopy(model), inputs, autocast)
    data = recorded_step(copy.deepcopy(model), lambda net: _loss(net, inputs, autocast))
    for seed in range(2):
        chance = random.Random(seed)
        plan = plan_by_chance(data, units_by_chance(data, chance), chance)
        assert sum(skips for _, _, skips in shares(plan)) > 0
        # A plan that is not followed raises, and what reads a stand-in.
        actual = _step(apply(copy.deepcopy(model), plan, strict=True), inputs, autocast)
        assert len(actual) == len(expected)
        assert all(map(torch.equal, actual, expected)), seed


class _ByKeywords(nn.Module):
    """Gives all arguments by keyword."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.names = [*inspect.signature(inner.forward).parameters]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(**dict(zip(self.names, args)), **kwargs)


def test_units_that_are_called_with_keywords_and_draw() -> None:
    """Blocks of T5, the dropouts of which are decided one by one."""
    model, inputs = _model("t5")
    paths = []
    for stack in ("encoder", "decoder"):
        for name, block in [*model.get_submodule(stack).block.named_children()]:
            model.get_submodule(stack).block[int(name)] = _ByKeywords(block)
            paths.append(f"{stack}.block.{name}.inner")
    expected = _step(copy.deepcopy(model), inputs, False)
    data = recorded_step(copy.deepcopy(model), lambda net: _loss(net, inputs, False))
    units = [Unit(data, f"{type(model).__name__}.{path}") for path in paths]
    mixed = 0
    for seed in range(4):
        chance = random.Random(seed)
        saved = [_saved_by_chance(unit, chance) for unit in units]
        plan = Plan(tuple(map(Unit.planned_module, units, saved)))
        for module in plan.modules:
            draws = [op.decision for op in module.operators if "bernoulli" in op.name]
            assert len(draws) > 3
            mixed += len({*draws}) > 1
        actual = _step(apply(copy.deepcopy(model), plan, strict=True), inputs, False)
        assert len(actual) == len(expected)
        assert all(map(torch.equal, actual, expected)), seed
    assert mixed > 3


def _saved_by_chance(unit: Unit, chance: random.Random) -> set[int]:
    """Returns operators to save, those of a dropout together: they write to one mask."""
    saved = {k for k in range(len(unit.names)) if unit.can_save(k) and chance.random() < 0.3}
    for place, name in enumerate(unit.names):
        if "bernoulli_" in name and chance.random() < 0.5:
            saved |= {place - 1, place, place + 1}
    return saved


@pytest.mark.parametrize(
    ("name", "autocast"),
    [(name, None) for name in ("unet", "writing", "noted", "shared", "resnet")]
    + [(name, torch.bfloat16) for name in ("gpt2", "custom", "shared")],
)
def test_predicted_is_measured_at_every_operator(
    name: str, autocast: torch.dtype | None
) -> None:
    model, inputs = EXAMPLES[name]().on_meta()
    options: dict[str, Any] = {"optimizer": "sgd", "autocast": autocast, **inputs}
    traced = trace(model, **options)
    names_without_plan = [operator["name"] for operator in traced.data["operators"]]
    with verifying(model, model_trace=traced, **options) as verified:
        for seed in range(3):
            chance = random.Random(seed)
            units = units_by_chance(traced.data, chance)
            plan = plan_by_chance(traced.data, units, chance)
            assert sum(skips for _, _, skips in shares(plan)) > 0
            result = verified(plan)
            assert result.first_difference() is None, result
            everything = sum(len(module.operators) for module in plan.modules)
            assert len(result.measured) < len(names_without_plan) + everything


# --- Units of a few operators


class Unit1(nn.Module):
    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.run = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self, x)


class Model(nn.Module):
    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.unit = Unit1(forward)

    def forward(self, x: torch.Tensor) -> Any:
        return self.unit(self.first(x))


_X = torch.linspace(-1, 1, 12).view(3, 4)


def _values(model: nn.Module) -> list[torch.Tensor]:
    torch.manual_seed(1)
    out = model(_X)
    (out if isinstance(out, torch.Tensor) else sum(out)).sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def _with_decisions(
    forward: Callable[..., Any],
    skips: Sequence[str] = (),
    saves: dict[str, tuple[int, ...] | None] | None = None,
    strict: bool = True,
) -> nn.Module:
    """Applies decisions by the names of operators, `mm.default`, or by these with an
    occurrence: `mm.default 1`."""
    torch.manual_seed(0)
    model = Model(forward)
    counts: Counter[str] = Counter()
    saves = saves or {}
    operators = []
    for full in operators_of(model.unit, _X):
        name = full.removeprefix("aten.")
        names = {name, f"{name} {counts[name]}"}
        counts[name] += 1
        results = [saves[n] for n in names if n in saves]
        operators.append(Op(full, bool(results), bool(names & {*skips}), *results[:1]))
    assert {*skips, *saves} <= {*counts} | {f"{n} {k}" for n in counts for k in range(9)}
    plan = Plan((PlannedModule("Model.unit", tuple(operators)),))
    return apply(model, plan, strict=strict)


def _same(
    forward: Callable[..., Any],
    skips: Sequence[str] = (),
    saves: dict[str, tuple[int, ...] | None] | None = None,
) -> list[str]:
    """Asserts that values are equal, and returns what runs in backward."""
    torch.manual_seed(0)
    expected = _values(Model(forward))
    actual = _values(_with_decisions(forward, skips, saves))
    assert len(actual) == len(expected) > 2
    assert all(map(torch.equal, actual, expected))
    model = _with_decisions(forward, skips, saves)
    torch.manual_seed(1)
    out = model(_X)
    with Names() as names:
        (out if isinstance(out, torch.Tensor) else sum(out)).sum().backward()
    return [name.removeprefix("aten.") for name in names.operators]


def test_a_skipped_operator_does_not_run() -> None:
    def forward(unit: Unit1, x: torch.Tensor) -> torch.Tensor:
        return (unit.linear(x) + 1).sin().exp()

    assert "addmm.default" in _same(forward, saves={"exp.default": None})
    reruns = _same(
        forward,
        ["addmm.default", "sin.default"],
        {"add.Tensor": None, "exp.default": None},
    )
    assert not {"addmm.default", "sin.default", "exp.default"} & {*reruns}


def test_of_a_saved_operator_some_results_are_kept() -> None:
    def forward(unit: Unit1, x: torch.Tensor) -> torch.Tensor:
        return unit.norm(x).sigmoid()

    name = "native_layer_norm.default"
    reruns = _same(forward, (), {name: (1, 2), "sigmoid.default": None})
    assert name not in reruns and "sigmoid.default" not in reruns
    with pytest.raises(AcplanError, match="sigmoid.default needs what operator 0, aten"):
        _values(_with_decisions(forward, (), {name: (1, 2)}))

    def most(unit: Unit1, x: torch.Tensor) -> torch.Tensor:
        values, places = unit.linear(x).max(-1)
        return values.sum() + places.sum()

    skips = ["addmm.default", "sum.default", "add.Tensor"]
    assert "max.dim" not in _same(most, skips, {"max.dim": (1,)})
    with pytest.raises(AcplanError, match="scatter|needs what operator 2, aten.max.dim"):
        _values(_with_decisions(most, skips, {"max.dim": (0,)}))


def _read_by(what: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
    def forward(unit: Unit1, x: torch.Tensor) -> torch.Tensor:
        y = unit.linear(x)
        with torch.no_grad():
            what(y * 2)
        return y.sin().cos()

    return forward


@pytest.mark.parametrize(
    ("what", "reader"),
    [
        (lambda y: y.exp(), "aten.exp.default"),
        (lambda y: y.view(-1)[0].item(), "aten._local_scalar_dense.default"),
        (lambda y: y.add_(1), "aten.add_.Tensor"),
        (lambda y: torch.zeros(3, 4).copy_(y), "aten.copy_.default"),
        (lambda y: torch.stack([y, y]), "aten.stack.default"),
    ],
)
def test_what_reads_a_stand_in_is_refused(what: Any, reader: str) -> None:
    message = rf"Model.unit: {reader} needs what operator 2, aten.mul.Tensor, made"
    with pytest.raises(AcplanError, match=message):
        _values(_with_decisions(_read_by(what), ["mul.Tensor"]))


@pytest.mark.parametrize(
    "what",
    [
        lambda y: y.numpy(),
        lambda y: y.tolist(),
        lambda y: y.data_ptr(),
        lambda y: numpy.asarray(y),
        lambda y: y.__dlpack__(),
    ],
)
def test_a_unit_that_reads_one_past_the_dispatcher_skips_nothing(what: Any) -> None:
    assert "mul.Tensor" in _same(_read_by(what), ["mul.Tensor"])


def test_so_is_a_backward_node() -> None:
    def forward(unit: Unit1, x: torch.Tensor) -> torch.Tensor:
        return unit.linear(x).sin().cos()

    message = "Model.unit: aten.sin.default needs what operator 2, aten.sin.default, made"
    with pytest.raises(AcplanError, match=message):
        _values(_with_decisions(forward, ["sin.default", "cos.default"]))


def test_what_is_shown_of_a_stand_in() -> None:
    values = []

    def show(y: torch.Tensor) -> None:
        facts = (y.shape, y.stride(), y.dtype, y.device, y.is_contiguous(), y.numel())
        values.append((*facts, y.is_floating_point()))
        repr(y) if isinstance(y, StandIn) else y

    reruns = _same(_read_by(lambda y: show(y.t())), ["mul.Tensor", "t.default 1"])
    assert len(values) > 3 and len(set(values)) == 1 and "mul.Tensor" not in reruns[:4]


def test_views_of_what_is_absent_are_absent() -> None:
    """The plan may skip the views or run them again."""

    def forward(unit: Unit1, x: torch.Tensor) -> torch.Tensor:
        y = unit.linear(x) * 3
        parts = y.view(4, 3).transpose(0, 1).unbind()
        z = torch.cat([p.unsqueeze(0)[..., :2] for p in parts]).expand(3, 2)
        return z.sum() + unit.linear(x).exp()

    sources = ["mul.Tensor", "cat.default", "sum.default"]
    views = ["unbind.int", "expand.default", "view.default"]
    for skips in (sources, [*sources, *views]):
        reruns = _same(forward, skips)
        assert "cat.default" not in reruns and "unbind.int" not in reruns
    assert "cat.default" in _same(forward)


def test_a_number_that_forward_saw_is_handed_out() -> None:
    def forward(unit: Unit1, x: torch.Tensor) -> torch.Tensor:
        y = unit.linear(x)
        scale = (y * 2).sum().item()
        return (y * scale).sin()

    reruns = _same(forward, ["mul.Tensor 0", "sum.default", "_local_scalar_dense.default"])
    assert "_local_scalar_dense.default" not in reruns


def test_dropouts_are_decided_one_by_one() -> None:
    own = torch.Generator()

    def forward(unit: Unit1, x: torch.Tensor) -> torch.Tensor:
        own.manual_seed(7)
        y = unit.linear(x)
        for _ in range(3):
            y = y + torch.rand_like(y) * torch.rand(y.shape, generator=own)
            y = F.dropout(y, 0.5).sin()
        return y

    draws = ("rand_like.default", "rand.generator", "bernoulli_.float")
    chance = random.Random(0)
    names = operators_of(Model(forward).unit, _X)
    count = {name: sum(name in full_name for full_name in names) for name in draws}
    assert count == dict.fromkeys(draws, 3)
    for _ in range(12):
        saves: dict[str, tuple[int, ...] | None] = {
            f"{name} {k}": None for name in draws[:2] for k in range(3) if chance.random() < 0.5
        }
        _same(forward, (), saves)

    # The last but one adds what nobody needs again; the others draw as they did.
    def scaled(unit: Unit1, x: torch.Tensor) -> torch.Tensor:
        y = unit.linear(x)
        (y + torch.rand_like(y)).sum()
        torch.rand(2, generator=own.manual_seed(3))
        return y * torch.rand_like(y) * torch.rand(3, 4, generator=own)

    reruns = _same(
        scaled, ["rand_like.default 0", "add.Tensor", "sum.default", "rand.generator 0"]
    )
    assert reruns.count("rand_like.default") == reruns.count("rand.generator") == 1


def test_what_writes_in_place_and_is_skipped_returns_its_argument() -> None:
    def forward(unit: Unit1, x: torch.Tensor) -> torch.Tensor:
        y = unit.linear(x)
        z = (y * 2).add_(1)
        assert z.mul_(3) is z
        z.view(-1)[:4].zero_()
        z += 1
        return y.exp() + z.sum()

    skips = ["mul.Tensor", "add_.Tensor", "mul_.Tensor", "zero_.default", "sum.default"]
    reruns = _same(forward, skips)
    assert not {"mul_.Tensor", "zero_.default", "add_.Tensor"} & {*reruns}
    _same(forward, [*skips, "view.default", "slice.Tensor"])


def test_memory_that_is_not_written_to_again_is_not_read() -> None:
    """Where it is made again, and the write is skipped."""

    def noise(unit: Unit1, x: torch.Tensor) -> torch.Tensor:
        mask = torch.empty_like(x).detach().bernoulli_(0.5)
        return unit.linear(x) * mask

    message = "mul.Tensor needs what operator 1, aten.bernoulli_.float, made"
    with pytest.raises(AcplanError, match=message):
        _values(_with_decisions(noise, ["bernoulli_.float"]))

    def twice(unit: Unit1, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x + 1
            z = y.exp()
            y.view(-1)[::2].mul_(3)
            w = y.cos()
        return unit.linear(x) * (z + w)

    for views in ([], ["view.default", "slice.Tensor"]):
        with pytest.raises(AcplanError, match="cos.default needs what operator 4, aten.m"):
            _values(_with_decisions(twice, ["mul_.Tensor", *views]))
        # Only what comes before it needs that memory.
        reruns = _same(twice, ["mul_.Tensor", *views], {"cos.default": None})
        assert "mul_.Tensor" not in reruns and "exp.default" in reruns


def test_a_write_to_what_is_saved_makes_all_run_again() -> None:
    def forward(unit: Unit1, x: torch.Tensor) -> torch.Tensor:
        y = unit.linear(x)
        z = y.exp()
        y.mul_(2)
        return z.sin() + y.sum()

    saves: dict[str, tuple[int, ...] | None] = {"addmm.default": None}
    with pytest.raises(
        AcplanError, match="mul_.Tensor writes to memory of a result that the plan saves"
    ):
        _values(_with_decisions(forward, ["mul_.Tensor", "sum.default"], saves))
    torch.manual_seed(0)
    expected = _values(Model(forward))
    with pytest.warns(PlanMismatchWarning, match="skipped operators are recomputed"):
        model = _with_decisions(forward, ["mul_.Tensor", "sum.default"], saves, strict=False)
        assert all(map(torch.equal, _values(model), expected))


class _Twice(torch.autograd.Function):
    """Two results, and a number kept by itself."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(x)
        ctx.most = x.max().item()
        return x * 2, x.exp()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] * 2 * ctx.most + gradients[1] * x.exp()


def test_autograd_functions_with_several_results() -> None:
    def forward(unit: Unit1, x: torch.Tensor) -> torch.Tensor:
        a, b = _Twice.apply(unit.linear(x))
        return a.sum() + b.view(-1).unsqueeze(0)

    skips = ["mul.Tensor", "exp.default", "max.default", "sum.default", "view.default"]
    reruns = _same(forward, [*skips, "_local_scalar_dense.default", "add.Tensor"])
    assert "max.default" not in reruns


def test_buffers_are_written_to_once() -> None:
    for skips in ([], ["batch"], ["batch", "lerp_", "add_", "mean"]):
        net = _net(Counting)
        expected = copy.deepcopy(net)
        loss = _forward_backward(expected)
        data = recorded_step(_net(Counting), lambda net: net(_x()).square().mean())
        names = Unit(data, "Net.blocks.1").names
        operators = tuple(
            Op(n, "batch_norm" in n, any(s in n for s in skips) and "batch_norm" not in n)
            for n in names
        )
        net = _net(Counting)
        plan = Plan((PlannedModule("Net.blocks.1", operators),))
        assert torch.equal(loss, _forward_backward(apply(net, plan, strict=True)))
        for a, b in zip(expected.buffers(), net.buffers(), strict=True):
            assert torch.equal(a, b)
        for a, b in zip(expected.parameters(), net.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)


# --- Steps that were not planned


@pytest.mark.filterwarnings("ignore::acplan.PlanMismatchWarning")
@pytest.mark.parametrize("name", STEPS)
def test_steps_that_were_not_planned(name: str) -> None:
    expected = outcome(_net(), STEPS[name])
    for seed in range(4):
        actual = outcome(apply(_net(), legal_plan(_net(), seed)), STEPS[name])
        assert len(actual) == len(expected) and all(map(torch.equal, actual, expected))


@pytest.mark.filterwarnings("ignore::acplan.PlanMismatchWarning")
@pytest.mark.parametrize("seed", range(3))
def test_random_modules_and_steps(seed: int) -> None:
    chance = random.Random(seed)
    count = 0
    for _ in range(12):
        plan = require_equal_outcomes(chance)
        count += sum(unit[2] for unit in shares(plan))
    assert count > 20


class _Caching(nn.Module):
    """Runs other operators when it runs again, after some that are the same, by a count
    that nobody can put back."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.calls = itertools.count(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (self.linear(x) + 1).sin() * torch.rand_like(x)
        z = F.dropout(y, 0.5).exp()
        if next(self.calls) % 2 == 0:
            y = y.clone()
        return z * y + F.dropout(y, 0.5)


def test_a_recomputation_that_runs_otherwise_begins_again() -> None:
    net = functools.partial(_net, _Caching)
    data = recorded_step(net(), lambda net: net(_x()).square().mean())
    unit = Unit(data, "Net.blocks.1")
    expected = outcome(net(), _forward_backward)
    place = {name: k for k, name in enumerate(unit.names)}
    for saved in ({place["aten.sin.default"]}, {place["aten.mul.Tensor"]}, set()):
        plan = Plan((unit.planned_module(saved),))
        assert any(operator.skip for operator in plan.modules[0].operators)
        planned_net = net()
        actual = outcome(apply(planned_net, plan, strict=True), _forward_backward)
        assert all(map(torch.equal, actual, expected)) and len(actual) == len(expected)
        # Where something was skipped before, a third time.
        assert next(planned_net.blocks[1]._checkpoint_wrapped_module.calls) in (4, 5)


def test_units_in_units() -> None:
    net = _net()
    data = recorded_step(copy.deepcopy(net), lambda net: net(_x()).float().square().mean())
    expected = outcome(_net(), _forward_backward)
    chance = random.Random(0)
    for _ in range(8):
        outer, inner = Unit(data, "Net.blocks.1"), Unit(data, "Net.blocks.1.mlp")
        saved = {k for k in range(len(inner.names)) if chance.random() < 0.5}
        inner_module = inner.planned_module({k for k in saved if inner.can_save(k)})
        plan = Plan(
            (
                outer.planned_module(set()),
                chance.choice([inner_module, PlannedModule(inner.fqn)]),
            )
        )
        actual = outcome(apply(_net(), plan, strict=True), _forward_backward)
        assert len(actual) == len(expected) and all(map(torch.equal, actual, expected))


@pytest.mark.filterwarnings("ignore::acplan.PlanMismatchWarning")
def test_compiled_units_leave_it_to_the_compiler() -> None:
    torch._dynamo.reset()
    net = _net().eval()
    plan = legal_plan(net, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = outcome(copy.deepcopy(net), _forward_backward)
        compiled = torch.compile(apply(net, plan), backend="aot_eager")
        actual = outcome(compiled, _forward_backward)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b)


# --- Plan files


def test_plan_files(tmp_path: pathlib.Path) -> None:
    operators = (
        Op("aten.mm.default", True, results=()),
        Op("aten.native_layer_norm.default", True, results=(0, 2)),
        Op("aten.add.Tensor", False, skip=True),
        Op("aten.sin.default", False),
        Op("aten.cos.default", True),
    )
    plan = Plan((PlannedModule("Net.a", operators),))
    plan.save(tmp_path / "plan.json", model="Net")
    assert Plan.load(tmp_path / "plan.json").modules == plan.modules


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (
            {"decision": "keep"},
            "expected a decision of save, recompute, skip, offload, found 'k",
        ),
        (
            {"decision": "skip", "results": [0]},
            "expected places of results of a saved operator",
        ),
        ({"decision": "save", "results": [1, 0]}, r"ascending from 0, found \[1, 0\]"),
        ({"decision": "save", "results": [-1]}, r"from 0, found \[-1\]"),
        ({"decision": "save", "results": 1}, "expected whole numbers, found 1"),
        ({"decision": "save", "results": [True]}, r"whole numbers, found \[True\]"),
    ],
)
def test_wrong_decisions_are_refused(op: dict[str, Any], message: str) -> None:
    module = {"fqn": "Net.a", "ops": [{"name": "aten.mm.default", **op}]}
    data = {"format": "acplan.plan", "version": 1, "status": "optimal"}
    with pytest.raises(AcplanError, match=message):
        Plan.from_data({**data, "modules": [module]})
    with pytest.raises(AcplanError, match="both saved and skipped"):
        Op("aten.mm.default", True, skip=True)
