"""Batches of timm's training benchmark that fitted an RTX 3090, for compare_gpu_truth.py.

The benchmark tried the batches 512, 384, 256, 192, ... until one did not run out of memory. So
a row says that its batch fits, and that the next larger one does not. The prediction is the
smallest device on which the run ends, with PyTorch's allocator and its defaults, beside what a
card of that name offers without CUDA's context.

Before 1.13, PyTorch loaded all of its kernels into the context. A process that held one number
had 1,687 MiB of an RTX 3090 (PyTorch 1.8.2, CUDA 11.1: pytorch/pytorch#55277), 2 MiB of them
for the number. One that held 158 MiB had 1,644 MiB (PyTorch 1.7.1, CUDA 11.0: #49877).
"""

import csv
import dataclasses
import json
import pathlib
import tempfile

from acplan import Device, Trace
from acplan._base.program import run_acplan
from gpu_truth_operators import Row
from gpu_truth_steps import timm_trace, version_of

_LARGEST = 512
_FIRST_LAZY = (1, 13)
_CONTEXT_OF_ALL_KERNELS = 1685 * 2**20
_TABLE = pathlib.Path(__file__).parents[3] / "data" / "devices" / "memory.csv"


@dataclasses.dataclass(frozen=True)
class Fit:
    """A batch that was tried, and what is predicted."""

    model: str
    precision: str
    batch: int
    fits: bool
    least_device_bytes: int
    peak_bytes: int
    offered_bytes: int

    @property
    def is_said_to_fit(self) -> bool:
        return self.least_device_bytes <= self.offered_bytes


def larger_batch(batch: int) -> int | None:
    """Returns the batch that was tried before this one, or None if it was the first."""
    if batch >= _LARGEST:
        return None
    is_power_of_two = batch & (batch - 1) == 0
    return batch * 3 // 2 if is_power_of_two else batch * 4 // 3


def fits_of(row: Row, device: Device) -> list[Fit]:
    """Returns the batch of the row, and the larger one that failed."""
    batch = int(row["batch"])
    larger = larger_batch(batch)
    return [_fit(row, device, batch, True)] + (
        [_fit(row, device, larger, False)] if larger else []
    )


def _fit(row: Row, device: Device, batch: int, fits: bool) -> Fit:
    traced = timm_trace(row, device, batch, keeps_gradients=True)
    least, offered = _least_and_offered(traced, device)
    if _loads_all_kernels(row):
        offered = _capacity_bytes(device) - _CONTEXT_OF_ALL_KERNELS
    peak = traced.peak_bytes
    return Fit(row["model"], row["precision"], batch, fits, least, peak, offered)


def _least_and_offered(traced: Trace, device: Device) -> tuple[int, int]:
    with tempfile.TemporaryDirectory() as name:
        file = pathlib.Path(name) / "trace.json"
        traced.save(file)
        options = ["--allocator", "native", "--device-memory", device.name, "--json"]
        run = json.loads(run_acplan(["simulate", str(file), *options]))["run"]
    return run["least_device_bytes"], run["device_bytes"]


def _loads_all_kernels(row: Row) -> bool:
    return () < version_of(row) < _FIRST_LAZY


def _capacity_bytes(device: Device) -> int:
    """Returns the least capacity of the device that the table of devices has."""
    with _TABLE.open() as file:
        gib = [
            float(row["capacity_gib"])
            for row in csv.DictReader(file)
            if row["gpu"] == device.name and row["capacity_gib"]
        ]
    return int(min(gib) * 2**30)
