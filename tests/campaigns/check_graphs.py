"""Compares the answers of `acplan remat` on random graphs with those of HiGHS.

    python tests/campaigns/check_graphs.py build/release/cli/acplan FOLDER COUNT [FIRST]

Needs highspy. The programs that HiGHS solves are written from the documentation of the
formats, of the graphs alone: joint_program.py and schedule_program.py share nothing with
the searches. The questions for each seed are

- *least*: the least budget of a compiled step;
- *remat*: its recomputation at the least budget, a byte below and between;
- *kept*: the same with a limit on the kept bytes;
- *any schedule*, *node-link*: the least recomputation of any schedule, of the step and of a
  graph without passes.

Prints a row for each kind of question, and every difference; exit code 1 if there is one.
Graphs that differ stay in the folder. *nothing again* are equal answers in which nothing
runs again, *bounds* answers that were not proven and whose bounds enclose the optimum,
*refused* graphs with ties that need each other.
"""

import collections
import json
import pathlib
import random
import subprocess
import sys
from typing import Any

from joint_program import JointProgram
from programs import Answer
from random_graphs import joint_graph, node_link_graph
from schedule_program import (
    ScheduleProgram,
    Steps,
    steps_of_joint,
    steps_of_node_link,
)

Json = dict[str, Any]

EQUAL = 1e-6
OUTCOMES = (
    "equal",
    "nothing again",
    "both infeasible",
    "bounds",
    "refused",
    "unproven",
    "different",
)
# Complaints about graphs whose rules forbid every plan, and about ties in a circle.
RULES = ("may not run again, but its", "no node tied to it needs")


class Campaign:
    def __init__(self, program: str, folder: pathlib.Path) -> None:
        self.program, self.folder = program, folder
        self.table: dict[str, collections.Counter[str]] = {}

    def ask(self, name: str, path: pathlib.Path, *flags: str) -> Json:
        command = [self.program, name, str(path), "--json", *flags]
        process = subprocess.run(command, capture_output=True, text=True)
        if process.returncode == 2 and any(rule in process.stderr for rule in RULES):
            return {"status": "infeasible", "refused": process.stderr}
        if process.returncode not in (0, 3, 4) or not process.stdout:
            raise RuntimeError(f"{' '.join(command)}: {process.returncode} {process.stderr}")
        answer: Json = json.loads(process.stdout)
        return answer

    def count(self, kind: str, path: pathlib.Path, message: str, outcome: str) -> None:
        self.table.setdefault(kind, collections.Counter())[outcome] += 1
        if outcome == "different":
            print(f"{path.name}: {message}", flush=True)

    def compare(
        self, kind: str, path: pathlib.Path, question: list[str], optimum: Answer
    ) -> bool:
        """Returns whether the answers to one question about a graph agree."""
        answer = self.ask(question[0], path, *question[1:])
        value = answer.get("recompute_ms", answer.get("recomputed"))
        bound = answer.get("bound_ms", answer.get("bound"))
        outcome = outcome_of(answer["status"], value, bound, optimum)
        message = f"{' '.join(question)}: {answer['status']} {value}, HiGHS {optimum}"
        self.count(kind, path, message, outcome)
        return outcome != "different"


def outcome_of(status: str, value: float | None, bound: float | None, optimum: Answer) -> str:
    if optimum[0] == "unproven":
        return "unproven"
    if status == "infeasible" or optimum[1] is None:
        if status == "no_solution":
            return "bounds"
        return "both infeasible" if status == optimum[0] else "different"
    slack = EQUAL * (1 + abs(optimum[1]))
    if status == "optimal":
        assert value is not None
        if abs(value - optimum[1]) > slack:
            return "different"
        return "equal" if value > 0 else "nothing again"
    holds = (value is None or value >= optimum[1] - slack) and (
        bound is None or bound <= optimum[1] + slack
    )
    return "bounds" if holds else "different"


def write_graph(folder: pathlib.Path, name: str, graph: Json) -> pathlib.Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(graph))
    return path


def check_remat(campaign: Campaign, seed: int) -> bool:
    graph = joint_graph(seed)
    path = write_graph(campaign.folder, f"joint_{seed}", graph)
    # The answer to a budget that nothing fits has the least one.
    least = campaign.ask("remat", path, "--budget", "1")
    if "tied to it" in least.get("refused", ""):
        campaign.count("least", path, "", "refused")
        return True
    optimum = JointProgram(graph, None).solve()
    budget = least.get("least_bytes")
    message = f"least {budget}, bound {least.get('least_bound_bytes')}, HiGHS {optimum}"
    if optimum[1] is None or budget is None:
        is_same = optimum[1] is None and "refused" in least
        outcome = "both infeasible" if is_same else "different"
        campaign.count("least", path, message, outcome)
        return outcome != "different"
    status = "optimal" if budget == least["least_bound_bytes"] else "feasible"
    outcome = outcome_of(status, budget, least["least_bound_bytes"], optimum)
    campaign.count("least", path, message, outcome)
    is_good = outcome != "different"
    source = random.Random(seed)
    most = max(budget, least["baseline_peak_bytes"])
    for limit in {budget - 1, budget, source.randint(budget, most), most}:
        if limit < 1:
            continue
        optimum = JointProgram(graph, limit).solve()
        is_good &= campaign.compare("remat", path, ["remat", "--budget", str(limit)], optimum)
    saved = campaign.ask("remat", path, "--budget", str(most)).get("saved_bytes", 0)
    for limit in (most, source.randint(budget, most)):
        most_kept = source.randint(0, saved)
        question = ["remat", "--budget", str(limit), "--kept", str(most_kept)]
        optimum = JointProgram(graph, limit, most_kept).solve()
        is_good &= campaign.compare("kept", path, question, optimum)
    return is_good


def check_schedules(
    campaign: Campaign, kind: str, name: str, graph: Json, steps: Steps
) -> bool:
    path = write_graph(campaign.folder, name, graph)
    nothing = campaign.ask("schedule", path, "--budget", "1")
    most, least = nothing["baseline_peak_bytes"], nothing.get("least_bound_bytes", 0)
    source = random.Random(name)
    is_good = True
    for budget in sorted({most - 1, *(source.randint(least, most) for _ in range(3))}):
        if budget < 1:
            continue
        optimum = ScheduleProgram(steps, budget).solve()
        question = ["schedule", "--budget", str(budget)]
        is_good &= campaign.compare(kind, path, question, optimum)
    return is_good


def check_seed(campaign: Campaign, seed: int) -> None:
    joint, linked = joint_graph(seed), node_link_graph(seed)
    for buffer in joint["buffers"]:
        buffer.pop("keep", None)  # schedules know no passes
    outcomes = {f"joint_{seed}": check_remat(campaign, seed)}
    for kind, name, graph, steps in (
        ("any schedule", f"step_{seed}", joint, steps_of_joint(joint)),
        ("node-link", f"linked_{seed}", linked, steps_of_node_link(linked)),
    ):
        outcomes[name] = check_schedules(campaign, kind, name, graph, steps)
    for name, is_good in outcomes.items():
        if is_good:
            (campaign.folder / f"{name}.json").unlink()


def main() -> int:
    if len(sys.argv) not in (4, 5):
        print(__doc__, file=sys.stderr)
        return 2
    program, folder_name, count = sys.argv[1:4]
    first = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    folder = pathlib.Path(folder_name)
    folder.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(program, folder)
    for seed in range(first, first + int(count)):
        check_seed(campaign, seed)
    print(f"| questions | {' | '.join(OUTCOMES)} |\n|---|{'---:|' * len(OUTCOMES)}")
    for kind, counts in campaign.table.items():
        print(f"| {kind} | {' | '.join(str(counts[o]) for o in OUTCOMES)} |")
    return 1 if any(c["different"] for c in campaign.table.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
