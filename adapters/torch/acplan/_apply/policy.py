"""The policy of a unit: a plan's list of operators, by place and by name."""

import dataclasses
import functools
import logging
import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from acplan._apply.tape import RUN, SAVE, SKIP, Choice, Offload
from acplan._base.errors import AcplanError, PlanMismatchWarning
from acplan._base.process_groups import NAMESPACES

_LOGGER = logging.getLogger("acplan")


class Decision(Protocol):
    """A plan's decision on an operator, which has any of the names that PyTorch gives it."""

    @property
    def name(self) -> str: ...

    @property
    def save(self) -> bool: ...

    @property
    def skip(self) -> bool:
        """True if it is neither run again nor saved: nothing that runs again needs its
        results."""
        ...

    @property
    def results(self) -> tuple[int, ...] | None:
        """For a saved operator, the places of the tensors that are kept among those it makes;
        None: all."""
        ...

    @property
    def offload(self) -> bool:
        """True if the results that are kept of a saved operator wait in the host's memory."""
        ...


def _choice_of(decision: Decision) -> Choice:
    if decision.save:
        choice = SAVE if decision.results is None else decision.results
        return Offload(choice) if decision.offload else choice
    return SKIP if decision.skip else RUN


def _kept_of(choice: Choice) -> Choice:
    return choice.results if isinstance(choice, Offload) else choice


def _writes_in_place(name: str) -> bool:
    parts = name.split(".")
    return (parts[1] if len(parts) > 1 else name).endswith("_")


def _may_write(name: str) -> bool:
    """Returns whether an operator of this name writes to its arguments."""
    packet, _, overload = name.removeprefix("aten.").partition(".")
    func = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
    schema = getattr(func, "_schema", None)
    return _writes_in_place(name) or bool(schema and schema.is_mutable)


def _leaves_out_a_write(decision: Decision) -> bool:
    if decision.save:
        return _writes_in_place(decision.name)
    return decision.skip and _may_write(decision.name)


def _communicates(name: str) -> bool:
    """Returns whether an operator of this name, with its namespace or without, may be a
    collective."""
    packet = name.partition(".")[0]
    spaces = (getattr(torch.ops, space) for space in NAMESPACES)
    return packet in (*NAMESPACES, "acplan", "ring_attention") or any(
        hasattr(space, packet) for space in spaces
    )


def names_of(func: Any) -> tuple[str, ...]:
    packet = getattr(func, "_overloadpacket", None)
    name = getattr(func, "__name__", str(func))
    return str(func), name, getattr(packet, "__name__", name)


def _is_attention(name: str) -> bool:
    """Returns whether an operator is attention, which has a kernel for each device, mask and
    data type."""
    return "_scaled_dot_product_" in name and "backward" not in name


def is_for_gpu_alone(name: str) -> bool:
    """Returns whether this machine has no GPU, and its CPU no kernel for an operator of this
    name, or not the one that the same code runs."""
    if torch.accelerator.is_available():
        return False
    packet, _, overload = name.removeprefix("aten.").partition(".")
    if packet in _FUSED_ON_GPUS:
        return True
    full_name = f"aten::{packet}" + (f".{overload}" if overload not in ("", "default") else "")
    has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    try:
        return not has_kernel(full_name, "CPU")
    except RuntimeError:  # no such operator
        return False


# Operators that have kernels for CPUs, where the functions of torch.nn.functional run others.
_FUSED_ON_GPUS = ("native_dropout",)


@functools.cache
def warn_of_cpu() -> None:
    """Warns, once a process, that a CPU trains with a plan for a GPU."""
    warnings.warn(
        "this machine has no GPU, and a CPU runs other kernels than the GPU that the plan is "
        "for: units recompute what the plan does not know. Losses and gradients equal those "
        "without the plan; the memory is not as predicted. See docs/python/apply.md, On a CPU",
        PlanMismatchWarning,
        stacklevel=2,
    )


@dataclasses.dataclass
class Policy:
    """A plan for a unit, its names numbered, and whether its user has been warned."""

    fqn: str
    decisions: Sequence[Decision]
    is_strict: bool
    leaves_out_writes: bool
    skips: bool
    offloads: bool
    order: tuple[int, ...]
    choices: tuple[Choice, ...]
    numbers: dict[str, int]
    # For each name, its decisions in order, as RUN or the choice that holds if the plan's place
    # is lost.
    saves_of: tuple[tuple[Choice, ...], ...]
    # For each place, the operator that turned out to be the plan's, or None.
    funcs_by_place: list[Any]
    has_warned: bool = False
    _numbers_by_func: dict[Any, tuple[int, ...]] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_decisions(cls, fqn: str, decisions: Sequence[Decision], strict: bool) -> "Policy":
        numbers: dict[str, int] = {}
        saves_of: list[list[Choice]] = []
        order = []
        for decision in decisions:
            number = numbers.setdefault(decision.name, len(numbers))
            if number == len(saves_of):
                saves_of.append([])
            whole = Offload(SAVE) if decision.offload else SAVE
            # Nothing is skipped then, and other ranks skip the collective.
            is_kept = decision.save or (decision.skip and _communicates(decision.name))
            saves_of[number].append(whole if is_kept else RUN)
            order.append(number)
        choices = tuple(map(_choice_of, decisions))
        return cls(
            fqn,
            decisions,
            strict,
            any(map(_leaves_out_a_write, decisions)),
            any(_kept_of(choice) not in (RUN, SAVE) for choice in choices),
            any(decision.offload for decision in decisions),
            tuple(order),
            choices,
            numbers,
            tuple(map(tuple, saves_of)),
            [None] * len(order),
        )

    def numbers_of(self, func: Any) -> tuple[int, ...]:
        """Returns the numbers of the plan's names that the operator has."""
        numbers = self._numbers_by_func.get(func)
        if numbers is None:
            candidates = (self.numbers.get(name) for name in names_of(func))
            numbers = tuple(dict.fromkeys(n for n in candidates if n is not None))
            self._numbers_by_func[func] = numbers
        return numbers

    def kin_of(self, func: Any) -> tuple[int, ...]:
        """Returns the numbers of the plan's names for other kernels of the same operator."""
        if not _is_attention(str(func)):
            return ()
        return tuple(n for name, n in self.numbers.items() if _is_attention(name))

    def warn(self, text: str) -> None:
        if not self.has_warned:
            self.has_warned = True
            # The caller's place says nothing: the module counts.
            warnings.warn(f"{self.fqn}: {text}", PlanMismatchWarning, stacklevel=2)

    def differ_on_cpu(self, difference: str) -> None:
        """Warns once a process, not once a unit; the log has the unit's difference."""
        self.has_warned = True
        _LOGGER.debug("%s: %s", self.fqn, difference)
        warn_of_cpu()

    def tell(self, text: str) -> None:
        """Warns of a call that is not as planned, or raises an error if strict."""
        if self.is_strict:
            raise AcplanError(
                f"{self.fqn}: {text}; trace the model as it is trained and plan again"
            )
        self.warn(
            f"{text}; losses and gradients equal those without the plan, but the peak may "
            "differ from the prediction"
        )

    def tell_that_nothing_is_offloaded(self, why: str) -> None:
        text = f"{why}: what the plan offloads stays on the device"
        if self.is_strict:
            raise AcplanError(f"{self.fqn}: {text}")
        self.warn(f"{text}, and the peak may differ from the prediction")
