"""The pages that acplan's values show in notebooks."""

import base64
import gzip
import html
import html.parser
import pathlib
import pickle
import re
import sys
from typing import Any

import pytest
import torch
from torch import nn

import acplan
from acplan._files import charts, display


class _Balanced(html.parser.HTMLParser):
    """Fails where an element is not closed, or another one is."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _elements(text: str) -> set[str]:
    parser = _Balanced()
    parser.feed(text)
    parser.close()
    assert not parser.open
    return parser.tags


def _values() -> dict[str, Any]:
    model, x = (
        nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)),
        torch.randn(512, 64),
    )
    traced = acplan.trace(model, x)
    plan = acplan.plan(traced, "100%")
    return {
        "trace": traced,
        "plan": plan,
        "profile": acplan.profile(traced),
        "verification": acplan.verify(model, plan, x, trace=traced),
        "frontier": acplan.frontier(traced, points=3),
        "comparison": acplan.compare(traced, plan),
        "explanation": acplan.explain(traced),
    }


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return _values()


def test_a_line_and_a_page(values: dict[str, Any]) -> None:
    for name, value in values.items():
        assert len(repr(value)) < 200 and "\n" not in repr(value), name
        page = value._repr_html_()
        assert len(page) < 1 << 20, name
        assert "div" in _elements(page)
        assert ("iframe" in _elements(page)) == (name != "comparison"), name


def _frame_parts(page: str) -> tuple[str, str]:
    """Returns what a frame shows before its script runs, and the page that it becomes."""
    match = re.search(r'srcdoc="([^"]*)"', page)
    assert match
    frame = html.unescape(match.group(1))
    packed = re.search(r'atob\("([^"]*)"\)', frame)
    assert packed
    return frame, gzip.decompress(base64.b64decode(packed.group(1))).decode()


def test_frames_hold_the_report_and_the_plain_chart(values: dict[str, Any]) -> None:
    for name in ("trace", "verification", "frontier"):
        frame, page = _frame_parts(values[name]._repr_html_())
        assert "svg" in _elements(frame.partition("<script>")[0]), name
        assert page.startswith("<!DOCTYPE html>") and "vega" in page
    assert '"parts":["memory"]' in _frame_parts(values["trace"]._repr_html_())[1]
    assert "<svg" not in _frame_parts(values["plan"]._repr_html_())[0]


def test_values_of_which_nothing_is_known_have_the_plain_chart(
    values: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    values["plan"].save(tmp_path / "p.json")
    loaded = acplan.Plan.load(tmp_path / "p.json")
    assert "iframe" not in _elements(loaded._repr_html_())
    # The trace of a plan is not pickled with it, and not kept alive by it.
    assert len(pickle.dumps(values["plan"])) < len(pickle.dumps(values["trace"]))
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    verified = acplan.verify(model, acplan.Plan(()), x)
    assert "svg" in _elements(verified._repr_html_())
    assert "iframe" not in _elements(verified._repr_html_())
    explained = acplan.explain(model, x, levers=False)
    assert explained.source is not None and "iframe" in _elements(explained._repr_html_())


def test_plans_of_files_are_of_the_files(
    values: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    values["trace"].save(tmp_path / "t.json")
    plan = acplan.plan(tmp_path / "t.json", "100%")
    assert "iframe" in _elements(plan._repr_html_())
    (tmp_path / "t.json").unlink()
    assert "the charts of acplan report are not shown: " in plan._repr_html_()


def test_the_reason_is_said_where_there_is_no_report(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("ACPLAN", "/none/acplan")
        page = values["trace"]._repr_html_()
        assert {"svg", "small"} <= _elements(page) and "/none/acplan" in page
    monkeypatch.setattr(charts, "MOST", 1000)
    page = values["trace"]._repr_html_()
    assert {"svg", "small"} <= _elements(page) and "iframe" not in _elements(page)
    assert "acplan.report writes them into a file" in page


def test_charts_keep_the_peak(values: dict[str, Any]) -> None:
    live = values["trace"].live_bytes
    assert max(live) == values["trace"].peak_bytes
    points = [(float(k), float(b)) for k, b in enumerate(live * 50)]
    thin = display.thinned(points)
    assert len(thin) <= 400 and max(y for _, y in thin) == max(live)
    assert display.size(max(live)) in values["trace"]._repr_html_()


def test_names_have_nothing_that_is_not_seen() -> None:
    for text in (
        "\u202e",
        "\u200d",
        "\u2065",
        "\u3164",
        "\ufe0f",
        "\U000e0041",
        "\x1b",
        "\u2028",
    ):
        assert display.plain(f"a{text}b") == f"a{ascii(text)[1:-1]}b"
    assert display.plain('é 中 😀 "\\') == 'é 中 😀 "\\'


def test_charts_can_be_replaced(values: dict[str, Any]) -> None:
    acplan.set_chart(lambda *_: "<figure></figure>")
    try:
        assert "figure" in _elements(values["trace"]._repr_html_())
    finally:
        acplan.set_chart(None)
    assert "figure" not in _elements(values["trace"]._repr_html_())


def test_tables_have_sizes_and_few_digits(values: dict[str, Any]) -> None:
    page = values["comparison"]._repr_html_()
    cells = re.findall("<td>([^<]*)</td>", page)
    assert any(cell.endswith("iB") for cell in cells)
    assert not any(re.fullmatch(r"[0-9.]{12,}", cell) for cell in cells)


def test_names_are_escaped() -> None:
    page = display.page("<b>", {"<i>": "<u>"}, display.table([{"<a>": "<p>"}]))
    assert _elements(page) == {"div", "b", "table", "thead", "tbody", "tr", "th", "td"}


_PLAN = {"format": "acplan.plan", "version": 1, "status": "optimal", "modules": []}


@pytest.mark.parametrize("more", [{}, {"peak_bytes": "x"}, {"recompute_ms": 1.0}])
def test_plans_without_their_figures_are_shown(more: dict[str, Any]) -> None:
    """As files may be that somebody has written to."""
    lacks = ", figures plan: it does not say its peak_bytes" if "recompute_ms" in more else ""
    unit = {"fqn": "\x1b[31m\u202eNet", "ops": []}
    plan = acplan.Plan.from_data({**_PLAN, "model": unit["fqn"], "modules": [unit], **more})
    assert repr(plan) == r"<Plan for \x1b[31m\u202eNet: units 1" + f"{lacks}>"
    assert str(plan) == r"1 modules to checkpoint: \x1b[31m\u202eNet"
    page = plan._repr_html_()
    assert r"\x1b[31m\u202eNet" in page
    assert "\x1b" not in page and "\u202e" not in page


def test_tables(values: dict[str, Any], monkeypatch: Any) -> None:
    tables: list[Any] = []

    class Pandas:
        @staticmethod
        def DataFrame(rows: Any) -> Any:
            tables.append(rows)
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
    assert len(tables) == len(values) + 3
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
