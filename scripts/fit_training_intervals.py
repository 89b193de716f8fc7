#!/usr/bin/env python3
"""fit_training_intervals.py ACPLAN RUNS.csv SYSTEMS.json OUTPUT.csv [OPTION...]

Writes data/training/errors.csv: the errors of predictions of runs that had no part in the fit,
from which intervals are made, and prints how many measured times the intervals contain if each
source is left out of them. The numbers of SYSTEMS.json are fitted to RUNS.csv

- without each source in turn, for the errors of a source of its own (left_out source),
- without each of four parts of all sources, for the errors of runs beside others of their
  source (left_out group). All runs of a group are in the same part. And
- without each generation of GPUs, for the errors of GPUs of which no run was measured
  (left_out generation). Their numbers are the priors.

--unfitted RUNS.csv adds runs that have no part in SYSTEMS.json: those of new sources all, and
up to 40 of each source that was fitted, the first by the hash of their names. --systems-folder
keeps the fitted numbers, and takes those that are there already: a fit takes a minute, all of
them half an hour.
"""

import argparse
import collections
import csv
import hashlib
import json
import pathlib
import re
import subprocess
import tempfile

from fit_training_systems import Loss, descend

PARTS = 4
MOST_UNFITTED = 40


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def generation_of(gpu):
    """Returns the letters that GPUs of one generation have in common, as run_kind.h does."""
    letters = re.match("[A-Za-z]*", gpu).group()
    return letters[1:] if len(letters) == 2 and letters[0] == "G" else letters


def parts_of(runs):
    """Returns the ids that are left out together, by the name of the fit, with their kind."""
    groups = collections.defaultdict(dict)
    left_out = collections.defaultdict(set)
    for run in runs:
        places = groups[run["source"]]
        place = places.setdefault(run.get("group") or run["id"], len(places))
        left_out["group", f"part-{place % PARTS}"].add(run["id"])
        left_out["source", run["source"]].add(run["id"])
        left_out["generation", f"gpu-{generation_of(run['gpu'])}"].add(run["id"])
    return dict(sorted(left_out.items()))


def fitted_systems(acplan, runs, systems, held_out, output):
    """Writes the numbers that are fitted without some runs, unless they are there."""
    if output.exists():
        return
    loss = Loss(acplan, runs, json.loads(pathlib.Path(systems).read_text()), held_out)
    values = descend(loss, loss.centres, 3)
    output.write_text(json.dumps(loss.document(values), indent=1) + "\n")


def errors_of(acplan, runs, systems, left_out):
    """Returns the rows of a table of errors."""
    with tempfile.TemporaryDirectory() as folder:
        table = pathlib.Path(folder, "errors.csv")
        subprocess.run(
            [acplan, "train", "score", runs, "--systems", systems, "--error-table", table],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return [{**row, "left_out": left_out} for row in read(table)]


def first_of_each(rows, most):
    """Returns the first rows of each source by the hash of their names."""
    counts = collections.Counter()
    first_rows = []
    for row in sorted(rows, key=lambda row: hashlib.sha256(row["id"].encode()).hexdigest()):
        counts[row["source"]] += 1
        if counts[row["source"]] <= most:
            first_rows.append(row)
    return first_rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("acplan")
    parser.add_argument("runs")
    parser.add_argument("systems")
    parser.add_argument("output")
    parser.add_argument("--unfitted", action="append", default=[], metavar="RUNS")
    parser.add_argument("--systems-folder")
    args = parser.parse_args()
    runs = read(args.runs)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(args.systems_folder or temporary)
        for (kind, name), held_out in parts_of(runs).items():
            print(f"without {kind} {name}", flush=True)
            systems = folder / f"{name}.json"
            fitted_systems(args.acplan, args.runs, args.systems, held_out, systems)
            errors = errors_of(args.acplan, args.runs, systems, kind)
            rows += [row for row in errors if row["id"] in held_out]
    sources = {run["source"] for run in runs}
    for path in args.unfitted:
        errors = errors_of(args.acplan, path, args.systems, "source")
        rows += [row for row in errors if row["source"] not in sources]
        other_rows = [
            {**row, "left_out": "group"} for row in errors if row["source"] in sources
        ]
        rows += first_of_each(other_rows, MOST_UNFITTED)
    with open(args.output, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    subprocess.run([args.acplan, "train", "score", args.output], check=True)


if __name__ == "__main__":
    main()
