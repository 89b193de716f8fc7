"""Opens pages of `acplan report` in headless Chromium: they show the values of the JSON in
them, there are no complaints and no requests to a network, and axe-core finds no violation,
wide and narrow, light and dark.

    ACPLAN=build/release/cli/acplan python -m pytest tests/browser

Needs Chromium (CHROMIUM, else the one on the PATH), playwright and axe-playwright-python.
"""

import gzip
import json
import os
import pathlib
import re
import subprocess
import time

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

ROOT = pathlib.Path(__file__).resolve().parents[2]
ACPLAN = os.environ.get("ACPLAN", str(ROOT / "build/release/cli/acplan"))
LLAMA_LAYERS = ",".join(f"LlamaForCausalLM.model.layers.{k}" for k in range(32))
TINY = ROOT / "data/traces/gpt2_tiny.json.gz"
HOSTILE = "</script><script>document.title = 'taken'</script><!-- & \" \u2028 \u202e \U000e0041"
HOSTILE_ON_PAGE = (
    ascii(HOSTILE)[1:-1].replace("\\'", "'").replace("\\U000e0041", r"\udb40\udc41")
)


def acplan(*arguments: object, exit_code: int = 0) -> subprocess.CompletedProcess:
    process = subprocess.run([ACPLAN, *map(str, arguments)], capture_output=True, text=True)
    assert process.returncode == exit_code, process.stderr
    return process


def report(folder: pathlib.Path, name: str, *arguments: object) -> pathlib.Path:
    path = folder / f"{name}.html"
    acplan("report", *arguments, "-o", path)
    return path


def batches(folder: pathlib.Path) -> list[object]:
    """Returns the arguments of `acplan lengths` for the batches of report_of_lengths."""
    traces = [f"32={TINY}", f"64={folder / '64.json'}"]
    return [*traces, "--lengths", folder / "lengths", "--plan", folder / "table.json"]


def report_of_lengths(folder: pathlib.Path) -> pathlib.Path:
    trace = json.loads(gzip.decompress(TINY.read_bytes()))
    for storage in trace["storages"]:
        if storage["category"] in ("activation", "temporary", "input"):
            storage["bytes"] *= 2
    (folder / "64.json").write_text(json.dumps(trace))
    (folder / "lengths").write_text("32\n64\neval 64\n48\n64\n")
    traces, table = batches(folder)[:4], folder / "table.json"
    device = ("--device-memory", "43MiB", "--plans", 2)
    acplan("lengths", "plan", *traces, *device, "-o", table)
    acplan("lengths", "report", *batches(folder), "-o", folder / "lengths.html")
    return folder / "lengths.html"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    folder = tmp_path_factory.mktemp("pages")
    traces, profiles = ROOT / "data/traces", ROOT / "data/profiles"
    acplan(
        "plan", profiles / "gpt2_small.json.gz", "--budget", "10GiB", "-o", folder / "p.json"
    )
    acplan("plan", traces / "gpt2_small.json.gz", "--budget", "70%", "-o", folder / "t.json")
    acplan("plan", traces / "gpt2_small.json.gz", "--budget", "50%", "-o", folder / "u.json")
    acplan(
        "plan",
        traces / "llama3_8b.json.gz",
        "--budget",
        "70%",
        "--world-size",
        8,
        "--fsdp-units",
        LLAMA_LAYERS,
        "--time-limit",
        2,
        "-o",
        folder / "l.json",
    )
    acplan(
        "train",
        "search",
        ROOT / "data/training/models/llama-3.1-8b.json",
        "--gpu",
        "H100",
        "--gpus",
        64,
        "--gbs",
        512,
        "--seq",
        8192,
        "-o",
        folder / "s.json",
    )
    acplan(
        "calculon",
        "llm-optimal-execution",
        ROOT / "data/models/megatron-22B.json",
        64,
        64,
        "float16",
        ROOT / "data/systems/a100_80g.json",
        folder / "c.json",
        "-t",
        4,
    )
    trace = json.loads(gzip.decompress(TINY.read_bytes()))
    trace["model"]["name"] = HOSTILE
    trace["modules"][1]["class"] = HOSTILE
    trace["operators"][0]["name"] = HOSTILE
    (folder / "h.json").write_text(json.dumps(trace))
    return {
        "lengths": report_of_lengths(folder),
        "profile": report(
            folder, "profile", profiles / "gpt2_small.json.gz", folder / "p.json", "--points", 4
        ),
        "trace": report(
            folder,
            "trace",
            traces / "gpt2_small.json.gz",
            folder / "t.json",
            folder / "u.json",
            "--points",
            4,
            "--time-limit",
            4,
        ),
        "fsdp": report(
            folder, "fsdp", traces / "llama3_8b.json.gz", folder / "l.json", "--points", 0
        ),
        "search": report(folder, "search", folder / "s.json"),
        "calculon": report(folder, "calculon", folder / "c.json"),
        "hostile": report(folder, "hostile", folder / "h.json", "--points", 0),
    }


class Opened:
    """A page, with its complaints and its requests."""

    def __init__(
        self, browser: Browser, path: pathlib.Path, width: int = 1600, scheme: str = "light"
    ) -> None:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        self.page: Page = context.new_page()
        self.said: list[str] = []
        self.requested_urls: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.requested_urls.append(request.url))
        started = time.monotonic()
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]", timeout=30_000)
        self.seconds = time.monotonic() - started
        self.data = json.loads(self.page.text_content("#data"))

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *_: object) -> None:
        self.page.context.close()

    def table(self, selector: str) -> list[dict[str, str]]:
        """Returns the rows of a table, by heading."""
        heads = self.page.locator(f"{selector} thead th").all_text_contents()
        rows = self.page.locator(f"{selector} tbody tr")
        return [
            dict(zip(heads, rows.nth(k).locator("th, td").all_text_contents(), strict=True))
            for k in range(rows.count())
        ]


def bytes_text(size: float) -> str:
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    place = 0
    while size >= 1024 and place + 1 < len(units):
        size, place = size / 1024, place + 1
    return f"{size:.2f} {units[place]}" if place else f"{size:.0f} B"


def bytes_in(text: str) -> float:
    number, name = re.fullmatch(r"([\d.]+) ([KMGT]?i?B)", text).groups()
    return float(number) * 1024 ** ["B", "KiB", "MiB", "GiB", "TiB"].index(name)


@pytest.mark.parametrize(
    "name", ["profile", "trace", "lengths", "fsdp", "search", "calculon", "hostile"]
)
@pytest.mark.parametrize(
    ("width", "scheme"), [(1600, "light"), (1600, "dark"), (360, "light"), (360, "dark")]
)
def test_page_is_sound(browser, pages, name, width, scheme):
    with Opened(browser, pages[name], width, scheme) as opened:
        assert opened.said == []
        assert opened.requested_urls == [pages[name].as_uri()]
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        result = Axe().run(opened.page)
        assert result.violations_count == 0, result.generate_report()
        for figure in opened.page.locator("figure svg").all():
            box = figure.bounding_box()
            assert box["width"] > 200 and box["x"] + box["width"] <= width
            assert figure.locator("xpath=..").get_attribute("aria-label")


def test_prints_on_a_page_of_paper(browser, pages):
    with Opened(browser, pages["trace"], 720, "dark") as opened:
        opened.page.emulate_media(media="print")
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= 720
        assert (
            opened.page.locator("main").evaluate(
                "e => getComputedStyle(e.ownerDocument.body).backgroundColor"
            )
            == "rgb(255, 255, 255)"
        )
        for control in opened.page.locator("select, input, figure button").all():
            assert not control.is_visible()


@pytest.mark.parametrize("name", ["profile", "trace", "fsdp"])
def test_values_are_those_of_the_data(browser, pages, name):
    with Opened(browser, pages[name]) as opened:
        runs = opened.data["runs"]
        rows = opened.table("#summary")
        assert [row["step"] for row in rows] == [run["name"] for run in runs]
        for row, run in zip(rows, runs, strict=True):
            assert row["peak"] == bytes_text(run["peak_bytes"])
            answer = run.get("answer", {})
            if "budget_bytes" in answer:
                assert row["budget"] == bytes_text(answer["budget_bytes"])
                assert run["peak_bytes"] <= answer["budget_bytes"]
                assert row["status"] == answer["status"]
                assert float(row["recomputed"].removesuffix(" ms")) == pytest.approx(
                    run["recompute_ms"], abs=0.006
                )
        kinds = opened.table("#peak")
        for column in [run for run in runs if "peak_by_kind" in run]:
            shown_bytes = {row["kind"]: bytes_in(row[column["name"]]) for row in kinds}
            stated_bytes = dict(zip(opened.data["kinds"], column["peak_by_kind"], strict=True))
            assert shown_bytes.pop("all") == pytest.approx(
                sum(stated_bytes.values()), rel=0.005
            )
            assert shown_bytes == {
                kind: pytest.approx(stated_bytes[kind], rel=0.005, abs=1)
                for kind in shown_bytes
            }
            assert sum(stated_bytes.values()) == column["peak_bytes"]
            assert max(map(sum, column["samples"]["bytes"])) == column["peak_bytes"]


@pytest.mark.parametrize("name", ["profile", "trace"])
@pytest.mark.parametrize("width", [500, 360])
def test_a_phone_shows_all_at_a_glance(browser, pages, name, width):
    with Opened(browser, pages[name]) as wide, Opened(browser, pages[name], width) as phone:
        rows = {row["step"]: row for row in wide.table("#summary")}
        facts = phone.table("#summary")
        assert [fact["step"] for fact in facts][0] == "peak"
        for fact in facts:
            for run, row in rows.items():
                assert fact[run] == row[fact["step"]]
        region = phone.page.locator("#summary .wide")
        assert region.evaluate("e => e.scrollWidth - e.clientWidth") <= 0


@pytest.mark.parametrize("command", ["llm-heatmap", "llm-3dplot"])
def test_a_picture_fits_a_phone(browser, tmp_path, command):
    path = tmp_path / "picture.html"
    acplan("calculon", command, ROOT / "tests/data/calculon/search/S09.csv.gz", path)
    page = browser.new_page(viewport={"width": 360, "height": 800})
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.close()


def test_a_plan_lies_on_the_line_of_the_frontier(browser, pages):
    """The line goes down at each plan that is better than the points before it."""
    with Opened(browser, pages["trace"]) as opened:
        line = opened.page.evaluate("frontierRows().line.map(p => [p.x, p.y])")
        plans = opened.page.evaluate("frontierRows().plans.map(p => [p.x, p.y])")
        assert len(plans) == 2 and [x for x, _ in line] == sorted(x for x, _ in line)
        assert [y for _, y in line] == sorted((y for _, y in line), reverse=True)
        for x, y in plans:
            assert min(b for a, b in line if a <= x) <= y


def test_plans_and_report_agree_with_the_program(pages):
    """The peaks in a page are those of `acplan simulate`."""
    folder = pages["trace"].parent
    for plan in ("t.json", "u.json"):
        said = json.loads(
            acplan(
                "simulate", ROOT / "data/traces/gpt2_small.json.gz", folder / plan, "--json"
            ).stdout
        )
        page = pages["trace"].read_text()
        assert f'"name":"{plan}"' in page
        data = json.loads(re.search(r'id="data">(.*?)</script>', page).group(1))
        run = next(run for run in data["runs"] if run["name"] == plan)
        assert run["peak_bytes"] == said["planned"]["peak_bytes"]
        assert run["recompute_ms"] == pytest.approx(said["planned"]["recompute_ms"])
        kinds_by_category = {
            "parameter": "parameters",
            "optimizer": "optimizer",
            "gradient": "gradients",
            "input": "inputs",
        }
        kinds = dict(zip(data["kinds"], run["peak_by_kind"], strict=True))
        for category, kind in kinds_by_category.items():
            assert kinds[kind] <= said["planned"]["by_category"][category]
        assert sum(kinds.values()) == sum(said["planned"]["by_category"].values())


def test_chart_is_of_the_data(browser, pages):
    with Opened(browser, pages["trace"]) as opened:
        expected_points = opened.page.evaluate(
            "(() => { const v = charts[0].view; const y = v.scale('y'), x = v.scale('x');"
            " return runs.map(r => [x(r.samples.ms[r.peak_sample]),"
            " y(r.peak_bytes / unit.bytes)]); })()"
        )
        drawn_points = opened.page.evaluate(
            "[...document.querySelectorAll('#memory svg .mark-symbol path')].map(p => "
            "p.getAttribute('transform').match(/[-\\d.]+/g).map(Number))"
        )
        assert len(drawn_points) == len(expected_points) == 3
        for (x, y), (drawn_x, drawn_y) in zip(expected_points, drawn_points, strict=True):
            assert (drawn_x, drawn_y) == (
                pytest.approx(x, abs=0.01),
                pytest.approx(y, abs=0.01),
            )


def test_keyboard_reads_the_step(browser, pages):
    with Opened(browser, pages["trace"]) as opened:
        page, run = opened.page, opened.data["runs"][-1]
        page.focus("#sample")
        page.keyboard.press("Home")
        for sample in range(3):
            said = page.text_content("#reading")
            samples = run["samples"]
            assert said.startswith(f"step {samples['step'][sample] + 1} of {run['steps']:,}")
            assert samples["operators"][samples["operator"][sample]] in said
            assert samples["modules"][samples["module"][sample]] in said
            assert f"{run['name']} {bytes_text(sum(samples['bytes'][sample]))}:" in said
            assert said.startswith(
                page.get_attribute("#sample", "aria-valuetext").split(". ")[0]
            )
            page.keyboard.press("ArrowRight")
        page.click("text=Go to the peak")
        assert f"{run['name']} {bytes_text(run['peak_bytes'])}:" in page.text_content(
            "#reading"
        )


def test_pointer_reads_the_step(browser, pages):
    with Opened(browser, pages["trace"]) as opened:
        page = opened.page
        before = page.text_content("#reading")
        box = page.locator("#memory svg").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + box["height"] / 2)
        assert page.text_content("#reading") != before
        page.select_option("#memory select", "0")
        assert "no plan " in page.text_content("#reading")


def test_segments_are_those_of_the_run(browser, pages):
    """Blocks fill the reserved bytes, and the figures are those of `acplan simulate`."""
    plan = pages["trace"].parent / "u.json"
    trace = ROOT / "data/traces/gpt2_small.json.gz"
    with Opened(browser, pages["trace"]) as opened:
        device = opened.data["runs"][-1]["device"]
        for drawing in device["runs"]:
            said = acplan(
                "simulate", trace, plan, "--allocator", drawing["allocator"], "--json"
            ).stdout
            run = json.loads(said)["run"]
            peak = drawing["peak"]
            assert sum(peak["blocks"]["bytes"]) == peak["reserved_bytes"]
            assert max(drawing["timeline"]["reserved"]) == drawing["reserved_bytes"]
            for key in ("allocated_bytes", "reserved_bytes", "iterations", "period"):
                assert drawing[key] == run[key]
            for key in ("allocated_bytes", "reserved_bytes", "hole_bytes"):
                assert peak[key] == run["peak"][key]
        rows = opened.table("#device")
        assert [row["reserved"] for row in rows[-2:]] == [
            bytes_text(drawing["reserved_bytes"]) for drawing in device["runs"]
        ]


def test_a_run_of_batches_is_shown(browser, pages):
    """The figures are those of `acplan lengths simulate`, and the table's plans by length."""
    folder = pages["lengths"].parent
    table = json.loads((folder / "table.json").read_text())
    device = table["device"]
    state = "first" if device["optimizer_state_first"] else "update"
    with Opened(browser, pages["lengths"]) as opened:
        rows = opened.table("#lengths")
        assert [row["length"] for row in rows] == ["32", "48", "64"]
        assert [row["batches"] for row in rows] == ["1", "1", "2"]
        assert [row["evaluations"] for row in rows] == ["0", "0", "1"]
        ends = [entry["longest"] for entry in table["entries"]]
        for row in rows:
            end = min(end for end in ends if end >= int(row["length"]))
            assert row["plan up to"] == str(end)
        device_data = opened.data["runs"][-1]["device"]
        for drawing in device_data["runs"]:
            said = acplan(
                *("lengths", "simulate", *batches(folder), "--optimizer-state", state),
                *("--allocator", drawing["allocator"], "--json"),
                *("--device-memory", table["memory_bytes"]),
            ).stdout
            run = json.loads(said)
            peak = drawing["peak"]
            assert sum(peak["blocks"]["bytes"]) == peak["reserved_bytes"]
            assert max(drawing["timeline"]["reserved"]) == drawing["reserved_bytes"]
            for key in ("allocated_bytes", "reserved_bytes", "least_device_bytes"):
                assert drawing[key] == run[key]
        rows = opened.table("#device")
        assert [row["reserved"] for row in rows[-2:]] == [
            bytes_text(drawing["reserved_bytes"]) for drawing in device_data["runs"]
        ]
        opened.page.focus("#block")
        opened.page.keyboard.press("Home")
        assert opened.page.text_content("#block-reading").startswith("block 1 of ")


def test_blocks_are_read_by_keyboard_and_pointer(browser, pages):
    with Opened(browser, pages["trace"]) as opened:
        page = opened.page
        page.focus("#block")
        page.keyboard.press("Home")
        assert page.text_content("#block-reading").startswith("block 1 of ")
        page.keyboard.press("ArrowRight")
        said = page.text_content("#block-reading")
        assert said.startswith("block 2 of ") and "large pool" in said
        assert page.get_attribute("#block", "aria-valuetext").startswith("block 2 of ")
        chart = page.locator("#device figure svg").last
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 4 + 14 * 10 + 6)
        assert not page.text_content("#block-reading").startswith("block 2 of ")
        before = page.text_content("#device h3 + p")
        page.locator("#device select").last.select_option("1")
        drawing = opened.data["runs"][-1]["device"]["runs"][1]
        after = page.text_content("#device h3 + p")
        assert after != before and bytes_text(drawing["peak"]["reserved_bytes"]) in after
        page.locator("#device select").first.select_option("0")
        assert page.text_content("#device h3 + p") != after


def test_modules_are_searched_and_sorted(browser, pages):
    with Opened(browser, pages["trace"]) as opened:
        page = opened.page
        table = page.locator("#modules table").last
        page.locator("#modules input[type=search]").last.fill("h.3.mlp")
        names = table.locator("tbody th").all_text_contents()
        assert names == [m["name"] for m in opened.data["tree"] if "h.3.mlp" in m["name"]]
        page.locator("#modules input[type=search]").last.fill("")
        page.locator("#modules table").last.locator(
            "thead button", has_text="parameters"
        ).click()
        head = page.locator("#modules table").last.locator("thead th[aria-sort]")
        assert head.get_attribute("aria-sort") == "descending"
        first = page.locator("#modules table").last.locator("tbody tr").first
        assert first.locator("td").nth(1).text_content() == bytes_text(
            max(m["parameters"] for m in opened.data["tree"])
        )


def test_search_is_shown(browser, pages):
    with Opened(browser, pages["search"]) as opened:
        rows, best = opened.table("#strategies"), opened.data["best"]
        assert len(rows) == len(best) == 10
        for row, entry in zip(rows, best, strict=True):
            assert row["TP"] == str(entry["strategy"]["tp"])
            assert row["memory"] == bytes_text(max(s["total_bytes"] for s in entry["stages"]))
            assert row["MFU"] == f"{100 * entry['model_utilisation']:.1f}%"
        opened.page.select_option("#trade select", "3")
        reading = opened.page.text_content("#trade .reading")
        assert reading.startswith("4: ")
        assert reading.endswith(f" of {bytes_text(best[3]['budget_bytes'])}")


def test_strategies_of_calculons_model_are_shown(browser, pages):
    with Opened(browser, pages["calculon"]) as opened:
        rows, best = opened.table("#strategies"), opened.data["best"]
        assert len(rows) == len(best) == 4
        for row, entry in zip(rows, best, strict=True):
            assert row["TP"] == str(entry["strategy"]["tp"]) and "ZERO" not in row
            assert row["memory"] == bytes_text(entry["peak_bytes"])
            assert "budget" not in row
            assert row["samples/s"] == f"{entry['samples_per_s']:.3f}"
        opened.page.select_option("#trade select", "2")
        assert " samples/s, " in opened.page.text_content("#trade .reading")


def test_names_stay_text(browser, pages):
    with Opened(browser, pages["hostile"]) as opened:
        assert opened.data["model"]["name"] == HOSTILE_ON_PAGE
        assert "taken" not in opened.page.title().split("document")[0]
        assert opened.page.evaluate("document.scripts.length") == 3
        opened.page.focus("#sample")
        opened.page.keyboard.press("Home")
        assert HOSTILE_ON_PAGE in opened.page.text_content("#reading")


def big_trace(layers: int) -> dict:
    """Returns a step of so many layers with 100 operators each."""
    trace = json.loads(gzip.decompress(TINY.read_bytes()))
    half = 50
    operators, storages, saved, calls = [], [], [], []
    forward = layers * half
    count = 2 * forward
    modules = [{"fqn": "model", "class": "M", "parameters": [], "buffers": []}]
    calls.append(
        {
            "module": 0,
            "parent": -1,
            "start": 0,
            "end": forward,
            "inputs": [],
            "arguments": [],
            "outputs": [],
            "backward_start": forward,
            "backward_end": count,
        }
    )
    for layer in range(layers):
        modules.append({"fqn": f"model.{layer}", "class": "L", "parameters": [], "buffers": []})
        end = count - layer * half
        calls.append(
            {
                "module": layer + 1,
                "parent": 0,
                "start": layer * half,
                "end": (layer + 1) * half,
                "inputs": [],
                "arguments": [],
                "outputs": [],
                "backward_start": end - half,
                "backward_end": end,
            }
        )
        for place in range(half):
            k = layer * half + place
            freed = count - k
            storages.append(
                {
                    "bytes": 1 << 20,
                    "category": "activation",
                    "born": k,
                    "freed": freed,
                    "scope_end": k + 1,
                }
            )
            operators.append(
                {
                    "name": "aten.mm.default",
                    "call": layer + 1,
                    "runtime_ms": 0.01,
                    "reads": [],
                    "creates": [k],
                    "outputs": [k],
                }
            )
            saved.append(
                {
                    "storage": k,
                    "packed": k + 1,
                    "call": layer + 1,
                    "tensor": -1,
                    "unpacked": freed - 1,
                    "local_end": freed,
                    "released": freed,
                }
            )
    operators += [
        {
            "name": "aten.mul.Tensor",
            "call": -1,
            "runtime_ms": 0.01,
            "reads": [count - k - 1],
            "creates": [],
            "outputs": [],
        }
        for k in range(forward, count)
    ]
    for key in ("model_tensors", "inputs", "host"):  # of the model whose trace it was
        del trace[key]
    trace.update(
        forward_end=forward,
        backward_end=count,
        modules=modules,
        calls=calls,
        operators=operators,
        storages=storages,
        tensors=[],
        saved=saved,
        kept=[],
        measured={},
    )
    return trace


def test_a_hundred_thousand_operators(browser, tmp_path):
    trace = big_trace(1000)
    assert len(trace["operators"]) == 100_000
    (tmp_path / "big.json").write_text(json.dumps(trace))
    page = report(tmp_path, "big", tmp_path / "big.json", "--points", 0)
    assert page.stat().st_size < 8e6
    with Opened(browser, page) as opened:
        print(f"{page.stat().st_size} bytes, opened in {opened.seconds:.2f} s")
        run = opened.data["runs"][0]
        assert run["steps"] == 100_000
        assert run["peak_bytes"] == 50_000 << 20
        assert len(run["samples"]["bytes"]) <= 1600
        assert max(map(sum, run["samples"]["bytes"])) == run["peak_bytes"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.json"], "missing.json"),
        ([TINY, "missing.json"], "missing.json"),
        ([TINY, "--points", "x"], "--points"),
        ([TINY, "--points", "2", "--frontier", TINY], "--points"),
        ([TINY, "--frontier", TINY], "acplan.frontier"),
        ([TINY, "--time-limit", "-1"], "--time-limit"),
    ],
)
def test_wrong_input_writes_nothing(tmp_path, arguments, said):
    page = tmp_path / "report.html"
    process = acplan("report", *arguments, "-o", page, exit_code=2)
    assert said in process.stderr and process.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
