"""acplan.best_batch against a search that traces and plans every batch."""

import random
from typing import Any

import pytest
import torch
from torch import nn

import acplan
from acplan import Trace
from acplan.__main__ import main
from acplan._advise.best_batch import _Search
from acplan._step.interpolation import Interpolation, step_ms_of

_FAST = {"decisions": "save,recompute"}


class _Blocks(nn.Module):
    def __init__(self, width: int = 64, count: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


class _Attention(nn.Module):
    """Memory is quadratic in the sequence."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ x.transpose(1, 2), -1) @ x * self.scale

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.inner = nn.Linear(16, 16)


def _inputs(size: int) -> torch.Tensor:
    return torch.empty(size, 32, 64, device="meta")


def _every(model: nn.Module, inputs_of: Any, sizes: Any, budget: int) -> dict[int, float]:
    rates = {}
    for size in sizes:
        traced = acplan.trace(model, inputs_of(size))
        try:
            plan = acplan.plan(traced, budget, **_FAST)
        except acplan.AcplanError:
            continue
        rates[size] = 1000 * size / (step_ms_of(traced) + plan.recompute_ms)
    return rates


def test_is_what_tracing_every_batch_finds() -> None:
    model, sizes = _Blocks(), range(1, 15)
    budget = acplan.trace(model, _inputs(8)).peak_bytes
    rates = _every(model, _inputs, sizes, budget)
    search = acplan.best_batch(
        model, _inputs, budget=budget, sizes=sizes, tolerance=0.0, **_FAST
    )
    assert search.largest.size == max(rates)
    assert search.best.size == max(rates, key=rates.__getitem__)
    assert search.best.per_second == pytest.approx(rates[search.best.size])
    assert search.bound >= max(rates.values()) * (1 - 1e-9)
    assert 8 < search.largest.size < 14 and search.largest.plan.modules
    assert len(search.traced) <= 8 < len(rates)
    assert search.best.is_traced and search.largest.is_traced
    assert search.best.plan.peak_bytes <= budget


def test_plans_may_move() -> None:
    model = _Blocks(count=8)
    of_trace: Any = {"workspaces": False}
    budget = acplan.trace(model, _inputs(100), **of_trace).peak_bytes * 3 // 4
    sizes = [80, 100, 120]
    options: Any = {"budget": budget, "sizes": sizes, "segments": "none", **of_trace}
    plain = acplan.best_batch(model, _inputs, **options)
    best = acplan.best_batch(model, _inputs, offload="100GB/s", **options).best
    assert best.plan.data["offload"]["host_bytes"] > 0
    step_ms = step_ms_of(acplan.trace(model, _inputs(best.size), **of_trace))
    step_ms += best.plan.recompute_ms + (best.plan.stall_ms or 0)
    assert best.per_second == pytest.approx(1000 * best.size / step_ms)
    assert best.per_second > plain.best.per_second


def test_what_is_not_affine_is_said_and_still_right() -> None:
    def inputs_of(size: int) -> torch.Tensor:
        return torch.empty(2, 16 * size, 16, device="meta")

    model, sizes = _Attention(), range(1, 11)
    budget = acplan.trace(model, inputs_of(7)).peak_bytes
    rates = _every(model, inputs_of, sizes, budget)
    search = acplan.best_batch(
        model, inputs_of, budget=budget, sizes=sizes, tolerance=0.0, **_FAST
    )
    assert search.largest.size == max(rates)
    assert search.best.per_second == pytest.approx(max(rates.values()))
    assert any("not affine" in note for note in search.notes)


class _Padded(_Blocks):
    """Takes as long for 1 sample as for 8: the rate has a peak at each multiple of 8."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padding = -x.shape[0] % 8
        return super().forward(nn.functional.pad(x, (0, 0, 0, 0, 0, padding)))


def test_run_times_that_are_not_on_a_line_are_traced() -> None:
    def inputs_of(size: int) -> torch.Tensor:
        return torch.empty(size, 2048, 512, device="meta")

    model, sizes = _Padded(width=512, count=1), range(1, 15)
    search = acplan.best_batch(model, inputs_of, budget="64GiB", sizes=sizes, **_FAST)
    rates = _every(model, inputs_of, sizes, 64 << 30)
    assert search.best.size == max(rates, key=rates.__getitem__) == 8
    assert search.largest.size == 14


def test_an_interpolated_step_is_the_traced_one() -> None:
    model = _Blocks()
    steps = Interpolation(lambda size: acplan.trace(model, _inputs(size)))
    steps.trace_of(2), steps.trace_of(12)
    between, traced = steps.between(9), acplan.trace(model, _inputs(9))
    assert between is not None
    bytes_of = [[s["bytes"] for s in t.data["storages"]] for t in (between, traced)]
    assert bytes_of[0] == bytes_of[1]
    assert between.peak_bytes == traced.peak_bytes
    # From some size on sums take a workspace; the program reads what is between.
    steps.trace_of(32)
    with_some = steps.between(20)
    assert with_some is not None
    plan = acplan.plan(with_some, "100%", **_FAST)
    assert plan.baseline_peak_bytes == with_some.peak_bytes


def _one_operator_trace(bytes_of_it: int, ms: float) -> Trace:
    storage = {"bytes": 512 * bytes_of_it, "born": -1, "freed": None}
    operator = {"runtime_ms": ms, "outputs": [], "creates": []}
    lists = {name: [] for name in ("modules", "calls", "tensors", "saved")}
    ends = {"forward_end": 1, "backward_end": 1}
    return Trace({**lists, **ends, "storages": [storage], "operators": [operator]})


# The search alone, on run-times and plans by chance, against looking at every size.
@pytest.mark.parametrize("seed", range(60))
def test_the_search_finds_the_best_of_all(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randrange(1, 60)
    last, free = chance.randrange(1, count + 1), chance.randrange(0, count + 1)
    start, each = chance.uniform(0, 50), chance.uniform(0.1, 5)
    steps = [chance.expovariate(1 / 2) for _ in range(count + 1)]
    recompute_ms = [sum(steps[free + 1 : size + 1]) for size in range(count + 1)]

    def make_plan(trace: Trace) -> acplan.Plan:
        size = trace.data["storages"][0]["bytes"] // 512
        if size > last:
            raise acplan.AcplanError("no plan fits", exit_code=3)
        modules = [{"fqn": "m"}] if recompute_ms[size] else []
        figures = {"recompute_ms": recompute_ms[size], "status": "optimal", "modules": modules}
        return acplan.Plan.from_data({"format": "acplan.plan", "version": 1, **figures})

    traced: list[int] = []

    def trace_of(size: int) -> Trace:
        traced.append(size)
        return _one_operator_trace(size, start + each * size)

    result = _Search(range(1, count + 1), trace_of, make_plan, 0.0, int).run()
    rates = {n: 1000 * n / (start + each * n + recompute_ms[n]) for n in range(1, last + 1)}
    assert result.largest.size == last
    assert result.best.per_second == pytest.approx(max(rates.values()))
    assert result.bound == pytest.approx(max(rates.values()))
    assert len(traced) == len(set(traced)) <= 6


def test_the_largest_batch_on_a_device() -> None:
    """The search beside a plan for every batch, each of its own trace."""

    def inputs_of(size: int) -> torch.Tensor:
        return torch.empty(64 * size, 64, 64, device="meta")

    model, sizes = _Blocks(), range(1, 11)
    native = {"allocator": "native", "optimizer_state": "update", **_FAST}
    traced = acplan.trace(model, inputs_of(6))
    least = acplan.plan(traced, device_memory="4GiB", **native).device
    assert least is not None
    memory = least.least_device_bytes
    fitting = []
    for size in sizes[5:]:
        try:
            acplan.plan(acplan.trace(model, inputs_of(size)), device_memory=memory, **native)
            fitting.append(size)
        except acplan.AcplanError as error:
            assert error.exit_code in (3, 4)
    search = acplan.best_batch(model, inputs_of, device_memory=memory, sizes=sizes, **native)
    assert search.largest.size == fitting[-1] and 6 < fitting[-1] < 10
    assert search.largest.size + 1 in search.traced
    for step in (search.best, search.largest):
        device = step.plan.device
        assert step.is_traced and device is not None
        assert device.reserved_bytes <= device.least_device_bytes <= memory
    assert "least device" in str(search)


def test_wrong_questions_are_refused() -> None:
    model = _Blocks(count=1)
    for budget in ("75%", "min"):
        with pytest.raises(acplan.AcplanError, match="the same for every batch"):
            acplan.best_batch(model, _inputs, budget=budget)
    for wrong in ({}, {"budget": "1GiB", "device_memory": "1GiB"}):
        with pytest.raises(acplan.AcplanError, match="best_batch: expected a budget or device"):
            acplan.best_batch(model, _inputs, **wrong)
    with pytest.raises(acplan.AcplanError, match="device_memory: expected bytes"):
        acplan.best_batch(model, _inputs, device_memory=0.5)
    with pytest.raises(acplan.AcplanError, match="ascending"):
        acplan.best_batch(model, _inputs, budget="1GiB", sizes=[4, 2])
    with pytest.raises(acplan.AcplanError, match="no plan fits"):
        acplan.best_batch(model, _inputs, budget="1MiB", sizes=[1, 2])
    with pytest.raises(acplan.AcplanError, match="model: expected a module, found int"):
        acplan.best_batch(3, _inputs, budget="1GiB")  # type: ignore[arg-type]
    with pytest.raises(acplan.AcplanError, match="inputs_of: expected a function"):
        acplan.best_batch(model, 3, budget="1GiB")  # type: ignore[arg-type]
    with pytest.raises(acplan.AcplanError, match="tolerance: expected a number"):
        acplan.best_batch(model, _inputs, budget="1GiB", tolerance=-1)


def test_from_the_shell(capsys: Any) -> None:
    flags = ["--hf-config", "gpt2", "--set", "n_layer=1", "--set", "n_embd=48"]
    flags += ["--set", "n_head=2", "--set", "vocab_size=100", "--seq", "16"]
    flags += ["--budget", "20MiB", "--most", "6", "--decisions", "save,recompute"]
    assert main(["batch", *flags]) == 0
    assert "highest rate" in capsys.readouterr().out
    assert main(["batch", *flags, "--batch", "2"]) == 2
    assert "--batch: cannot be combined with --over" in capsys.readouterr().err
    flags[flags.index("--budget")] = "--device-memory"
    flags[flags.index("20MiB")] = "60MiB"
    flags[flags.index("--most") + 1] = "2"
    assert main(["batch", *flags, "--allocator", "native", "--time-limit", "1"]) == 0
    assert "least device" in capsys.readouterr().out
    assert main(["batch", *flags, "--budget", "1GiB"]) == 2
    assert "batch: expected a budget or device_memory, found both" in capsys.readouterr().err
