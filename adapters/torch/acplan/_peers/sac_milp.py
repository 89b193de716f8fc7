"""PyTorch's own planning functions, solved by acplan: signatures and results are those of
torch.distributed._tools.sac_ilp (PyTorch 2.13), answers are optimal."""

import json
import logging
import math
from collections.abc import Sequence
from typing import Any

from acplan._base.errors import AcplanError
from acplan._base.question import question_folder
from acplan._files.profile_file import Profile
from acplan._program.plan import plan
from acplan._program.profile import from_torch, plain

_LOGGER = logging.getLogger("acplan")
_GIB = 2**30
# The program asks for the unit of smaller numbers.
_LEAST_BYTES = 101
_MOST_BYTES = 2**62
_MODULE = "Module"
_NO_POLICY = "no policy satisfies every rule"
# PyTorch's own limits.
_MODULES_LIMIT_S = 180
_OPERATORS_LIMIT_S = 10


def sac_milp(
    graph: Any,
    memory_budget: float,
    world_size: int = 1,
    ac_units: list[str] | None = None,
    fsdp_units: list[str] | None = None,
) -> tuple[dict[str, float], float, int]:
    """Returns the modules to checkpoint, and how much of each to discard.

    graph:       PyTorch's Graph (parse_module_info), or an acplan.Profile.
    memory_budget: in GiB, for a rank, for parameters, gradients and activations.

    It returns the discarded share of each unit's memory, by name, rounded up to four digits;
    the recomputation in ms, to two digits; and the peak in bytes. If no plan is found, it
    returns ({}, 0, -1).
    """
    profile = graph if isinstance(graph, Profile) else _profile_of(graph)
    options: dict[str, Any] = {}
    if ac_units or fsdp_units:
        options["ac_units"] = _allowed_units(profile, ac_units or [], fsdp_units or [])
        if not options["ac_units"]:
            options = {"max_units": 0}
    try:
        best = plan(
            profile,
            _bytes(memory_budget),
            world_size=world_size,
            memory_model="torch",
            granularity="module",
            tradeoff="profile",
            time_limit=_MODULES_LIMIT_S,
            **options,
        )
    except AcplanError as error:
        if error.exit_code not in (3, 4):
            raise
        _LOGGER.error("found no plan: %s", error)
        return {}, 0, -1
    decisions = {
        unit["fqn"]: _rounded_up(unit["discard_ratio"]) for unit in best.data["modules"]
    }
    return decisions, round(best.recompute_ms, 2), best.peak_bytes


def get_optimal_checkpointing_policy_per_module(
    sac_stats: Any, memory_budget: float
) -> list[int]:
    """Returns which operators of one module to save (1), and which to recompute (0), so that no
    more than this share of their memory is saved and the least is recomputed.

    sac_stats: PyTorch's SACStats. If no policy is found, it returns [].
    """
    if not 0 <= memory_budget <= 1:
        raise ValueError(
            f"`memory_budget` must be a float between 0 and 1. Got {memory_budget}."
        )
    if len(sac_stats.func_names) == 0:
        return []
    with question_folder() as folder:
        question = {
            "profile": folder.add("profile", _profile_of_operators(sac_stats)),
            "module": _MODULE,
            "memory_budget": memory_budget,
            "time_limit": _OPERATORS_LIMIT_S,
            "json": True,
        }
        try:
            text = folder.ask("module policy", question).require_success().out
        except AcplanError as error:
            if error.exit_code not in (3, 4) and _NO_POLICY not in str(error):
                raise
            _LOGGER.error("found no policy: %s", error)
            return []
    policy: list[int] = json.loads(text)["policy"]
    return policy


def _profile_of(graph: Any) -> Profile:
    fqns = [node["fqn"] for node in graph.nodes]
    order = {
        "fw_pre_order": fqns,
        "bw_pre_order": [],
        "fw_post_order": graph.fw_post_order,
        "bw_post_order": [],
    }
    return from_torch({"mod_order": order, "mod_stats": graph.nodes})


def _allowed_units(
    profile: Profile, ac_units: Sequence[str], fsdp_units: Sequence[str]
) -> list[str]:
    """Returns the modules that may be units. As in PyTorch, a name of no module allows nothing,
    but still forbids the modules above it."""
    fqns = [module["fqn"] for module in profile.modules if not module["is_leaf"]]
    names = {module["fqn"] for module in profile.modules}
    for name in (*ac_units, *fsdp_units):
        if name not in names:
            _LOGGER.warning("no module is named %r", name)
    return [
        fqn
        for fqn in fqns
        if (not ac_units or fqn in ac_units)
        and not any(unit.startswith(fqn + ".") for unit in fsdp_units)
    ]


def _bytes(gib: float) -> int:
    if math.isnan(gib):
        raise AcplanError("memory_budget: expected GiB, found nan")
    return math.floor(min(max(gib * _GIB, _LEAST_BYTES), _MOST_BYTES))


def _rounded_up(ratio: float) -> float:
    """Rounds a ratio up: a plan with the returned ratios must fit as well."""
    return min(1.0, math.ceil(round(ratio * 1e4, 6)) / 1e4)


def _profile_of_operators(sac_stats: Any) -> Profile:
    costs = dict.fromkeys(_COSTS, 0)
    module = {"fqn": _MODULE, "is_leaf": False, **costs, "sac": plain(vars(sac_stats))}
    order = dict.fromkeys(("fw_pre", "bw_pre", "fw_post", "bw_post"), [_MODULE])
    return Profile(
        {"format": "acplan.profile", "version": 1, "order": order, "modules": [module]}
    )


_COSTS = (
    "param_per_module",
    "grad_per_module",
    "grad_total",
    "act_fw_per_module",
    "act_bw_per_module",
    "act_grad_per_module",
    "act_total",
    "input_per_module",
    "output_per_module",
    "fw_runtime_per_module",
    "bw_runtime_per_module",
)
