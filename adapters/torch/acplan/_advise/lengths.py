"""acplan.largest_batches: the largest batch for each of several lengths."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch

from acplan._advise.best_batch import BestBatch, best_batch
from acplan._base.arguments import require_function, whole_number
from acplan._base.errors import AcplanError


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
