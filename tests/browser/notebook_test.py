"""Opens the notebook output of acplan's values in headless Chromium: the report's charts of the
same numbers, offline, in frames that are as high as their content.

    ACPLAN=build/release/cli/acplan python -m pytest tests/browser

The page around them has outputs one below the other, as the classic notebook, JupyterLab and
VS Code put them; those programs themselves are not run.
"""

import html
import json
import os
import pathlib
import re
import sys

import pytest
from playwright.sync_api import Browser, Frame, Page

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "adapters/torch"))
os.environ.setdefault("ACPLAN", str(ROOT / "build/release/cli/acplan"))

from torch import nn, randn  # noqa: E402

import acplan  # noqa: E402
from acplan._files import charts, display  # noqa: E402


def _values() -> dict[str, object]:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), randn(512, 64)
    traced = acplan.trace(model, x, loss_fn=lambda output: output.square().mean())
    plan = acplan.plan(traced, "100%")
    return {
        "trace": traced,
        "plan": plan,
        "profile": acplan.profile(traced),
        "verification": acplan.verify(
            model, plan, x, trace=traced, loss_fn=lambda output: output.square().mean()
        ),
        "frontier": acplan.frontier(traced, points=3),
        "explanation": acplan.explain(traced),
    }


@pytest.fixture(scope="module")
def values() -> dict[str, object]:
    return _values()


class Notebook:
    def __init__(
        self, browser: Browser, path: pathlib.Path, outputs: list[str], scripts: bool = True
    ) -> None:
        path.write_text(
            "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'><title>n</title></head>"
            "<body>"
            + "".join(f"<div class='output'>{text}</div>" for text in outputs)
            + "</body></html>"
        )
        context = browser.new_context(
            viewport={"width": 1000, "height": 900}, offline=True, java_script_enabled=scripts
        )
        self.page: Page = context.new_page()
        self.said: list[str] = []
        self.requested_urls: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.requested_urls.append(request.url))
        self.page.goto(path.as_uri())
        self.path = path

    def __enter__(self) -> "Notebook":
        return self

    def __exit__(self, *_: object) -> None:
        self.page.context.close()

    def frames(self) -> list[Frame]:
        """Returns the frames of the outputs, in order, with their charts."""
        frames = []
        for handle in self.page.query_selector_all("iframe"):
            frame = handle.content_frame()
            assert frame is not None
            frame.wait_for_selector("html[data-ready]", timeout=30_000)
            frames.append(frame)
        return frames


def _data(frame: Frame) -> dict:
    return json.loads(frame.text_content("#data"))


def test_outputs_are_the_charts_of_the_report(browser, values, tmp_path):
    outputs = [value._repr_html_() for value in values.values()]
    assert all(len(text) <= charts.MOST for text in outputs)
    with Notebook(browser, tmp_path / "n.html", outputs) as notebook:
        frames = dict(zip(values, notebook.frames(), strict=True))
        sections = {
            name: frame.eval_on_selector_all("section", "all => all.map(s => s.id)")
            for name, frame in frames.items()
        }
        assert sections == {
            "trace": ["memory"],
            "plan": ["memory"],
            "profile": ["memory", "map"],
            "verification": ["memory"],
            "frontier": ["frontier"],
            "explanation": ["memory", "lines"],
        }
        for frame in frames.values():
            assert frame.query_selector_all("figure svg") != []
            assert not frame.query_selector("header").is_visible()
        peaks = {
            name: [run["peak_bytes"] for run in _data(frame)["runs"]]
            for name, frame in frames.items()
        }
        assert peaks["trace"] == [values["trace"].peak_bytes]
        assert peaks["plan"] == [values["trace"].peak_bytes, values["plan"].peak_bytes]
        assert peaks["verification"][1] == values["verification"].measured_bytes
        assert peaks["explanation"] == [values["explanation"].peak_bytes]
        shown_budgets = [
            point["budget_bytes"] for point in _data(frames["frontier"])["frontier"]["points"]
        ]
        assert shown_budgets == [row["budget_bytes"] for row in values["frontier"].rows]
        # Each frame is as high as its content, and there are no requests and no complaints.
        for frame in frames.values():
            content_height = frame.evaluate("document.body.getBoundingClientRect().height")
            frame_height = frame.frame_element().bounding_box()["height"]
            assert content_height > 200 and 0 <= frame_height - content_height < 2
        assert notebook.said == []
        assert {url for url in notebook.requested_urls if not url.startswith("about:")} == {
            notebook.path.as_uri()
        }


def test_the_pointer_reads_the_step(browser, values, tmp_path):
    with Notebook(browser, tmp_path / "n.html", [values["trace"]._repr_html_()]) as notebook:
        [frame] = notebook.frames()
        frame.click("text=Go to the peak")
        assert f"{display.size(values['trace'].peak_bytes)}:" in frame.text_content("#reading")
        frame.fill("#sample", "0")
        assert frame.text_content("#reading").startswith("step 1 of")


def test_where_no_script_runs_the_plain_chart_is_there(browser, values, tmp_path):
    outputs = [values["trace"]._repr_html_()]
    with Notebook(browser, tmp_path / "n.html", outputs, scripts=False) as notebook:
        frame = notebook.page.query_selector("iframe").content_frame()
        assert frame.query_selector("svg[role=img] polyline").is_visible()


def test_outputs_hold_any_name(browser, tmp_path, values):
    hostile = "</script><script>parent.document.title = 'taken'</script>\" & \u2028"
    data = json.loads(json.dumps(values["trace"].data))
    data["model"]["name"] = hostile
    data["operators"][0]["name"] = hostile
    data["sources"][0]["file"] = hostile
    output = acplan.Trace(data)._repr_html_()
    with Notebook(browser, tmp_path / "n.html", [output]) as notebook:
        [frame] = notebook.frames()
        frame.fill("#sample", "0")
        assert hostile.replace("\u2028", "")[:9] in frame.text_content("#reading")
        assert notebook.page.title() == "n" and notebook.said == []
        packed = html.unescape(re.search(r'srcdoc="([^"]*)"', output).group(1))
        assert "taken" not in packed.replace(html.escape(hostile), "")
