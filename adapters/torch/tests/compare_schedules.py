"""Plans by what may be decided of an operator and by what may be a unit, beside the bound
of any schedule, all applied and re-traced.

    ACPLAN=... PYTHONPATH=. python tests/compare_schedules.py FOLDER

writes docs/measured/any_schedule.csv and any_schedule_least.csv, and prints each row that misses
an aim; with names of models after it, it prints only those. The folder keeps traces, plans by the program
that made them, and what was measured of a plan by the package that applied it: none of it is
made twice, so that this may be ended and begun again. With `--only KIND` before the folder, none but plans of that kind is applied
that was not before.
"""

import contextlib
import dataclasses
import functools
import hashlib
import logging
import pathlib
import resource
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

import acplan
from acplan import AcplanError, Plan, plan
from acplan._base.program import find_program
from acplan._files.json_files import read_json, write_json
from acplan._program.plan import PLAN_OPTIONS
from measured import SAME, Subject, subject
from models import MODELS
from models_further import FURTHER
from tables import Table, print_versions
from zoo import Example

# Shares of the way from the least that save, recompute needs to what the step needs without a
# plan.
SHARES = (0.8, 0.6, 0.4, 0.2, 0.0)

_SKIP = {"decisions": "save,recompute,skip", "time_limit": "2"}
_WITH_SEGMENTS = _SKIP | {"segments": "auto"}
_KINDS: dict[str, dict[str, str]] = {
    "save, recompute": {"decisions": "save,recompute", "time_limit": "60"},
    "skip": _SKIP | {"segments": "none"},
    "segments": _WITH_SEGMENTS,
    "offload at 25 GB/s": _WITH_SEGMENTS | {"offload": "25GB/s", "time_limit": "4"},
    "offload at 64 GB/s": _WITH_SEGMENTS | {"offload": "64GB/s", "time_limit": "4"},
}
_OF_UNITS = ("save, recompute", "skip", "segments")

_NEAR = 0.05
_SECONDS = 2.0

Case = tuple[Callable[[], Example], torch.dtype | None]


def _cases() -> dict[str, Case]:
    return MODELS | FURTHER


def kinds() -> list[str]:
    """Returns the kinds of plans that this version of acplan has."""
    return [kind for kind in _KINDS if not {*_KINDS[kind]} - {*PLAN_OPTIONS}]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A plan of a kind; `failed` says why there is none. `retraced` says how the step with
    the plan differs from what the plan says, None where it was not traced again."""

    plan: Plan | None
    seconds: float
    failed: str = ""
    retraced: str | None = None

    @property
    def ms(self) -> float:
        """The milliseconds of recomputation and stalls."""
        stall = self._data.get("offload", {}).get("stall_ms", 0.0)
        return float(self._data.get("recompute_ms", 0.0) + stall)

    @property
    def budget(self) -> int:
        return int(self._data.get("budget_bytes", 0))

    @property
    def is_proven(self) -> bool:
        return self._data.get("status") == "optimal"

    @property
    def gap(self) -> float:
        return float(self._data.get("gap", 0.0))

    @property
    def schedule_ms(self) -> float | None:
        """No schedule recomputes less."""
        bound_ms = self._data.get("any_schedule", {}).get("bound_ms")
        return None if bound_ms is None else float(bound_ms)

    @property
    def is_loose(self) -> bool:
        return bool(self._data.get("any_schedule", {}).get("loose", False))

    @property
    def _data(self) -> dict[str, Any]:
        return self.plan.data if self.plan else {}


@dataclasses.dataclass(frozen=True)
class Row:
    """`outcomes` are indexed by kind; share -1 stands for the least budget of each kind."""

    model: str
    share: float
    budget: int
    baseline: int
    outcomes: dict[str, Outcome]

    @property
    def best(self) -> Outcome | None:
        """The best of the plans without offload."""
        plans = [f for k, f in self.outcomes.items() if k in _OF_UNITS and not f.failed]
        return min(plans, key=lambda plan: plan.ms, default=None)

    @property
    def schedule_ms(self) -> float | None:
        bounds = [f.schedule_ms for f in self.outcomes.values() if f.schedule_ms is not None]
        return max(bounds, default=None)

    @property
    def is_loose(self) -> bool:
        return any(outcome.is_loose for outcome in self.outcomes.values())

    @property
    def gap(self) -> float | None:
        if self.best is None or self.schedule_ms is None:
            return None
        return 1 - self.schedule_ms / self.best.ms if self.best.ms else 0.0


class _Case:
    """A model, its plans and what was measured of them, as far as files have them."""

    def __init__(self, name: str, folder: pathlib.Path, only: str | None) -> None:
        self._name = name
        self._folder = folder
        self._only = only
        self._until_end = contextlib.ExitStack()

    def __enter__(self) -> "_Case":
        return self

    def __exit__(self, *raised: Any) -> None:
        self._until_end.close()

    @functools.cached_property
    def _at(self) -> Subject:
        make, autocast = _cases()[self._name]
        path = self._path("traces") / f"{_file_name(self._name)}.json.gz"
        return self._until_end.enter_context(subject(make(), autocast, path))

    def _path(self, *parts: str) -> pathlib.Path:
        path = self._folder.joinpath(*parts)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def rows(self) -> Iterator[Row]:
        """Yields the rows, the one of the least budgets first."""
        first = self._row(-1, "min")
        yield first
        least = first.outcomes["save, recompute"].budget
        for share in SHARES:
            budget = least + round(share * (first.baseline - least))
            yield self._row(share, budget)

    def _row(self, share: float, budget: int | str) -> Row:
        outcomes = {kind: self._outcome(kind, share, budget) for kind in kinds()}
        baseline = max(f.plan.baseline_peak_bytes for f in outcomes.values() if f.plan)
        budget_bytes = budget if isinstance(budget, int) else 0
        return Row(self._name, share, budget_bytes, baseline, outcomes)

    def _outcome(self, kind: str, share: float, budget: int | str) -> Outcome:
        name = f"{_file_name(self._name)}.{share}.{_file_name(kind)}.json.gz"
        file = self._path("plans", _fingerprint(_program())) / name
        if not file.exists():
            write_json(file, self._answer(kind, budget))
        answer = read_json(file)
        if "failed" in answer:
            return Outcome(None, answer["seconds"], failed=answer["failed"])
        plan = Plan.from_data(answer["plan"])
        return Outcome(plan, answer["seconds"], retraced=self._retraced(kind, plan))

    def _answer(self, kind: str, budget: int | str) -> dict[str, Any]:
        path, before = self._at.path, _seconds()
        try:
            best_plan = plan(path, budget, **_KINDS[kind])
        except AcplanError as error:
            return {"failed": str(error), "seconds": _seconds() - before}
        return {"plan": best_plan.data, "seconds": _seconds() - before}

    def _retraced(self, kind: str, plan: Plan) -> str | None:
        digest = hashlib.sha256(repr((self._name, plan.modules)).encode()).hexdigest()
        file = self._path("retraced", _fingerprint(_package())) / f"{digest[:24]}.txt"
        if not file.exists():
            if self._only not in (None, kind):
                return None
            file.write_text(self._difference(plan))
        return file.read_text()

    def _difference(self, plan: Plan) -> str:
        """Returns how the step with the plan, traced again, differs from what the plan says."""
        try:
            measured = self._at.measured(plan)
        except AcplanError as error:
            return f"refused: {error}"
        finally:
            # A model may keep what it made: the next step is that of another one.
            del self._at
            self._until_end.close()
        if measured.is_as_promised(plan, plan.budget_bytes):
            return ""
        return f"not as predicted: {measured}"


def _seconds() -> float:
    """Returns the processor time of the processes that were started here."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _program() -> list[pathlib.Path]:
    return [pathlib.Path(find_program())]


def _package() -> list[pathlib.Path]:
    return sorted(pathlib.Path(acplan.__file__).parent.glob("*.py"))


def _fingerprint(files: list[pathlib.Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)


def _table_row(row: Row) -> list[str]:
    cells = [row.model, f"{row.share:.0%}", f"{row.budget:,}"]
    cells += [_ms(row.outcomes.get(kind)) for kind in _KINDS]
    before, after = row.outcomes["save, recompute"], row.outcomes["segments"]
    cells.append(f"{after.ms / before.ms:.0%}" if before.ms else "")
    bound = row.schedule_ms
    cells.append("" if bound is None else f"{bound:.5g}{' (loose)' * row.is_loose}")
    cells.append("" if row.gap is None else f"{row.gap:.1%}")
    mine = [row.outcomes["skip"], row.outcomes["segments"]]
    cells.append(" / ".join(f"{outcome.seconds:.2f}" for outcome in mine))
    cells.append(" / ".join(_proof(outcome) for outcome in mine))
    cells.append(_retraced(row))
    return cells


def _retraced(row: Row) -> str:
    plans = {kind: outcome for kind, outcome in row.outcomes.items() if outcome.plan}
    wrong = [
        f"{kind}: {outcome.retraced}" for kind, outcome in plans.items() if outcome.retraced
    ]
    if wrong:
        return "; ".join(wrong)
    missing = sum(outcome.retraced is None for outcome in plans.values())
    if missing == len(plans):
        return "not yet"
    return f"{len(plans) - missing} of {len(plans)} as predicted"


def _ms(outcome: Outcome | None) -> str:
    if outcome is None:
        return ""
    return outcome.failed or f"{outcome.ms:.5g}"


def _proof(outcome: Outcome) -> str:
    if outcome.failed:
        return "none"
    return "yes" if outcome.is_proven else f"{outcome.gap:.1%}"


def _least_row(row: Row) -> list[str]:
    cells = [row.model, f"{row.baseline:,}"]
    for kind in _KINDS:
        outcome = row.outcomes.get(kind)
        if outcome is None:
            cells += ["", ""]
        elif outcome.failed:
            cells += [outcome.failed, ""]
        else:
            cells += [f"{outcome.budget:,}", f"{outcome.ms:.5g}"]
    before, after = row.outcomes["save, recompute"], row.outcomes["segments"]
    cells.append(f"{after.budget / before.budget - 1:+.1%}" if before.budget else "")
    return [*cells, _retraced(row)]


def _shortcomings(row: Row) -> Iterator[str]:
    before = row.outcomes["save, recompute"]
    for kind in ("skip", "segments"):
        outcome = row.outcomes[kind]
        if outcome.failed:
            yield f"{kind}: {outcome.failed}"
            continue
        if not before.failed and outcome.ms > before.ms * (1 + SAME) and row.share >= 0:
            yield f"{kind}: more than without, {outcome.ms:.5g} and {before.ms:.5g} ms"
        if row.share < 0 and outcome.budget > before.budget:
            yield f"{kind}: the least budget is larger"
        if outcome.seconds > _SECONDS:
            yield f"{kind}: {outcome.seconds:.1f} s"
        if not outcome.is_proven:
            yield f"{kind}: not proven, gap {outcome.gap:.2%}"
    if row.share >= 0.4 and row.gap is not None and row.gap > _NEAR:
        loose = " (which is loose)" if row.is_loose else ""
        yield f"{row.gap:.1%} from the bound of any schedule{loose}"
    for kind, outcome in row.outcomes.items():
        if outcome.retraced:
            yield f"{kind}: {outcome.retraced}"


_NAMES = ("save,recompute", *list(_KINDS)[1:])
_COLUMNS = (
    ["model", "budget", "budget bytes", *(f"{name}: ms" for name in _NAMES)]
    + ["segments of save,recompute", "any schedule: ms", "gap"]
    + ["seconds (skip / segments)", "proven (skip / segments)", "re-traced"]
)
_LEAST_COLUMNS = (
    ["model", "baseline bytes"]
    + [f"{name}: {figure}" for name in _NAMES for figure in ("bytes", "ms")]
    + ["change", "re-traced"]
)


def _main(arguments: list[str]) -> None:
    logging.disable(logging.WARNING)  # Plans without a proof are told in the table.
    only = arguments[1] if arguments[0] == "--only" else None
    folder, *names = arguments[2 if only else 0 :]
    print_versions("transformers", "diffusers")
    rows: list[Row] = []
    table = Table("any_schedule", _COLUMNS, is_partial=bool(names))
    for name in names or _cases():
        with _Case(name, pathlib.Path(folder), only) as case:
            for row in case.rows():
                rows.append(row)
                if row.share >= 0:
                    table.add(*_table_row(row))
    _summarise([row for row in rows if row.share >= 0])
    least_budgets = Table("any_schedule_least", _LEAST_COLUMNS, is_partial=bool(names))
    for row in rows:
        if row.share < 0:
            least_budgets.add(*_least_row(row))
    for row in rows:
        share = "least" if row.share < 0 else f"{row.share:.0%}"
        for what in _shortcomings(row):
            print(f"{row.model}, {share}: {what}")


def _summarise(rows: list[Row]) -> None:
    plans = [f for row in rows for f in row.outcomes.values() if not f.failed]
    retraced = sum(outcome.retraced == "" for outcome in plans)
    of_skip = [row.outcomes[kind] for row in rows for kind in ("skip", "segments")]
    near = [row.gap for row in rows if row.share >= 0.4 and row.gap is not None]
    print(
        f"{len(plans)} plans, {retraced} re-traced as predicted and within the budget. "
        f"Of {len(of_skip)} with skip, {sum(f.is_proven for f in of_skip)} proven, at most "
        f"{max(outcome.seconds for outcome in of_skip):.2f} s. Of {len(near)} rows at 40% and "
        f"above, {sum(gap <= _NEAR for gap in near)} are within 5% of the bound of any "
        "schedule."
    )


if __name__ == "__main__":
    _main(sys.argv[1:])
