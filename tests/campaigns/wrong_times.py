"""Prices plans for run-times that are wrong, and requires that no bound is exceeded.

    python3 tests/campaigns/wrong_times.py build/release/cli/acplan . [TRACE...]

For each bundled trace, at budgets of 30% and 70% between the least and that without a plan,
acplan plans with --times-off 1.5 and with --robust, as if nothing waited for the host. Each of
the two plans and the best plan for the run-times at which the usual plan loses most is priced
by the estimates and by those run-times: the cost matrix. Then millions of random run-times
within the factor, by kind and by operator, are tried, against these plans and the best ones of
a few random run-times. Kinds are told apart here by a table of names. Writes
docs/measured/times_off.csv, or with names of traces prints its rows. Exit code 1 if a bound is
exceeded. Needs NumPy.
"""

import csv
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

FACTOR = 1.5
BUDGETS = (0.3, 0.7)
BY_KIND, BY_OPERATOR = 1_000_000, 4_000
RANDOM_PLANS = 4
KINDS = ("products", "convolutions", "attention", "normalisations", "others")
KIND_OF = {
    **dict.fromkeys(("mm", "addmm", "bmm"), 0),
    **dict.fromkeys(("convolution", "convolution_backward"), 1),
    **{
        f"_scaled_dot_product_{kernel}_attention{suffix}": 2
        for kernel in ("flash", "efficient")
        for suffix in ("", "_backward")
    },
    **{
        f"native_{norm}_norm{end}": 3
        for norm in ("layer", "batch")
        for end in ("", "_backward")
    },
    **dict.fromkeys(("cudnn_batch_norm", "cudnn_batch_norm_backward", "_safe_softmax"), 3),
    **{f"_{log}softmax{end}": 3 for log in ("", "log_") for end in ("", "_backward_data")},
    **dict.fromkeys(("nll_loss_forward", "nll_loss_backward"), 3),
    **dict.fromkeys(("sum", "mean", "cumsum"), 3),
}
COLUMNS = (
    "trace", "budget_percent", "overhead_percent", "status", "by_kind_at_most_percent",
    "by_kind_at_least_percent", "by_operator_at_most_percent", "by_operator_at_least_percent",
    "robust_by_kind_at_most_percent", "no_plan_below_percent", "plan_by_estimates_percent",
    "robust_by_estimates_percent", "other_by_estimates_percent", "plan_by_worst_percent",
    "robust_by_worst_percent", "other_by_worst_percent", "random_by_kind_most_percent",
    "random_by_operator_most_percent", "plan_seconds", "times_off_seconds",
)  # fmt: skip


class Step:
    """A trace, and the program that plans it for other run-times."""

    def __init__(self, program: pathlib.Path, trace: pathlib.Path, folder: str) -> None:
        self.program, self.path, self.folder = program, trace, pathlib.Path(folder)
        self.data = json.loads(gzip.decompress(trace.read_bytes()))
        operators = self.data["operators"]
        self.times = np.array([op["runtime_ms"] for op in operators])
        names = [op["name"].split(".")[1] for op in operators]
        self.kinds = np.array([KIND_OF.get(name, 4) for name in names])

    def ask(self, *flags: str, times: Any = None) -> dict[str, Any]:
        """Returns a plan for these run-times or the estimates."""
        source = self.path
        if times is not None:
            operators = zip(self.data["operators"], times, strict=True)
            scaled = [{**op, "runtime_ms": float(ms)} for op, ms in operators]
            source = self.folder / "scaled.json"
            source.write_text(json.dumps({**self.data, "operators": scaled}))
        command: list[Any] = [
            self.program,
            "plan",
            source,
            *flags,
            "--without-host",
            "--json",
            "-q",
        ]
        run = subprocess.run(command, capture_output=True, check=True, text=True)
        plan: dict[str, Any] = json.loads(run.stdout)
        return plan

    def reruns(self, plan: dict[str, Any]) -> Any:
        """Returns how often each operator runs again, as the simulation of the plan says."""
        file, timeline = self.folder / "plan.json", self.folder / "timeline.csv"
        file.write_text(json.dumps(plan))
        command = ("simulate", self.path, file, "--timeline", timeline, "-q")
        subprocess.run((self.program, *command), capture_output=True, check=True)
        counts = np.zeros(len(self.times))
        with timeline.open(newline="") as rows:
            for row in csv.DictReader(rows):
                counts[int(row["operator"])] += row["phase"] == "recompute"
        return counts


def regrets(step: Step, counts: Any, ratios: Any, is_by_kind: bool) -> Any:
    """Returns by how much the first plan's steps are longer than the shortest of all plans, for
    rows of ratios of kinds or operators."""
    groups = np.eye(5)[step.kinds] if is_by_kind else np.eye(len(step.times))
    weights = (1 + counts) * step.times
    steps = ratios @ (weights @ groups if is_by_kind else weights).T
    return steps[:, 0] / steps.min(axis=1) - 1


def random_ratios(r: Any, rows: int, columns: int, likely: Any = None) -> Any:
    """Returns ratios from 1 / FACTOR to FACTOR, a half of them at the ends. Where `likely` is
    given, three quarters of those of the first plan's operators are at the upper end."""
    exponents = r.uniform(-1, 1, (rows, columns))
    is_end = r.random((rows, columns)) < 0.5
    exponents[is_end] = np.sign(exponents[is_end])
    if likely is not None:
        is_biased = r.random((rows, columns)) < 0.75
        exponents = np.where(is_biased, np.where(likely, 1.0, -1.0), exponents)
    return FACTOR**exponents


def random_regrets(step: Step, counts: Any, r: Any) -> tuple[float, float]:
    """Returns the largest regrets of the first plan over random run-times, by kind and by
    operator."""
    by_kind = regrets(step, counts, random_ratios(r, BY_KIND, 5), True).max()
    by_operator = 0.0
    for part in range(BY_OPERATOR // 1000):
        likely = counts[0] > 0 if part % 2 else None
        ratios = random_ratios(r, 1000, len(step.times), likely)
        by_operator = max(by_operator, regrets(step, counts, ratios, False).max())
    return float(by_kind), by_operator


def percent(share: float) -> str:
    return f"{100 * share:.3f}"


def row_of(step: Step, budget: float, budget_bytes: int, r: Any) -> tuple[list[str], bool]:
    """Returns a row of the table, and whether a bound is exceeded."""
    flags = ("--budget", str(budget_bytes))
    start = time.monotonic()
    step.ask(*flags)
    middle = time.monotonic()
    plan = step.ask(*flags, "--times-off", str(FACTOR))
    end = time.monotonic()
    robust = step.ask(*flags, "--times-off", str(FACTOR), "--robust")
    worst = np.array([plan["times_off"]["worst_kinds"].get(kind, 1) for kind in KINDS])
    quick = (*flags, "--time-limit", "2")
    other = step.ask(*quick, times=step.times * worst[step.kinds])
    plans = [plan, robust, other]
    for ratios in random_ratios(r, RANDOM_PLANS, 5):
        plans.append(step.ask(*quick, times=step.times * ratios[step.kinds]))
    counts = np.array([step.reruns(each) for each in plans])
    is_exceeded = False
    most: list[float] = []
    for k, each in enumerate((plan, robust)):
        own_first = np.concatenate([counts[k : k + 1], counts])
        off = each["times_off"]
        largest = random_regrets(step, own_first, r)
        for b, bound in enumerate((off["by_kind"]["step"], off["by_operator"]["step"])):
            is_exceeded |= largest[b] > bound + 1e-9
        most = most or list(largest)
    matrix = [
        float(regrets(step, np.concatenate([counts[k : k + 1], counts]), at[None], True)[0])
        for at in (np.ones(5), worst)
        for k in range(3)
    ]
    off, of_robust = plan["times_off"], robust["times_off"]
    figures = [
        off["by_kind"]["step"], off["by_kind"]["at_least"]["step"], off["by_operator"]["step"],
        off["by_operator"]["at_least"]["step"], of_robust["by_kind"]["step"],
        of_robust["least_step"], *matrix, *most,
    ]  # fmt: skip
    seconds = (middle - start, end - middle)
    return [
        step.path.name.removesuffix(".json.gz"), f"{budget:.0%}", percent(plan["overhead"]),
        plan["status"], *map(percent, figures), *(f"{s:.2f}" for s in seconds),
    ], is_exceeded  # fmt: skip


def main() -> int:
    program, root = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    names = sys.argv[3:]
    traces = sorted((root / "data" / "traces").glob("*.json.gz"))
    r = np.random.default_rng(0)
    exceeded = rows = 0
    with tempfile.TemporaryDirectory() as folder:
        table = root / "docs" / "measured" / "times_off.csv"
        with sys.stdout if names else table.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for trace in traces:
                if names and trace.name.removesuffix(".json.gz") not in names:
                    continue
                step = Step(program, trace, folder)
                least = step.ask("--budget", "min")
                low, high = least["budget_bytes"], least["baseline"]["peak_bytes"]
                for budget in BUDGETS:
                    row, is_exceeded = row_of(
                        step, budget, round(low + budget * (high - low)), r
                    )
                    writer.writerow(row)
                    file.flush()
                    rows += 1
                    exceeded += is_exceeded
    print(
        f"{rows} budgets, {2 * rows * (BY_KIND + BY_OPERATOR):,} run-times: {exceeded} exceed "
        "a bound",
        file=sys.stderr,
    )
    return int(exceeded > 0)


if __name__ == "__main__":
    sys.exit(main())
