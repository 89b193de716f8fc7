"""acplan.report writes what `acplan report` does."""

import json
import pathlib
import re
from typing import Any

import pytest

import acplan
from acplan import AcplanError

TRACE = pathlib.Path(__file__).parents[3] / "data/traces/gpt2_tiny.json.gz"


def data_of(page: pathlib.Path) -> dict[str, Any]:
    match = re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert match
    data = json.loads(match.group(1))
    assert isinstance(data, dict)
    return data


def test_shows_plans_by_name(tmp_path: pathlib.Path) -> None:
    trace = acplan.Trace.load(TRACE)
    plans = {
        "tight": acplan.plan(trace, "min", time_limit=1),
        "loose": acplan.plan(trace, "99%"),
    }
    page = acplan.report(trace, tmp_path / "a.html", plans, points=0)
    runs = data_of(page)["runs"]
    assert [run["name"] for run in runs] == ["no plan", "tight", "loose"]
    assert runs[0]["peak_bytes"] == trace.peak_bytes
    for run, plan in zip(runs[1:], plans.values(), strict=True):
        assert run["peak_bytes"] == plan.data["peak_bytes"]
        assert run["recompute_ms"] == pytest.approx(plan.recompute_ms)


def test_takes_files_and_profiles(tmp_path: pathlib.Path) -> None:
    plan = tmp_path / "p.json"
    acplan.plan(TRACE, "99%").save(plan)
    page = acplan.report(TRACE, tmp_path / "a.html", plan, points=2, time_limit=1)
    data = data_of(page)
    assert [run["name"] for run in data["runs"]] == ["no plan", "p.json"]
    assert len(data["frontier"]["points"]) == 2
    page = acplan.report(acplan.profile(TRACE), tmp_path / "b.html", points=0)
    assert data_of(page)["of_operators"] is False


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((3, "a.html"), "report: expected a Trace"),
        ((TRACE, "a.html", 3), "report: plans: expected a Plan"),
        ((TRACE, "a.html", "gone.json"), "gone.json"),
        ((TRACE, "no/a.html"), "no/a.html"),
    ],
)
def test_refuses(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[Any, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AcplanError, match=said):
        acplan.report(*arguments, points=0)
    assert list(tmp_path.iterdir()) == []
