"""Has HiGHS answer what `acplan remat` answers of random graphs, and compares.

    python tests/campaigns/check_graphs.py build/release/cli/acplan FOLDER COUNT [FIRST]

Needs highspy. The programs that HiGHS solves are written from the documentation of the
formats, of the graphs alone: joint_program.py and schedule_program.py share nothing with
the searches. Of each seed

- *least*: the least budget of a compiled step;
- *remat*: what it recomputes at the least budget, a byte below and between;
- *kept*: the same where no more than so many bytes may be kept;
- *any schedule*, *node-link*: the least that any schedule recomputes, of the step and of a
  graph without passes.

Prints a row a kind of question, and every difference; exit code 1 where there is one.
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
from programs import Found
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
# What is refused: graphs whose rules forbid every plan, and ties in a circle.
RULES = ("may not run again, and what", "nodes tied to it do not need")


class Campaign:
    def __init__(self, program: str, folder: pathlib.Path) -> None:
        self.program, self.folder = program, folder
        self.table: dict[str, collections.Counter[str]] = {}

    def ask(self, name: str, path: pathlib.Path, *flags: str) -> Json:
        command = [self.program, name, str(path), "--json", *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 2 and any(rule in done.stderr for rule in RULES):
            return {"status": "infeasible", "refused": done.stderr}
        if done.returncode not in (0, 3, 4) or not done.stdout:
            raise RuntimeError(f"{' '.join(command)}: {done.returncode} {done.stderr}")
        answer: Json = json.loads(done.stdout)
        return answer

    def count(self, kind: str, path: pathlib.Path, told: str, outcome: str) -> None:
        self.table.setdefault(kind, collections.Counter())[outcome] += 1
        if outcome == "different":
            print(f"{path.name}: {told}", flush=True)

    def compare(self, kind: str, path: pathlib.Path, question: list[str], found: Found) -> bool:
        """Of one question about a graph; false where answers differ."""
        answer = self.ask(question[0], path, *question[1:])
        value = answer.get("recompute_ms", answer.get("recomputed"))
        bound = answer.get("bound_ms", answer.get("bound"))
        outcome = outcome_of(answer["status"], value, bound, found)
        told = f"{' '.join(question)}: {answer['status']} {value}, HiGHS {found}"
        self.count(kind, path, told, outcome)
        return outcome != "different"


def outcome_of(status: str, value: float | None, bound: float | None, found: Found) -> str:
    if found[0] == "unproven":
        return "unproven"
    if status == "infeasible" or found[1] is None:
        if status == "no_solution":
            return "bounds"
        return "both infeasible" if status == found[0] else "different"
    slack = EQUAL * (1 + abs(found[1]))
    if status == "optimal":
        assert value is not None
        if abs(value - found[1]) > slack:
            return "different"
        return "equal" if value > 0 else "nothing again"
    holds = (value is None or value >= found[1] - slack) and (
        bound is None or bound <= found[1] + slack
    )
    return "bounds" if holds else "different"


def written(folder: pathlib.Path, name: str, graph: Json) -> pathlib.Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(graph))
    return path


def check_remat(campaign: Campaign, seed: int) -> bool:
    graph = joint_graph(seed)
    path = written(campaign.folder, f"joint_{seed}", graph)
    # A budget that nothing fits tells the least.
    least = campaign.ask("remat", path, "--budget", "1")
    if "tied to it" in least.get("refused", ""):
        campaign.count("least", path, "", "refused")
        return True
    found = JointProgram(graph, None).solve()
    budget = least.get("least_bytes")
    told = f"least {budget}, bound {least.get('least_bound_bytes')}, HiGHS {found}"
    if found[1] is None or budget is None:
        is_same = found[1] is None and "refused" in least
        outcome = "both infeasible" if is_same else "different"
        campaign.count("least", path, told, outcome)
        return outcome != "different"
    status = "optimal" if budget == least["least_bound_bytes"] else "feasible"
    outcome = outcome_of(status, budget, least["least_bound_bytes"], found)
    campaign.count("least", path, told, outcome)
    good = outcome != "different"
    source = random.Random(seed)
    most = max(budget, least["baseline_peak_bytes"])
    for asked in {budget - 1, budget, source.randint(budget, most), most}:
        if asked < 1:
            continue
        found = JointProgram(graph, asked).solve()
        good &= campaign.compare("remat", path, ["remat", "--budget", str(asked)], found)
    saved = campaign.ask("remat", path, "--budget", str(most)).get("saved_bytes", 0)
    for asked in (most, source.randint(budget, most)):
        kept = source.randint(0, saved)
        flags = ["remat", "--budget", str(asked), "--kept", str(kept)]
        found = JointProgram(graph, asked, kept).solve()
        good &= campaign.compare("kept", path, flags, found)
    return good


def check_schedules(
    campaign: Campaign, kind: str, name: str, graph: Json, steps: Steps
) -> bool:
    path = written(campaign.folder, name, graph)
    nothing = campaign.ask("schedule", path, "--budget", "1")
    most, least = nothing["baseline_peak_bytes"], nothing.get("least_bound_bytes", 0)
    source = random.Random(name)
    good = True
    for asked in sorted({most - 1, *(source.randint(least, most) for _ in range(3))}):
        if asked < 1:
            continue
        found = ScheduleProgram(steps, asked).solve()
        flags = ["schedule", "--budget", str(asked)]
        good &= campaign.compare(kind, path, flags, found)
    return good


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
    program, made, count = sys.argv[1:4]
    first = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    folder = pathlib.Path(made)
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
