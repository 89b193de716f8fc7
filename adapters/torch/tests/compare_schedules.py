"""Plans by what may be decided of an operator and by what may be a unit, beside the bound
of any schedule, all applied and re-traced.

    ACPLAN=... PYTHONPATH=. python tests/compare_schedules.py FOLDER

writes docs/measured/any_schedule.csv, any_schedule_least.csv and any_schedule_misses.csv; with
names of models after it, it prints only those. The folder keeps traces, plans by the program that made them, and what was measured of a plan
by the package that applied it: none of it is made twice, so that this may be ended and
begun again. With `--only KIND` before the folder, none but plans of that kind is applied
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

# Of the way from the least that save, recompute needs to what the step needs without a plan.
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
    """Those that this version of acplan has."""
    return [kind for kind in _KINDS if not {*_KINDS[kind]} - {*PLAN_OPTIONS}]


@dataclasses.dataclass(frozen=True)
class Found:
    """A plan of a kind; `failed` says why there is none. `retraced` says how the step with
    the plan differs from what the plan says, None where it was not traced again."""

    plan: Plan | None
    seconds: float
    failed: str = ""
    retraced: str | None = None

    @property
    def ms(self) -> float:
        """Of recomputation and stalls."""
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
        found = self._data.get("any_schedule", {}).get("bound_ms")
        return None if found is None else float(found)

    @property
    def is_loose(self) -> bool:
        return bool(self._data.get("any_schedule", {}).get("loose", False))

    @property
    def _data(self) -> dict[str, Any]:
        return self.plan.data if self.plan else {}


@dataclasses.dataclass(frozen=True)
class Row:
    """`found` by kind; share -1 stands for the least budget of each kind."""

    model: str
    share: float
    budget: int
    baseline: int
    found: dict[str, Found]

    @property
    def best(self) -> Found | None:
        """Of the plans without offload."""
        plans = [f for k, f in self.found.items() if k in _OF_UNITS and not f.failed]
        return min(plans, key=lambda plan: plan.ms, default=None)

    @property
    def schedule_ms(self) -> float | None:
        bounds = [f.schedule_ms for f in self.found.values() if f.schedule_ms is not None]
        return max(bounds, default=None)

    @property
    def is_loose(self) -> bool:
        return any(found.is_loose for found in self.found.values())

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
        """The one of least budgets first."""
        first = self._row(-1, "min")
        yield first
        least = first.found["save, recompute"].budget
        for share in SHARES:
            budget = least + round(share * (first.baseline - least))
            yield self._row(share, budget)

    def _row(self, share: float, budget: int | str) -> Row:
        found = {kind: self._found(kind, share, budget) for kind in kinds()}
        baseline = max(f.plan.baseline_peak_bytes for f in found.values() if f.plan)
        asked = budget if isinstance(budget, int) else 0
        return Row(self._name, share, asked, baseline, found)

    def _found(self, kind: str, share: float, budget: int | str) -> Found:
        name = f"{_file_name(self._name)}.{share}.{_file_name(kind)}.json.gz"
        file = self._path("plans", _fingerprint(_program())) / name
        if not file.exists():
            write_json(file, self._planned(kind, budget))
        made = read_json(file)
        if "failed" in made:
            return Found(None, made["seconds"], failed=made["failed"])
        planned = Plan.of(made["plan"])
        return Found(planned, made["seconds"], retraced=self._retraced(kind, planned))

    def _planned(self, kind: str, budget: int | str) -> dict[str, Any]:
        path, before = self._at.path, _seconds()
        try:
            made = plan(path, budget, **_KINDS[kind])
        except AcplanError as error:
            return {"failed": str(error), "seconds": _seconds() - before}
        return {"plan": made.data, "seconds": _seconds() - before}

    def _retraced(self, kind: str, planned: Plan) -> str | None:
        digest = hashlib.sha256(repr((self._name, planned.modules)).encode()).hexdigest()
        file = self._path("retraced", _fingerprint(_package())) / f"{digest[:24]}.txt"
        if not file.exists():
            if self._only not in (None, kind):
                return None
            file.write_text(self._difference(planned))
        return file.read_text()

    def _difference(self, planned: Plan) -> str:
        """Of the step with the plan, traced again, from what the plan says."""
        try:
            measured = self._at.measured(planned)
        except AcplanError as error:
            return f"refused: {error}"
        finally:
            # A model may keep what it made: the next step is that of another one.
            del self._at
            self._until_end.close()
        if measured.is_as_promised(planned, planned.budget_bytes):
            return ""
        return f"not as predicted: {measured}"


def _seconds() -> float:
    """Of the processes that were started here, on processors."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
    cells += [_ms(row.found.get(kind)) for kind in _KINDS]
    before, after = row.found["save, recompute"], row.found["segments"]
    cells.append(f"{after.ms / before.ms:.0%}" if before.ms else "")
    bound = row.schedule_ms
    cells.append("" if bound is None else f"{bound:.5g}{' (loose)' * row.is_loose}")
    cells.append("" if row.gap is None else f"{row.gap:.1%}")
    mine = [row.found["skip"], row.found["segments"]]
    cells.append(" / ".join(f"{found.seconds:.2f}" for found in mine))
    cells.append(" / ".join(_proof(found) for found in mine))
    cells.append(_retraced(row))
    return cells


def _retraced(row: Row) -> str:
    plans = {kind: found for kind, found in row.found.items() if found.plan}
    wrong = [f"{kind}: {found.retraced}" for kind, found in plans.items() if found.retraced]
    if wrong:
        return "; ".join(wrong)
    left = sum(found.retraced is None for found in plans.values())
    if left == len(plans):
        return "not yet"
    return f"{len(plans) - left} of {len(plans)} as predicted"


def _ms(found: Found | None) -> str:
    if found is None:
        return ""
    return found.failed or f"{found.ms:.5g}"


def _proof(found: Found) -> str:
    if found.failed:
        return "none"
    return "yes" if found.is_proven else f"{found.gap:.1%}"


def _least_row(row: Row) -> list[str]:
    cells = [row.model, f"{row.baseline:,}"]
    for kind in _KINDS:
        found = row.found.get(kind)
        if found is None:
            cells += ["", ""]
        elif found.failed:
            cells += [found.failed, ""]
        else:
            cells += [f"{found.budget:,}", f"{found.ms:.5g}"]
    before, after = row.found["save, recompute"], row.found["segments"]
    cells.append(f"{after.budget / before.budget - 1:+.1%}" if before.budget else "")
    return [*cells, _retraced(row)]


def _shortcomings(row: Row) -> Iterator[str]:
    before = row.found["save, recompute"]
    for kind in ("skip", "segments"):
        found = row.found[kind]
        if found.failed:
            yield f"{kind}: {found.failed}"
            continue
        if not before.failed and found.ms > before.ms * (1 + SAME) and row.share >= 0:
            yield f"{kind}: more than without, {found.ms:.5g} and {before.ms:.5g} ms"
        if row.share < 0 and found.budget > before.budget:
            yield f"{kind}: the least budget is larger"
        if found.seconds > _SECONDS:
            yield f"{kind}: {found.seconds:.1f} s"
        if not found.is_proven:
            yield f"{kind}: not proven, gap {found.gap:.2%}"
    if row.share >= 0.4 and row.gap is not None and row.gap > _NEAR:
        loose = " (which is loose)" if row.is_loose else ""
        yield f"{row.gap:.1%} from the bound of any schedule{loose}"
    for kind, found in row.found.items():
        if found.retraced:
            yield f"{kind}: {found.retraced}"


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
    misses = Table("any_schedule_misses", ("model", "budget", "what"), is_partial=bool(names))
    for row in rows:
        share = "least" if row.share < 0 else f"{row.share:.0%}"
        for what in _shortcomings(row):
            misses.add(row.model, share, what)


def _summarise(rows: list[Row]) -> None:
    plans = [f for row in rows for f in row.found.values() if not f.failed]
    retraced = sum(found.retraced == "" for found in plans)
    of_skip = [row.found[kind] for row in rows for kind in ("skip", "segments")]
    near = [row.gap for row in rows if row.share >= 0.4 and row.gap is not None]
    print(
        f"{len(plans)} plans, {retraced} re-traced as predicted and within the budget. "
        f"Of {len(of_skip)} with skip, {sum(f.is_proven for f in of_skip)} proven, at most "
        f"{max(found.seconds for found in of_skip):.2f} s. Of {len(near)} rows at 40% and "
        f"above, {sum(gap <= _NEAR for gap in near)} are within 5% of the bound of any "
        "schedule."
    )


if __name__ == "__main__":
    _main(sys.argv[1:])
