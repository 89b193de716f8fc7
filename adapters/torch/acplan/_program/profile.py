"""acplan.Profile: what a model costs, module by module."""

import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from acplan._base.errors import AcplanError
from acplan._base.question import QuestionFolder, question_folder
from acplan._files.json_files import path_of
from acplan._files.profile_file import MODULE_INFO_KEYS, Profile
from acplan._files.trace_file import Trace


def profile(trace: Trace | str | os.PathLike[str]) -> Profile:
    """Returns the costs of the modules of a traced step, for planning: `acplan profile`."""
    with question_folder() as folder:
        return Profile.load(folder.path_of(add_profile(folder, trace)))


def add_profile(folder: QuestionFolder, trace: Trace | str | os.PathLike[str]) -> str:
    """Returns the path of the profile of a trace, which is written into the folder."""
    source = trace if isinstance(trace, Trace) else path_of(trace, "profile")
    question = {"trace": folder.add("trace", source), "output": "profile"}
    folder.ask("profile", question).require_success()
    return "profile"


def from_torch(module_info: Mapping[str, Any]) -> Profile:
    """Returns the profile in the ModuleInfo that PyTorch's aggregate_stats returns
    (torch.distributed._tools.ilp_utils): with trade-off fits, without operators, so that plans
    consist of modules. The ModuleInfo is not changed."""
    for key in MODULE_INFO_KEYS:
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
    """Returns the value as JSON has it: without tuples and NumPy numbers, with null for numbers
    that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
