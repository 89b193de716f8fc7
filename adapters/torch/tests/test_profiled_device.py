"""Run-times from profiles: those that PyTorch's profiler writes here, with kernels added."""

import gzip
import json
import pathlib
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity

from acplan import DEVICES, AcplanError, profiled_device, trace

_NET = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
_INPUT = torch.zeros(16, 64)
# Microseconds that the nth call of an operator takes.
_TIMES = {
    "aten::addmm": (110.0, 70.0),
    "aten::relu": (13.0,),
    "aten::threshold_backward": (17.0,),
}


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Returns a profile of a step, in which a kernel is launched in the middle of each operator
    of _TIMES."""
    path = tmp_path_factory.mktemp("profile") / "cpu.json"
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], record_shapes=True) as run:
        _NET(_INPUT).mean().backward()
    run.export_chrome_trace(str(path))
    profile: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    counts = dict.fromkeys(_TIMES, 0)
    for event in sorted(profile, key=lambda event: event.get("ts", 0)):
        name = event.get("name")
        if name not in _TIMES or event.get("cat") != "cpu_op":
            continue
        microseconds = _TIMES[name][counts[name] % len(_TIMES[name])]
        counts[name] += 1
        profile += _kernel(event, microseconds, 1000 + len(profile))
    assert all(counts.values())
    return profile


def _kernel(event: dict[str, Any], microseconds: float, number: int) -> list[dict[str, Any]]:
    middle = event["ts"] + event["dur"] / 2
    launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": middle, "dur": 0}
    launch |= {"pid": event["pid"], "tid": event["tid"], "args": {"correlation": number}}
    kernel = {"cat": "kernel", "name": "k", "ts": middle + 500, "dur": microseconds}
    kernel |= {"pid": 0, "tid": 7, "args": {"correlation": number, "stream": 7}}
    return [launch, kernel]


def _profile_file(folder: pathlib.Path, data: Any) -> pathlib.Path:
    path = folder / "profile.json"
    path.write_text(json.dumps(data))
    return path


def _times(device: Any) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {}
    for operator in trace(_NET, _INPUT, device=device).data["operators"]:
        times.setdefault(operator["name"], []).append(operator["runtime_ms"])
    return times


def test_operators_take_what_the_profile_says(
    tmp_path: pathlib.Path, events: list[dict[str, Any]]
) -> None:
    device = profiled_device("a100", _profile_file(tmp_path, {"traceEvents": events}))
    times, predicted = _times(device), _times("a100")
    assert times["aten.addmm.default"] == [0.110, 0.070]
    assert times["aten.relu.default"] == [0.013]
    assert times["aten.threshold_backward.default"] == [0.017]
    assert times["aten.mm.default"] == predicted["aten.mm.default"]  # not in the profile


def test_compressed_profiles_and_bare_lists_are_read(
    tmp_path: pathlib.Path, events: list[dict[str, Any]]
) -> None:
    plain = profiled_device("a100", _profile_file(tmp_path, events))
    path = tmp_path / "profile.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    assert profiled_device("a100", path).measured_ms == plain.measured_ms


def test_kernels_belong_to_all_operators_around_them(tmp_path: pathlib.Path) -> None:
    def operator(name: str, ts: float, dur: float) -> dict[str, Any]:
        args = {"Input Dims": [[4, 4], []], "Input type": ["float", "Scalar"]}
        call = {"cat": "cpu_op", "name": name, "ts": ts, "dur": dur, "args": args}
        return call | {"pid": 1, "tid": 1}

    outer, inner = operator("aten::outer", 0, 100), operator("aten::inner", 10, 50)
    other = operator("aten::other", 100, 10)
    kernels = _kernel(inner, 7.0, 1) + _kernel(outer | {"ts": 40}, 2.0, 2)
    events = [other, inner, outer, *kernels, *_kernel(other, 5.0, 3)]
    measured = profiled_device("a100", _profile_file(tmp_path, events)).measured_ms
    shapes = (((4, 4), "float"),)
    assert measured == {
        ("aten::outer", shapes): pytest.approx(0.009),
        ("aten::inner", shapes): pytest.approx(0.007),
        ("aten::other", shapes): pytest.approx(0.005),
    }


def test_calls_of_the_same_shapes_have_the_median(
    tmp_path: pathlib.Path, events: list[dict[str, Any]]
) -> None:
    relu = next(e for e in events if e.get("name") == "aten::relu")
    more = [relu | {"ts": relu["ts"] + k * 1e6} for k in (1, 2)]
    kernels = [e for k, o in enumerate(more) for e in _kernel(o, 40.0 + k, 7000 + k)]
    device = profiled_device("a100", _profile_file(tmp_path, [*events, *more, *kernels]))
    assert _times(device)["aten.relu.default"] == [0.040]


def test_another_gpu_is_told(tmp_path: pathlib.Path, events: list[dict[str, Any]]) -> None:
    data = {"traceEvents": events, "deviceProperties": [{"id": 0, "name": "Tesla T4"}]}
    path = _profile_file(tmp_path, data)
    with pytest.warns(UserWarning, match="was measured on Tesla T4, not on NVIDIA A100"):
        profiled_device("a100", path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert profiled_device(DEVICES["t4"], path).product == "Tesla T4"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected a profile of torch.profiler"),
        ("{}", "found no traceEvents"),
        ('{"traceEvents": 3}', "found no traceEvents"),
        ("[]", "found no kernel of an operator with shapes"),
        ('[1, {"cat": "kernel"}, {"cat": "kernel", "dur": "x", "args": 4}]', "found no kernel"),
        ('[{"cat": "cpu_op", "ts": NaN, "dur": 1, "args": {}}]', "found no kernel"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path: pathlib.Path, text: str, message: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(AcplanError, match=message):
        profiled_device("a100", path)


def test_a_file_that_is_not_there_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(AcplanError, match="No such file"):
        profiled_device("a100", tmp_path / "missing.json")
