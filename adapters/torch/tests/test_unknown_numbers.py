"""Numbers that only go into logs do not stop a trace; those that decide what runs end it with
an error that names the line."""

import collections
import copy
import json
import logging
import math
import warnings
from collections.abc import Callable
from math import isfinite, log
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import acplan
from acplan import AcplanError

Idiom = Callable[[Any, torch.Tensor, torch.Tensor], Any]


class Logging(nn.Module):
    """Runs a block, and then each idiom on its own block's loss."""

    def __init__(self, *idioms: Idiom) -> None:
        super().__init__()
        self.idioms = idioms
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in idioms)
        self.metrics: dict[str, Any] = collections.defaultdict(float)
        self.history: list[Any] = []
        self.records: list[Any] = []
        self.ema, self.best, self.worst, self.step = 0.0, float("inf"), 0.0, 0

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.step += 1
        total = x.new_zeros(())
        for block, idiom in zip(self.blocks, self.idioms):
            x = block(x)
            loss = (x - 1).pow(2).mean()
            more = idiom(self, x, loss)
            total = total + (loss if more is None else more)
        return total


def loss_of(model: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(*inputs)
    return loss


def _inputs() -> tuple[torch.Tensor, ...]:
    return torch.randn(16, 8), torch.randint(0, 8, (16,))


def _traced(*idioms: Idiom) -> acplan.Trace:
    step = {"forward_fn": loss_of, "optimizer": torch.optim.SGD, "values": "known"}
    return acplan.trace(Logging(*idioms), *_inputs(), **step)


def _sums(model: Any, x: Any, loss: Any) -> None:
    model.metrics["loss"] += loss.item() * len(x)
    model.metrics["mean"] = model.metrics["loss"] / (model.step * len(x))
    model.history.append(loss.item())
    model.metrics["sum"] = sum(model.history) / len(model.history)


def _mathematics(model: Any, x: Any, loss: Any) -> None:
    model.metrics["perplexity"] = math.exp(min(loss.item(), 20))
    model.metrics["log"] = log(loss.item()) + math.sqrt(abs(loss))
    model.metrics["round"] = round(loss.item(), 3), round(loss.item()), -loss.item() % 3
    model.metrics["floor"] = math.floor(loss.item()), divmod(loss.item(), 2)


def _guards(model: Any, x: Any, loss: Any) -> None:
    if math.isnan(loss.item()) or not isfinite(loss) or loss.item() != loss.item():
        raise FloatingPointError("loss is not finite")
    if not torch.isfinite(loss) or torch.isnan(x).any() or np.isnan(loss.item()):
        raise FloatingPointError("loss is not finite")
    if loss.item() == float("inf") or loss.item() > 1e6:
        raise FloatingPointError(f"loss is {loss.item():.3f}")
    assert 0 <= loss.item() < 1e9, loss.item()
    assert not (loss < 0).any() and bool((x < 100).all())


def _text(model: Any, x: Any, loss: Any) -> None:
    texts = [f"{loss:.3f}", f"{loss.item():>9.4f}", "%.3f %d" % (loss, loss.long())]  # noqa: UP031
    texts += [f"{loss.item():.2e}", str(loss.item()), repr([loss.item()])]
    texts += [json.dumps({"loss": loss.item(), "row": x[0].tolist()})]
    logging.getLogger(__name__).info("loss %.3f", loss.item())
    model.records.append(texts)


def _extremes(model: Any, x: Any, loss: Any) -> None:
    model.best = min(model.best, loss.item())
    model.worst = max(model.worst, float(loss))
    model.ema = 0.9 * model.ema + 0.1 * loss.item()
    model.metrics["all"] = max([loss.item(), 3.0, model.ema])


def _plain(model: Any, x: Any, loss: Any) -> None:
    model.metrics["plain"] = float(loss.detach()) + int(x.argmax()) + float(loss.item())
    model.metrics["right"] = bool((x > 0).all())
    # PyTorch takes `float` for a data type, although the name is another class meanwhile.
    model.metrics["type"] = float(x.to(float).sum(dtype=float) + torch.zeros(3, dtype=int)[0])
    assert float is float or float == float  # noqa: E721
    assert isinstance(model.metrics["plain"], float)
    model.records.extend(map(float, [loss, loss]))


def _counts(model: Any, x: Any, loss: Any) -> None:
    right = (x.argmax(-1) == x.argmin(-1)).float().mean().item()
    count = (x > 0).sum().item()
    model.metrics["row"] = x[count - count].mean().item()
    model.metrics["accuracy"] = right, count / x.numel(), 2 * count // 3
    if right > 0.5:
        warnings.warn("more than half", stacklevel=1)
    if count == 0:
        print("none")


def _arrays(model: Any, x: Any, loss: Any) -> None:
    array = x.detach().cpu().numpy()
    assert array.shape == x.shape and array.dtype == np.float32
    model.metrics["array"] = array.mean(), np.asarray(loss.detach().cpu()), array.max()
    predicted = array.argmax(-1)
    model.metrics["right"] = (predicted == np.arange(len(x))).mean(), np.std(array, axis=0)
    model.metrics["float"] = np.mean([loss.item(), 2.0]), np.exp(loss.item())
    assert not np.isnan(array).any()


def _back_in_operators(model: Any, x: Any, loss: Any) -> Any:
    scale = 1.0 / (1.0 + loss.item())
    other = torch.tensor(loss.item()) + torch.tensor([loss.item(), 1.0]).sum()
    x = x * scale + torch.full_like(x, loss.item()) - (2 - scale) ** 0.5
    x = x.clamp(max=loss.item()).add(x, alpha=scale) + x.new_full((8,), scale)
    x = x + torch.from_numpy(x.detach().cpu().numpy()).mean().item() * other.item()
    return x.mean() / max(1, (x > 0).sum().item())


def _record(model: Any, x: Any, loss: Any) -> None:
    model.records.append({"loss": loss.item(), "of": copy.deepcopy(loss.item())})
    model.best = loss.item() if model.best is None else model.best


def _losses(model: Any, x: Any, loss: Any) -> Any:
    norm = nn.utils.clip_grad_norm_([nn.Parameter(x[0])], 1.0, error_if_nonfinite=True)
    return loss + torch.distributions.Normal(x, x.exp()).log_prob(x).mean() + norm


FOLLOWED = (
    _sums,
    _mathematics,
    _guards,
    _text,
    _extremes,
    _plain,
    _counts,
    _arrays,
    _back_in_operators,
    _record,
    _losses,
)


def test_numbers_that_only_go_into_logs_are_followed() -> None:
    model, inputs = Logging(*FOLLOWED), _inputs()
    names = ("math", "log", "max", "float", "json")
    before = repr(vars(model)), [globals().get(n, n) for n in names], vars(math).copy()
    step = {"forward_fn": loss_of, "optimizer": torch.optim.SGD}
    trace = acplan.trace(model, *inputs, **step)
    plan = acplan.plan(trace, "min")
    assert acplan.verify(model, plan, *inputs, trace=trace, **step).first_difference() is None
    after = repr(vars(model)), [globals().get(n, n) for n in names], vars(math)
    assert before == after
    # A check is told once, however often it is run.
    assert len(set(trace.notes)) == len(trace.notes) > 4
    assert any("if loss.item() == float" in note for note in trace.notes)
    # Real tensors are none of it.
    model(*inputs).backward()
    assert all(type(value) is float for value in model.history)


def test_the_copy_to_the_host_is_recorded() -> None:
    names = [op["name"] for op in _traced(_record, _extremes).data["operators"]]
    assert names.count("aten._local_scalar_dense.default") == 6


def _branch(model: Any, x: Any, loss: Any) -> Any:
    if loss.item() > 3:
        return loss * 2


def _float_branch(model: Any, x: Any, loss: Any) -> Any:
    return loss * 2 if float(loss) > 3 else loss


def _mathematical_branch(model: Any, x: Any, loss: Any) -> Any:
    if math.exp(-loss.item()) < 0.5:
        return loss * 2


def _kept_branch(model: Any, x: Any, loss: Any) -> Any:
    model.ema = 0.9 * model.ema + 0.1 * float(loss)
    if model.ema < 7:
        return loss * 2


def _flag(model: Any, x: Any, loss: Any) -> Any:
    is_large = bool(loss > 3)
    return loss * 2 if is_large else loss


def _loop(model: Any, x: Any, loss: Any) -> Any:
    while loss.item() > 1e-3:
        loss = loss / 2
    return loss


def _range(model: Any, x: Any, loss: Any) -> Any:
    for _ in range(int(loss)):
        x = x * 2
    return x.mean()


def _size(model: Any, x: Any, loss: Any) -> Any:
    return x.new_zeros((x > 0).sum().item()).sum() + loss


def _slice(model: Any, x: Any, loss: Any) -> Any:
    return x[: x.argmax().item()].mean()


def _module_by_index(model: Any, x: Any, loss: Any) -> Any:
    return model.records[int(x.argmax())](x)


def _mask(model: Any, x: Any, loss: Any) -> Any:
    return x[x > 0].mean()


def _numpy_branch(model: Any, x: Any, loss: Any) -> Any:
    if x.detach().cpu().numpy().mean() > 0.5:
        return loss * 2


def _caught(model: Any, x: Any, loss: Any) -> Any:
    try:
        if loss > 3:
            raise ValueError("too large")
    except ValueError:
        return loss * 2


def _swallowed(model: Any, x: Any, loss: Any) -> Any:
    try:
        if loss > 3:
            return loss * 2
    except Exception:
        pass


def _closest(model: Any, x: Any, loss: Any) -> Any:
    best = sorted([loss.item(), 0.5, 0.7])[0]
    return loss * best


def _membership(model: Any, x: Any, loss: Any) -> Any:
    return loss * 2 if loss.item() in {0.5, 0.7} else loss


def _equal(model: Any, x: Any, loss: Any) -> Any:
    return loss * 2 if torch.equal(x, x + loss) else loss


@pytest.mark.parametrize(
    ("idiom", "source_line"),
    [
        (_branch, "if loss.item() > 3:"),
        (_float_branch, "return loss * 2 if float(loss) > 3 else loss"),
        (_mathematical_branch, "if math.exp(-loss.item()) < 0.5:"),
        (_kept_branch, "if model.ema < 7:"),
        (_flag, "return loss * 2 if is_large else loss"),
        (_loop, "while loss.item() > 1e-3:"),
        (_range, "for _ in range(int(loss)):"),
        (_size, "return x.new_zeros((x > 0).sum().item()).sum() + loss"),
        (_slice, "return x[: x.argmax().item()].mean()"),
        (_module_by_index, "return model.records[int(x.argmax())](x)"),
        (_mask, "return x[x > 0].mean()"),
        (_numpy_branch, "if x.detach().cpu().numpy().mean() > 0.5:"),
        (_caught, "if loss > 3:"),
        (_swallowed, "if loss > 3:"),
        (_closest, "best = sorted([loss.item(), 0.5, 0.7])[0]"),
        (_membership, "return loss * 2 if loss.item() in {0.5, 0.7} else loss"),
        (_equal, "return loss * 2 if torch.equal(x, x + loss) else loss"),
    ],
)
def test_what_decides_what_runs_is_an_error_that_names_the_line(
    idiom: Idiom, source_line: str
) -> None:
    line = idiom.__code__.co_firstlineno
    with pytest.raises(AcplanError, match="depend on values") as raised:
        _traced(idiom)
    message = str(raised.value)
    assert f": {source_line}; values=" in message
    place = message.split("test_unknown_numbers.py:")[1]
    assert line < int(place.split(":")[0]) < line + 5


class Unit(nn.Module):
    """Runs an idiom between operators that a plan recomputes, saves or skips."""

    def __init__(self, idiom: Idiom) -> None:
        super().__init__()
        self.idiom = idiom
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.metrics: dict[str, Any] = collections.defaultdict(float)
        self.history: list[Any] = []
        self.records: list[Any] = []
        self.ema, self.best, self.worst, self.step = 0.0, float("inf"), 0.0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        y = torch.exp(self.b(torch.tanh(self.a(x)).sin())).cos()
        more = self.idiom(self, y, (y - 1).pow(2).mean())
        y = y if more is None else y * more
        return (y * 2).sin().exp().tanh()


def _read_on_the_host(model: Any, x: Any, loss: Any) -> None:
    model.records.append(x.argmax(-1).cpu().tolist())
    model.records.append(x.detach().mul(2).cpu().numpy().mean())
    if (x * 2 > 1e9).any():
        raise ValueError(f"{(loss * 2):.3f}")
    model.is_small = bool((x * 3 < 7).all())
    if not model.is_small:
        print("large")


@pytest.mark.parametrize("idiom", [_guards, _text, _counts, _arrays, _read_on_the_host])
def test_so_they_are_where_a_unit_runs_again(idiom: Idiom) -> None:
    model, x = nn.Sequential(Unit(idiom), Unit(idiom)), torch.randn(4096, 8)
    step = {"loss_fn": torch.mean, "optimizer": torch.optim.SGD}
    trace = acplan.trace(model, x, **step)
    plan = acplan.plan(trace, "min")
    assert plan.recompute_ms > 0
    assert acplan.verify(model, plan, x, trace=trace, **step).first_difference() is None


def test_values_of_saved_tensors_are_theirs() -> None:
    """Times of a solver, say, by which its backward decides."""

    class Ordered(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, times)
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            x, times = ctx.saved_tensors
            assert (times[1:] > times[:-1]).all()
            assert times[0] + 1 == 1 and times[-1] == 1
            return gradients[0] * 2 + x * 0, None

    class Solver(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
            times_of_host = torch.linspace(0, 1, 5, device=x.device)
            return Ordered.apply(Ordered.apply(self.layer(x), times), times_of_host)

    trace = acplan.trace(Solver(), torch.randn(4, 8), torch.linspace(0, 1, 5), values="known")
    assert not trace.notes
