"""What acplan's values show of themselves."""

import html.parser
import sys
from typing import Any

import acplan
import pytest
import torch
from acplan import showing
from torch import nn


class _Balanced(html.parser.HTMLParser):
    """Fails where an element is not closed, or another one is."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _elements(text: str) -> set[str]:
    parser = _Balanced()
    parser.feed(text)
    parser.close()
    assert not parser.open
    return parser.seen


def _values() -> dict[str, Any]:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), torch.randn(512, 64)
    traced = acplan.trace(model, x)
    planned = acplan.plan(traced, "100%")
    return {
        "trace": traced,
        "plan": planned,
        "profile": acplan.profile(traced),
        "verification": acplan.verify(model, planned, x, of=traced),
        "frontier": acplan.frontier(traced, points=3),
        "comparison": acplan.compare(traced, planned),
        "explanation": acplan.explain(traced),
    }


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return _values()


def test_a_line_and_a_page(values: dict[str, Any]) -> None:
    for name, value in values.items():
        assert len(repr(value)) < 200 and "\n" not in repr(value), name
        page = value._repr_html_()
        assert len(page) < 50_000, name
        assert "div" in _elements(page)
        has_chart = "svg" in _elements(page)
        assert has_chart == (name in ("trace", "verification", "frontier")), name


def test_charts_keep_the_peak(values: dict[str, Any]) -> None:
    live = values["trace"].live_bytes
    assert max(live) == values["trace"].peak_bytes
    points = [(float(k), float(b)) for k, b in enumerate(live * 50)]
    thin = showing.thinned(points)
    assert len(thin) <= 400 and max(y for _, y in thin) == max(live)
    assert showing.size(max(live)) in values["trace"]._repr_html_()


def test_charts_can_be_replaced(values: dict[str, Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(showing, "chart", lambda *given: "<figure></figure>")
    assert "figure" in _elements(values["trace"]._repr_html_())


def test_names_are_escaped() -> None:
    page = showing.page("<b>", {"<i>": "<u>"}, showing.table([{"<a>": "<p>"}]))
    assert _elements(page) == {"div", "b", "table", "thead", "tbody", "tr", "th", "td"}


def test_tables(values: dict[str, Any], monkeypatch: Any) -> None:
    made: list[Any] = []

    class Pandas:
        @staticmethod
        def DataFrame(rows: Any) -> Any:
            made.append(rows)
            return rows

    monkeypatch.setitem(sys.modules, "pandas", Pandas)
    traced = values["trace"]
    assert len(traced.to_pandas()) == len(traced.data["operators"])
    assert traced.to_pandas()[0]["live_bytes"] == traced.live_bytes[0]
    assert {row["phase"] for row in traced.to_pandas()} == {
        "forward",
        "backward",
        "optimizer",
    }
    for value in values.values():
        value.to_pandas()
    assert len(made) == len(values) + 3
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(acplan.AcplanError, match="pip install"):
        traced.to_pandas()


def test_frontiers_and_comparisons_are_those_of_the_program(
    values: dict[str, Any],
) -> None:
    budgets = [row["budget_bytes"] for row in values["frontier"].rows]
    assert budgets == sorted(budgets) and values["frontier"].plans
    names = [row["name"] for row in values["comparison"].rows]
    assert names[0] == "baseline" and len(names) == 2
    assert values["comparison"].rows[1]["peak_bytes"] == values["plan"].peak_bytes
    with pytest.raises(acplan.AcplanError, match="expected plans"):
        acplan.compare(values["trace"])
