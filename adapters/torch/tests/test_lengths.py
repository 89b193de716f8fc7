"""Batches of several lengths: every allocation and every free of a run beside the prediction,
and plans that switch."""

import copy
import functools
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import acplan
from acplan._apply.apply import has_plan
from acplan._step.training_step import TrainingStep
from acplan._verify.within_budget import require_within_budget
from run_events import (
    difference,
    predicted_requests_of_lengths,
    real_requests_of_lengths,
    tiny_bert,
    tiny_gpt2,
)

# Multiples of 32, to which attention rounds what it keeps: the step of 96 is interpolated.
LONGEST = 128
SIZES = (32, 64, 96, 128)
ORDER: list[int | tuple[str, int]] = [96, 128, 32, 128, ("eval", 128), ("eval", 64), 64, 32]


def _gpt2(attention: str = "sdpa", layers: int = 2, **changes: Any) -> nn.Module:
    return tiny_gpt2(n_positions=160, n_layer=layers, attn_implementation=attention, **changes)


def _bert() -> nn.Module:
    return tiny_bert(max_position_embeddings=160)


def _inputs(length: int, batch: int = 32, is_padded: bool = False) -> dict[str, torch.Tensor]:
    tokens = torch.zeros(batch, length, dtype=torch.long)
    inputs = {"input_ids": tokens, "labels": tokens.clone()}
    if is_padded:  # at the end, so that the last columns of the longest are those of all
        mask = torch.ones_like(tokens)
        mask[1:, -4:] = 0
        inputs["attention_mask"] = mask
    return inputs


CUTS = {length: (slice(None), slice(LONGEST - length, None)) for length in SIZES}


@functools.cache
def _traced(name: str) -> tuple[TrainingStep, dict[int, acplan.Trace]]:
    is_padded = name == "bert"
    with torch.device("meta"):
        model = _bert() if is_padded else _gpt2()
    inputs_of = functools.partial(_inputs, is_padded=is_padded)
    step = TrainingStep.from_arguments(model, (), inputs_of(LONGEST))
    traces = acplan.trace_lengths(
        model, inputs_of, acplan.Lengths(ORDER), count=3, workspaces=False
    )
    assert 96 not in traces
    return step, traces


@functools.cache
def _table(name: str) -> acplan.PlanTable:
    memory = {"gpt2": "56MiB", "bert": "40MiB"}[name]
    return acplan.plan(
        _traced(name)[1], lengths=ORDER, device_memory=memory, plans=2, time_limit=100
    )


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_a_run_asks_for_what_is_predicted(name: str) -> None:
    step, traces = _traced(name)
    plan = _table(name)
    real = real_requests_of_lengths(step, CUTS, ORDER, plan)
    predicted = predicted_requests_of_lengths(traces, acplan.Lengths(ORDER), plan)
    assert len(real) == len(predicted) > 800
    assert difference(real, predicted) == ""


@pytest.mark.parametrize(
    "ddp",
    [
        {"bucket_cap_mb": 0.05},
        {"gradient_as_bucket_view": True, "static_graph": True},
        {"find_unused_parameters": True, "bucket_cap_mb": 0.05},
    ],
    ids=str,
)
def test_a_run_in_ddp_asks_for_what_is_predicted(ddp: dict[str, Any]) -> None:
    step, traces = _traced("bert")
    order: list[int | tuple[str, int]] = [("eval", 64), 96, 128, ("eval", 128), 64]
    real = real_requests_of_lengths(step, CUTS, order, _table("bert"), ddp=ddp)
    predicted = predicted_requests_of_lengths(
        traces, acplan.Lengths(order), _table("bert"), ddp=ddp
    )
    assert len(real) == len(predicted) > 800
    assert difference(real, predicted) == ""


def test_evaluations_have_batches_of_their_own() -> None:
    step, traces = _traced("gpt2")
    order: list[int | tuple[str, int]] = [64, ("eval", 96), ("eval", 96), 32, 64]
    with torch.device("meta"):
        model = _gpt2()
    evaluation = acplan.trace(model, **_inputs(96, 8), workspaces=False, progress=False)
    cut = {96: (slice(8), slice(LONGEST - 96, None))}
    real = real_requests_of_lengths(step, CUTS, order, evaluated=cut)
    predicted = predicted_requests_of_lengths(
        traces, acplan.Lengths(order), evaluations={96: evaluation}
    )
    assert len(real) == len(predicted)
    assert difference(real, predicted) == ""
    table = acplan.plan(
        traces, lengths=order, device_memory="1GiB", evaluations={96: evaluation}
    )
    assert table.entries[-1][0] == 64
    with pytest.raises(acplan.AcplanError, match="evaluations: length 128: expected one from"):
        acplan.plan(
            traces,
            lengths=[64, ("eval", 128)],
            device_memory="1GiB",
            evaluations={96: evaluation},
        )


def test_tables_say_what_they_need() -> None:
    table = _table("gpt2")
    assert len(table.entries) > 1
    assert table.switch is not None
    assert (table.switch.argument, table.switch.dimension) == ("input_ids", 1)
    assert table.device.reserved_bytes <= 56 << 20
    assert 0 <= table.bound_ms <= table.recompute_ms
    assert table.gap == pytest.approx(1 - table.bound_ms / table.recompute_ms)
    shortest, longest = table.entries[0][0], table.entries[-1][0]
    assert longest == LONGEST
    assert table.plan_for(shortest) is table.entries[0][1]
    assert table.plan_for(shortest + 1) is table.entries[1][1]
    assert table.plan_for(1000) is table.entries[-1][1]


SMALL_ORDER: list[int | tuple[str, int]] = [16, 40, 64, ("eval", 64), 16, 48, 16]


@functools.cache
def _small_traces() -> tuple[nn.Module, dict[int, acplan.Trace]]:
    """Returns a model whose operators are the same on the CPU, and its traces."""
    torch.manual_seed(1)
    model = _gpt2("eager", 4, attn_pdrop=0, resid_pdrop=0, embd_pdrop=0)
    return model, {n: acplan.trace(model, **_inputs(n), progress=False) for n in (16, 40, 64)}


@functools.cache
def _small() -> tuple[nn.Module, acplan.PlanTable]:
    model, traces = _small_traces()
    table = acplan.plan(
        list(traces.values()),
        lengths=SMALL_ORDER,
        device_memory="56MiB",
        plans=2,
        time_limit=100,
    )
    return model, table


def _gradients(model: nn.Module, length: int) -> list[torch.Tensor]:
    torch.manual_seed(length)
    tokens = torch.randint(0, 128, (4, length))
    model.zero_grad()
    model(input_ids=tokens, labels=tokens).loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_plans_switch_and_gradients_stay(tmp_path: Any) -> None:
    model, table = _small()
    assert len({len(plan.modules) for _, plan in table.entries}) > 1
    table.save(tmp_path / "table.json")
    model_with_plans = acplan.apply(copy.deepcopy(model), tmp_path / "table.json", strict=True)
    with pytest.raises(acplan.AcplanError, match="already has a plan"):
        acplan.apply(model_with_plans, table)
    for subject in (model_with_plans, copy.deepcopy(model_with_plans)):
        for length in (16, 64, 30, 40, 17, 64, 16):
            expected = _gradients(model, length)
            actual = _gradients(subject, length)
            assert all(torch.equal(a, b) for a, b in zip(expected, actual, strict=True))
            names = {m.fqn for m in table.plan_for(length).modules}
            assert _planned_names(subject) == names
    plain = acplan.remove(model_with_plans)
    assert not has_plan(plain)
    assert not plain._forward_pre_hooks
    assert [name for name, _ in plain.named_modules()] == [n for n, _ in model.named_modules()]


def _planned_names(model: nn.Module) -> set[str]:
    from acplan._apply.unit import Unit, is_idle

    units = (module for module in model.modules() if isinstance(module, Unit))
    return {unit._acplan_planned[0] for unit in units if not is_idle(unit)}


def test_tables_are_verified() -> None:
    model, traces = _small_traces()
    table = _small()[1]
    assert len(table.entries) > 1
    check = acplan.verify(model, table, _inputs, trace=traces, lengths=SMALL_ORDER, values=True)
    assert list(check.lengths) == [16, 40, 64]
    assert check.is_equal
    assert check.device is not None and check.device.fits
    assert check.device.measured.least_device_bytes == table.device.least_device_bytes
    assert all(v.values is not None and v.values.is_equal for v in check.lengths.values())
    assert "length 40: predicted peak" in str(check)
    require_within_budget(table, check)
    small = acplan.PlanTable(
        table.entries, {**table.data, "memory_bytes": table.device.least_device_bytes - 1}
    )
    failure = acplan.verify(
        model, small, _inputs, trace=traces, lengths=SMALL_ORDER, values=False
    )
    with pytest.raises(acplan.AcplanError, match="OUT OF MEMORY .* at batch"):
        require_within_budget(small, failure)
    with pytest.raises(acplan.AcplanError, match="needs a function of a length"):
        acplan.verify(model, table, **_inputs(16))
    # Plans of other lengths' steps are not predicted as they run.
    other = acplan.PlanTable(
        ((64, table.entries[-1][1]),), {**table.data, "entries": table.data["entries"][-1:]}
    )
    of_other = acplan.verify(
        model, other, _inputs, trace=traces, lengths=SMALL_ORDER, values=False
    )
    assert of_other.lengths[16].measured != check.lengths[16].measured


def test_runs_of_tables_are_explained_and_drawn(tmp_path: Any) -> None:
    model, traces = _small_traces()
    table = _small()[1]
    explanation = acplan.explain(traces, plan=table, lengths=SMALL_ORDER)
    assert explanation.fits
    assert explanation.data["least_device_bytes"] == table.device.least_device_bytes
    assert explanation.peak["length"] in (16, 40, 48, 64)
    assert ["no plan"] in [lever["levers"] for lever in explanation.levers]
    assert "the run of all batches ends" in str(explanation)
    page = acplan.report(traces, tmp_path / "a.html", table, lengths=SMALL_ORDER)
    assert '"plan up to"' in page.read_text()
    with pytest.raises(acplan.AcplanError, match="needs several traces and lengths"):
        acplan.report(traces[16], tmp_path / "b.html", table)
    with pytest.raises(acplan.AcplanError, match="needs several traces and lengths"):
        acplan.explain(traces[16], plan=table)  # type: ignore[call-overload]


def test_tables_count_ddp(tmp_path: Any) -> None:
    model, traces = _small_traces()
    order = [16, 64]
    options: dict[str, Any] = {"lengths": order, "device_memory": "56MiB"}
    options |= {"time_limit": 5, "allocator": "native"}
    table = acplan.plan(traces, ddp={"gradient_as_bucket_view": True}, **options)
    assert table.device.ddp == "gradient_as_bucket_view:True"
    plain = acplan.plan(traces, **options)
    assert plain.device.ddp == ""
    assert plain.device.allocated_bytes < table.device.allocated_bytes
    check = acplan.verify(model, table, _inputs, trace=traces, lengths=order)
    assert check.device is not None
    assert check.device.measured.allocated_bytes == table.device.allocated_bytes
    explanation = acplan.explain(traces, plan=table, lengths=order)
    assert explanation.data["least_device_bytes"] == table.device.least_device_bytes
    page = acplan.report(traces, tmp_path / "page.html", table, lengths=order).read_text()
    assert f'"least_device_bytes":{table.device.least_device_bytes}' in page


def test_a_table_of_one_plan_needs_no_switch() -> None:
    model, traces = _small_traces()
    table = acplan.plan(
        {1: traces[16]}, lengths=[1, 1, ("eval", 1)], device_memory="56MiB", time_limit=1
    )
    assert table.switch is None
    model_with_plan = acplan.apply(copy.deepcopy(model), table)
    assert has_plan(model_with_plan) == bool(table.entries[0][1].modules)
    assert not model_with_plan._forward_pre_hooks


class _Holder(nn.Module):
    """A model whose forward takes a batch as it comes from a loader."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.layers(batch["x"]).square().sum()


def test_lengths_are_found_in_batches() -> None:
    model = _Holder()
    traces = [
        acplan.trace(model, {"x": torch.zeros(n, 8), "id": 3}, progress=False) for n in (2, 5)
    ]
    assert traces[0].inputs == {"batch.x": (2, 8)}
    table = acplan.plan(traces, lengths=[2, 5], device_memory="1GiB", plans=2)
    assert table.switch is not None and table.switch.argument == "batch.x"
    model = acplan.apply(model, table)
    with warnings.catch_warnings():
        warnings.simplefilter("error", acplan.PlanMismatchWarning)
        model({"x": torch.zeros(4, 8)}).backward()


def test_plain_loops_plan_for_lengths() -> None:
    model = _small_traces()[0]
    model_with_plans = acplan.auto_checkpoint(
        copy.deepcopy(model),
        _inputs,
        lengths=acplan.Lengths(SMALL_ORDER),
        plans=2,
        device_memory="56MiB",
        time_limit=100,
        progress=False,
    )
    assert has_plan(model_with_plans)
    for length in (16, 64, 40):
        expected, actual = _gradients(model, length), _gradients(model_with_plans, length)
        assert all(torch.equal(a, b) for a, b in zip(expected, actual, strict=True))
    with pytest.raises(acplan.AcplanError, match="needs device_memory"):
        acplan.auto_checkpoint(
            copy.deepcopy(model), _inputs, lengths=acplan.Lengths([16]), budget="1GiB"
        )


def test_lengths_beyond_the_table_are_told_once() -> None:
    model, table = _small()
    short = acplan.PlanTable(table.entries[:-1], {**table.data})
    model_with_plans = acplan.apply(copy.deepcopy(model), short)
    with pytest.warns(acplan.PlanMismatchWarning, match="length 64 are longer than all"):
        _gradients(model_with_plans, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("error", acplan.PlanMismatchWarning)
        _gradients(model_with_plans, 64)


def test_a_compiled_module_refuses_tables() -> None:
    model, table = _small()
    subject = copy.deepcopy(model)
    next(subject.children()).compile(backend="eager")
    with pytest.raises(acplan.AcplanError, match="found a compiled module"):
        acplan.apply(subject, table)
    assert not has_plan(subject)


def test_wrong_lengths_are_refused() -> None:
    model, table = _small()
    trace = acplan.trace(model, **_inputs(8), progress=False)
    for wrong in (0, -1, 1.5, "long", None):
        with pytest.raises(acplan.AcplanError, match="lengths: expected whole numbers"):
            acplan.Lengths([wrong])  # type: ignore[list-item]
    with pytest.raises(acplan.AcplanError, match="need a histogram"):
        acplan.Lengths([4], seed=1)
    with pytest.raises(acplan.AcplanError, match="lengths need several traces"):
        acplan.plan(trace, "1GiB", lengths=[8])
    with pytest.raises(acplan.AcplanError, match="device_memory, which all batches share"):
        acplan.plan({8: trace}, lengths=[8])
    with pytest.raises(acplan.AcplanError, match="one trace does not show its length"):
        acplan.plan([trace], lengths=[8], device_memory="1GiB")
    with pytest.raises(acplan.AcplanError, match="length 9: expected one from 8 to 8"):
        acplan.plan({8: trace}, lengths=[9], device_memory="1GiB")
    other = acplan.trace(model, **_inputs(16), optimizer="sgd", progress=False)
    with pytest.raises(acplan.AcplanError, match="expected a trace of the model and optimizer"):
        acplan.plan([trace, other], lengths=[8], device_memory="1GiB")


def test_lists_of_inputs_and_histograms() -> None:
    model, table = _small()
    assert acplan.Lengths({8: 2, 4: 1}, steps=3, seed=7).text == "8 2\n4 1\n"
    assert acplan.Lengths(ORDER).distinct == [32, 64, 96, 128]
    traces = [acplan.trace(model, **_inputs(n, 2), progress=False) for n in (8, 16)]
    of_inputs = acplan.plan(
        traces, lengths=[_inputs(n, 2) for n in (8, 12, 16)], device_memory="1GiB"
    )
    assert of_inputs.entries[-1][0] == 16
    assert of_inputs.recompute_ms == 0


def test_the_largest_batch_for_each_length() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    batches = acplan.largest_batches(
        model,
        lambda size, length: torch.zeros(size, length, 64),
        [32, 64],
        budget="18MiB",
        sizes=range(1, 65),
        time_limit=1,
    )
    sizes = {length: best.largest.size for length, best in batches.batches.items()}
    assert sizes[32] > sizes[64] > 1
    assert batches.size_for(33) == sizes[64]
    assert batches.token_budget == min(32 * sizes[32], 64 * sizes[64])
    assert "token budget" in str(batches)
    with pytest.raises(acplan.AcplanError, match="longer than all"):
        batches.size_for(65)
