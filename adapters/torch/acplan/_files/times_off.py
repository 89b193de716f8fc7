"""The regret of a plan if run-times are wrong, as its file states it."""

import dataclasses
import math
from typing import Any

from acplan._base.errors import AcplanError


def _number(data: Any, key: str) -> float:
    value = data.get(key) if isinstance(data, dict) else None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if math.isfinite(value):
            return float(value)
    raise AcplanError(f"plan: times_off: {key}: expected a number, found {value!r}")


def _optional(data: Any, key: str) -> float | None:
    return None if isinstance(data, dict) and data.get(key) is None else _number(data, key)


@dataclasses.dataclass(frozen=True)
class Regret:
    """How much longer a plan takes at most than the best plan for the true run-times.

    step: as a share of the step with that plan.
    recomputation: as a share of the recomputation of that plan; None: no bound is proven.
    at_least: the regret for some run-times, against a plan that was found; None: no plan was
        searched for.
    """

    step: float
    recomputation: float | None
    at_least: "Regret | None" = None

    @classmethod
    def from_data(cls, data: Any) -> "Regret":
        """Returns the regret in the data of a plan file."""
        step, recomputation = _number(data, "step"), _optional(data, "recomputation")
        lower = data.get("at_least")
        return cls(step, recomputation, None if lower is None else cls.from_data(lower))


@dataclasses.dataclass(frozen=True)
class TimesOff:
    """The regret of a plan if true run-times are between estimate / factor and estimate *
    factor.

    factor: the largest of the factors of kinds.
    factors: the factor of each kind; {} if it is the same for all.
    by_kind: all operators of a kind are off by the same ratio.
    by_operator: each operator is off by a ratio of its own.
    worst_kinds: the ratios of kinds for which the step loses most; {} if not searched for.
    least_step: in a robust plan, by_kind.step is at least this for every plan; else None.
    """

    factor: float
    by_kind: Regret
    by_operator: Regret
    worst_kinds: dict[str, float]
    least_step: float | None = None
    factors: dict[str, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_optional(cls, data: Any) -> "TimesOff | None":
        """Returns the entry `times_off` of a plan file, or None if there is none."""
        if data is None:
            return None
        factor, least_step = _number(data, "factor"), _optional(data, "least_step")
        ratios = data.get("worst_kinds") or {}
        factors = data.get("factors") or {}
        return cls(
            factor,
            Regret.from_data(data.get("by_kind")),
            Regret.from_data(data.get("by_operator")),
            {kind: _number(ratios, kind) for kind in ratios},
            least_step,
            {kind: _number(factors, kind) for kind in factors},
        )
