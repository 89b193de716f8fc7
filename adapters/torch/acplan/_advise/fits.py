"""The answer of acplan.what_fits: settings with which a step fits, and those with which it does
not."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from acplan._advise.combinations import Combination
from acplan._advise.levers import CHANGES, NOTHING
from acplan._files.display import Rows, page, plain, size, table
from acplan._files.display import to_pandas as frame_of
from acplan._files.plan_file import Plan

_HEADINGS = {
    NOTHING: "nothing changes except the order of sums",
    "rounding": "numbers are rounded more",
    "the method": "other parameters are trained",
}
_LINES_OF_ESTIMATES = "lines to type for these: fits[n].lines in Python, or the file of -o"


@dataclasses.dataclass(frozen=True)
class Fit:
    """Settings with which the step fits: by a trace of exactly these and the plan for it, or,
    without a plan, by an estimate."""

    combination: Combination
    microbatch: int | None  # samples; None if the inputs have no batch in common
    accumulate: int
    plan: Plan | None
    peak_bytes: int  # the most live bytes under the plan
    step_ms: float  # of an iteration, with what the plan adds
    added_ms: float
    per_second: float  # samples on all GPUs; iterations if there is no batch
    lines: tuple[str, ...]  # what to write, in the order of a training script

    @property
    def settings(self) -> tuple[str, ...]:
        names = self.combination.names or ("as it is",)
        is_offloaded = self.plan is not None and self.plan.stall_ms is not None
        return (*names, "offload") if is_offloaded else names

    @property
    def is_traced(self) -> bool:
        """True if the figures are those of a trace, False if they are estimates."""
        return self.plan is not None

    @property
    def has_plan(self) -> bool:
        """True if the settings need a plan."""
        return self.added_ms > 0 if self.plan is None else bool(self.plan.modules)

    @property
    def change(self) -> str:
        """The part of training that differs: "nothing", "rounding" or "the method"."""
        return self.combination.change

    @property
    def added_share(self) -> float:
        """The share of an iteration that the plan adds."""
        return self.added_ms / (self.step_ms - self.added_ms)

    @property
    def row(self) -> dict[str, Any]:
        device = None if self.plan is None else self.plan.device
        return {
            "settings": ", ".join(self.settings),
            "changes": self.change,
            "microbatch": self.microbatch,
            "accumulate": self.accumulate,
            "peak_bytes": self.peak_bytes,
            "reserved_bytes": None if device is None else device.reserved_bytes,
            "added_share": self.added_share,
            "per_second": self.per_second,
            "traced": self.is_traced,
        }

    def __repr__(self) -> str:
        return f"<Fit with {', '.join(self.settings)}: {self.per_second:.4g} a second>"


@dataclasses.dataclass(frozen=True)
class Miss:
    """Settings that were not taken. `least_bytes` is what they need at least: under the best
    plan if `is_traced`, else what parameters, gradients and the optimizer's state need alone;
    None if not even that is known."""

    combination: Combination
    why_not: str
    least_bytes: int | None = None
    is_traced: bool = False
    is_skipped: bool = False  # for a reason that holds for several

    @property
    def row(self) -> dict[str, Any]:
        return {
            "settings": ", ".join(self.combination.names) or "as it is",
            "changes": self.combination.change,
            "why_not": self.why_not,
            "least_bytes": self.least_bytes,
            "traced": self.is_traced,
        }


@dataclasses.dataclass(frozen=True)
class Fits:
    """The answer of what_fits. `fits` has the settings that fit, by what they change in
    training, the mildest first, those that are traced before those that are estimated, and then
    by their rate; `misses` has the others."""

    title: str  # the model, the device and the batch
    memory_bytes: int
    fits: tuple[Fit, ...]
    misses: tuple[Miss, ...]
    advice: str  # if nothing fits: what would
    unit: str  # of rates
    about_estimates: str = ""  # where they come from, if there are any

    def __bool__(self) -> bool:
        return bool(self.fits)

    def __len__(self) -> int:
        return len(self.fits)

    def __getitem__(self, place: int) -> Fit:
        return self.fits[place]

    @property
    def data(self) -> dict[str, Any]:
        """The answer as JSON has it."""
        return {
            "format": "acplan.fits",
            "version": 1,
            "title": self.title,
            "memory_bytes": self.memory_bytes,
            "fits": [{**fit.row, "lines": list(fit.lines)} for fit in self.fits],
            "misses": [miss.row for miss in self.misses],
            "about_estimates": self.about_estimates,
            "verdict": self.verdict,
        }

    @property
    def verdict(self) -> str:
        """One sentence: whether something fits."""
        memory = size(self.memory_bytes)
        if self.fits:
            traced = [fit for fit in self.fits if fit.is_traced]
            count = len(traced) + sum(miss.is_traced for miss in self.misses)
            more = len(self.fits) - len(traced)
            by_estimate = f", and {more} more by estimate" if more else ""
            most = max(traced or self.fits, key=lambda fit: fit.per_second)
            return (
                f"{len(traced)} of {count} traced settings fit in {memory}{by_estimate}; "
                f"{', '.join(most.settings)} trains fastest."
            )
        return f"No settings fit in {memory}: {self.advice}."

    def to_pandas(self) -> Any:
        return frame_of([fit.row for fit in self.fits])

    def __repr__(self) -> str:
        return f"<Fits of {plain(self.title)}: {len(self.fits)} fit>"

    def _repr_html_(self) -> str:
        rows: Rows = [{k: v for k, v in fit.row.items() if v is not None} for fit in self.fits]
        return page(plain(self.title), {"memory": size(self.memory_bytes)}, table(rows))

    def __str__(self) -> str:
        parts = [plain(self.title), self.verdict, ""]
        if self.fits:
            parts += [*_table_of(self.fits, self.unit), ""]
            if self.about_estimates:
                parts += [self.about_estimates, _LINES_OF_ESTIMATES, ""]
            for number, fit in enumerate(self.fits, 1):
                if fit.is_traced:
                    parts += [*_numbered(number, fit.lines), ""]
        parts += _misses_text(self.misses)
        return "\n".join(parts).rstrip() + "\n"


def _table_of(fits: Sequence[Fit], unit: str) -> Iterator[str]:
    heading = ("", "settings", "microbatch", "peak", "plan adds", unit, "figures")
    rows = [
        (
            str(number),
            ", ".join(fit.settings),
            _batch_text(fit),
            size(fit.peak_bytes),
            f"{100 * fit.added_share:.1f}%" if fit.has_plan else "no plan",
            f"{fit.per_second:.3g}",
            "traced" if fit.is_traced else "estimated",
        )
        for number, fit in enumerate(fits, 1)
    ]
    widths = [max(len(row[k]) for row in (heading, *rows)) for k in range(len(heading))]

    def line(row: Sequence[str]) -> str:
        number, settings, *others = row
        cells = (f"{cell:>{width}}" for cell, width in zip(others, widths[2:]))
        return f"{number:>{widths[0]}}  {settings:<{widths[1]}}  " + "  ".join(cells)

    yield line(heading)
    for change in CHANGES:
        rows_of_change = [row for fit, row in zip(fits, rows) if fit.change == change]
        if rows_of_change:
            yield f"{_HEADINGS[change]}:"
        yield from map(line, rows_of_change)


def _batch_text(fit: Fit) -> str:
    if fit.microbatch is None:
        return ""
    times = f" x {fit.accumulate}" if fit.accumulate > 1 else ""
    return f"{fit.microbatch}{times}"


def _numbered(number: int, lines: Sequence[str]) -> Iterator[str]:
    for place, line in enumerate(lines):
        start = f"{number}: " if place == 0 else " " * len(f"{number}: ")
        yield start + line


def _misses_text(misses: Sequence[Miss]) -> Iterator[str]:
    """Yields a line for each of the settings that were traced or could not be, and the number
    of the others."""
    too_large = []
    counts: dict[str, int] = {}
    for miss in misses:
        name = ", ".join(miss.combination.names) or "as it is"
        if miss.is_traced:
            yield f"does not fit: {name}: {miss.why_not}"
        elif miss.least_bytes is not None:
            too_large.append((miss.least_bytes, name))
        elif miss.is_skipped:
            counts[miss.why_not] = counts.get(miss.why_not, 0) + 1
        else:
            yield f"not traced: {name}: {miss.why_not}"
    if too_large:
        least, name = min(too_large)
        yield (
            f"do not fit: {len(too_large)} whose parameters, gradients and optimizer state are "
            f"more than the memory; of them {name} needs least, {size(least)}"
        )
    for why_not, count in counts.items():
        yield f"not traced: {count} more, since {why_not}"
