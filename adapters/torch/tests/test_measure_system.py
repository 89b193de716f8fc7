"""measure-system on the CPU: the code that runs on a GPU, on small sizes."""

import json
import math
import os
import pathlib
import socket
import subprocess
import sys
from typing import Any

import pytest
import torch

from acplan.__main__ import main
from acplan._base.program import find_program
from acplan._verify import measure_system
from acplan._verify.measure_system import Ranks, product_share
from acplan._verify.system_kernels import SMALL, Clock, Point, measure_collectives

_CONFIG = pathlib.Path(__file__).parents[3] / "data/training/models/llama-3.1-8b.json"
# With the least and the most that the program reads.
_NUMBERS = {
    "memory_gib": (1, 1e4),
    "multiprocessors": (1, 1e4),
    "bf16_tflops": (1e-6, 1e6),
    "fp8_tflops": (0, 1e6),
    "fp4_tflops": (0, 1e6),
    "memory_gbs": (1e-3, 1e6),
    "nvlink_gbs": (1e-3, 1e6),
    "host_gbs": (1e-3, 1e6),
    "nvlink_domain": (1, 1e4),
    "network_gbs": (0.01, 1e4),
    "product_share": (0.01, 1),
    "fp8_product_share": (0.01, 1),
    "flash_share": (0.01, 1),
    "flash_new_share": (0.01, 1),
    "memory_share": (0.01, 1),
    "nvlink_share": (0.01, 1),
    "host_factor": (0.01, 100),
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("system") / "mine.json"
    arguments = ["measure-system", "--device", "cpu", "--repeats", "2"]
    arguments += ["--name", "mine", "--vendor", "host_gbs=12.5", "-o", str(output)]
    assert main(arguments) == 0
    return output


def test_each_number_is_there_and_says_where_it_is_from(file: pathlib.Path) -> None:
    data = json.loads(file.read_text())
    assert (data["format"], data["version"]) == ("acplan.system", 1)
    (gpu,) = data["accelerators"]
    assert gpu.pop("name") == "mine"
    assert set(gpu) == set(_NUMBERS)
    for key, (least, most) in _NUMBERS.items():
        assert least <= gpu[key]["value"] <= most, key
        assert gpu[key]["from"]
    assert gpu["host_gbs"] == {"value": 12.5, "from": "--vendor"}
    assert all(point["seconds"] > 0 for point in data["measured"])
    measured = {point["what"] for point in data["measured"]}
    assert {"bf16", "attention", "copy", "norm", "from the host", "launch"} <= measured


def test_llm_train_reads_the_file(file: pathlib.Path) -> None:
    command = [find_program(), "train", "show", str(_CONFIG), "--system", str(file)]
    command += ["--gpus", "8", "--gbs", "8", "--json", "--budget", "10000GiB"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)


# With the share that is found, the model says of these shapes what was measured.
@pytest.mark.parametrize("share", [0.2, 0.55, 1.0])
def test_the_share_is_that_of_the_model(share: float) -> None:
    peak, processors = 1e15, 100
    points = []
    for rows, columns, inner in ((25600, 128, 4096), (2560, 12800, 1024)):
        # Whole waves of whole tiles of the largest size.
        tiles = rows / 256 * columns / 128
        assert tiles % processors == 0
        seconds = tiles * 2 * 256 * 128 * (inner + 192) / (peak * share)
        points.append(Point("bf16", (rows, columns, inner), 1.0, seconds))
    assert math.isclose(product_share(points, peak, processors), share)


def test_ranks_measure_collectives(tmp_path: pathlib.Path) -> None:
    with socket.socket() as free_socket:
        free_socket.bind(("127.0.0.1", 0))
        port = free_socket.getsockname()[1]
    output = tmp_path / "two.json"
    command = [sys.executable, "-m", "acplan", "measure-system", "--device", "cpu"]
    command += ["--repeats", "1", "-o", str(output)]
    ranks = []
    for rank in range(2):
        variables = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        ranks.append(subprocess.Popen(command, env={**os.environ, **variables}))
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    data = json.loads(output.read_text())
    (gpu,) = data["accelerators"]
    assert gpu["nvlink_domain"]["value"] == 2
    assert gpu["nvlink_gbs"]["from"].startswith("measured")
    assert any(point["what"] == "near" for point in data["measured"])


def test_without_a_gpu_it_says_so(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    output = tmp_path / "mine.json"
    assert main(["measure-system", "-o", str(output)]) == 2
    assert "expected a CUDA device, PyTorch finds none" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--repeats", "0"], "--repeats: expected a number above 0, found 0"),
        (["--name", " "], "--name: expected a name"),
        (["--vendor", "speed=3"], "--vendor: expected one of bf16_tflops"),
        (["--vendor", "bf16_tflops"], "found 'bf16_tflops'"),
        (["--vendor", "bf16_tflops=-1"], "a number above 0"),
        (["--vendor", "bf16_tflops=nan"], "a number above 0"),
        (["--device", "tpu"], "--device"),
    ],
)
def test_wrong_flags_are_a_line(
    arguments: list[str],
    complaint: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "mine.json"
    assert main(["measure-system", "--device", "cpu", *arguments, "-o", str(output)]) == 2
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1
    assert not output.exists()


def test_a_folder_that_is_not_there_is_refused_before_anything_runs(
    tmp_path: pathlib.Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(measure_system, "measure", lambda *_: pytest.fail("ran"))
    assert main(["measure-system", "-o", str(tmp_path / "no" / "mine.json")]) == 2


def test_one_rank_sends_nothing() -> None:
    ranks = Ranks()
    assert not measure_collectives(Clock("cpu", 1), SMALL, ranks.near_group, ranks.near, "near")
