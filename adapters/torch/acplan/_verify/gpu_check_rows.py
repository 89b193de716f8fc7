"""The rows of gpu-check, and how they are printed."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TextIO


@dataclasses.dataclass(frozen=True)
class Row:
    """A model with a plan: the predictions, the measurements, and where they differ. Or `note`,
    why there is no such plan; or the error that ended it."""

    model: str
    plan: str
    batch: int | None = None
    budget_bytes: int | None = None
    predicted_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    predicted_ms: float | None = None
    measured_ms: float | None = None
    predicted_overhead: float | None = None
    measured_overhead: float | None = None
    operators: int | None = None
    operators_differ: str | None = None
    losses_differ: str | None = None
    note: str | None = None
    error: str | None = None
    stall_ms: float | None = None  # the part of predicted_ms in which it waits for the host
    # The allocator's, from the model's construction on, beside those of the simulated run.
    predicted_reserved_bytes: int | None = None
    retries: int | None = None
    predicted_retries: int | None = None
    ooms: int | None = None
    predicted_ooms: int | None = None

    @property
    def memory_error(self) -> float | None:
        """The error of the predicted peak, relative to the allocated bytes."""
        if self.predicted_bytes is None or not self.allocated_bytes:
            return None
        return self.predicted_bytes / self.allocated_bytes - 1

    @property
    def is_over_budget(self) -> bool:
        return (
            self.budget_bytes is not None
            and self.allocated_bytes is not None
            and self.allocated_bytes > self.budget_bytes
        )

    @property
    def is_good(self) -> bool:
        return not (
            self.error or self.operators_differ or self.losses_differ or self.is_over_budget
        )


_COLUMNS = (
    ("model", 10), ("plan", 7), ("batch", 6), ("budget", 9), ("predicted", 10),
    ("allocated", 10), ("error", 7), ("pred res", 9), ("reserved", 9), ("retries", 8),
    ("ooms", 5), ("pred ms", 9), ("ms", 9),
    ("pred +", 8), ("meas +", 8), ("operators", 10), ("losses", 7),
)  # fmt: skip


def print_header(header: dict[str, Any], to: TextIO) -> None:
    memory = header["memory_bytes"]
    parts = [
        header["device"],
        f"{memory / 2**30:.1f} GiB" if memory else "memory not measured",
        f"torch {header['torch']}",
        f"CUDA {header['cuda']}" if header["cuda"] else "no CUDA",
        f"cuDNN {header['cudnn']}" if header["cudnn"] else "no cuDNN",
        header["date"],
    ]
    print(", ".join(parts), file=to)
    print(
        "Memory in GiB, overhead (+) over no plan; retries and ooms: predicted/measured.",
        file=to,
    )
    print(_line([name for name, _ in _COLUMNS]), file=to, flush=True)


def print_row(row: Row, to: TextIO) -> None:
    cells = [
        row.model,
        row.plan,
        _cell(row.batch, "d"),
        _gib(row.budget_bytes),
        _gib(row.predicted_bytes),
        _gib(row.allocated_bytes) + ("!" if row.is_over_budget else ""),
        _cell(row.memory_error, "+.1%"),
        _gib(row.predicted_reserved_bytes),
        _gib(row.reserved_bytes),
        _counts(row.predicted_retries, row.retries),
        _counts(row.predicted_ooms, row.ooms),
        _cell(row.predicted_ms, ".2f"),
        _cell(row.measured_ms, ".2f"),
        _cell(row.predicted_overhead, "+.1%"),
        _cell(row.measured_overhead, "+.1%"),
        _verdict(row, row.operators_differ),
        _verdict(row, row.losses_differ),
    ]
    print(_line(cells), file=to, flush=True)
    for what, text in (
        ("error", row.error),
        ("note", row.note),
        ("operators", row.operators_differ),
        ("losses", row.losses_differ),
    ):
        if text:
            print(f"  {what}: {text}", file=to, flush=True)


def _verdict(row: Row, difference: str | None) -> str:
    if row.operators is None:
        return "-"
    return "differ" if difference else "equal"


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _counts(predicted: int | None, measured: int | None) -> str:
    return f"{_cell(predicted, 'd')}/{_cell(measured, 'd')}"


def _gib(value: int | None) -> str:
    return "-" if value is None else f"{value / 2**30:.3f}"


def _line(cells: Sequence[str]) -> str:
    texts = [
        cell.ljust(width) if place < 2 else cell.rjust(width)
        for place, (cell, (_, width)) in enumerate(zip(cells, _COLUMNS))
    ]
    return " ".join(texts).rstrip()
