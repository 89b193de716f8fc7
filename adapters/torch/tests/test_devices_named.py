"""Steps with more than a model: devices that it names, generators, parameters in the model's
own containers, operators that run otherwise for classes of tensors."""

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import get_device_states, set_device_states

from acplan import Trace, apply, plan, trace, verify


def _body() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))


_X = torch.randn(512, 8, generator=torch.Generator().manual_seed(1))


class _Placed(nn.Module):
    """Makes its masks where an object of its own says that it is."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.body, self.state = _body(), state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.state
        device = state["device"] if isinstance(state, dict) else state.device
        return self.body(x + torch.zeros(8, device=device)).square()


_PLACES: dict[str, Callable[[], Any]] = {
    "attribute": lambda: types.SimpleNamespace(device=torch.device("cpu")),
    "element": lambda: {"device": torch.device("cpu")},
}


@pytest.mark.parametrize("kind", _PLACES)
def test_objects_of_functions_say_where_the_model_is(kind: str) -> None:
    state = _PLACES[kind]()
    model = _Placed(state)

    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x + torch.ones(8, device=torch.device("cpu")).to(_device_of(state))).mean()

    trace(model, _X, forward_fn=step)
    assert _device_of(state) == torch.device("cpu") and model.state is state


def _device_of(state: Any) -> torch.device:
    device = state["device"] if isinstance(state, dict) else state.device
    assert isinstance(device, torch.device)
    return device


class _OfItself(nn.Module):
    """As a LightningModule, whose `device` says where it was moved to."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.place = _body(), torch.device("cpu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x + torch.zeros(8, device=self.place)).square()


def test_an_attribute_of_the_model_says_where_it_is() -> None:
    model = _OfItself()
    trace(model, _X)
    assert model.place == torch.device("cpu")


class _InContainers(nn.Module):
    """Reads parameters and a buffer from a list, a dictionary, a tuple and an object."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scale = _body(), nn.Parameter(torch.ones(8))
        self.register_buffer("shift", torch.ones(8))
        self.weights = [self.body[0].weight]
        self.by_name = {"scale": self.scale, "more": (self.shift,)}
        self.holder = types.SimpleNamespace(weight=self.body[2].weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.linear(self.body(x), self.weights[0])
        x = nn.functional.linear(x, self.holder.weight)
        return (x * self.by_name["scale"] + self.by_name["more"][0]).square()


def test_parameters_in_containers_are_those_of_the_model() -> None:
    model = _InContainers()
    parameters = [model.weights[0], *model.by_name.values(), model.holder.weight]
    traced = trace(model, _X)
    storages = [s for s in traced.data["storages"] if s["category"] == "parameter"]
    assert len(storages) == 5
    assert all(
        a is b
        for a, b in zip(
            parameters, [model.weights[0], *model.by_name.values(), model.holder.weight]
        )
    )
    _is_exact_and_changes_nothing(model, traced)


def _is_exact_and_changes_nothing(model: nn.Module, traced: Trace) -> None:
    expected = _run(model)
    least_plan = plan(traced, "min")
    assert least_plan.modules
    verification = verify(model, least_plan, _X, trace=traced)
    assert verification.first_difference() is None
    assert all(map(torch.equal, expected, _run(apply(model, least_plan))))


def _run(model: nn.Module) -> list[torch.Tensor]:
    """Returns the losses, gradients and buffers of two steps on the CPU."""
    buffers = [b.clone() for b in model.buffers()]
    values = []
    for _ in range(2):
        model.zero_grad()
        loss = model(_X).sum()
        loss.backward()
        values += [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
    values += [b.clone() for b in model.buffers()]
    with torch.no_grad():
        for buffer, before in zip(model.buffers(), buffers):
            buffer.copy_(before)
    return values


@pytest.mark.parametrize("kind", ["list", "tensor"])
def test_ctc_takes_lengths_of_the_host(kind: str) -> None:
    lengths: tuple[Any, Any] = ([6, 5], [3, 2])
    if kind == "tensor":
        lengths = (torch.tensor(lengths[0]), torch.tensor(lengths[1]))
    targets = torch.randint(1, 8, (2, 3))

    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        log_probs = model(x).log_softmax(-1)
        return nn.functional.ctc_loss(log_probs, targets.to(x.device), *lengths)

    x = torch.randn(6, 2, 8)
    names = [o["name"] for o in trace(_body(), x, forward_fn=step).data["operators"]]
    assert any(n.startswith("aten._ctc_loss.") for n in names)
    assert any(n.startswith("aten._ctc_loss_backward.") for n in names)


@pytest.mark.parametrize("values", ["known", "real"])
def test_generators_of_the_device(values: str) -> None:
    before = torch.Generator
    checks = []

    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator(x.device).manual_seed(3)
        checks.append((isinstance(generator, torch.Generator), generator.device == x.device))
        of_host = torch.Generator().manual_seed(3)
        checks.append((type(of_host) is torch._C.Generator, of_host.device.type == "cpu"))
        state = generator.get_state()
        x = x + torch.randn(x.shape, generator=generator, device=x.device)
        generator.set_state(state)
        x = x + torch.empty_like(x).normal_(generator=generator)
        x = x * torch.bernoulli(x.sigmoid(), generator=generator)
        x = x[torch.randperm(len(x), generator=generator, device=x.device)]
        return model(x).mean()

    names = [
        o["name"] for o in trace(_body(), _X, forward_fn=step, values=values).data["operators"]
    ]
    assert checks and all(map(all, checks))
    assert torch.Generator is before
    assert sum(n in _RANDOM for n in names) == 4


_RANDOM = (
    "aten.randn.generator", "aten.normal_.default", "aten.bernoulli.default",
    "aten.randperm.generator",
)  # fmt: skip


def test_checkpoints_by_hand_keep_states_of_the_device() -> None:
    """As GradCache does, also after one on the CPU, of which PyTorch notes the place."""
    model, states = _body(), []

    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        devices_and_states = get_device_states(x)
        states.append((x.device.type, devices_and_states[0]))
        set_device_states(*devices_and_states)
        return model(x).mean()

    step(model, _X).backward()
    trace(model, _X, forward_fn=step)
    step(model, _X).backward()
    assert states[0] == states[-1] == ("cpu", []) and ("cuda", [0]) in states


class _Codes(nn.Module):
    """Nearest codes, which move towards what they stand for, as vector quantisers do."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(8, 8), nn.Linear(8, 32)
        self.register_buffer("codes", torch.randn(5, 8))
        self.register_buffer("counts", torch.ones(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.gelu(self.before(x))
        nearest = torch.cdist(x.detach(), self.codes).argmin(-1)
        one_hot = nn.functional.one_hot(nearest, 5).type(x.dtype)
        quantised = one_hot @ self.codes
        if self.training:
            self.counts.lerp_(one_hot.sum(0), 0.1)
            self.codes.lerp_(one_hot.t() @ x.detach(), 0.1)
        x = x + (quantised - x).detach()
        return nn.functional.gelu(self.after(x)).sigmoid()[:, :8]


class _WithCodes(nn.Module):
    """Has codes as a unit, of which the peak comes later."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.codes, self.last = _body(), _Codes(), _body()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.codes(self.first(x)))


# The CPU's one_hot() looks at its values first, the device's does not.
@pytest.mark.filterwarnings("ignore::acplan.PlanMismatchWarning")
def test_one_hot_codes_run_again_as_in_forward() -> None:
    torch.manual_seed(4)
    model = _WithCodes()
    _is_exact_and_changes_nothing(model, trace(model, _X))
