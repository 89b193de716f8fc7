"""A profile, and its file."""

import dataclasses
import os
from typing import Any

from acplan._base.errors import AcplanError
from acplan._files import display
from acplan._files.charts import figure
from acplan._files.json_files import read_json, write_json

MODULE_INFO_KEYS = ("mod_order", "mod_stats")


@dataclasses.dataclass(frozen=True)
class Profile:
    """A profile as `acplan` reads it: docs/file_formats.md, `acplan.profile`, or PyTorch's
    ModuleInfo, which it takes instead."""

    data: dict[str, Any] = dataclasses.field(repr=False)

    @classmethod
    def from_data(cls, data: Any) -> "Profile":
        if not isinstance(data, dict):
            raise AcplanError(f"profile: expected a dict, found {type(data).__name__}")
        if "format" in data or not all(key in data for key in MODULE_INFO_KEYS):
            header = data.get("format"), data.get("version")
            if header != ("acplan.profile", 1):
                raise AcplanError(
                    "profile: expected format acplan.profile, version 1, found "
                    f"{header[0]!r}, {header[1]!r}"
                )
        return cls(data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Profile":
        return cls.from_data(read_json(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file whole or not at all, gzipped if the name ends in `.gz`."""
        write_json(path, self.data)

    @property
    def modules(self) -> list[dict[str, Any]]:
        """The modules, each with its `fqn`, `is_leaf` and costs."""
        modules = self.data.get("modules", self.data.get("mod_stats"))
        return modules if isinstance(modules, list) else []

    @property
    def _model(self) -> str:
        model = self.data.get("model")
        return str(model.get("name", "")) if isinstance(model, dict) else ""

    def to_pandas(self) -> Any:
        """Returns a table of the modules, with the values of each that are numbers or texts."""
        plain_types = (str, int, float, bool, type(None))
        return display.to_pandas(
            [
                {k: v for k, v in module.items() if isinstance(v, plain_types)}
                for module in self.modules
            ]
        )

    def __repr__(self) -> str:
        model = display.plain(self._model or "a model")
        return f"<Profile of {model}: {len(self.modules):,} modules>"

    def _repr_html_(self) -> str:
        return display.page(repr(self)[1:-1], {}, figure(["memory", "map"], self))
