"""Launches of Triton's kernels are operators: of a trace, and of units that run again.

Kernels run by Triton's interpreter, on the CPU.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import nn
from triton.runtime.autotuner import Autotuner, Config, Heuristics
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

import acplan
from acplan._base.triton_kernels import stored_to

pytestmark = pytest.mark.usefixtures("one_thread")


def _store(pointer: Any, value: Any, mask: Any) -> None:
    tl.store(pointer, value, mask=mask)


def _stop(pointer: Any) -> None:
    _endless(pointer + 1)


_helper = JITFunction(_store)
_endless = JITFunction(_stop)


def _direct(x: Any, y: Any, n: Any) -> None:
    tl.store(y + n, tl.load(x + n))


def _by_name(x: Any, y: Any, n: Any) -> None:
    tl.store(value=tl.load(x), pointer=y)


def _by_variables(x: Any, y: Any, n: Any) -> None:
    place = y + n
    y_rows = place
    y_rows += 1
    tl.store(y_rows, 1.0)


def _in_a_loop(x: Any, y: Any, n: Any) -> None:
    for _ in range(n):
        tl.store(y, tl.load(x))
        x += 1
        y += 1


def _by_indices(x: Any, y: Any, n: Any) -> None:
    tl.store(y + tl.load(x + n), 1.0)


def _where(x: Any, y: Any, n: Any) -> None:
    tl.store(y + (x == n), 1.0)


def _atomic_sum(x: Any, y: Any, n: Any) -> None:
    tl.atomic_add(y + n, tl.load(x))


def _by_blocks(x: Any, y: Any, n: Any) -> None:
    block = tl.make_block_ptr(base=y, shape=(n,), strides=(1,), offsets=(0,), order=(0,))
    tl.store(tl.advance(block, (n,)), tl.load(x))


def _by_descriptors(x: Any, y: Any, n: Any) -> None:
    y.store([0, n], x.load([0, n]))


def _by_others(x: Any, y: Any, n: Any) -> None:
    _helper(y + n, tl.load(x), mask=n > 0)


def _either(x: Any, y: Any, n: Any) -> None:
    p = x if n > 3 else y
    tl.store(p, 1.0)


def _by_something(x: Any, y: Any, n: Any, f: Any) -> None:
    f(y)


def _without_end(x: Any, y: Any, n: Any) -> None:
    _endless(x)
    tl.store(y, 1.0)


@pytest.mark.parametrize(
    "kernel",
    [_direct, _by_name, _by_variables, _in_a_loop, _by_indices, _where, _atomic_sum, _by_blocks]
    + [_by_descriptors, _by_others, _by_something, _without_end],
    ids=lambda kernel: kernel.__name__.strip("_"),
)
def test_it_is_found_where_a_kernel_stores(kernel: Callable[..., None]) -> None:
    stored = stored_to(JITFunction(kernel))
    assert stored is not None and stored & {"x", "y"} == {"y"}


def test_both_of_two_are_stored_to() -> None:
    stored = stored_to(JITFunction(_either))
    assert stored is not None and {"x", "y"} <= stored


def test_a_kernel_without_source_may_store_everywhere() -> None:
    space: dict[str, Any] = {}
    exec("def made(x): pass", space)  # noqa: S102
    kernel = InterpretedFunction(_direct)
    kernel.fn = space["made"]
    assert stored_to(kernel) is None


def _forward(x: Any, y: Any, n: Any, B: tl.constexpr) -> None:
    i = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, value / (1 + tl.exp(-value)), mask=i < n)


def _backward(g: Any, x: Any, n: Any, B: tl.constexpr) -> None:
    i = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.load(x + i, mask=i < n)
    share = 1 / (1 + tl.exp(-value))
    slope = share * (1 + value * (1 - share))
    tl.store(g + i, tl.load(g + i, mask=i < n) * slope, mask=i < n)


def _accumulate(x: Any, sums: Any, n: Any, B: tl.constexpr) -> None:
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(sums + i, tl.load(sums + i, mask=i < n) + tl.load(x + i, mask=i < n), mask=i < n)


_B = 512
_heuristic_kernel = Heuristics(
    InterpretedFunction(_forward), ["x", "y", "n", "B"], {"B": lambda _: _B}
)
_plain = InterpretedFunction(_backward)
_adding = InterpretedFunction(_accumulate)


def _grid(tensor: torch.Tensor) -> tuple[int]:
    return (triton.cdiv(tensor.numel(), _B),)


class _Silu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        _heuristic_kernel[_grid(x)](x, y, x.numel())
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,), gradient = ctx.saved_tensors, gradients[0].clone()
        _plain[_grid(x)](gradient, x, n=x.numel(), B=_B)
        return gradient


class _Block(nn.Module):
    """With a kernel that makes its result, and one that adds to a buffer."""

    sums: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.register_buffer("sums", torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            _adding[_grid(self.sums)](x.detach().mean(0), self.sums, 16, B=_B)
        out: torch.Tensor = _Silu.apply(self.up(x + self.sums.clone()))
        return x + self.down(out)


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(_Block() for _ in range(3)))


_X = torch.linspace(-1, 1, 1024).reshape(64, 16)


def _loss(out: torch.Tensor) -> torch.Tensor:
    return out.square().mean()


def _results(plan: acplan.Plan | None, strict: bool = True) -> list[torch.Tensor]:
    model = _model()
    planned_model = model if plan is None else acplan.apply(model, plan, strict=strict)
    for _ in range(2):
        _loss(planned_model(_X)).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [*gradients, *model.buffers()]


def test_a_step_with_kernels_is_planned_and_run() -> None:
    trace = acplan.trace(_model(), _X, loss_fn=_loss, workspaces=False)
    launches = [o for o in trace.data["operators"] if o["name"].startswith("triton.")]
    kinds = ("_accumulate_", "_forward_", "_backward_")
    assert {o["name"] for o in launches} == {f"triton.{kind}.default" for kind in kinds}
    assert all(o["mutates"] and o["runtime_ms"] > 0 for o in launches)
    least = acplan.plan(trace, "min")
    assert least.peak_bytes < trace.peak_bytes
    middle = acplan.plan(trace, (least.peak_bytes + trace.peak_bytes) // 2)
    expected = _results(None)
    for plan in (least, middle):
        check = acplan.verify(_model(), plan, _X, trace=trace, loss_fn=_loss, workspaces=False)
        assert check.first_difference() is None
        assert all(map(torch.equal, expected, _results(plan)))


def test_any_decisions_give_equal_gradients() -> None:
    trace = acplan.trace(_model(), _X, loss_fn=_loss, workspaces=False)
    units = acplan.plan(trace, "min").modules
    names = [operator.name for operator in units[0].operators]
    expected = _results(None)
    for seed in range(24):
        chance = random.Random(seed)
        plan = acplan.Plan(
            tuple(
                acplan.PlannedModule(
                    f"Sequential.{k}",
                    tuple(
                        acplan.PlannedOperator(name, chance.random() < 0.5) for name in names
                    ),
                )
                for k in range(3)
            )
        )
        assert all(map(torch.equal, expected, _results(plan, strict=False))), seed


def test_a_kernel_whose_parameters_are_tuned_is_one_operator() -> None:
    kernel: Any = Autotuner(
        InterpretedFunction(_forward),
        ["x", "y", "n", "B"],
        [Config({"B": _B})],
        ["n"],
        None,
        None,
    )

    class Tuned(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result = torch.empty_like(x)
            kernel[_grid(x)](x, result, x.numel())
            return super().forward(x) + result.sum()

    trace = acplan.trace(Tuned(16, 16), _X, loss_fn=_loss)
    names = [operator["name"] for operator in trace.data["operators"]]
    assert names.count("triton._forward_.default") == 1


def test_what_a_kernel_makes_has_no_value() -> None:
    class Deciding(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            counts = torch.zeros(16)
            _adding[_grid(counts)](torch.ones(16), counts, 16, B=_B)
            return super().forward(x) if counts[0] == 0 else super().forward(x.sin())

    with pytest.raises(acplan.AcplanError, match="depend on values.*test_triton_kernels.py"):
        acplan.trace(Deciding(16, 16), _X, loss_fn=_loss, values="known")


def test_elsewhere_a_launch_is_what_it_was() -> None:
    y = torch.empty_like(_X)
    _heuristic_kernel[_grid(_X)](_X, y, _X.numel())
    assert torch.allclose(y, nn.functional.silu(_X))
