"""acplan.make_optimizer_state: trainings are bit for bit those without it."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import acplan

pytestmark = pytest.mark.usefixtures("one_thread")

Make = Callable[[Any], torch.optim.Optimizer]


def _make(
    kind: Any, parameters: Any, tensor_lr: float | None = None, **options: Any
) -> torch.optim.Optimizer:
    if tensor_lr is not None:  # schedulers write to it
        options["lr"] = torch.tensor(tensor_lr)
    optimizer: torch.optim.Optimizer = kind(parameters, **options)
    return optimizer


def _optimizers() -> dict[str, Make]:
    optim = torch.optim
    optimizers: dict[str, Make] = {}

    def add(name: str, kind: str, **options: Any) -> None:
        if hasattr(optim, kind):
            optimizers[name] = functools.partial(_make, getattr(optim, kind), **options)

    for kind in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "Adagrad"):
        for foreach in (False, True):
            add(f"{kind} foreach={foreach}", kind, lr=1e-2, weight_decay=0.1, foreach=foreach)
    for kind in ("Adam", "AdamW", "SGD", "Adagrad"):
        momentum = {"momentum": 0.9} if kind == "SGD" else {}
        add(f"{kind} fused", kind, lr=1e-2, fused=True, **momentum)
    add("Adam amsgrad", "Adam", amsgrad=True)
    add("Adam maximize", "Adam", maximize=True)
    add("Adam with a tensor", "Adam", tensor_lr=1e-2, foreach=False)
    add("Adam fused with a tensor", "Adam", tensor_lr=1e-2, fused=True)
    add("Adagrad from 1", "Adagrad", initial_accumulator_value=1)
    add("NAdam decoupled", "NAdam", decoupled_weight_decay=True)
    add("RMSprop", "RMSprop", lr=1e-3)
    add("RMSprop all", "RMSprop", lr=1e-3, momentum=0.9, centered=True, weight_decay=0.1)
    add("SGD", "SGD", lr=1e-2)
    for foreach in (False, True):
        add(f"SGD momentum foreach={foreach}", "SGD", lr=0.1, momentum=0.9, foreach=foreach)
    add("SGD nesterov", "SGD", lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1)
    add("SGD with a tensor", "SGD", tensor_lr=0.1, momentum=0.9)
    add("Adafactor", "Adafactor", lr=1e-2)
    return optimizers


OPTIMIZERS = _optimizers()


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Linear(2, 2)
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(x)).relu().mean((2, 3))
        # Some gradients are -0.0.
        result: torch.Tensor = (
            self.head(self.frozen(x)) * torch.tensor([1, 1, 0, -0.0, 1])
        ).sum()
        return result


def _model() -> _Model:
    torch.manual_seed(0)
    return _Model()


def _train(make: Make, is_made_first: bool, steps: int = 5) -> tuple[nn.Module, Any]:
    """Returns the model after some steps with two groups and a scheduler, and its optimizer."""
    model = _model()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1]},
        {"params": [p for p in model.parameters() if p.dim() <= 1]},
    ]
    if "tensor_lr" not in getattr(make, "keywords", {}):
        groups[1]["lr"] = 3e-3  # type: ignore[assignment]
    optimizer = make(groups)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 5)
    if is_made_first:
        acplan.make_optimizer_state(optimizer)
    inputs = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(2, 3, 6, 6, generator=inputs)
        model(x).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return model, optimizer


def _bits(value: torch.Tensor) -> tuple[Any, ...]:
    value = value.detach()
    layout = (value.dtype, value.shape, value.stride(), value.requires_grad)
    return (*layout, value.contiguous().flatten().view(torch.uint8).tolist())


def _bits_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    states = {
        name: {key: _bits(value) for key, value in optimizer.state[p].items()}
        for name, p in model.named_parameters()
        if p in optimizer.state and not name.startswith("unused")
    }
    return {name: _bits(p) for name, p in model.named_parameters()}, states


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_is_bit_for_bit_the_same(name: str) -> None:
    make = OPTIMIZERS[name]
    for steps in (1, 5):
        expected = _bits_of(*_train(make, False, steps))
        assert _bits_of(*_train(make, True, steps)) == expected
    assert expected[0] != _bits_of(_model(), make(_model().parameters()))[0]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_is_that_of_the_first_step(name: str) -> None:
    model = _model()
    parameters = [p.detach().clone() for p in model.parameters()]
    optimizer = OPTIMIZERS[name](model.parameters())
    acplan.make_optimizer_state(optimizer)
    places_of = {
        p: {key: v.data_ptr() for key, v in s.items()} for p, s in optimizer.state.items()
    }
    _, stepped = _train(OPTIMIZERS[name], False, 1)
    for p, q in zip(model.parameters(), stepped.param_groups[0]["params"][:1]):
        assert {*places_of.get(p, ())} == {*stepped.state[q]}
    # Adagrad makes its state itself, when it is made.
    assert "Adagrad" in name or all(p.requires_grad for p in places_of)
    for p, before in zip(model.parameters(), parameters):
        assert p.grad is None and torch.equal(p, before)
    acplan.make_optimizer_state(optimizer)  # there is nothing to do
    model(torch.ones(1, 3, 4, 4)).backward()
    optimizer.step()
    for p, places in places_of.items():
        assert {key: v.data_ptr() for key, v in optimizer.state[p].items()} == places


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this PyTorch has no Muon")
def test_muon_which_takes_matrices() -> None:
    trained = []
    for is_made_first in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Linear(8, 3, bias=False))
        optimizer = torch.optim.Muon(model.parameters(), lr=1e-2)
        if is_made_first:
            acplan.make_optimizer_state(optimizer)
            assert len(optimizer.state) == 2
        for scale in range(4):
            model(torch.full((2, 4), float(scale))).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        trained.append(_bits_of(model, optimizer))
    assert trained[0] == trained[1]


def test_hooks_and_counters_see_nothing() -> None:
    optimizer = torch.optim.AdamW(_model().parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    steps: list[Any] = []
    optimizer.register_step_pre_hook(lambda *_: steps.append(1))
    optimizer.register_step_post_hook(lambda *_: steps.append(2))
    before = {k: v for k, v in vars(optimizer).items() if k != "state"}
    acplan.make_optimizer_state(optimizer)
    after = {k: v for k, v in vars(optimizer).items() if k != "state"}
    assert not steps and {**before} == {**after}
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        scheduler.step()


class _Results(TorchDispatchMode):
    """The storages of all results of operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: set[int] = set()
        self._alive: list[torch.Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._alive.append(result)
        self.storages.add(result.untyped_storage()._cdata)
        return result


def test_no_memory_but_the_states_is_used() -> None:
    model = nn.Linear(1000, 1000)
    optimizer = torch.optim.AdamW(model.parameters())
    with _Results() as results:
        acplan.make_optimizer_state(optimizer)
    states = {v.untyped_storage()._cdata for s in optimizer.state.values() for v in s.values()}
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    assert results.storages == states | own and len(states) == 6


def test_a_state_that_is_loaded_stays() -> None:
    _, trained = _train(OPTIMIZERS["SGD nesterov"], False)
    model = _model()
    optimizer = OPTIMIZERS["SGD nesterov"](model.parameters())
    optimizer.state[model.head.weight] = {"momentum_buffer": torch.ones(5, 4)}
    acplan.make_optimizer_state(optimizer)
    assert torch.equal(optimizer.state[model.head.weight]["momentum_buffer"], torch.ones(5, 4))
    assert model.head.bias in optimizer.state
    loaded = OPTIMIZERS["SGD nesterov"](trained.param_groups)
    loaded.load_state_dict(trained.state_dict())
    before = _bits_of(_model(), loaded)
    acplan.make_optimizer_state(loaded)
    assert _bits_of(_model(), loaded) == before


class _Own(torch.optim.Adam):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class _Named(torch.optim.Adam):
    """Changes nothing."""


def test_subclasses_that_change_no_step_are_supported() -> None:
    optimizer = _Named(_model().parameters())
    acplan.make_optimizer_state(optimizer)
    assert optimizer.state
    _train(_Named, True, 1)  # PyTorch puts its hooks into the class
    acplan.make_optimizer_state(_Named(_model().parameters()))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (functools.partial(torch.optim.SGD, lr=1, momentum=0.9, dampening=0.1), "dampening"),
        (torch.optim.LBFGS, "LBFGS"),
        (torch.optim.Rprop, "Rprop may make another state"),
        (torch.optim.ASGD, "ASGD"),
        (torch.optim.SparseAdam, "SparseAdam"),
        (_Own, "_Own may"),
        (list, "expected a torch.optim.Optimizer, found list"),
    ],
)
def test_refusals(make: Any, words: str) -> None:
    optimizer = make(_model().head.parameters())
    with pytest.raises(acplan.AcplanError, match=words) as caught:
        acplan.make_optimizer_state(optimizer)
    assert "\n" not in str(caught.value)
    assert not getattr(optimizer, "state", ())


def test_gradients_that_exist_are_refused() -> None:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3, 4, 4)).backward()
    gradient = model.head.weight.grad
    with pytest.raises(acplan.AcplanError, match="before the first backward pass"):
        acplan.make_optimizer_state(optimizer)
    assert model.head.weight.grad is gradient
