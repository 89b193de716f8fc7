"""A traced step, and its file."""

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any

from acplan._base.errors import AcplanError
from acplan._base.tensors import block_bytes
from acplan._files import display
from acplan._files.charts import figure
from acplan._files.json_files import read_json, write_json

# The key of modules that compute gradients within forward, and of modules inside them: in a
# trace, a module's entry; in a plan file, a mapping by names of modules. The value is true for
# such a module, and false for a module inside it from which the gradient needs nothing.
DIFFERENTIATES = "differentiates"

# The key of the shapes of the model's inputs, by the names of forward's arguments.
INPUTS = "inputs"

# The key of the rank of a parallel model: its number, its mesh, and the place of a plan.
PARALLEL = "parallel"

# The factor of the number of rows relative to the batch, or "all".
Capacity = float | str


@dataclasses.dataclass(frozen=True)
class Trace:
    """A training step as `acplan` reads it: docs/file_formats.md, `acplan.trace`."""

    data: dict[str, Any]

    @property
    def peak_bytes(self) -> int:
        """The most bytes in use, each storage rounded up to 512."""
        return int(self.data["measured"]["peak_bytes"])

    @property
    def accumulate(self) -> int:
        """The number of microbatches of an iteration, of which this step is the last one."""
        return int(self.data.get("accumulate", 1))

    @property
    def workspaces(self) -> bool:
        """True if the memory that kernels allocate beside their results is part of the
        trace."""
        return bool(self.data.get("workspaces", False))

    @property
    def rank(self) -> int | None:
        """The rank of a parallel model whose step this is, or None."""
        entry = self.data.get(PARALLEL)
        return None if entry is None else int(entry["rank"])

    @property
    def has_real_values(self) -> bool:
        """True if the step ran with real values of all that it computes."""
        return self.data.get("values") == "real"

    @property
    def capacity(self) -> Capacity:
        """The factor of the number of rows that values select, relative to the batch, or
        "all"."""
        capacity: Capacity = self.data.get("capacity", 1)
        return capacity

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors that the model is given, by the names of forward's
        arguments; empty if the trace does not have them."""
        return {name: tuple(shape) for name, shape in self.data.get(INPUTS, {}).items()}

    @property
    def notes(self) -> list[str]:
        """The assumptions of the trace on the step."""
        return list(self.data.get("notes", ()))

    @property
    def live_bytes(self) -> list[int]:
        """The bytes in use while each operator runs, storages rounded up to 512."""
        storages = ((s["born"], s["freed"], s["bytes"]) for s in self.data["storages"])
        return live_bytes(storages, len(self.data["operators"]))

    def source_of(self, operator: int) -> str:
        """Returns the line of Python that runs an operator, such as `model.py:123`, or "" if
        there is none."""
        index = self.data["operators"][operator].get("source", -1)
        if index < 0:
            return ""
        source = self.data["sources"][index]
        return f"{source['file']}:{source['line']}"

    def to_pandas(self) -> Any:
        """Returns a table of the operators: name, phase, module, milliseconds, bytes in use,
        and the line of Python."""
        return display.to_pandas(list(self._rows()))

    def _rows(self) -> Iterator[dict[str, Any]]:
        data = self.data
        modules, calls = data["modules"], data["calls"]
        for k, (operator, live) in enumerate(zip(data["operators"], self.live_bytes)):
            is_forward = k < data["forward_end"]
            is_update = k >= data["backward_end"]
            call = operator["call"]
            yield {
                "name": operator["name"],
                "phase": "forward" if is_forward else "optimizer" if is_update else "backward",
                "module": modules[calls[call]["module"]]["fqn"] if call >= 0 else "",
                "runtime_ms": operator["runtime_ms"],
                "live_bytes": live,
                "source": self.source_of(k),
            }

    def __repr__(self) -> str:
        return (
            f"<Trace of {display.plain(self.data['model']['name'])}: "
            f"{len(self.data['operators']):,} operators, peak "
            f"{display.size(self.peak_bytes)}>"
        )

    def _repr_html_(self) -> str:
        data = self.data
        facts = {
            "operators": f"{len(data['operators']):,}",
            "peak": display.size(self.peak_bytes),
        }
        live = {"memory": [(float(k), float(b)) for k, b in enumerate(self.live_bytes)]}
        name = data["model"]["name"]
        plain = display.chart("operators of the step", live, None)
        return display.page(f"Trace of {name}", facts, figure(["memory"], self, plain))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file whole or not at all, gzipped if the name ends in `.gz`."""
        write_json(path, self.data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Trace":
        data = read_json(path)
        file_format = data.get("format") if isinstance(data, dict) else data
        if file_format != "acplan.trace":
            raise AcplanError(f"{path}: expected format acplan.trace, found {file_format!r}")
        for key, kind in _LOOKED_AT.items():
            if not isinstance(data.get(key), kind):
                what = type(data[key]).__name__ if key in data else "none"
                raise AcplanError(f"{path}: {key}: expected a {kind.__name__}, found {what}")
        for key, inner in (("model", "name"), ("measured", "peak_bytes")):
            if inner not in data[key]:
                raise AcplanError(f"{path}: {key}: expected the key {inner!r}, found none")
        return cls(data)


# The keys that are read before the program has validated the file.
_LOOKED_AT = {"model": dict, "measured": dict, "operators": list, "storages": list}


def live_bytes(storages: Iterable[tuple[int, int | None, int]], count: int) -> list[int]:
    """Returns the bytes in use while each of `count` operators runs. A storage is when it is
    born, when it is freed, and its bytes."""
    change = [0] * (count + 1)
    for born_at, freed_at, size in storages:
        rounded = block_bytes(size)
        born = max(born_at, 0)
        if born >= count:
            continue
        freed = count if freed_at is None else freed_at
        change[born] += rounded
        change[min(max(freed, born + 1), count)] -= rounded
    return list(itertools.accumulate(change[:count]))
