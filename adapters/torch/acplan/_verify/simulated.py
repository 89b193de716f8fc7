"""The operators of a step with a plan, as the program predicts them."""

import contextlib
import csv
from collections.abc import Callable, Iterator

from acplan._base.question import question_folder
from acplan._files.plan_file import Plan
from acplan._files.trace_file import Trace
from acplan._files.verification import VerifiedOperator


def simulate(model_trace: Trace, plan: Plan) -> tuple[VerifiedOperator, ...]:
    """Returns the operators of a training step with the plan, by `acplan simulate`."""
    with simulating(model_trace) as simulated:
        return simulated(plan)


@contextlib.contextmanager
def simulating(model_trace: Trace) -> Iterator[Callable[[Plan], tuple[VerifiedOperator, ...]]]:
    """Yields a function like `simulate` for many plans, one after the other."""
    with question_folder() as folder:
        question = {
            "trace": folder.add("trace", model_trace),
            "plan": "plan",
            "timeline": "steps.csv",
        }

        def simulated(plan: Plan) -> tuple[VerifiedOperator, ...]:
            plan.save(folder.path_of("plan"), model=model_trace.data["model"]["name"])
            folder.ask("simulate", question).require_success()
            with folder.path_of("steps.csv").open(newline="") as file:
                return tuple(_operator_of(row, model_trace) for row in csv.DictReader(file))

        yield simulated


def _operator_of(row: dict[str, str], model_trace: Trace) -> VerifiedOperator:
    runtime_ms = model_trace.data["operators"][int(row["operator"])]["runtime_ms"]
    return VerifiedOperator(row["name"], int(row["live_bytes"]), runtime_ms)
