"""acplan.Profile: what a model costs, module by module."""

import dataclasses
import math
import os
import pathlib
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from acplan import showing
from acplan.errors import AcplanError
from acplan.figures import figure
from acplan.files import path_of, read_json, write_json
from acplan.program import run_acplan
from acplan.tracing import Trace

_MODULE_INFO = ("mod_order", "mod_stats")


@dataclasses.dataclass(frozen=True)
class Profile:
    """A profile as `acplan` reads it: docs/file_formats.md, `acplan.profile`, or the
    ModuleInfo of PyTorch that it takes instead."""

    data: dict[str, Any] = dataclasses.field(repr=False)

    @classmethod
    def of(cls, data: Any) -> "Profile":
        if not isinstance(data, dict):
            raise AcplanError(f"profile: expected a dict, found {type(data).__name__}")
        if "format" in data or not all(key in data for key in _MODULE_INFO):
            found = data.get("format"), data.get("version")
            if found != ("acplan.profile", 1):
                raise AcplanError(
                    "profile: expected format acplan.profile, version 1, found "
                    f"{found[0]!r}, {found[1]!r}"
                )
        return cls(data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Profile":
        return cls.of(read_json(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file whole or not at all; `.gz` is gzipped."""
        write_json(path, self.data)

    @property
    def modules(self) -> list[dict[str, Any]]:
        """Each with its `fqn`, `is_leaf` and costs."""
        modules = self.data.get("modules", self.data.get("mod_stats"))
        return modules if isinstance(modules, list) else []

    @property
    def _model(self) -> str:
        model = self.data.get("model")
        return str(model.get("name", "")) if isinstance(model, dict) else ""

    def to_pandas(self) -> Any:
        """A table of the modules, with what is a number or a text of each."""
        plain_types = (str, int, float, bool, type(None))
        return showing.to_pandas(
            [
                {k: v for k, v in module.items() if isinstance(v, plain_types)}
                for module in self.modules
            ]
        )

    def __repr__(self) -> str:
        model = showing.plain(self._model or "a model")
        return f"<Profile of {model}: {len(self.modules):,} modules>"

    def _repr_html_(self) -> str:
        return showing.page(repr(self)[1:-1], {}, figure(["memory", "map"], self))


def profile(trace: Trace | str | os.PathLike[str]) -> Profile:
    """What the modules of a traced step cost, for planning: `acplan profile`."""
    with tempfile.TemporaryDirectory(prefix="acplan-") as folder:
        return Profile.load(profile_file(trace, pathlib.Path(folder)))


def profile_file(trace: Trace | str | os.PathLike[str], folder: pathlib.Path) -> pathlib.Path:
    """A file in the folder with the profile of a trace."""
    source = pathlib.Path(folder / "trace.json")
    if isinstance(trace, Trace):
        trace.save(source)
    else:
        source = path_of(trace, "profile")
    written = folder / "profile.json"
    run_acplan(["profile", str(source), "-o", str(written)])
    return written


def from_torch(module_info: Mapping[str, Any]) -> Profile:
    """The profile in the ModuleInfo that PyTorch's aggregate_stats returns
    (torch.distributed._tools.ilp_utils): with trade-off fits, without operators, so
    that plans are made of modules. It is not changed."""
    for key in _MODULE_INFO:
        if not isinstance(module_info, Mapping) or key not in module_info:
            raise AcplanError(
                f"module_info: expected the key {key!r} of a ModuleInfo of "
                "torch.distributed._tools.ilp_utils, found none"
            )
    return Profile(
        {
            "mod_order": plain(module_info["mod_order"]),
            "mod_stats": [_plain_stats(stats) for stats in module_info["mod_stats"]],
        }
    )


def _plain_stats(stats: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = plain(stats)
    curve = stats.get("tradeoff_curve")
    if isinstance(curve, Mapping):
        values["tradeoff_curve"] = list(_points(curve))
    return values


def _points(curve: Mapping[Any, Any]) -> Iterator[list[float]]:
    for point in curve.items():
        x, y = (float(value) for value in point)
        if math.isfinite(x) and math.isfinite(y):
            yield [x, y]


def plain(value: Any) -> Any:
    """As JSON has it: no tuples, no NumPy numbers, null for what is not finite."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
