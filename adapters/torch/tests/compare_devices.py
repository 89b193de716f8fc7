"""The runs that acplan simulates on PyTorch's allocator beside the real one: least devices of
plans for live bytes, and plans for a device.

    ACPLAN=... PYTHONPATH=. python tests/compare_devices.py FOLDER

writes docs/measured/devices.csv and device_plans.csv; with names of models after FOLDER it
prints only those rows. FOLDER keeps PyTorch's wheel for CUDA and the program that runs its
allocator (tests/campaigns/allocator.py builds both).

acplan predicts a run from the trace and the plan. The real run is the step with the plan on
fake tensors, as many iterations: PyTorch's allocator serves its requests, on a device without
limit, on the least device that acplan predicts, and on one that has a byte less. The script
ends with an error unless all requests, allocated and reserved bytes are equal and just the run
on the smaller device fails.
"""

import dataclasses
import functools
import json
import pathlib
import re
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

import acplan
from acplan._base.program import run_acplan
from acplan._files.display import size
from acplan._step.training_step import TrainingStep
from run_events import Request, difference, predicted_requests, real_requests
from tables import Table, print_versions
from zoo import llama_1b

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "tests" / "campaigns"))
import allocator as real

VERSION = "2.13.0"
NO_LIMIT = 1 << 40
SETTINGS = {"native": "", "expandable_segments:True": "expandable_segments:True"}
# The settings of plans for a device: all that acplan chooses from.
PLAN_SETTINGS = (*SETTINGS, "expandable_segments:True,large_segment_size_mb:12")
TIME_LIMIT = 30
# The most that acplan runs.
ITERATIONS = 6


@dataclasses.dataclass(frozen=True)
class Run:
    """The prediction of a run on one allocator."""

    iterations: int
    allocated_bytes: int
    reserved_bytes: int
    least_device_bytes: int


def _tokens(batch: int, length: int, vocabulary: int) -> dict[str, Any]:
    tokens = torch.randint(3, vocabulary, (batch, length))
    return {"input_ids": tokens, "labels": tokens.clone()}


def _images(batch: int) -> dict[str, Any]:
    labels = torch.randint(0, 1000, (batch,))
    return {"pixel_values": torch.rand(batch, 3, 224, 224), "labels": labels}


def _gpt2() -> tuple[nn.Module, dict[str, Any]]:
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))
    return model, {**_tokens(8, 1024, 50257), "autocast": "bf16"}


def _llama_1b() -> tuple[nn.Module, dict[str, Any]]:
    return llama_1b(), _tokens(4, 4096, 128256)


def _bert() -> tuple[nn.Module, dict[str, Any]]:
    model = transformers.BertForMaskedLM(transformers.BertConfig())
    return model, {**_tokens(32, 512, 30522), "autocast": "bf16"}


def _t5() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.T5Config(use_cache=False, decoder_start_token_id=0)
    return transformers.T5ForConditionalGeneration(config), _tokens(16, 512, 32128)


def _resnet() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.ResNetConfig(num_labels=1000)
    return transformers.ResNetForImageClassification(config), _images(64)


def _swin() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.SwinConfig(num_labels=1000)
    model = transformers.SwinForImageClassification(config)
    return model, {**_images(32), "autocast": "bf16"}


MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "gpt2": _gpt2,
    "llama_1b": _llama_1b,
    "bert": _bert,
    "t5": _t5,
    "resnet": _resnet,
    "swin": _swin,
}


def _simulated(
    trace: acplan.Trace, plan: acplan.Plan | None, settings: str, is_state_first: bool
) -> Run:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        trace.save(folder / "trace.json")
        files = [str(folder / "trace.json")]
        if plan is not None:
            plan.save(folder / "plan.json", model=trace.data["model"]["name"])
            files.append(str(folder / "plan.json"))
        options = ["--allocator", settings, "--torch-version", VERSION.rpartition(".")[0]]
        options += ["--optimizer-state", "first" if is_state_first else "update"]
        run = json.loads(run_acplan(["simulate", *files, *options, "--json"]))["run"]
    assert run["least_device_proven"]
    return Run(**{field.name: run[field.name] for field in dataclasses.fields(Run)})


def _events_of(requests: list[Request]) -> str:
    lines = []
    for number, request in enumerate(requests):
        lines += [f"f {block}" for block in sorted(request.freed)]
        lines.append(f"a {number} {request.bytes}")
    return "\n".join(lines) + "\n"


def _peaks_of(
    build: real.Build, events: str, settings: str, device_bytes: int
) -> tuple[int, int, int]:
    """Returns the peaks of allocated and reserved bytes, and the failures, of the real
    allocator."""
    rows = [line.split() for line in build.drive(settings, device_bytes, events)]
    return max(int(row[1]) for row in rows), max(int(row[2]) for row in rows), int(rows[-1][4])


def _require_equal(build: real.Build, run: Run, settings: str, requests: list[Request]) -> None:
    # With memory to spare the layouts repeat after run.iterations; on a small device later.
    until = _events_of(_first_iterations(requests, run.iterations))
    peaks = _peaks_of(build, until, settings, NO_LIMIT)
    assert peaks == (run.allocated_bytes, run.reserved_bytes, 0), (peaks, run)
    events = _events_of(requests)
    assert _peaks_of(build, events, settings, run.least_device_bytes)[2] == 0, run
    assert _peaks_of(build, events, settings, run.least_device_bytes - 1)[2] > 0, run


def _compare(build: real.Build, name: str, devices: Table, plans: Table) -> None:
    with torch.device("meta"):
        model, options = MODELS[name]()
    step = TrainingStep.from_arguments(model, (), options)
    # A run on fake tensors does not show the workspaces of kernels.
    trace = acplan.trace(model, progress=False, workspaces=False, **options)
    make = functools.partial(acplan.plan, trace, time_limit=TIME_LIMIT)
    for budget in (None, "80%", "50%", "min"):
        try:
            plan = None if budget is None else make(budget)
        except acplan.AcplanError as error:
            print(f"{name} {budget}: {error}", file=sys.stderr)
            continue
        peak = trace.peak_bytes if plan is None else plan.peak_bytes
        for is_state_first in (False, True):
            runs = {one: _simulated(trace, plan, one, is_state_first) for one in SETTINGS}
            requests = _rounded(real_requests(step, plan, ITERATIONS, is_state_first))
            predicted = _rounded(predicted_requests(trace, plan, ITERATIONS, is_state_first))
            first = difference(requests, predicted)
            assert not first, f"{name} {budget}: {first}"
            for setting, run in runs.items():
                _require_equal(build, run, SETTINGS[setting], requests)
                devices.add(
                    name,
                    budget or "none",
                    setting.partition(":")[0],
                    "first" if is_state_first else "update",
                    peak,
                    run.allocated_bytes,
                    run.reserved_bytes,
                    run.least_device_bytes,
                    f"{100 * (run.least_device_bytes / peak - 1):.1f}",
                    len(requests),
                    "equal",
                )
        if plan is not None and budget != "min":
            for setting in PLAN_SETTINGS:
                plans.add(*_device_row(name, budget, setting, plan, make))


def _rounded(requests: list[Request]) -> list[Request]:
    """Returns the requests in the units of the allocator. (The rows of a gradient of an
    attention's mask are padded on a device, and not on fake tensors.)"""
    return [
        dataclasses.replace(request, bytes=-(-request.bytes // 512) * 512)
        for request in requests
    ]


def _first_iterations(requests: list[Request], iterations: int) -> list[Request]:
    def iteration_of(request: Request) -> int:
        number = request.place.partition(".")[0]
        return int(number) if number.isdigit() else 0

    return [request for request in requests if iteration_of(request) <= iterations]


def _device_row(
    name: str, budget: str | None, setting: str, plan: acplan.Plan, make: Any
) -> tuple[object, ...]:
    """Returns the plan for a device that is 3% larger than the budget, beside the plan for
    the budget's live bytes."""
    device = int(1.03 * plan.peak_bytes)
    label = setting.replace(":True,", ", ").replace(":True", "")
    row: list[object] = [name, budget, label, size(device)]
    row.append(f"{plan.recompute_ms:.3f}")
    try:
        device_plan = make(device_memory=device, allocator=setting)
    except acplan.AcplanError as error:
        least = re.search(r"the least device of them has [^)]*\)", str(error))
        assert least, error
        return (*row, "", "", f"no plan found; {least[0]}")
    assert device_plan.device is not None
    more = (
        100 * (device_plan.recompute_ms / plan.recompute_ms - 1) if plan.recompute_ms else 0.0
    )
    state = "first" if device_plan.device.optimizer_state_first else "update"
    return (*row, f"{device_plan.recompute_ms:.3f}", f"{more:+.1f}", f"state {state}")


def main(folder: str, *names: str) -> None:
    print_versions("transformers")
    build = real.Build(pathlib.Path(folder), VERSION)
    build.make()
    columns = ["model", "plan", "segments", "optimizer_state", "live_bytes", "allocated_bytes"]
    columns += ["reserved_bytes", "least_device_bytes", "percent_above_live", "requests"]
    devices = Table("devices", [*columns, "beside_pytorch"], is_partial=bool(names))
    columns = ["model", "live_budget", "segments", "device", "ms_of_live_bytes"]
    columns += ["ms_of_device", "percent_more", "answer"]
    plans = Table("device_plans", columns, is_partial=bool(names))
    for name in names or MODELS:
        _compare(build, name, devices, plans)


if __name__ == "__main__":
    main(*sys.argv[1:])
