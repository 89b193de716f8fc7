#!/usr/bin/env python3
"""How long a frontier of 20 points takes beside one plan, as whole commands.

frontier_times.py ACPLAN PROFILE...: a Markdown row a profile and memory model.
One plan is the mean over budgets at 90, 50 and 20% of the way from the smallest
budget to what the model needs without a plan; of each command the median of
five runs counts.
"""

import csv
import io
import statistics
import subprocess
import sys
import time


def run(*command):
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return time.perf_counter() - begin, done.stdout


def median_run(*command):
    runs = [run(*command) for _ in range(5)]
    return statistics.median(seconds for seconds, _ in runs), runs[0][1]


def main(acplan, profiles):
    print("| profile | memory model | frontier s | one plan s | ratio | labels | optimal |")
    print("|---|---|---|---|---|---|---|")
    for profile in profiles:
        for model in ("snapshot", "torch"):
            flags = [profile, "--memory-model", model]
            seconds, text = median_run(acplan, "frontier", *flags, "--csv")
            points = list(csv.DictReader(io.StringIO(text)))
            budgets = [int(point["budget_bytes"]) for point in points]
            plans = []
            for share in (0.9, 0.5, 0.2):
                budget = budgets[0] + int(share * (budgets[-1] - budgets[0]))
                plans.append(median_run(acplan, "plan", *flags, "--budget", str(budget))[0])
            plan = statistics.mean(plans)
            labels = sum(int(point["nodes"]) for point in points)
            optimal = sum(point["status"] == "optimal" for point in points)
            name = profile.rsplit("/", 1)[-1].removesuffix(".json.gz")
            print(
                f"| {name} | {model} | {seconds:.3f} | {plan:.3f} "
                f"| {seconds / plan:.1f} | {labels} "
                f"| {optimal} of {len(points)} |"
            )


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
