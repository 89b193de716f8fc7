#!/usr/bin/env python3
"""fit_training_systems.py ACPLAN RUNS.csv SYSTEMS.json OUTPUT.json [OPTION...]

Fits the numbers of data/training/systems.json that say "fitted" to measured runs, with `acplan
train score`, and writes the file with them; prints the loss after each sweep. With --hold-out,
the runs of a source have no part in the fit, and its error is printed at the end.

The loss is the mean over sources of .8 |x| + 1.5 x^2 of x = ln(predicted / measured), both
flattened far out, so that no single run decides; and for each number a penalty for leaving its
prior: the centre is the number's `prior` or its value, and PRIORS has the width, as a
logarithm. Coordinate descent from the centres (with --from-values, from the file's values)
moves a number up or down by a step, which grows if that helped and halves if it did not.
Numbers of GPUs of one group move together. The numbers SHARED of all stacks have a factor
in common, which is fitted with them: a stack without runs is as the others were.
"""

import argparse
import collections
import copy
import csv
import json
import math
import pathlib
import statistics
import subprocess
import tempfile

# GPUs that share their fitted numbers; GPUs that are in no group are not fitted.
GROUPS = (
    ("A100-SXM4-80GB", "A100-SXM4-40GB", "A100-PCIE"),
    ("H100-SXM5", "H200", "H800"),
    ("H100-SXM5-96GB-HBM2e-500W",),
    ("B200", "B300"),
    ("GB200", "GB300"),
)

# The width of a number's prior, its least and its most value.
PRIORS = {
    "product_share": (0.12, 0.3, 0.9),
    "fp8_product_share": (0.12, 0.25, 0.85),
    "flash_share": (0.15, 0.15, 0.8),
    "flash_new_share": (0.15, 0.2, 0.8),
    "memory_share": (0.08, 0.5, 0.95),
    "nvlink_share": (0.15, 0.3, 0.95),
    "host_factor": (0.3, 0.3, 4),
    "host_us": (0.4, 3, 120),
    "elementwise": (0.25, 0.6, 4),
    "network_share": (0.2, 0.2, 0.95),
    "network_latency_us": (0.4, 3, 80),
    "iteration_ms": (0.5, 1, 300),
    "product_factor": (0.08, 0.6, 1.15),
    "attention_factor": (0.1, 0.6, 1.5),
    "hidden_share": (0.2, 0.1, 1),
}
PENALTY = 0.0009

# Numbers of stacks that have a factor in common, and its name beside theirs.
SHARED = ("iteration_ms", "attention_factor")
ALL_STACKS = "all software"


def numbers_of(document):
    """Returns the fitted numbers: by name, the objects that hold it."""
    objects = {}
    for group in GROUPS:
        gpus = [a for a in document["accelerators"] if a["name"] in group]
        for key in PRIORS:
            if gpus and key in gpus[0]:
                objects[group[0], key] = [gpu[key] for gpu in gpus]
    for stack in document["software"]:
        for key in PRIORS:
            if key in stack:
                objects[stack["name"], key] = [stack[key]]
    return objects


class Loss:
    """The loss of fitted numbers. Runs whose id is in `held_out` have no part in it."""

    def __init__(self, acplan, runs, document, held_out):
        self._command = [acplan, "train", "score", runs]
        self._document = copy.deepcopy(document)
        self._numbers = numbers_of(self._document)
        self._held_out = held_out
        with open(runs, newline="") as file:
            self._runs = {row["id"]: row for row in csv.DictReader(file)}
        self.values = {n: objects[0]["value"] for n, objects in self._numbers.items()}
        # The values without a penalty: `prior`, or the number's value.
        self.centres = {
            n: objects[0].get("prior", self.values[n]) for n, objects in self._numbers.items()
        }
        stacks = {stack["name"] for stack in self._document["software"]}
        self._shared = {n for n in self._numbers if n[0] in stacks and n[1] in SHARED}
        for key in SHARED:
            self.values[ALL_STACKS, key] = self.centres[ALL_STACKS, key] = 1

    def document(self, values):
        for name, objects in self._numbers.items():
            value = values[name]
            if name in self._shared:
                _, least, most = PRIORS[name[1]]
                value = min(most, max(least, value * values[ALL_STACKS, name[1]]))
            for item in objects:
                item["value"] = float(f"{value:.4g}")
        return self._document

    def errors(self, values):
        """Returns ln(predicted / measured) of each run, by id."""
        with tempfile.TemporaryDirectory() as folder:
            systems = pathlib.Path(folder, "systems.json")
            output = pathlib.Path(folder, "predictions.csv")
            systems.write_text(json.dumps(self.document(values)))
            subprocess.run(
                [*self._command, "--systems", systems, "-o", output],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            with open(output, newline="") as file:
                return {
                    row["id"]: math.log(
                        float(row["time_s"]) / float(self._runs[row["id"]]["time_s"])
                    )
                    for row in csv.DictReader(file)
                }

    def errors_by_source(self, values, ids):
        """Returns the errors of those of the runs `ids` that are predicted."""
        errors = collections.defaultdict(list)
        for name, error in self.errors(values).items():
            if name in ids:
                errors[self._runs[name]["source"]].append(error)
        return errors

    def __call__(self, values):
        def cost(x):
            size = abs(x)
            flat = size if size < 0.35 else 0.35 + 0.4 * (size - 0.35)
            return 0.8 * flat + 1.5 * min(x * x, 0.15)

        fitted = self.errors_by_source(values, self._runs.keys() - self._held_out)
        fit = statistics.mean(statistics.mean(map(cost, errors)) for errors in fitted.values())
        away = (math.log(values[n] / self.centres[n]) / PRIORS[n[1]][0] for n in values)
        return fit + PENALTY * sum(min(9, x * x) / 2 for x in away)


def descend(loss, start, sweeps):
    values = dict(start)
    steps = {name: 0.6 * PRIORS[name[1]][0] for name in values}
    best = loss(values)
    for sweep in range(sweeps):
        for name in values:
            _, least, most = PRIORS[name[1]]
            is_better = False
            for sign in (1, -1):
                moved_value = values[name] * math.exp(sign * steps[name])
                if name[0] != ALL_STACKS:
                    moved_value = min(most, max(least, moved_value))
                changed_values = {**values, name: moved_value}
                changed_loss = loss(changed_values)
                if changed_loss < best - 1e-7:
                    best, values, is_better = changed_loss, changed_values, True
                    break
            steps[name] *= 1.3 if is_better else 0.5
        print(f"sweep {sweep + 1}: loss {best:.5f}", flush=True)
    return values


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("acplan")
    parser.add_argument("runs")
    parser.add_argument("systems")
    parser.add_argument("output")
    parser.add_argument("--sweeps", type=int, default=3)
    parser.add_argument("--hold-out", metavar="SOURCE")
    parser.add_argument("--from-values", action="store_true")
    args = parser.parse_args()
    document = json.loads(pathlib.Path(args.systems).read_text())
    with open(args.runs, newline="") as file:
        runs = list(csv.DictReader(file))
    held_out = {run["id"] for run in runs if run["source"] == args.hold_out}
    loss = Loss(args.acplan, args.runs, document, held_out)
    start = loss.values if args.from_values else loss.centres
    values = descend(loss, start, args.sweeps)
    fitted = loss.document(values)
    pathlib.Path(args.output).write_text(json.dumps(fitted, indent=1) + "\n")
    printed_runs = held_out or {run["id"] for run in runs}
    for source, errors in sorted(loss.errors_by_source(values, printed_runs).items()):
        sizes = [abs(math.exp(x) - 1) for x in errors]
        mean, median = statistics.mean(sizes), statistics.median(sizes)
        print(f"{source:14s} mean {100 * mean:5.1f} % median {100 * median:5.1f} %")


if __name__ == "__main__":
    main()
