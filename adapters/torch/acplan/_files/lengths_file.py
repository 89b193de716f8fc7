"""The lengths of a run's batches, and the file of `acplan lengths --lengths`."""

import contextlib
import operator
import os
from collections.abc import Iterable, Mapping
from typing import Any

from acplan._base.errors import AcplanError


class Lengths:
    """The lengths of a run's batches.

    lengths: the lengths of the batches in the order of training, of which ("eval", length)
             stands for an evaluation; or a histogram, a mapping from lengths to how many
             batches have them.
    steps:   the batches that are drawn from a histogram.
    seed:    the seed of the draw.
    """

    def __init__(
        self,
        lengths: Iterable[int | tuple[str, int]] | Mapping[int, int],
        *,
        steps: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.is_drawn = isinstance(lengths, Mapping)
        if not self.is_drawn and (steps is not None or seed is not None):
            raise AcplanError("lengths: steps and seed need a histogram to draw from")
        self.steps = steps
        self.seed = seed
        entries = lengths.items() if isinstance(lengths, Mapping) else lengths
        self._lines = [self._line(entry) for entry in entries]
        if not self._lines:
            raise AcplanError("lengths: expected at least one length, found none")

    def _line(self, entry: Any) -> str:
        is_pair = isinstance(entry, tuple) and len(entry) == 2
        if self.is_drawn:
            return f"{whole_length(entry[0])} {whole_length(entry[1])}"
        if is_pair and entry[0] == "eval":
            return f"eval {whole_length(entry[1])}"
        return str(whole_length(entry))

    @property
    def longest(self) -> int:
        """The longest length, of training or evaluation."""
        return max(self.distinct)

    @property
    def distinct(self) -> list[int]:
        """The different lengths, ascending."""
        place = 0 if self.is_drawn else -1
        return sorted({int(line.split()[place]) for line in self._lines})

    @property
    def trained(self) -> list[int]:
        """The different lengths of training, without evaluations, ascending."""
        place = 0 if self.is_drawn else -1
        lines = [line.split() for line in self._lines if not line.startswith("eval ")]
        return sorted({int(words[place]) for words in lines})

    @property
    def text(self) -> str:
        """The file of `acplan lengths --lengths`."""
        return "".join(line + "\n" for line in self._lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.text)

    def __repr__(self) -> str:
        kind = "drawn" if self.is_drawn else "in order"
        return f"<Lengths {kind}: {len(self._lines)} entries, up to {self.longest}>"


def whole_length(value: Any) -> int:
    with contextlib.suppress(TypeError):
        number = operator.index(value)
        if number > 0:
            return number
    raise AcplanError(f"lengths: expected whole numbers above 0, found {value!r}")
