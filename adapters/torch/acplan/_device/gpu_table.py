"""The table of GPUs and of how near kernels come to their rates: data/training/systems.json,
which the training cost model reads, too."""

import functools
import json
from collections.abc import Mapping
from typing import Any

from acplan._base.package import shared_file


@functools.cache
def _systems() -> Any:
    return json.loads(shared_file("data/training/systems.json").read_text())


@functools.cache
def accelerators() -> Mapping[str, Any]:
    """Returns the GPUs by name."""
    return {gpu["name"]: gpu for gpu in _systems()["accelerators"]}


def kernel_figure(name: str) -> Any:
    """Returns a figure that is the same for all GPUs."""
    return _systems()["kernels"][name]["value"]


def kind_errors() -> Mapping[str, float]:
    """Returns how far nine measured operators in ten of each kind are off at most,
    |predicted / measured - 1|."""
    kinds = _systems()["kernels"]["kind_errors"]
    return {kind: error["value"] for kind, error in kinds.items()}


def software_figure(software: str, name: str) -> float:
    """Returns a figure of a generation of software."""
    stack = next(one for one in _systems()["software"] if one["name"] == software)
    return float(stack[name]["value"])
