"""python -m acplan snapshot: snapshots of torch.cuda.memory._dump_snapshot as JSON."""

import gzip
import json
import os
import pathlib
import pickle
from typing import Any

import pytest

from acplan import AcplanError
from acplan.__main__ import main
from acplan._base.program import call_acplan
from acplan._files.snapshot_file import read_snapshot

MIB = 1 << 20
BASE = 0x7F0000000000


def _frame(filename: str, line: int, name: str = "forward") -> dict[str, Any]:
    return {"filename": filename, "line": line, "name": name}


def _event(action: str, address: int, size: int, *frames: dict[str, Any]) -> dict[str, Any]:
    key = "device_free" if action == "oom" else "addr"
    return {
        "action": action, key: address, "size": size, "stream": 0, "time_us": 1,
        "frames": list(frames),
    }  # fmt: skip


CPP = _frame("??", 0, "torch::unwind::unwind()")
TORCH = _frame("/env/lib/site-packages/torch/nn/modules/linear.py", 134)
OWN = _frame("/home/me/project/train/model.py", 17)
EMPTY = _frame("/env/lib/site-packages/torch/cuda/memory.py", 224, "empty_cache")


def _snapshot() -> dict[str, Any]:
    """Returns a snapshot with a segment of 20 MiB that holds 4 MiB, 40 MiB that the program
    gave back, and a request that failed."""
    blocks = [
        {"address": BASE, "size": 4 * MIB, "requested_size": 4 * MIB - 3,
         "state": "active_allocated", "frames": [CPP, TORCH, OWN]},
        {"address": BASE + 4 * MIB, "size": 16 * MIB, "requested_size": 0,
         "state": "inactive", "frames": []},
    ]  # fmt: skip
    segment = {
        "device": 1, "address": BASE, "total_size": 20 * MIB, "stream": 0,
        "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
        "blocks": blocks,
    }  # fmt: skip
    other = BASE + 64 * MIB
    trace = [
        _event("segment_alloc", other, 40 * MIB, CPP, TORCH),
        _event("alloc", other, 40 * MIB, CPP, TORCH),
        _event("free_requested", other, 40 * MIB),
        _event("free_completed", other, 40 * MIB),
        _event("segment_free", other, 40 * MIB, EMPTY, OWN),
        _event("segment_alloc", BASE, 20 * MIB, CPP, TORCH, OWN),
        _event("alloc", BASE, 4 * MIB - 3, CPP, TORCH, OWN),
        _event("oom", 3 * MIB, 30 * MIB, OWN),
        _event("snapshot", 0, 0),
    ]
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "expandable_segments": False}
    return {
        "segments": [segment],
        "device_traces": [[], trace],
        "allocator_settings": settings,
        "external_annotations": [],
    }


def _pickled(folder: pathlib.Path, value: Any, name: str = "memory.pickle") -> str:
    path = folder / name
    path.write_bytes(pickle.dumps(value))
    return str(path)


def test_a_snapshot_becomes_json(tmp_path: pathlib.Path, capsys: Any) -> None:
    file = _pickled(tmp_path, _snapshot())
    assert main(["snapshot", file]) == 0
    assert "memory.pickle.json: 8 events on 2 devices" in capsys.readouterr().out
    data = json.loads(pathlib.Path(file + ".json").read_text())
    assert (data["format"], data["version"]) == ("acplan.snapshot", 1)
    assert data["allocator"] == "max_split_size_mb:64"
    device = data["devices"][1]
    line = data["lines"].index("train/model.py:17 forward")
    assert data["lines"][0] == "torch/nn/modules/linear.py:134 forward"
    assert device["events"][0] == ["segment_alloc", BASE + 64 * MIB, 40 * MIB, 0, 0]
    assert device["events"][4][5:] == ["cache"]
    assert device["events"][-1] == ["oom", 3 * MIB, 30 * MIB, 0, line]
    [segment] = device["segments"]
    assert segment["blocks"][0] == ["allocated", BASE, 4 * MIB, 4 * MIB - 3, line]
    assert segment["private_pool"] is None


def test_the_program_reads_what_is_written(tmp_path: pathlib.Path) -> None:
    file = _pickled(tmp_path, _snapshot())
    output = str(tmp_path / "out.json.gz")
    assert main(["snapshot", file, "-o", output]) == 0
    assert gzip.decompress(pathlib.Path(output).read_bytes())[:1] == b"{"

    def run(*flags: str) -> dict[str, Any]:
        outcome = call_acplan(["simulate", "--snapshot", output, "--json", *flags])
        answer: dict[str, Any] = json.loads(outcome.require_success().out)
        return answer

    answer = run()
    recorded = answer["recorded"]
    assert answer["device"] == 1 and recorded["allocations"] == 2
    assert recorded["simulated"]["equal_allocations"] == 2
    assert recorded["simulated"]["equal_segments"] == recorded["simulated"]["segments"] == 1
    assert recorded["device_bytes"] == 23 * MIB and recorded["failures"] == 1
    assert answer["reserved_bytes"] == 50 * MIB and answer["failure"] is None
    failure = run("--device-memory", "45MiB")["failure"]
    assert failure["failed_in_recording"] and failure["source"] == "train/model.py:17 forward"


def test_the_same_as_json(tmp_path: pathlib.Path) -> None:
    expected = read_snapshot(_pickled(tmp_path, _snapshot()))
    file = tmp_path / "memory.json"
    file.write_text(json.dumps(_snapshot()))
    assert read_snapshot(file) == expected


class _Runs:
    """An object whose pickle calls a function when it is loaded."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("was-run",)


def test_a_pickle_runs_no_code(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in (_Runs(), {**_snapshot(), "more": [_Runs()]}, {"segments": print}):
        file = _pickled(tmp_path, value)
        assert main(["snapshot", file]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "expected a pickle of plain values" in error
        assert not (tmp_path / "was-run").exists()
        assert not pathlib.Path(file + ".json").exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol(tmp_path: pathlib.Path, protocol: int) -> None:
    file = tmp_path / "memory.pickle"
    file.write_bytes(pickle.dumps(_snapshot(), protocol))
    assert len(read_snapshot(file)["devices"]) == 2


def _with(**changes: Any) -> dict[str, Any]:
    return {**_snapshot(), **changes}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "snapshot: expected a dict"),
        ({}, "which has 'segments'"),
        (_with(segments=3), "segments: expected a list, found 3"),
        (_with(segments=[{}]), r"segments\[0\].segment_type: expected small or large"),
        (
            _with(device_traces=[[{"action": "alloc"}]]),
            r"device_traces\[0\]\[0\].addr: expected",
        ),
        (_with(device_traces=[[{"action": 1}]]), "action: expected a text, found 1"),
        (_with(allocator_settings={"PYTORCH_ALLOC_CONF": 5}), "allocator_settings: expected"),
    ],
)
def test_what_is_no_snapshot(tmp_path: pathlib.Path, value: Any, message: str) -> None:
    with pytest.raises(AcplanError, match=message) as caught:
        read_snapshot(_pickled(tmp_path, value))
    assert "\n" not in str(caught.value)


def test_files_that_are_none(tmp_path: pathlib.Path) -> None:
    whole = pickle.dumps(_snapshot())
    for name, text in {
        "empty": b"",
        "cut": whole[: len(whole) // 2],
        "text": b"not a pickle at all\n",
        "bad.gz": b"\x1f\x8b\x08nonsense",
        "zip": b"PK\x03\x04" + bytes(40),
    }.items():
        (tmp_path / name).write_bytes(text)
        with pytest.raises(AcplanError):
            read_snapshot(tmp_path / name)
    with pytest.raises(AcplanError, match="No such file"):
        read_snapshot(tmp_path / "missing")


def test_older_forms(tmp_path: pathlib.Path) -> None:
    """Up to 2.0 blocks have no addresses and their lines in a history; up to 2.1 there are no
    settings."""
    snapshot = _snapshot()
    del snapshot["allocator_settings"]
    for block in snapshot["segments"][0]["blocks"]:
        frames = block.pop("frames")
        del block["address"]
        block["history"] = [{"addr": 0, "frames": frames}]
    data = read_snapshot(_pickled(tmp_path, snapshot))
    blocks = data["devices"][1]["segments"][0]["blocks"]
    assert [block[1] for block in blocks] == [BASE, BASE + 4 * MIB]
    assert data["lines"][blocks[0][4]] == "train/model.py:17 forward"
    assert data["allocator"] is None
