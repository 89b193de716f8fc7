"""Plans for a device: acplan.plan(device_memory=...), Plan.device, and the trainers."""

import csv
import json
import logging
import pathlib
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import acplan
from acplan import AcplanError, Plan, PlanDevice
from acplan._program.plan import installed_allocator
from acplan._trainers import plain_loop
from acplan._verify.within_budget import require_within_budget
from test_trainers import _fitted, _plan, _trainer
from test_training_runs import _equal, _gpt2

TRACES = pathlib.Path(__file__).parents[3] / "data" / "traces"
TINY = str(TRACES / "gpt2_tiny.json.gz")
DEVICE_MEMORY = TRACES.parent / "devices" / "memory.csv"


@pytest.fixture(scope="module")
def trace() -> acplan.Trace:
    with torch.device("meta"):
        model = _gpt2()
    tokens = torch.zeros(512, 32, dtype=torch.long)
    return acplan.trace(model, input_ids=tokens, labels=tokens, workspaces=False)


def test_a_plan_for_a_device() -> None:
    plan = acplan.plan(TINY, device_memory="64MiB")
    device = plan.device
    assert isinstance(device, PlanDevice) and plan.budget_bytes == 64 << 20
    assert device.allocator == "native" and not device.optimizer_state_first
    assert device.torch_version == installed_allocator()
    assert plan.peak_bytes <= device.allocated_bytes <= device.reserved_bytes
    assert device.reserved_bytes <= device.least_device_bytes <= 64 << 20
    assert device.needs == "" and "needs" not in repr(plan)
    assert "reserved" in plan._repr_html_()
    assert acplan.plan(TINY, "64MiB").device is None


def test_a_device_may_be_named() -> None:
    plan = acplan.plan(TINY, device_memory="RTX 4090")
    gpu = plan.data["device"]["gpu"]
    assert gpu["name"] == "rtx4090"
    assert plan.budget_bytes == gpu["capacity_bytes"] - gpu["context_bytes"]
    with DEVICE_MEMORY.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = {row["gpu"] for row in rows}
    aliases = {alias.lower() for row in rows for alias in row["aliases"].split()}
    assert acplan.DEVICES.keys() <= names | aliases


def test_a_tight_device_recomputes(trace: acplan.Trace) -> None:
    defaults = {"allocator": "native", "optimizer_state": "update", "time_limit": 2}
    roomy = acplan.plan(trace, device_memory="1GiB", **defaults)
    assert roomy.device is not None and roomy.recompute_ms == 0
    memory = roomy.device.least_device_bytes * 3 // 4
    plan = acplan.plan(trace, device_memory=memory, **defaults)
    assert plan.device is not None and plan.recompute_ms > 0
    assert plan.device.least_device_bytes <= memory


def test_what_is_given_is_kept(tmp_path: pathlib.Path) -> None:
    plan = acplan.plan(
        TINY,
        device_memory=64 << 20,
        allocator="expandable_segments:True",
        optimizer_state="first",
        torch_version="2.11",
    )
    device = plan.device
    assert device is not None and device.torch_version == "2.11"
    assert device.needs == (
        "PYTORCH_ALLOC_CONF=expandable_segments:True, acplan.make_optimizer_state"
    )
    assert device.needs in repr(plan) and "make_optimizer_state" in str(plan)
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded.device == device and device.needs in str(loaded)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "expected a budget or device_memory, found neither"),
        ({"budget": "1GiB", "device_memory": "1GiB"}, "found both"),
        ({"budget": "1GiB", "allocator": "native"}, "allocator: needs --device-memory"),
        ({"device_memory": 1.5}, "device_memory: expected bytes or a size"),
        ({"device_memory": "rtx4091"}, "device_memory: .* did you mean rtx4090?"),
        ({"device_memory": "1GiB", "allocator": "x"}, "allocator: "),
        ({"device_memory": "1GiB", "torch_version": "1.0"}, "torch_version: "),
        ({"device_memory": "1GiB", "optimizer_state": "later"}, "expected update or first"),
        ({"device_memory": "1GiB", "world_size": 2}, "cannot be combined with"),
        ({"device_memory": "1MiB"}, "no plan fits"),
    ],
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    with pytest.raises(AcplanError, match=words) as caught:
        acplan.plan(TINY, **options)
    # An infeasible budget has a line for each fact.
    assert "\n" not in str(caught.value) or words == "no plan fits"


def test_a_verification_runs_on_the_device(trace: acplan.Trace) -> None:
    with torch.device("meta"):
        model = _gpt2()
    tokens = torch.zeros(512, 32, dtype=torch.long)

    def check_of(plan: Plan) -> acplan.Verification:
        return acplan.verify(
            model, plan, trace=trace, values=False, input_ids=tokens, labels=tokens
        )

    roomy = acplan.plan(trace, "80%", time_limit=2)
    verification = check_of(roomy)
    on_device = verification.device
    assert on_device is not None and on_device.device_bytes is None and on_device.is_equal
    assert on_device.allocator == "native" and not on_device.optimizer_state_first
    assert "least device" in str(verification) and "predicted and re-traced" in str(on_device)
    least = on_device.measured.least_device_bytes
    assert least is not None and least > verification.measured_bytes

    plan = acplan.plan(trace, device_memory=least, time_limit=2)
    on_device = check_of(plan).device
    assert on_device is not None and on_device.fits and on_device.is_equal
    assert plan.device is not None and on_device.device_bytes == least
    assert on_device.predicted.reserved_bytes == plan.device.reserved_bytes
    assert on_device.predicted.least_device_bytes == plan.device.least_device_bytes

    # The same plan on a device on which its run does not end.
    tight = check_of(Plan.from_data({**plan.data, "reserve_bytes": least // 8}))
    assert tight.device is not None and not tight.device.fits
    assert "OUT OF MEMORY" in str(tight)
    short = Plan.from_data(
        {**plan.data, "reserve_bytes": least - plan.device.least_device_bytes + (2 << 20)}
    )
    with pytest.raises(AcplanError, match="OUT OF MEMORY|the plan peaks at"):
        require_within_budget(short, check_of(short))


def test_explain_a_device(trace: acplan.Trace) -> None:
    plan = acplan.plan(trace, "80%", time_limit=2)
    explanation = acplan.explain(trace, plan=plan, device_memory="1GiB", time_limit=1)
    device = explanation.device
    assert device is not None and device["plan"] == "given"
    assert {"no plan", "expandable segments"} <= {
        lever for row in explanation.device_levers for lever in row["levers"]
    }
    assert "lever, simulated" in str(explanation)
    assert acplan.explain(trace, time_limit=1).device is None


def test_others_take_budgets_alone() -> None:
    with pytest.raises(AcplanError, match="frontier: device_memory is for"):
        acplan.frontier(TINY, device_memory="1GiB")
    for call in (acplan.auto_checkpoint, acplan.plan):
        with pytest.raises(AcplanError, match="found neither"):
            call(nn.Linear(1, 1))


def test_a_version_that_is_not_known_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for installed, expected in {
        "2.13.0+cpu": "2.13",
        "2.8.1": "2.8",
        "2.7.1": None,
        "2.16.0a0+git1": None,
        "3.9.0": None,
    }.items():
        monkeypatch.setattr(torch, "__version__", installed)
        assert installed_allocator() == expected


def test_a_file_that_others_have_written() -> None:
    data = json.loads(json.dumps(acplan.plan(TINY, device_memory="64MiB").data))
    for wrong in ({"retries": "1"}, {"allocator": None}, {"reserved_bytes": 1.5}):
        plan = Plan.from_data({**data, "device": {**data["device"], **wrong}})
        with pytest.raises(AcplanError, match=f"device: {next(iter(wrong))}: found"):
            _ = plan.device
        assert "device" in repr(plan) and str(plan)
    with pytest.raises(AcplanError, match="device: allocator: found None"):
        _ = Plan.from_data({**data, "device": 3}).device


def _first(optimizer_state: str | None = "first") -> dict[str, Any]:
    return {"device_memory": "1GiB", "optimizer_state": optimizer_state, "time_limit": 1}


def test_a_loop_whose_model_is_on_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = torch.ones(2, 8, dtype=torch.long)
    for is_there in (False, True):
        monkeypatch.setattr(plain_loop, "is_on_device", lambda _, is_there=is_there: is_there)
        model = _gpt2()
        optimizer = torch.optim.AdamW(model.parameters())
        inputs = {"input_ids": tokens, "labels": tokens, "optimizer": optimizer}
        acplan.auto_checkpoint(model, **inputs, **_first())
        assert bool(optimizer.state) == is_there
    monkeypatch.undo()
    assert not plain_loop.is_on_device(optimizer)


def test_an_optimizer_that_cannot_make_its_state_first() -> None:
    from acplan._trainers.optimizer_state import options_for

    parameters = [nn.Parameter(torch.zeros(2))]
    open_options = _first(None)
    for optimizer in ("adamw-8bit", "paged_adamw", torch.optim.Rprop(parameters)):
        assert options_for(optimizer, open_options)["optimizer_state"] == "update"
        assert options_for(optimizer, _first())["optimizer_state"] == "first"
        assert options_for(optimizer, {"reserve": 1}) == {"reserve": 1}
    for optimizer in (None, "adamw", "sgd", torch.optim.AdamW(parameters), torch.optim.Rprop):
        assert options_for(optimizer, open_options) == open_options


class _Watch(transformers.TrainerCallback):  # type: ignore[misc]
    """Notes the parameters that have a state when the first step begins."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def on_step_begin(self, *args: Any, optimizer: Any = None, **kwargs: Any) -> None:
        self.counts.append(len(optimizer.state))


def _trained(folder: pathlib.Path, **options: Any) -> tuple[nn.Module, list[int]]:
    trainer = _trainer(folder, _gpt2())
    if options:
        _plan(trainer, budget=None, **options)
    watch = _Watch()
    trainer.add_callback(watch)
    trainer.train()
    return trainer.model, watch.counts


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("one_thread")
def test_transformers_trainer_makes_the_state(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected, counts = _trained(tmp_path / "without")
    assert counts[0] == 0 < counts[1]
    logger = logging.getLogger("transformers.trainer")
    # Others may have made transformers say less.
    caplog.set_level(logging.INFO, logger=logger.name)
    logger.addHandler(caplog.handler)
    try:
        actual, counts_first = _trained(tmp_path / "first", **_first())
    finally:
        logger.removeHandler(caplog.handler)
    assert counts_first == [counts[1], counts[1]] and _equal(actual, expected)
    assert "it needs acplan.make_optimizer_state" in caplog.text
    assert _trained(tmp_path / "update", **_first("update"))[1] == counts


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("one_thread")
def test_lightning_makes_the_state() -> None:
    lightning = pytest.importorskip("lightning")
    expected = _fitted(lightning, [])
    callback = acplan.lightning.AcplanCallback(**_first())
    counts: list[int] = []

    class Watch(lightning.Callback):  # type: ignore[misc]
        def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
            counts.append(len(trainer.optimizers[0].state))

    actual = _fitted(lightning, [callback, Watch()])
    assert counts[0] > 0 and _equal(actual, expected)
    assert actual.losses == expected.losses
