"""acplan.plan with run-times that may be wrong."""

import copy
import pathlib
from typing import Any

import pytest

import acplan
from acplan import AcplanError, Plan, Regret, TimesOff

_DATA = pathlib.Path(__file__).parents[3] / "data"
_TRACE = _DATA / "traces" / "gpt2_small.json.gz"


def test_a_plan_says_what_it_can_lose() -> None:
    free = acplan.plan(_TRACE, "85%").times_off
    plan = acplan.plan(_TRACE, "85%", times_off=1.5)
    searched = plan.times_off
    assert free is not None and searched is not None
    assert free.factor == searched.factor == 1.5
    assert free.by_kind.at_least is None and free.worst_kinds == {}
    assert searched.by_kind.at_least is not None
    assert searched.by_kind.at_least.step <= searched.by_kind.step < free.by_kind.step
    assert set(searched.worst_kinds.values()) == {1.5, 1 / 1.5}
    assert "run-times off by up to 1.5" in plan.text


def test_measured_errors_are_those_of_kinds() -> None:
    off = acplan.plan(_TRACE, "85%", times_off="measured").times_off
    wide = acplan.plan(_TRACE, "85%", times_off=1.5).times_off
    assert off is not None and wide is not None and wide.factors == {}
    errors = acplan.DEVICES["a100"].kind_errors
    assert off.factors == pytest.approx({kind: 1 / (1 - e) for kind, e in errors.items()})
    assert off.factor == max(off.factors.values())
    assert off.by_kind.step < wide.by_kind.step


def test_a_robust_plan_loses_no_more() -> None:
    plan = acplan.plan(_TRACE, "85%", times_off=2).times_off
    robust = acplan.plan(_TRACE, "85%", times_off=2, robust=True).times_off
    assert plan is not None and robust is not None
    assert plan.least_step is None and robust.least_step is not None
    assert robust.least_step <= robust.by_kind.step <= plan.by_kind.step + 1e-4


def test_plans_on_profiles_do_not_say() -> None:
    profile = _DATA / "profiles" / "gpt2_small.json.gz"
    assert acplan.plan(profile, "10GiB").times_off is None
    with pytest.raises(AcplanError, match="times_off: needs a plan on a trace"):
        acplan.plan(profile, "10GiB", times_off=1.5)


@pytest.mark.parametrize("factor", [0.5, -1, float("nan"), float("inf"), "two"])
def test_factors_are_numbers_from_1_on(factor: Any) -> None:
    with pytest.raises(AcplanError, match="times_off"):
        acplan.plan(_TRACE, "85%", times_off=factor)


_ENTRY = {
    "factor": 1.5,
    "by_kind": {"step": 0.01, "recomputation": None, "at_least": {"step": 0.005}},
    "by_operator": {"step": 0.02, "recomputation": 0.5},
}


def test_entries_of_files_are_read() -> None:
    plan = Plan((), {"times_off": _ENTRY})
    assert plan.times_off == TimesOff(
        1.5, Regret(0.01, None, Regret(0.005, None)), Regret(0.02, 0.5), {}
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("factor", None),
        ("by_kind", 3),
        ("by_operator", {"step": "1"}),
        ("worst_kinds", [1]),
        ("factors", {"products": "2"}),
    ],
)
def test_entries_that_are_wrong_are_refused(key: str, value: Any) -> None:
    entry = {**copy.deepcopy(_ENTRY), key: value}
    with pytest.raises(AcplanError, match="times_off"):
        _ = Plan((), {"times_off": entry}).times_off
