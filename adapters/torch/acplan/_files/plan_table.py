"""A table of plans for inputs of several lengths, and its file."""

import dataclasses
import os
from typing import Any

from acplan._base.errors import AcplanError
from acplan._files import display
from acplan._files.json_files import read_json, write_json
from acplan._files.plan_file import Plan, PlanDevice

FORMAT = "acplan.plan_table"

# The key of the entry that says which input has the length.
SWITCH = "switch"


@dataclasses.dataclass(frozen=True)
class Switch:
    """The argument of the model's forward whose size in a dimension is the length."""

    argument: str
    dimension: int


@dataclasses.dataclass(frozen=True)
class PlanTable:
    """Plans for inputs of several lengths: `entries` has for each the longest length that it
    is for, ascending. The file is described in docs/file_formats.md."""

    entries: tuple[tuple[int, Plan], ...]
    data: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    text: str = dataclasses.field(default="", repr=False, compare=False)

    @classmethod
    def from_data(cls, data: dict[str, Any], text: str = "") -> "PlanTable":
        """Returns the table in the data of a file. `text` is what the program printed about
        it."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise AcplanError(f"table: expected format {FORMAT}")
        try:
            entries = tuple(
                (int(entry["longest"]), Plan.from_data(entry["plan"]))
                for entry in data["entries"]
            )
        except (KeyError, TypeError, ValueError) as error:
            raise AcplanError(f"table: entries: {error!r}") from None
        lengths = [longest for longest, _ in entries]
        if not entries or lengths != sorted({*lengths}):
            raise AcplanError(f"table: entries: expected lengths that ascend, found {lengths}")
        return cls(entries, data, text)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "PlanTable":
        return cls.from_data(read_json(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        write_json(path, self.data)

    def plan_for(self, length: int) -> Plan:
        """Returns the plan for a length: that of the next longer entry, or of the last one."""
        return self.entries[self.place_of(length)][1]

    def place_of(self, length: int) -> int:
        """Returns the place of the entry for a length."""
        for place, (longest, _) in enumerate(self.entries):
            if length <= longest:
                return place
        return len(self.entries) - 1

    @property
    def switch(self) -> Switch | None:
        """The input whose size is the length, or None if the table does not name it."""
        data = self.data.get(SWITCH)
        if data is None:
            return None
        try:
            return Switch(str(data["argument"]), int(data["dimension"]))
        except (KeyError, TypeError, ValueError) as error:
            raise AcplanError(f"table: switch: {error!r}") from None

    @property
    def device(self) -> PlanDevice:
        """The settings that training needs, and how its run ends on the device."""
        return PlanDevice.from_data(self.data.get("device"))

    @property
    def usable_bytes(self) -> int:
        """The bytes of the device, without the reserve."""
        return int(self.data["memory_bytes"]) - int(self.data.get("reserve_bytes", 0))

    @property
    def recompute_ms(self) -> float:
        """The mean recomputation of a batch."""
        return float(self.data["recompute_ms"])

    @property
    def bound_ms(self) -> float:
        """A number that no table's mean recomputation is below, proven for tables that switch
        at the lengths `switches`."""
        return float(self.data["bound_ms"])

    @property
    def switches(self) -> tuple[int, ...]:
        return tuple(self.data["switches"])

    @property
    def gap(self) -> float:
        """The difference of recomputation and bound, relative to the recomputation."""
        ms = self.recompute_ms
        return (ms - self.bound_ms) / ms if ms > 0 else 0.0

    def __str__(self) -> str:
        if self.text:
            return self.text
        return "".join(f"up to {longest}: {plan!r}\n" for longest, plan in self.entries)

    def __repr__(self) -> str:
        lengths = ", ".join(str(longest) for longest, _ in self.entries)
        model = display.plain(str(self.data.get("model", "")))
        return f"<PlanTable for {model}: up to {lengths}>"
