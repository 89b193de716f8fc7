"""Cross-validates predicted times: how far off a family or a source is if it was not used.

    PYTHONPATH=.:tests python tests/cross_validate_gpu_truth.py KINDS.jsonl

in adapters/torch. The file is what `compare_gpu_truth.py --kinds KINDS.jsonl TABLE...` wrote:
each row's time by kind of kernel. A factor for each kind is fitted to all rows but those of one
group, starting from the figures as they are, and predicts the rows of the group. If a figure
fits this group and no other, the others' factor takes it back, and errors grow.

Prints two tables in Markdown, of families of timm and of sources: the median of predicted /
measured, median and 90th percentile of the error, as predicted, and the same with the others'
factors. Then come the factors of all rows.
"""

import argparse
import collections
import json
import math
import pathlib
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

_STEPS = 20
# A row counts less if it is further off than this, as the old builds' rows are.
_FAR = 0.1
# The cost of moving a factor away from 1, relative to the error of all rows together.
_RIDGE = 0.0003


class Row(NamedTuple):
    source: str
    group: str
    measured: float
    predicted: float
    kinds: dict[str, float]
    """The parts of `predicted`."""


def _row(line: str) -> Row:
    data = json.loads(line)
    predicted, seconds = data["predicted_ms"], data["kinds"]
    scale = predicted / math.fsum(seconds.values())
    kinds = {kind: scale * value for kind, value in seconds.items()}
    source = data["source"].split(" ")[0]  # versions of a source are left out together
    return Row(source, data["group"], data["measured_ms"], predicted, kinds)


def _factors(rows: Sequence[Row]) -> dict[str, float]:
    """Returns a factor for each kind of kernel: the least squares of the logarithm of
    predicted / measured, by steps of Gauss and Newton. All sources weigh alike."""
    kinds = sorted({kind for row in rows for kind in row.kinds})
    sizes = collections.Counter(row.source for row in rows)
    parts = torch.tensor(
        [[row.kinds.get(kind, 0.0) / row.measured for kind in kinds] for row in rows],
        dtype=torch.float64,
    )
    weights = torch.tensor(
        [1 / (sizes[row.source] * len(sizes)) for row in rows], dtype=torch.float64
    )
    logs = torch.zeros(len(kinds), dtype=torch.float64)
    for _ in range(_STEPS):
        scaled = parts * logs.exp()
        ratios = scaled.sum(1)
        errors = ratios.log()
        slopes = scaled / ratios[:, None]
        near = weights * _FAR / errors.abs().clamp(min=_FAR)
        matrix = slopes.T @ (near[:, None] * slopes) + _RIDGE * torch.eye(len(kinds))
        gradient = slopes.T @ (near * errors) + _RIDGE * logs
        logs -= torch.linalg.solve(matrix, gradient)
    return dict(zip(kinds, logs.exp().tolist()))


def _cells(ratios: Sequence[float]) -> str:
    errors = sorted(abs(ratio - 1) for ratio in ratios)
    worst = errors[math.ceil(0.9 * len(errors)) - 1]
    return f"{statistics.median(ratios):.2f} | {statistics.median(errors):.1%} | {worst:.1%}"


def _validate(rows: Sequence[Row], group_of: Callable[[Row], str]) -> None:
    print(
        "| left out | rows | predicted / measured | error, median | 90% "
        "| with the others' factors | error, median | 90% |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    before, after = [], []
    for group in sorted(set(map(group_of, rows))):
        tested = [row for row in rows if group_of(row) == group]
        factors = _factors([row for row in rows if group_of(row) != group])
        plain = [row.predicted / row.measured for row in tested]
        refitted = [
            math.fsum(factors.get(kind, 1.0) * part for kind, part in row.kinds.items())
            / row.measured
            for row in tested
        ]
        print(f"| {group} | {len(tested)} | {_cells(plain)} | {_cells(refitted)} |")
        before += plain
        after += refitted
    print(f"| **all** | {len(rows)} | {_cells(before)} | {_cells(after)} |")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("kinds", nargs="+", type=pathlib.Path)
    flags = parser.parse_args()
    rows = [_row(line) for path in flags.kinds for line in path.read_text().splitlines()]
    steps = [row for row in rows if row.source == "timm"]
    if steps:
        _validate(steps, lambda row: f"timm, {row.group}")
    if len({row.source for row in rows}) > 1:
        _validate(rows, lambda row: row.source)
    print("| kind of kernel | factor of all rows |")
    print("|---|---:|")
    for kind, factor in _factors(rows).items():
        print(f"| {kind} | {factor:.2f} |")


if __name__ == "__main__":
    main()
