"""Things that acplan leaves alone: a model's own state, what it is given, its user's hooks and
modes, other threads, signals."""

import collections
import contextlib
import copy
import dataclasses
import io
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import acplan
from acplan import AcplanError, Plan, PlannedModule
from acplan._compile.compile import partitioner
from acplan._compile.fake_step import compiles_fakes
from acplan._compile.held_memory import optimizer_bytes
from acplan._compile.step_plan import Compilation, StepPlan
from acplan._fakes import restored_state
from left_behind import Block, Case, state_of

compiled_steps = pytest.mark.skipif(not compiles_fakes(), reason="needs PyTorch 2.11")


class Model(nn.Module):
    def __init__(self, takes: Callable[[Any], torch.Tensor] = torch.abs) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.takes = takes

    def forward(self, batch: Any) -> torch.Tensor:
        x = self.takes(batch)
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


@pytest.fixture(autouse=True)
def nothing_is_compiled() -> None:
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def ctrl_c_ends() -> Iterator[None]:
    # Programs that a shell starts in the background ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _x() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(8, 16)


def _compiled(model: Any, budget: Any = "100%", **kwargs: Any) -> Any:
    options = {"blocks": model.blocks, "backend": "aot_eager", "strict": True} | kwargs
    return acplan.compile(model, budget, **options)


def _plan_step(model: Any, *args: Any) -> None:
    planner = partitioner("100%", model=model, strict=True, fused=False)
    planner.plan_step(Compilation(model, tuple(model.blocks), "aot_eager"), args, {})
    assert planner.step_plan is not None


def _is_planned(compiled: Any) -> bool:
    return [type(p) for p in acplan.compiled_plans(compiled)] == [StepPlan]


def _trace(model: nn.Module, *args: Any) -> None:
    acplan.trace(model, *args, workspaces=False)


CALLS = [pytest.param(_plan_step, marks=compiled_steps), _trace]


@pytest.mark.parametrize("call", CALLS)
def test_state_in_containers_and_of_hooks_is_put_back(call: Callable[..., None]) -> None:
    case = Case(lambda _: None)
    before = case.state()
    # Tensors that are kept from step to step are none that a trace takes.
    case.model._note = lambda: case.model.counts["calls"].update(forward=7)
    with contextlib.suppress(AcplanError):
        call(case.model, case.x)
    del case.model._note
    after = case.state()
    # PyTorch changes some of its own at its first compilation.
    own = [k for k in before if k not in _OF_PROCESS and not k.startswith("<")]
    own.remove("noted")
    assert [k for k in own if before[k] != after[k]] == []
    # Hooks note what runs in a step that was asked for.
    assert bool(case.noted) == (call is _trace)


def _step_optimizer(model: nn.Module, _: torch.Tensor) -> None:
    assert optimizer_bytes(model, "adamw") > 0


@pytest.mark.parametrize("call", [*CALLS, _step_optimizer])
def test_what_was_run_before_has_its_backward(call: Callable[..., None]) -> None:
    """Autograd refuses it where a tensor that it has saved counts another version."""
    model, x = Model(), _x().requires_grad_()
    norm = model.blocks[0].norm
    loss = (x * norm.running_mean * norm.weight).sum()
    call(model, _x())
    loss.backward()
    assert norm.weight.grad is not None


class Stubborn(dict[str, int]):
    def clear(self) -> None:
        raise RuntimeError("not this way")


def test_containers_of_classes_of_their_own_are_put_back() -> None:
    model = nn.Linear(2, 2)
    model.own, model.ordered = Stubborn(a=1), collections.OrderedDict(a=1, b=2)
    model.inner = [{1}, [2]]
    with restored_state.state_kept(model):
        model.own["b"] = 2
        model.ordered["c"] = model.ordered.pop("a")
        model.inner[0].add(3)
        model.inner[1].append(4)
        model.other = 5
    assert (model.own, [*model.ordered.items()]) == ({"a": 1}, [("a", 1), ("b", 2)])
    assert model.inner == [{1}, [2]]
    assert not hasattr(model, "other")


_OF_PROCESS = ("files", "descriptors", "threads")


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    hidden: Any = None


def _of_batch(batch: Batch) -> torch.Tensor:
    batch.hidden = 2 * batch.x
    return batch.hidden


def _of_dict(batch: Any) -> torch.Tensor:
    batch["hidden"] = 2 * batch["x"]
    return batch["hidden"]


@pytest.mark.parametrize("call", CALLS)
def test_what_a_model_is_given_is_left(call: Callable[..., None]) -> None:
    batch = Batch(_x())
    call(Model(_of_batch), batch)
    assert type(batch.x) is torch.Tensor
    assert batch.hidden is None
    items = collections.UserDict(x=_x())
    call(Model(_of_dict), items)
    assert [*items] == ["x"]


def _sum(parts: Any) -> torch.Tensor:
    return torch.stack([*parts]).sum(0)


@compiled_steps
def test_what_can_be_read_once_is_left_to_the_model() -> None:
    expected = Model(_sum)([_x(), _x()])
    compiled = _compiled(Model(_sum), strict=False)
    with pytest.warns(UserWarning, match="generator, which can be read only once"):
        actual = compiled(x for x in [_x(), _x()])
    torch.testing.assert_close(actual, expected)
    with pytest.raises(AcplanError, match="list_iterator, which can be read only once"):
        acplan.trace(Model(_sum), iter([_x(), _x()]))


@compiled_steps
def test_copies_of_compiled_models_are_models() -> None:
    compiled = _compiled(Model())
    copied = copy.deepcopy(compiled)
    copied(_x()).backward()
    # It is not compiled, and plans nothing of the original.
    assert acplan.compiled_plans(compiled) == ()
    file = io.BytesIO()
    torch.save(compiled, file)
    file.seek(0)
    with pytest.raises(AcplanError, match="expected what acplan.compile returns"):
        acplan.compiled_plans(torch.load(file, weights_only=False))
    compiled(_x())
    assert _is_planned(compiled)


class Ending(Model):
    """Ends its first step in its midst."""

    error: BaseException | None = None

    def forward(self, batch: Any) -> torch.Tensor:
        x = self.blocks[0](batch)
        if self.error is not None:
            raise self.error
        return self.blocks[1](x).square().mean()


@compiled_steps
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("by its own")])
def test_a_step_that_was_not_planned_is_planned_again(error: BaseException) -> None:
    model = Ending()
    compiled = _compiled(model)
    model.error = error
    for _ in range(2):
        with pytest.raises(type(error)):
            compiled(_x())
    model.error = None
    compiled(_x()).backward()
    assert _is_planned(compiled)


@compiled_steps
def test_a_model_without_gradients_is_planned_when_it_has_some() -> None:
    model = Model().requires_grad_(False)
    compiled = _compiled(model)
    compiled(_x())
    model.requires_grad_(True)
    compiled(_x()).backward()
    assert _is_planned(compiled)


@compiled_steps
def test_steps_on_fakes_do_not_count_towards_limits_of_compilations() -> None:
    with torch._dynamo.config.patch(recompile_limit=4, fail_on_recompile_limit_hit=True):
        for budget in ("100%", "99%"):
            compiled = _compiled(Model(), budget, strict=False)
            with warnings.catch_warnings(action="ignore"):
                compiled(_x()).backward()
            assert _is_planned(compiled)


@compiled_steps
def test_marks_of_sizes_are_taken_over() -> None:
    compiled, x = _compiled(Model()), _x()
    torch._dynamo.mark_dynamic(x, 0)
    compiled(x).backward()
    assert _is_planned(compiled)


class Checkpointing(Model):
    def forward(self, x: Any) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x.square().mean()


@compiled_steps
def test_a_checkpoint_around_graphs_is_no_step_that_is_planned_as_one() -> None:
    with pytest.raises(AcplanError, match="graphs run forward in backward"):
        _compiled(Checkpointing())(_x())


def test_hooks_and_modes_of_the_user_see_nothing() -> None:
    tensors: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        tensors.append(tensor)
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    expected = acplan.trace(Model(), _x()).peak_bytes
    with hooks, FlopCounterMode(display=False) as flops:
        assert acplan.trace(Model(), _x()).peak_bytes == expected
        if compiles_fakes():
            _plan_step(Model(), _x())
    assert flops.get_total_flops() == 0
    assert tensors == []


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_step_is_one_with_gradients(mode: Callable[[], Any]) -> None:
    model, x = Model(), _x()
    expected = acplan.trace(model, x).data
    with mode():
        assert acplan.trace(model, x).data["operators"] == expected["operators"]


def _said_of_cuda() -> tuple[Any, ...]:
    cudnn = torch.backends.cudnn
    return (
        torch.cuda.is_available(),
        torch.version.cuda,
        torch.version.hip,
        cudnn.is_available(),
        cudnn.version(),
    )


def test_other_threads_have_pytorch_as_it_is() -> None:
    expected, kind = _said_of_cuda(), type(torch.version)
    answers: list[Any] = []

    def look() -> None:
        fake = torch._subclasses.FakeTensorMode().from_tensor(torch.empty(2))
        with_dispatch = torch._C._dispatch_keys(fake).has(torch._C.DispatchKey.Python)
        answers.append((_said_of_cuda(), with_dispatch))

    def loss(value: torch.Tensor) -> torch.Tensor:
        assert torch.cuda.is_available() and torch.version.cuda
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return value

    acplan.trace(Model(), _x(), loss_fn=loss)
    assert {*answers} == {(expected, True)}
    assert _said_of_cuda() == expected and type(torch.version) is kind


@pytest.mark.parametrize("call", CALLS)
def test_a_signal_waits_until_the_model_is_what_it_was(
    call: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_back, came = restored_state._put_back, []

    def interrupted(*args: Any) -> None:
        if not came:
            came.append(1)
            os.kill(os.getpid(), signal.SIGINT)
        put_back(*args)

    monkeypatch.setattr(restored_state, "_put_back", interrupted)
    model = Model()
    before = state_of(model)
    with pytest.raises(KeyboardInterrupt):
        call(model, _x())
    after = state_of(model)
    names = [name for name in before if name.startswith(("tensor", "blocks", "signals"))]
    assert [before[name] for name in names] == [after[name] for name in names]


def test_a_signal_ends_a_trace_at_its_next_operator() -> None:
    events: list[str] = []

    def interrupt(value: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGINT)
        events.append("the signal")
        value = value.exp()
        events.append("what comes after the next operator")
        return value

    with pytest.raises(KeyboardInterrupt):
        acplan.trace(Model(), _x(), loss_fn=interrupt)
    assert events == ["the signal"]


class Refusing(nn.Sequential):
    """Takes another first module, and no second one."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "1":
            raise RuntimeError("there is no other")
        super().__setattr__(name, value)


def test_apply_does_all_or_nothing() -> None:
    model = Refusing(nn.Linear(4, 4), nn.Linear(4, 4))
    plan = Plan((PlannedModule("Refusing.0"), PlannedModule("Refusing.1")))
    before = [*model]
    with pytest.raises(RuntimeError, match="there is no other"):
        acplan.apply(model, plan)
    assert all(now is then for now, then in zip(model, before, strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": "abc"}, "budget: expected bytes, a size"),
        ({"budget": -1}, "budget: expected bytes, a size"),
        ({"budget": True}, "budget: expected bytes or a size"),
        ({"budget": "0%"}, "budget: expected bytes, a size"),
        ({"budget": "60%", "time_limit": -1}, "time_limit: expected at least 0 seconds"),
        ({"budget": "60%", "time_limit": "1"}, "time_limit: expected at least 0 seconds"),
        ({"budget": "60%", "optimizer": "adamv"}, "optimizer: expected one of"),
    ],
)
def test_wrong_values_are_told_before_anything_is_compiled(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(AcplanError, match=message):
        acplan.compile(Model(), **options)


def test_what_is_compiled_already_is_refused() -> None:
    with pytest.raises(AcplanError, match="compiled already"):
        acplan.compile(torch.compile(Model()), "60%")
