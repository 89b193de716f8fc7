"""acplan.trace_lengths and acplan.largest_batches: inputs of several lengths."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch

from acplan._advise.best_batch import BestBatch, best_batch, model_arguments
from acplan._advise.interpolation import are_alike
from acplan._base.arguments import require_function, whole_number
from acplan._base.errors import AcplanError
from acplan._files.trace_file import Trace
from acplan._program.lengths import Lengths
from acplan._step.trace import trace


def trace_lengths(
    model: torch.nn.Module,
    inputs_of: Callable[[int], Any],
    lengths: Lengths | Iterable[int],
    *,
    count: int = 4,
    **kwargs: Any,
) -> dict[int, Trace]:
    """Returns traces for inputs of several lengths: of the shortest, the longest, and lengths
    at even distances between them, `count` in all. Where two neighbours run different
    operators, lengths between them are traced, so that every length has a trace or lies between
    two that are alike. Steps between traces are interpolated (docs/python/lengths.md); with a
    `count` of at least the number of lengths, none is.

    inputs_of: a function of a length that returns the model's inputs: a dict of keyword
               arguments, a tuple of arguments, or one tensor.
    kwargs:    options of acplan.trace.
    """
    require_function(inputs_of, "inputs_of", "a length")
    distinct = (
        lengths.distinct
        if isinstance(lengths, Lengths)
        else sorted({whole_number(length, "lengths", 1) for length in lengths})
    )
    if not distinct:
        raise AcplanError("lengths: expected at least one length, found none")
    whole_number(count, "count", 2)
    traces: dict[int, Trace] = {}

    def add(length: int) -> None:
        if length not in traces:
            args, own = model_arguments(inputs_of(length))
            traces[length] = trace(model, *args, progress=False, **own, **kwargs)

    first, last = distinct[0], distinct[-1]
    for k in range(count):
        aim = first + (last - first) * k / (count - 1)
        add(min(distinct, key=lambda length: abs(length - aim)))
    open_pairs = list(zip(sorted(traces), sorted(traces)[1:]))
    while open_pairs:
        low, high = open_pairs.pop()
        between = [length for length in distinct if low < length < high]
        if not between or are_alike(traces[low], traces[high]):
            continue
        middle = between[len(between) // 2]
        add(middle)
        open_pairs += [(low, middle), (middle, high)]
    for low, high in _pairs_alone(dict(sorted(traces.items()))):
        between = [length for length in distinct if low < length < high]
        if between:  # a third one, as bytes may be quadratic
            add(between[len(between) // 2])
    return dict(sorted(traces.items()))


def _pairs_alone(traces: dict[int, Trace]) -> list[tuple[int, int]]:
    """Returns the pairs of neighbours that are alike, while those around them are not."""
    lengths = list(traces)
    flags = [are_alike(traces[a], traces[b]) for a, b in zip(lengths, lengths[1:])]
    padded = [False, *flags, False]
    return [
        (lengths[k], lengths[k + 1])
        for k in range(len(flags))
        if flags[k] and not padded[k] and not padded[k + 2]
    ]


@dataclasses.dataclass(frozen=True)
class BatchTable:
    """The largest batch for each length, with its plan."""

    batches: dict[int, BestBatch]

    def size_for(self, length: int) -> int:
        """Returns the largest batch for a length: that of the next longer one."""
        longer = [other for other in self.batches if other >= length]
        if not longer:
            raise AcplanError(
                f"length {length} is longer than all that were planned, {max(self.batches)}"
            )
        return self.batches[min(longer)].largest.size

    @property
    def token_budget(self) -> int:
        """The most tokens that fit in a batch of every length: length times batch."""
        return min(length * best.largest.size for length, best in self.batches.items())

    def __str__(self) -> str:
        lines = ["length  batch    tokens  a second"]
        for length, best in self.batches.items():
            step = best.largest
            tokens = length * step.size
            lines.append(f"{length:6d} {step.size:6d} {tokens:9,d} {step.per_second:9,.2f}")
        return "\n".join(lines) + f"\ntoken budget: {self.token_budget:,}\n"


def largest_batches(
    model: torch.nn.Module,
    inputs_of: Callable[[int, int], Any],
    lengths: Iterable[int],
    **kwargs: Any,
) -> BatchTable:
    """Returns the largest batch for each length, within a budget or on a device.

    inputs_of: a function of a batch size and a length that returns the model's inputs.
    kwargs:    options of acplan.best_batch, with which each length is searched: `budget` or
               `device_memory`, and others.
    """
    require_function(inputs_of, "inputs_of", "a batch size and a length")
    distinct = sorted({whole_number(length, "lengths", 1) for length in lengths})
    if not distinct:
        raise AcplanError("lengths: expected at least one length, found none")
    batches = {}
    for length in distinct:
        try:
            batches[length] = best_batch(model, _of_length(inputs_of, length), **kwargs)
        except AcplanError as error:
            raise AcplanError(f"length {length}: {error}", error.exit_code) from error
    return BatchTable(batches)


def _of_length(inputs_of: Callable[[int, int], Any], length: int) -> Callable[[int], Any]:
    return lambda size: inputs_of(size, length)
