"""acplan.trace_lengths: traces of inputs of several lengths."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from acplan._base.arguments import model_arguments, require_function, whole_number
from acplan._base.errors import AcplanError
from acplan._files.lengths_file import Lengths
from acplan._files.trace_file import Trace
from acplan._step.interpolation import are_alike
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

    def traced(length: int) -> Trace:
        args, own = model_arguments(inputs_of(length))
        return trace(model, *args, progress=False, **own, **kwargs)

    return traces_between(distinct, traced, count)


def traces_between(
    lengths: Sequence[int],
    trace_of: Callable[[int], Trace],
    count: int,
    always: Iterable[int] = (),
) -> dict[int, Trace]:
    """Returns traces of so many lengths, at even distances, of the lengths in `always`, and of
    those that are needed so that each length has a trace or lies between two that are alike.
    `lengths` ascend."""
    traces: dict[int, Trace] = {}

    def add(length: int) -> None:
        if length not in traces:
            traces[length] = trace_of(length)

    first, last = lengths[0], lengths[-1]
    for k in range(count):
        aim = first + (last - first) * k / (count - 1)
        add(min(lengths, key=lambda length: abs(length - aim)))
    for length in always:
        add(length)
    open_pairs = list(zip(sorted(traces), sorted(traces)[1:]))
    while open_pairs:
        low, high = open_pairs.pop()
        between = [length for length in lengths if low < length < high]
        if not between or are_alike(traces[low], traces[high]):
            continue
        middle = between[len(between) // 2]
        add(middle)
        open_pairs += [(low, middle), (middle, high)]
    for low, high in _pairs_alone(dict(sorted(traces.items()))):
        between = [length for length in lengths if low < length < high]
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
