"""Tests of the scripts that compare predicted times with GPUs."""

import json
import math
import pathlib
import sys

import pytest
import torch

import cross_validate_gpu_truth
from acplan import DEVICES
from acplan._device.devices import OperatorRun
from gpu_truth_kinds import seconds_of_kinds

aten = torch.ops.aten


def _lines(group: str, factor: float) -> list[str]:
    """Returns rows whose products take `factor` of what is predicted."""
    rows = []
    for share in (0.1, 0.5, 0.9):
        kinds = {"products": share, "norms": 1 - share}
        measured = factor * kinds["products"] + kinds["norms"]
        row = {"source": "timm", "group": group, "measured_ms": measured, "predicted_ms": 1.0}
        rows.append(json.dumps(row | {"kinds": kinds}))
    return rows


def test_a_family_is_predicted_with_the_factors_of_the_others(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kinds.jsonl"
    lines = [*_lines("one", 1.25), *_lines("two", 1.25), *_lines("three", 1.25)]
    path.write_text("\n".join(lines))
    monkeypatch.setattr(sys, "argv", ["", str(path)])
    cross_validate_gpu_truth.main()
    cells = [line.split("|") for line in capsys.readouterr().out.splitlines()]
    one = next(line for line in cells if line[1:2] == [" timm, one "])
    assert float(one[3]) == pytest.approx(1 / (1 + 0.25 / 2), abs=0.01)
    assert float(one[6]) == pytest.approx(1, abs=0.01)
    products = next(line for line in cells if line[1:2] == [" products "])
    assert float(products[2]) == pytest.approx(1.25, abs=0.02)


def test_the_times_of_kinds_add_up_to_the_operators() -> None:
    image = torch.empty(8, 64, 28, 28, dtype=torch.float16, device="meta")
    weight = torch.empty(64, 1, 3, 3, dtype=torch.float16, device="meta")
    rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 64)
    device = DEVICES["rtx3090"]
    with seconds_of_kinds() as kinds:
        forward = (image, weight, None, *rest)
        out = aten.convolution(*forward)
        run = OperatorRun(aten.convolution.default, forward, {}, out)
        total = device.runtime_ms(run, [image, weight], [out])
        backward = (out, image, weight, [64], *rest, [True, True, True])
        gradients = list(aten.convolution_backward(*backward))
        run = OperatorRun(aten.convolution_backward.default, backward, {}, gradients)
        total += device.runtime_ms(run, [out, image, weight], gradients)
    assert 1e3 * math.fsum(kinds.values()) == pytest.approx(total)
    assert {kind for kind, seconds in kinds.items() if seconds > 1e-12} == {
        "launches",
        "sums",
        "depthwise, channels first: cudnn",
        "depthwise, channels first: cudnn weight gradient",
    }
