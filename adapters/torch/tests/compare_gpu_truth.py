"""Compares predicted times, peaks of memory, and what fits, with measurements on GPUs that
others published.

    PYTHONPATH=.:tests python tests/compare_gpu_truth.py [--every N] TABLE.csv[.gz]...

in adapters/torch. A table has the columns source, gpu, model, build, batch, size, precision,
checkpointing, compiled, metric, value, unit, note and torch; rows of metrics op_ms, forward_ms,
backward_ms, step_ms, peak_allocated and fits are compared. Rows that cannot be (an operator, GPU or model that is not known
here) are counted. Rows of timm need timm 0.6.7 (`pip install --no-deps timm==0.6.7 torchvision`), and
every Nth model is traced.

Prints a table in Markdown: for each source, kind of row and GPU, and for each family of timm, how
many rows there are, the median of predicted / measured, and median and 90th percentile of the error; of operators those
above .1 ms. The last columns are the median errors after a factor: the group's own median, what
is left if a GPU was measured once; and the median of the others (of the source's other kinds, of
other families, of other sources), which knows nothing of the group. A second table is about peaks of memory (gpu_truth_modules.py), a
third one about batches that ran or did not: how many of either are predicted to fit
(gpu_truth_fits.py). With --kinds FILE each row of times is written with its time by kind of
kernel, for cross_validate_gpu_truth.py; rows of a forward or a backward pass have the kinds of
both.
"""

import argparse
import collections
import contextlib
import csv
import dataclasses
import gzip
import io
import json
import math
import pathlib
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TextIO, TypeVar

from gpu_truth_fits import Fit, fits_of
from gpu_truth_fused import fused_kernel_ms
from gpu_truth_kinds import seconds_of_kinds
from gpu_truth_modules import measured_bytes, module_ms, peak_bytes
from gpu_truth_operators import GPUS, Row, operator_ms
from gpu_truth_steps import (
    LANGUAGE_MODELS,
    family_of,
    language_model_ms,
    llama_trace,
    step_ms,
    timm_ms,
)

_LEAST_MS = 0.1
_NEAR_BYTES = 0.1 * 2**20


def _rows(path: pathlib.Path) -> Iterator[Row]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    yield from csv.DictReader(io.StringIO(text.decode()))


def _predicted_ms(row: Row) -> float | None:
    device = GPUS.get(row["gpu"])
    if device is None:
        return None
    if row["source"] == "timm" and row["metric"] == "step_ms":
        return timm_ms(row, device)
    if row["model"] == "Llama-3.2-1B" and row["metric"] == "step_ms":
        return step_ms(llama_trace(row, device))
    if row["metric"] in ("forward_ms", "backward_ms") and row["model"] in LANGUAGE_MODELS:
        size = int(row["batch"]), int(row["size"])
        forward, backward = language_model_ms(row["model"], *size, device)
        return forward if row["metric"] == "forward_ms" else backward
    if row["metric"] == "op_ms":
        if "{" in row["build"]:
            return module_ms(row, device)
        fused = fused_kernel_ms(row, device)
        return operator_ms(row, device) if fused is None else fused
    return None


def _kind(row: Row) -> str:
    if row["source"] == "timm":
        return "step, " + row["precision"]
    if row["metric"] == "step_ms":
        return f"step, {row['build']}"
    if row["metric"] == "op_ms":
        mode = row["note"].partition(",")[0]
        return f"{row['model']}, {mode}" if mode else row["model"]
    return row["metric"].removesuffix("_ms")


def _lines(groups: Mapping[str, list[float]]) -> list[str]:
    """Returns a line for each group, in which the others' median is a factor that does not know
    the group."""
    lines = []
    for name, ratios in sorted(groups.items()):
        others = [r for other, rs in groups.items() if other != name for r in rs]
        lines.append(_line(name, ratios, statistics.median(others) if others else 1.0))
    return lines


def _line(name: str, ratios: list[float], factor: float) -> str:
    errors = sorted(abs(ratio - 1) for ratio in ratios)
    bias = statistics.median(ratios)
    own, others = (
        statistics.median(abs(ratio / divisor - 1) for ratio in ratios)
        for divisor in (bias, factor)
    )
    worst = errors[math.ceil(0.9 * len(errors)) - 1]
    cells = f"{statistics.median(errors):.1%} | {worst:.1%} | {own:.1%} | {others:.1%}"
    return f"| {name} | {len(ratios)} | {bias:.2f} | {cells} |"


_T = TypeVar("_T")


@dataclasses.dataclass
class _Predictor:
    """Calls functions of rows, and counts the rows for which there is no prediction."""

    left_out: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def __call__(self, predict: Callable[[Row], _T | None], row: Row) -> _T | None:
        try:
            predicted = predict(row)
        except Exception as error:  # of packages that are not there, or do not run
            print(f"{row['model']}: {error}".splitlines()[0][:150], file=sys.stderr)
            predicted = None
        if predicted is None:
            self.left_out[f"{row['source']}: {row['model']} on {row['gpu']}"] += 1
        return predicted


def _compare_times(
    rows: Sequence[Row], predictor: _Predictor, kinds_file: TextIO | None
) -> list[tuple[object, ...]]:
    """Prints the table of times, and writes the times of kinds. Returns each row's prediction."""
    sources: dict[str, list[float]] = collections.defaultdict(list)
    groups: dict[str, dict[str, list[float]]] = collections.defaultdict(
        lambda: collections.defaultdict(list)
    )
    families: dict[str, list[float]] = collections.defaultdict(list)
    predictions: list[tuple[object, ...]] = []
    kinds_of_steps: dict[tuple[str, ...], dict[str, float]] = {}
    for row in rows:
        measured = float(row["value"])
        if row["metric"] == "op_ms" and measured < _LEAST_MS:
            continue
        with seconds_of_kinds() as seconds:
            predicted = predictor(_predicted_ms, row)
        if predicted is None:
            continue
        step = row["model"], row["batch"], row["size"], row["gpu"]
        # A backward pass was predicted with its forward pass.
        kinds = kinds_of_steps[step] = dict(seconds) or kinds_of_steps[step]
        keys = row["source"], _kind(row), row["gpu"]
        ratio = predicted / measured
        groups[row["source"]][", ".join(keys)].append(ratio)
        sources[f"**{row['source']}**"].append(ratio)
        if row["source"] == "timm":
            families[f"timm, family {family_of(row['model'])}"].append(ratio)
        build = row["model"], row["build"], row["size"]
        predictions.append((*keys, *build, measured, predicted))
        if kinds_file:
            group = family_of(row["model"]) if row["source"] == "timm" else row["model"]
            line = {"source": row["source"], "group": group, "model": row["model"]}
            line |= {"gpu": row["gpu"], "measured_ms": measured, "predicted_ms": predicted}
            print(json.dumps(line | {"kinds": kinds}), file=kinds_file, flush=True)
    print(
        "| source, kind, GPU | rows | predicted / measured | error, median | 90% "
        "| own factor | others' factor |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for table in (*(groups[source] for source in sorted(groups)), families, sources):
        print("\n".join(_lines(table)), end="\n" if table else "")
    return predictions


def _compare_peaks(rows: Sequence[Row], predictor: _Predictor) -> list[tuple[object, ...]]:
    """Prints the table of peaks. Returns each row's prediction."""
    groups = collections.defaultdict(list)
    predictions: list[tuple[object, ...]] = []
    for row in rows:
        predicted = predictor(lambda row: peak_bytes(row, GPUS.get(row["gpu"])), row)
        if predicted is None:
            continue
        measured = measured_bytes(row)
        groups[row["source"], row["model"], row["gpu"]].append((predicted, measured))
        predictions.append(
            (
                row["source"],
                row["model"],
                row["gpu"],
                row["build"],
                row["size"],
                measured,
                predicted,
            )
        )
    print(
        "| source, operator, GPU | rows | within .1 MiB | largest error | predicted / measured |"
    )
    print("|---|---:|---:|---:|---:|")
    for keys, pairs in sorted(groups.items()):
        near = sum(abs(p - m) <= _NEAR_BYTES for p, m in pairs)
        ratio = statistics.median(p / m for p, m in pairs)
        worst = max((p - m for p, m in pairs), key=abs) / 2**20
        print(f"| {', '.join(keys)} | {len(pairs)} | {near} | {worst:+.3f} MiB | {ratio:.4f} |")
    every = [pair for pairs in groups.values() for pair in pairs]
    near = sum(abs(p - m) <= _NEAR_BYTES for p, m in every)
    print(f"| **all** | {len(every)} | {near} | | |")
    return predictions


def _predicted_fits(row: Row) -> list[Fit] | None:
    device = GPUS.get(row["gpu"])
    return fits_of(row, device) if device is not None and row["source"] == "timm" else None


def _compare_fits(rows: Sequence[Row], predictor: _Predictor) -> list[tuple[object, ...]]:
    """Prints the table of batches that ran or did not, and the wrong predictions. Returns each
    batch's prediction."""
    fits = [fit for row in rows for fit in predictor(_predicted_fits, row) or ()]
    print("| batches | number | said to fit |")
    print("|---|---:|---:|")
    for text, ran in (("that ran", True), ("that ran out of memory", False)):
        said = [fit.is_said_to_fit for fit in fits if fit.fits == ran]
        print(f"| {text} | {len(said)} | {sum(said)} |")
    for fit in fits:
        if fit.is_said_to_fit != fit.fits:
            print(f"wrong: {fit}", file=sys.stderr)
    return [dataclasses.astuple(fit) for fit in fits]


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--csv", type=pathlib.Path, help="writes each row's prediction")
    parser.add_argument("--kinds", type=pathlib.Path, help="writes each row's time by kind")
    parser.add_argument("tables", nargs="+", type=pathlib.Path)
    flags = parser.parse_args()
    rows = [row for path in flags.tables for row in _rows(path)]
    models = sorted({row["model"] for row in rows if row["source"] == "timm"})
    traced = set(models[:: flags.every])
    rows = [row for row in rows if row["source"] != "timm" or row["model"] in traced]
    predictor = _Predictor()
    predictions = []
    times = [row for row in rows if row["metric"].endswith("_ms")]
    if times:
        with contextlib.ExitStack() as stack:
            kinds = stack.enter_context(flags.kinds.open("w")) if flags.kinds else None
            predictions += _compare_times(times, predictor, kinds)
    peaks = [row for row in rows if row["metric"] == "peak_allocated"]
    if peaks:
        predictions += _compare_peaks(peaks, predictor)
    fits = [row for row in rows if row["metric"] == "fits"]
    if fits:
        predictions += _compare_fits(fits, predictor)
    if flags.csv:
        with flags.csv.open("w") as file:
            csv.writer(file).writerows(predictions)
    for name, count in predictor.left_out.most_common():
        print(f"not compared: {count} of {name}", file=sys.stderr)


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
