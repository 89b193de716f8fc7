"""Steps in which what is computed decides what runs."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from acplan import AcplanError, PlanMismatchWarning, apply, plan, trace, verify
from acplan._device.devices import find_device
from acplan._fakes.real_values import Limits
from acplan._fakes.tensor_values import value_of
from acplan._step.step import step_on_fakes
from acplan._step.training_step import TrainingStep
from steps_by_values import MODELS


def _loss(output: torch.Tensor) -> torch.Tensor:
    return output


def _run(model: nn.Module, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    """Returns the loss, gradients and buffers of a step on the CPU, and the next random
    number."""
    torch.manual_seed(5)
    loss = model(*inputs)
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [loss.detach(), *gradients, *model.buffers(), torch.rand(1)]


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_is_exact_and_changes_nothing(name: str) -> None:
    torch.manual_seed(1)
    model, inputs = MODELS[name]()
    how: dict[str, Any] = {"loss_fn": _loss, "optimizer": "sgd"}
    before = copy.deepcopy(model.state_dict())
    traced = trace(model, *inputs, workspaces=False, **how)
    assert traced.has_real_values and traced.notes
    expected = _run(copy.deepcopy(model), inputs)
    least = plan(traced, "min", time_limit=1)
    trial_plans = [least]
    if list(MODELS).index(name) % 3 == 0:
        between = int(least.peak_bytes * 0.4 + traced.peak_bytes * 0.6)
        trial_plans.append(plan(traced, between, time_limit=1))
    for trial_plan in trial_plans:
        verification = verify(model, trial_plan, *inputs, trace=traced, **how)
        assert verification.first_difference() is None
        with warnings.catch_warnings():
            # The CPU's dropout is none of the device's.
            drops = any(isinstance(m, nn.Dropout) for m in model.modules())
            warnings.simplefilter("ignore" if drops else "error", PlanMismatchWarning)
            actual = _run(apply(copy.deepcopy(model), trial_plan), inputs)
        assert all(map(torch.equal, expected, actual)) and len(expected) == len(actual)
    after = model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_step_that_asks_nothing_is_the_same_with_real_values() -> None:
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
    model = nn.Sequential(nn.Conv1d(6, 6, 3, padding=1), nn.BatchNorm1d(6), layer)
    how: dict[str, Any] = {"accumulate": 2, "grad_scaler": True, "autocast": "fp16"}
    fake, real = (trace(model, _x, **how, values=v).data for v in ("known", "real"))
    assert real.pop("values") == "real" and "values" not in fake
    assert real.pop("notes") and not fake.pop("notes")
    assert real == fake


class _Attending(nn.Module):
    """Attention with more heads of queries than of keys; heads of 16 for kernels of the
    device."""

    def __init__(self, is_causal: bool, groups: int = 1) -> None:
        super().__init__()
        self.of_query, self.of_others = nn.Linear(16, 64), nn.Linear(16, 128 // groups)
        self.is_causal, self.groups = is_causal, groups

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        def heads(t: torch.Tensor) -> torch.Tensor:
            return t.unflatten(-1, (-1, 16)).transpose(1, 2)

        query = heads(self.of_query(x))
        key, value = map(heads, self.of_others(x).chunk(2, -1))
        return nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=self.is_causal,
            enable_gqa=self.groups > 1,
        ).square()  # fmt: skip


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.inner = kind(16, 8, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.inner(x)
        if isinstance(self.inner, (nn.LSTMCell, nn.GRUCell)):
            return out[0] if isinstance(out, tuple) else self.inner(x, out)
        hidden = out[1] if isinstance(out[1], torch.Tensor) else out[1][1]
        return out[0].square().sum() + hidden.sum()


class _OnPacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(16, 8, bidirectional=True, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = torch.tensor([5, 6, 2])
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        out = nn.utils.rnn.pad_packed_sequence(self.inner(packed)[0], batch_first=True)
        return out[0].square()


_x = torch.randn(3, 6, 16, generator=torch.Generator().manual_seed(2))
_bias = torch.randn(3, 1, 6, 6, generator=torch.Generator().manual_seed(3))
KERNELS: dict[str, Any] = {
    "flash": lambda: (_Attending(True).bfloat16(), (_x.bfloat16(),)),
    "flash_groups": lambda: (_Attending(True, 2).bfloat16(), (_x.bfloat16(),)),
    "efficient": lambda: (_Attending(False), (_x,)),
    "efficient_bias": lambda: (_Attending(False), (_x, _bias)),
    "cudnn": lambda: (_Attending(False).bfloat16(), (_x.bfloat16(), _bias > 0)),
    "batch_norm": lambda: (
        nn.Sequential(nn.Conv1d(6, 4, 3), nn.BatchNorm1d(4), nn.GELU()),
        (_x,),
    ),
    "norms": lambda: (
        nn.Sequential(nn.RMSNorm(16), nn.Linear(16, 16), nn.LayerNorm(16), nn.Mish()),
        (_x,),
    ),
    "half": lambda: (
        nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.SiLU(), nn.RMSNorm(16)).half(),
        (_x.half(),),
    ),
    "lstm": lambda: (_Recurrent(nn.LSTM, num_layers=2, batch_first=True), (_x,)),
    "lstm_projected": lambda: (_Recurrent(nn.LSTM, proj_size=4), (_x,)),
    "gru": lambda: (_Recurrent(nn.GRU, bidirectional=True, bias=False), (_x,)),
    "rnn": lambda: (_Recurrent(nn.RNN, nonlinearity="relu"), (_x,)),
    "packed": lambda: (_OnPacked(), (_x,)),
    "lstm_cell": lambda: (_Recurrent(nn.LSTMCell), (_x[0],)),
    "gru_cell": lambda: (_Recurrent(nn.GRUCell), (_x[0],)),
}


def _values_of_gradients(
    model: nn.Module, inputs: tuple[Any, ...], device: str
) -> list[torch.Tensor | None]:
    limits = Limits.of_the_machine()
    with step_on_fakes(
        TrainingStep(model, inputs, optimizer="sgd"), find_device(device), real=limits
    ) as (step, _):
        step.loss().backward()
        # As they are before the update.
        gradients = [value_of(p.grad) for p in step.model.parameters() if p.grad is not None]
        return [None if value is None else value.clone() for value in gradients]


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_of_the_device_have_the_values_of_the_cpu(name: str) -> None:
    torch.manual_seed(1)
    model, inputs = KERNELS[name]()
    actual = _values_of_gradients(model, inputs, "h100" if name == "cudnn" else "a100")
    model(*inputs).float().mean().backward()
    expected = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(actual) == len(expected) > 0
    for value, gradient in zip(actual, expected):
        assert value is not None
        near = 2e-2 if gradient.dtype.itemsize == 2 else 1e-5
        scale = float(gradient.abs().max()) + 1e-6
        assert float((value.float() - gradient.float()).abs().max()) < near * scale


class _Asking(nn.Module):
    def __init__(self, width: int = 8, **options: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(x)
        return hidden[hidden[:, 0] > 0].sum()


def test_weights_without_values_are_refused_by_name() -> None:
    with pytest.raises(AcplanError, match="depend on values.*layer.weight is on the meta"):
        trace(_Asking(device="meta"), torch.zeros(2, 8))
    with pytest.raises(AcplanError, match="layer.weight is on the meta device; create the"):
        trace(_Asking(device="meta"), torch.zeros(2, 8), values="real")
    with pytest.raises(AcplanError, match="an input is on the meta device"):
        trace(_Asking(), torch.zeros(2, 8, device="meta"), values="real")
    with pytest.raises(AcplanError, match="values: expected one of auto, known, real"):
        trace(_Asking(), torch.zeros(2, 8), values="all")


def test_nothing_long_is_computed_unasked() -> None:
    x = torch.zeros(1, 4096).expand(20_000, 4096)
    with pytest.raises(AcplanError, match='values="real".*only on request'):
        trace(_Asking(4096), x, optimizer="sgd")


def test_no_more_memory_is_taken_than_there_is() -> None:
    limits = Limits(most_bytes=10_000)
    training = TrainingStep(_Asking(), (torch.zeros(1000, 8),), optimizer="sgd")
    step = step_on_fakes(training, real=limits)
    with pytest.raises(AcplanError, match="more than the 9.77 KiB of memory"), step:
        pass
    assert limits.bytes <= limits.most_bytes


def test_what_the_cpu_cannot_compute_is_named() -> None:
    class Unheard(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = torch.ops.acplan_tests.unheard(self.layer(x))
            return hidden[hidden > 0].sum()

    library = torch.library.Library("acplan_tests", "FRAGMENT")
    library.define("unheard(Tensor x) -> Tensor")
    library.impl("unheard", torch.empty_like, "Meta")
    with pytest.raises(AcplanError, match="the CPU does not compute acplan_tests.unheard"):
        trace(Unheard(), torch.zeros(2, 8), values="real")


def test_memory_of_values_goes_with_their_tensors() -> None:
    limits = Limits.of_the_machine()
    training = TrainingStep(_Asking(), (torch.randn(64, 8),), optimizer="sgd")
    with step_on_fakes(training, real=limits) as (step, optimizer):
        first = limits.bytes
        step.run(optimizer)
        assert limits.bytes == first
        assert limits.peak_bytes > first > 0


@pytest.mark.parametrize(
    ("name", "capacity"), [("experts", 1.4), ("masked", "all"), ("dropping", 1.9)]
)
def test_a_plan_for_more_rows_holds_for_those_of_the_batch(
    name: str, capacity: float | str
) -> None:
    torch.manual_seed(1)
    model, inputs = MODELS[name]()
    how: dict[str, Any] = {"loss_fn": _loss, "optimizer": "sgd"}
    few, many = (
        trace(model, *inputs, workspaces=False, capacity=c, **how) for c in (1, capacity)
    )
    assert (few.capacity, many.capacity) == (1, capacity)
    assert sum(few.live_bytes) < sum(many.live_bytes)
    least_plan = plan(many, "min", time_limit=1)
    at_most = verify(model, least_plan, *inputs, trace=many, **how)
    as_is = verify(model, least_plan, *inputs, trace=few, **how)
    for verification in (at_most, as_is):
        assert verification.first_difference() is None
    assert as_is.measured_bytes <= at_most.measured_bytes == least_plan.peak_bytes
    assert [s.name for s in as_is.measured] == [s.name for s in at_most.measured]
    with pytest.raises(AcplanError, match="capacity is 1, and"):
        verify(model, least_plan, *inputs, trace=many, capacity=1, **how)


def test_a_loop_that_waits_for_fewer_rows_is_no_endless_trace() -> None:
    torch.manual_seed(1)
    model, inputs = MODELS["detector"]()
    with pytest.raises(AcplanError, match="a loop may wait for fewer rows"):
        trace(model, *inputs, loss_fn=_loss, capacity="all")
    for wrong in (0.5, float("inf"), True, "most"):
        with pytest.raises(
            AcplanError, match="capacity: expected .all. or a number of at least 1"
        ):
            trace(model, *inputs, capacity=wrong)


def test_experts_without_tokens_change_no_gradient() -> None:
    torch.manual_seed(1)
    model, inputs = MODELS["experts"]()
    least_plan = plan(
        trace(model, *inputs, loss_fn=_loss, workspaces=False), "min", time_limit=1
    )
    with torch.no_grad():
        model.gate.bias[1] -= 100  # nobody goes there
    expected = _run(copy.deepcopy(model), inputs)
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        actual = _run(apply(copy.deepcopy(model), least_plan), inputs)
    assert len(expected) == len(actual) and all(map(torch.equal, expected, actual))
    assert all(w.category is PlanMismatchWarning for w in caught_warnings)
