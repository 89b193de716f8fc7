"""budget="device": the memory of this process's GPU, and the summary of plans in trainers."""

import logging

import pytest
import torch

import acplan
from acplan import AcplanError, Plan
from acplan._program.visible_device import with_visible_device
from acplan._trainers.summary import log_refused, log_summary, summary

GIB = 1 << 30


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card of 24 GiB, of which this process has 4."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 4 * GIB)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(
    ("free", "usable"),
    [(19.8, 24 - 0.66), (10, 14)],  # a context that is small as yet; another process
)
def test_the_device_is_what_pytorch_can_have_of_it(
    free: float, usable: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (int(free * GIB), 24 * GIB))
    budget, options = with_visible_device("device", {"reserve": "1GiB"})
    assert budget is None and options["device_memory"] == pytest.approx(usable * GIB, abs=1)
    assert options["allocator"] == "expandable_segments:True"
    assert with_visible_device("device", {"allocator": "native"})[1]["allocator"] == "native"
    with pytest.raises(AcplanError, match="found both"):
        with_visible_device("device", {"device_memory": "8GiB"})


def test_other_budgets_and_machines_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_visible_device("75%", {"gap": 0}) == ("75%", {"gap": 0})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    message = "PyTorch finds no GPU; give a size .* device_memory=.h100."
    with pytest.raises(AcplanError, match=message):
        acplan.plan("trace.json", "device")
    with pytest.raises(AcplanError, match=message):
        acplan.auto_checkpoint(torch.nn.Linear(2, 2), torch.zeros(2, 2), budget="device")


def test_a_plan_that_changes_nothing_says_so() -> None:
    data = {
        "format": "acplan.plan", "version": 1, "status": "optimal", "modules": [],
        "budget_bytes": 2 * GIB, "peak_bytes": GIB, "baseline": {"peak_bytes": GIB},
        "recompute_ms": 0.0, "bound_ms": 0.0, "overhead": 0.0,
    }  # fmt: skip
    inputs = {"x": torch.zeros(2, 3), "flag": True}
    assert summary(Plan.from_data(data), inputs, "h100", refused=2) == (
        "the step fits as it is, nothing changed: peak 1.00 GiB, budget 2.00 GiB; planned for "
        "x [2, 3]; some modules cannot be units (logger acplan, level INFO)"
    )


def test_the_summary_is_seen_unless_the_user_wants_errors_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = logging.getLogger("a.trainer")
    for level in (logging.INFO, logging.WARNING, logging.ERROR):
        with caplog.at_level(level, "a.trainer"):
            log_summary(logger, "a plan")
    assert [r.levelno for r in caplog.records] == [logging.INFO, logging.WARNING]


def test_modules_that_cannot_be_units_are_information(caplog: pytest.LogCaptureFixture) -> None:
    warnings = ["Net.a: it cannot be a unit", "--ac-units: Net.b is a leaf", "plan: feasible"]
    with caplog.at_level(logging.INFO, "acplan"):
        assert log_refused(warnings) == 1
    levels = {record.getMessage(): record.levelno for record in caplog.records}
    assert levels == {warnings[0]: logging.INFO, warnings[1]: logging.WARNING}
