"""The values of torch.compile's memory budget: their effects are those of the graphs that
PyTorch makes with them."""

import functools
import pathlib
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch import config
from torch._functorch.partitioners import min_cut_rematerialization_partition

import acplan
from acplan._compile.fake_step import compiles_fakes
from acplan._compile.memory_budget import budget_value
from acplan._graphs.graph_memory import run_step
from test_compiled_steps import Net, _x

pytestmark = pytest.mark.skipif(not compiles_fakes(), reason="needs PyTorch 2.11")

_VALUES = (0.0, 0.3, 1.0)


@functools.cache
def _budgets(*breaks: int) -> acplan.MemoryBudgets:
    torch._dynamo.reset()
    model = Net(blocks=3, breaks=breaks)
    return acplan.memory_budgets(model, _x(), values=_VALUES, backend="aot_eager")


def _compiled_peak(value: float, held_bytes: int) -> int:
    """Returns the peak of the graphs of a real torch.compile with a value of the budget."""
    graphs: list[Any] = []

    def partition(module: Any, inputs: Any, *, num_fwd_outputs: int, **kwargs: Any) -> Any:
        pair = min_cut_rematerialization_partition(
            module, inputs, num_fwd_outputs=num_fwd_outputs, **kwargs
        )
        graphs.append((*pair, num_fwd_outputs))
        return pair

    backend = aot_autograd(
        fw_compiler=boxed_nop, partition_fn=partition, keep_inference_input_mutations=True
    )
    torch._dynamo.reset()
    with config.patch(activation_memory_budget=value):
        torch.compile(Net(blocks=3), backend=backend)(_x()).backward()
    assert len(graphs) == 1
    return max(o.live_bytes for part in run_step(*graphs[0], held_bytes) for o in part)


def test_effects_are_those_of_pytorchs_graphs() -> None:
    budgets = _budgets()
    held_bytes = budgets.graph["held_bytes"]
    peaks = [choice.peak_bytes for choice in budgets.choices]
    assert peaks[1:] == [_compiled_peak(value, held_bytes) for value in _VALUES[1:]]
    assert peaks[1] < min(peaks[0], peaks[2])
    times = [choice.recompute_ms for choice in budgets.choices]
    assert times == sorted(times, reverse=True)
    assert times[-1] == 0


@pytest.mark.parametrize("breaks", [(), (2,)], ids=["one graph", "two graphs"])
def test_the_best_value_is_that_of_all_and_is_read_back(
    breaks: tuple[int, ...], tmp_path: pathlib.Path
) -> None:
    budgets = _budgets(*breaks)
    for limit in {choice.peak_bytes for choice in budgets.choices}:
        fitting = [c.recompute_ms for c in budgets.choices if c.peak_bytes <= limit]
        best = budgets.best(limit)
        assert (best.recompute_ms, best.peak_bytes <= limit) == (min(fitting), True)
        for trainer in ("torch", "torchtitan"):
            path = tmp_path / "config.py"
            path.write_text(budgets.text(limit, trainer))
            audit = budgets.audit(path)
            assert (audit.choice, audit.best) == (best, best)
            # acplan's plan is one of the same graphs.
            assert audit.plan_ms is not None and audit.plan_ms <= best.recompute_ms + 1e-9
    least = min(choice.peak_bytes for choice in budgets.choices)
    assert budgets.best("min").peak_bytes == least
    with pytest.raises(acplan.AcplanError, match=f"one needs {least:,}") as error:
        budgets.best(least - 1)
    assert error.value.exit_code == 3


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"", "expected activation_memory_budget = a number from 0 to 1, found none"),
        (b"activation_memory_bugdet = 0.5\n", "found activation_memory_bugdet"),
        (b"activation_memory_budget = 1.5\n", "from 0 to 1, found 1.5"),
        (b"activation_memory_budget = x\n", "a number from 0 to 1"),
        (b"# activation_memory_budget = 0.5\n", "a number from 0 to 1"),
        (b"activation_memory_budget = 0.5\nactivation_memory_budget = 0.6\n", "0.5, 0.6"),
        (b"\xff\x00\xfe" * 99, "no text"),
    ],
)
def test_wrong_files_are_refused(tmp_path: pathlib.Path, text: bytes, complaint: str) -> None:
    path = tmp_path / "config.py"
    path.write_bytes(text)
    with pytest.raises(acplan.AcplanError, match=complaint) as error:
        budget_value(path)
    assert "\n" not in str(error.value)


def test_values_are_read_in_torchtitans_words(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[activation_checkpoint]\nmode = "memory_budget"\nmemory_budget = 0.35\n')
    assert budget_value(path) == 0.35
    with pytest.raises(acplan.AcplanError, match=r"values=\[0.35\]"):
        _budgets().audit(path)
    with pytest.raises(acplan.AcplanError, match="expected torch or torchtitan"):
        _budgets().text("min", "trl")
    with pytest.raises(acplan.AcplanError, match="numbers from 0 to 1"):
        acplan.memory_budgets(Net(), _x(), values=[2])
