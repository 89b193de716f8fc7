"""Runs of 40 batches of several lengths beside PyTorch's own allocator.

    ACPLAN=... PYTHONPATH=. python tests/compare_lengths.py FOLDER [MODEL...]

Lengths are lognormal, padded to a multiple of 64. The run of GPT-2 small and of BERT base with
padding, 40 real steps on fake tensors without a plan and with tables of one, two and four plans,
is compared with the one that `acplan lengths simulate` predicts: request by request, and by what
PyTorch's own allocator (tests/campaigns/allocator.py, in FOLDER) takes for the real requests. On
the least device that is predicted its run must end; on one of a byte less it must fail. Writes
docs/measured/lengths.csv; with names of models after the folder it prints only those.
"""

import importlib.util
import math
import pathlib
import random
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
import transformers

import acplan
from acplan._step.training_step import TrainingStep
from run_events import (
    Request,
    difference,
    predicted_requests_of_lengths,
    real_requests_of_lengths,
    simulate_lengths,
)
from tables import Table, print_versions

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_VERSION = "2.13.0"
_BATCHES = 40
_SETTINGS = ("native", "expandable_segments:True")


def _gpt2() -> tuple[torch.nn.Module, int, int]:
    """Returns the model, its batch and the longest length."""
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False)), 8, 1024


def _bert() -> tuple[torch.nn.Module, int, int]:
    return transformers.BertForMaskedLM(transformers.BertConfig()), 32, 448


_MODELS = {"gpt2_small": _gpt2, "bert_base_padded": _bert}


def _order(longest: int) -> list[int]:
    draw = random.Random(40)
    lengths = [draw.lognormvariate(math.log(0.4 * longest), 0.5) for _ in range(_BATCHES)]
    return [min(64 * math.ceil(length / 64), longest) for length in lengths]


def _inputs(batch: int, length: int, is_padded: bool) -> dict[str, torch.Tensor]:
    tokens = torch.zeros(batch, length, dtype=torch.long)
    inputs = {"input_ids": tokens, "labels": tokens.clone()}
    if is_padded:
        inputs["attention_mask"] = torch.ones_like(tokens)
        inputs["attention_mask"][1:, -8:] = 0
    return inputs


class _Allocator:
    """PyTorch's own allocator."""

    def __init__(self, folder: pathlib.Path) -> None:
        path = _ROOT / "tests/campaigns/allocator.py"
        spec = importlib.util.spec_from_file_location("allocator", path)
        assert spec is not None and spec.loader is not None
        campaign: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(campaign)
        self._build = campaign.Build(folder, _VERSION)
        if not (self._build.folder / "drive").exists():
            self._build.make()

    def peaks(
        self, requests: list[Request], settings: str, device: int
    ) -> tuple[int, int, int]:
        """Returns the most bytes allocated and reserved, and the failures."""
        lines = []
        for block, request in enumerate(requests):
            lines += [f"f {freed}" for freed in sorted(request.freed)]
            lines.append(f"a {block} {request.bytes}")
        text = "" if settings == "native" else settings
        rows = self._build.drive(text, device, "\n".join(lines) + "\n")
        numbers = [[int(word) for word in row.split()[-4:]] for row in rows]
        return (max(n[0] for n in numbers), max(n[1] for n in numbers), numbers[-1][3])


def _plans(
    traces: dict[int, acplan.Trace], order: list[int], memory: int
) -> list[tuple[str, acplan.Plan | acplan.PlanTable | None]]:
    plans: list[tuple[str, acplan.Plan | acplan.PlanTable | None]] = [("none", None)]
    plans.append(
        (
            "longest",
            acplan.plan(traces[max(traces)], device_memory=memory, torch_version="2.13"),
        )
    )
    for most in (1, 2, 4):
        table = acplan.plan(
            traces,
            lengths=order,
            device_memory=memory,
            plans=most,
            torch_version="2.13",
            time_limit=120,
        )
        plans.append((f"table of {most}", table))
    return plans


def _rows(
    name: str, allocator: _Allocator, memory_share: float
) -> Iterator[tuple[object, ...]]:
    with torch.device("meta"):
        model, batch, longest = _MODELS[name]()
    is_padded = name.endswith("padded")
    order = _order(longest)
    lengths = acplan.Lengths(order)
    traces = acplan.trace_lengths(
        model, lambda n: _inputs(batch, n, is_padded), lengths, workspaces=False
    )
    step = TrainingStep.from_arguments(model, (), _inputs(batch, max(order), is_padded))
    cuts = {n: (slice(None), slice(max(order) - n, None)) for n in lengths.distinct}
    memory = int(traces[max(traces)].peak_bytes * memory_share) >> 20 << 20
    for plan_name, plan in _plans(traces, order, memory):
        device = None if plan is None else plan.device
        first = device is not None and device.optimizer_state_first
        real = real_requests_of_lengths(step, cuts, order, plan, first)
        predicted = predicted_requests_of_lengths(traces, lengths, plan, first)
        text = difference(real, predicted)
        print(f"{name}, {plan_name}: {len(real)} requests; {text or 'equal'}", flush=True)
        allocators = _SETTINGS if device is None else (*_SETTINGS, device.allocator)
        for settings in dict.fromkeys(allocators):
            with tempfile.TemporaryDirectory() as folder:
                run = simulate_lengths(
                    pathlib.Path(folder), traces, lengths, plan, settings, first,
                    "--torch-version", "2.13",
                )  # fmt: skip
                limited = simulate_lengths(
                    pathlib.Path(folder), traces, lengths, plan, settings, first,
                    "--torch-version", "2.13", "--device-memory", str(memory),
                    "--without-least-device",
                )  # fmt: skip
            allocated, reserved, _ = allocator.peaks(real, settings, 1 << 44)
            least = run["least_device_bytes"]
            fits = allocator.peaks(real, settings, least)[2] == 0
            fails = allocator.peaks(real, settings, least - 1)[2] > 0
            on_device = allocator.peaks(real, settings, memory)[2] == 0
            failure = limited["failure"]
            yield (
                    name, plan_name, settings, first, len(order), len(lengths.distinct),
                    len(traces), len(real), text == "", allocated, run["allocated_bytes"],
                    reserved, run["reserved_bytes"], least, fits and fails, memory, on_device,
                    failure is None, "" if failure is None else failure["batch"],
                    f"{run['recompute_ms']:.3f}",
                    f"{plan.bound_ms:.3f}" if isinstance(plan, acplan.PlanTable) else "",
                    len(plan.entries) if isinstance(plan, acplan.PlanTable) else "",
            )  # fmt: skip


_COLUMNS = (
    "model", "plan", "allocator", "state_first", "batches", "lengths", "traced", "requests",
    "equal_requests", "allocated", "predicted_allocated", "reserved", "predicted_reserved",
    "predicted_least_device", "least_device_holds", "device", "real_fits_device",
    "predicted_fits_device", "fails_at_batch", "recompute_ms", "bound_ms", "plans",
)  # fmt: skip
_SHARES = {"gpt2_small": 0.65, "bert_base_padded": 0.65}


def main(folder: str, names: list[str]) -> None:
    print_versions("transformers")
    allocator = _Allocator(pathlib.Path(folder))
    table = Table("lengths", _COLUMNS, is_partial=bool(names))
    for name in names or _MODELS:
        for row in _rows(name, allocator, _SHARES[name]):
            table.add(*row)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
