"""Compares HiGHS's answers to programs with the answers of acplan's engines.

    build/release/tests/campaigns/write_milps random FOLDER 1000 > FOLDER.jsonl
    python tests/campaigns/check_milps.py FOLDER < FOLDER.jsonl

Needs highspy. Prints a row for each kind of program, and every difference; exit code 1 if there
is one. Answers are the same if all find nothing, or if all find an optimum, equal to 1e-6. The
comparison is with the answers that users get: those of the label engines and, for profiles, of
the engine with CBC, which asks again if CBC contradicts itself; for other programs CBC's own.
These are counted separately:

- *alone*: CBC alone gives another answer, and the engine does not believe it;
- *repeated*: so does HiGHS, until it is asked again with tolerances of 1e-9;
- *tolerances*: HiGHS's solution is cheaper only because it breaks a row by less than its
  tolerance;
- *unproven*: a limit of time was hit.

Programs that differ stay in the folder.
"""

import collections
import json
import pathlib
import sys

import highspy

EQUAL = 1e-6
# Relative to the limit of a row; rows are scaled to about a thousand.
EXACT = 1e-9


Answer = tuple[str, float | None]


def solve(path: pathlib.Path, tolerance: float) -> tuple[Answer, float]:
    """Returns status and objective, and by how much the solution breaks a row."""
    highs = highspy.Highs()
    highs.silent()
    for name, value in {
        "threads": 1,
        "time_limit": 60.0,
        "mip_rel_gap": 0.0,
        "mip_abs_gap": 1e-9,
        "mip_feasibility_tolerance": tolerance,
        "primal_feasibility_tolerance": tolerance,
        "small_matrix_value": 1e-12,  # below which it takes coefficients away
    }.items():
        highs.setOptionValue(name, value)
    # It warns of rows that are empty.
    if highs.readModel(str(path)) == highspy.HighsStatus.kError:
        raise SystemExit(f"{path}: HiGHS does not read it")
    highs.run()
    status = highs.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return ("infeasible", None), 0.0
    if status != highspy.HighsModelStatus.kOptimal:
        return ("unproven", None), 0.0
    objective = highs.getInfo().objective_function_value
    return ("optimal", objective), violation(highs)


def violation(highs: highspy.Highs) -> float:
    """Returns by how much the solution with rounded integers breaks a row, relative to its
    limit."""
    model = highs.getLp()
    x = list(highs.getSolution().col_value)
    for column, kind in enumerate(model.integrality_):
        if kind == highspy.HighsVarType.kInteger:
            x[column] = round(x[column])
    sums = [0.0] * model.num_row_
    matrix = model.a_matrix_
    for major in range(len(matrix.start_) - 1):
        for place in range(matrix.start_[major], matrix.start_[major + 1]):
            minor, value = matrix.index_[place], matrix.value_[place]
            by_column = matrix.format_ == highspy.MatrixFormat.kColwise
            row, column = (minor, major) if by_column else (major, minor)
            sums[row] += value * x[column]
    worst = 0.0
    for row, total in enumerate(sums):
        for violated, bound in (
            (model.row_lower_[row] - total, model.row_lower_[row]),
            (total - model.row_upper_[row], model.row_upper_[row]),
        ):
            if abs(bound) < 1e30:
                worst = max(worst, violated / max(1.0, abs(bound)))
    return worst


def is_equal(one: Answer, other: Answer) -> bool:
    if one[1] is None or other[1] is None:
        return one[0] == other[0]
    return abs(one[1] - other[1]) <= EQUAL * (1 + abs(one[1]))


def compare(case: dict, folder: pathlib.Path) -> str:
    """Returns one of the outcomes, or a description of the difference."""
    answers = {
        name: (case[name]["status"], case[name]["objective"])
        for name in ("cbc", "labels", "engine")
        if name in case
    }
    alone = answers.pop("cbc") if "engine" in answers else answers["cbc"]
    if any(status == "unproven" for status, _ in answers.values()):
        return "unproven"
    path = folder / f"{case['name']}.mps"
    for tolerance in (1e-6, 1e-9):
        optimum, violated = solve(path, tolerance)
        if optimum[0] == "unproven":
            return "unproven"
        if all(is_equal(optimum, answer) for answer in answers.values()):
            if tolerance < 1e-6:
                return "repeated"
            if alone[0] != "unproven" and not is_equal(optimum, alone):
                return "alone"
            return "both nothing" if optimum[0] == "infeasible" else "equal"
    if violated > EXACT:
        return "tolerances"
    answers_text = ", ".join(f"{name}: {' '.join(map(str, a))}" for name, a in answers.items())
    return f"HiGHS: {' '.join(map(str, optimum))}, {answers_text}"


OUTCOMES = ("equal", "both nothing", "alone", "repeated", "tolerances", "unproven")


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = pathlib.Path(sys.argv[1])
    table: dict[str, collections.Counter[str]] = {}
    differences = 0
    for line in sys.stdin:
        case = json.loads(line)
        outcome = compare(case, folder)
        if outcome not in OUTCOMES:
            differences += 1
            print(f"{case['name']}: {outcome}")
            outcome = "different"
        else:
            (folder / f"{case['name']}.mps").unlink()
        table.setdefault(case["kind"], collections.Counter())[outcome] += 1
    columns = (*OUTCOMES, "different")
    print(f"| programs | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
    for kind, counts in table.items():
        print(f"| {kind} | {' | '.join(str(counts[c]) for c in columns)} |")
    if not table:
        print("no programs")
    return 1 if differences or not table else 0


if __name__ == "__main__":
    sys.exit(main())
