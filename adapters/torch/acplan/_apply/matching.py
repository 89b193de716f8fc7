"""Selects the operators of a unit that are saved, by a plan's list."""

from collections import Counter
from typing import Any, Protocol

from acplan._apply.policy import Policy, is_for_gpu_alone
from acplan._apply.tape import RUN, Choice, Tape
from acplan._base.errors import AcplanError


class Matching(Protocol):
    """The matching of one call of a unit with its plan."""

    def choose(self, func: Any) -> Choice: ...

    def end(self, tape: Tape) -> None: ...


class Anything:
    """A matching with a plan that saves nothing and lists no operators."""

    def choose(self, func: Any) -> Choice:
        return RUN

    def end(self, tape: Tape) -> None:
        pass


class NothingSaved:
    """A matching that saves nothing: operators in compiled code are not seen one by one, and
    its memory may be written to unnoticed."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def choose(self, func: Any) -> Choice:
        return RUN

    def end(self, tape: Tape) -> None:
        text = (
            "a part of the unit is compiled, but the plan is for single operators, so the "
            "whole unit is recomputed: compile the whole module after acplan.apply"
        )
        if self._policy.is_strict:
            raise AcplanError(f"{self._policy.fqn}: {text}")
        self._policy.warn(text)


class InOrder:
    """A matching by position, and, from the first difference on, by name and occurrence; then
    nothing is skipped."""

    def __init__(self, policy: Policy, tape: Tape) -> None:
        self._policy = policy
        self._tape = tape
        self._choices = policy.choices
        self._funcs_before = policy.funcs_by_place
        self._place = 0
        self._difference = ""
        self._counts: Counter[int] = Counter()
        self._saved_count = 0

    def choose(self, func: Any) -> Choice:
        place = self._place
        before = self._funcs_before
        if place < len(before) and before[place] is func:
            self._place = place + 1
            return self._choices[place]
        numbers = self._policy.numbers_of(func)
        if not self._difference:
            if place < len(before) and self._policy.order[place] in numbers:
                before[place] = func
                self._place = place + 1
                return self._choices[place]
            self._part(str(func))
        return self._choice_by_name(numbers or self._policy.kin_of(func))

    def _choice_by_name(self, numbers: tuple[int, ...]) -> Choice:
        for number in numbers:
            times = self._policy.saves_of[number]
            occurrence = self._counts[number]
            self._counts[number] += 1
            if occurrence < len(times) and times[occurrence] != RUN:
                self._saved_count += 1
                return times[occurrence]
        return RUN

    def end(self, tape: Tape) -> None:
        policy = self._policy
        if not self._difference and self._place < len(self._policy.order):
            self._part("missing")
        if not self._difference:
            tape.is_as_planned = not (tape.distrusted_for or tape.has_dropped)
            self._tell_distrust(tape.distrusted_for)
        elif not policy.has_warned and self._is_of_cpu():
            policy.differ_on_cpu(self._difference)
        elif not policy.has_warned:
            count = sum(decision.save for decision in policy.decisions)
            policy.warn(
                f"{self._difference}. Operators that the plan does not know are recomputed; "
                "losses and gradients equal those without the plan, but the peak may differ "
                f"from the prediction: {self._saved_count} of the {count} operators that the "
                f"plan saves here ran, and {tape.saved_bytes():,} bytes are saved"
            )

    def _is_of_cpu(self) -> bool:
        """Returns whether the first difference is at an operator that a CPU does not run."""
        place = self._place
        is_inside = place < len(self._policy.order)
        return is_inside and is_for_gpu_alone(self._policy.decisions[place].name)

    def _tell_distrust(self, reason: str) -> None:
        if not reason:
            return
        text = f"{reason}: skipped operators are recomputed"
        if self._policy.is_strict:
            raise AcplanError(f"{self._policy.fqn}: {text}")
        self._policy.warn(
            f"{text}, and the peak may differ from the prediction; losses and gradients "
            "equal those without the plan"
        )

    def _part(self, actual: str) -> None:
        place = self._place
        is_inside = place < len(self._policy.order)
        expected = self._policy.decisions[place].name if is_inside else "no more operators"
        self._difference = f"operator {place} is {actual}, the plan expects {expected}"
        self._funcs_before = []
        if self._policy.is_strict:
            raise AcplanError(
                f"{self._policy.fqn}: {self._difference}; trace the model as it is trained "
                "and plan again"
            )
        self._counts.update(self._policy.order[:place])
        self._saved_count = sum(d.save for d in self._policy.decisions[:place])
        self._tape.distrust(self._difference)
