"""Units under torch.compile, which leaves out and rewrites operators: they save by name."""

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    create_selective_checkpoint_contexts,
)

from acplan._apply.mode import Contexts
from acplan._apply.policy import Decision, names_of
from acplan._base.errors import AcplanError, PlanMismatchWarning


def contexts_in_compiler(saved: str, offloads: bool, strict: bool) -> Contexts:
    plan = _ByName(saved, strict)
    if offloads:
        _tell_compiler_keeps(strict)

    def policy(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if plan.saves(func):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    forward, recomputation = create_selective_checkpoint_contexts(
        policy, allow_cache_entry_mutation=True
    )
    return (
        _InCompiler(forward, plan.start, plan.end),
        _InCompiler(recomputation, plan.start, lambda: None),
    )


def _tell_compiler_keeps(strict: bool) -> None:
    text = "under torch.compile, what the plan offloads stays on the device"
    if strict:
        raise AcplanError(f"{text}: plan without offload, or train it without")
    warnings.warn(
        f"{text}, and the peak differs from the prediction",
        PlanMismatchWarning,
        stacklevel=2,
    )


def saved_by_name(decisions: Sequence[Decision]) -> str:
    """Returns, for operators that are saved at all, which of their runs are saved:
    `aten.mm.default 01`."""
    times: dict[str, str] = defaultdict(str)
    for decision in decisions:
        times[decision.name] += str(int(decision.save))
    return "\n".join(f"{name} {at}" for name, at in times.items() if "1" in at)


class _ByName:
    def __init__(self, saved: str, strict: bool) -> None:
        self._times = dict(line.split(" ") for line in saved.splitlines())
        self._is_strict = strict
        self._counts: Counter[str] = Counter()

    def start(self) -> None:
        self._counts.clear()

    def saves(self, func: Any) -> bool:
        name = next((n for n in names_of(func) if n in self._times), None)
        if name is None:
            return False
        place = self._counts[name]
        self._counts[name] += 1
        times = self._times[name]
        if place == len(times):
            self._part(name, "more often")
        return place < len(times) and times[place] == "1"

    def end(self) -> None:
        for name, times in self._times.items():
            if self._counts[name] < len(times):
                self._part(name, f"{self._counts[name]} times")

    def _part(self, name: str, times_run: str) -> None:
        difference = (
            f"a compiled unit runs {name} {times_run}, but the plan, which saves some "
            f"results, expects {len(self._times[name])}"
        )
        if self._is_strict:
            raise AcplanError(
                f"{difference}; trace the model as it is trained and plan again, or train it "
                "without torch.compile"
            )
        warnings.warn(
            f"{difference}; operators that the plan does not know are recomputed, and the "
            "peak may differ from the prediction",
            PlanMismatchWarning,
            stacklevel=2,
        )


class _InCompiler(TorchDispatchMode):
    """One of torch's modes of a selective checkpoint, with a beginning and an end."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __init__(
        self,
        mode: TorchDispatchMode,
        on_start: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mode = mode
        self._on_start = on_start
        self._on_end = on_end

    @property
    def ac_graph_id(self) -> Any:
        return getattr(self._mode, "ac_graph_id", None)

    @ac_graph_id.setter
    def ac_graph_id(self, value: Any) -> None:
        # torch.compile numbers its checkpoints here.
        self._mode.ac_graph_id = value  # type: ignore[attr-defined]

    def __enter__(self) -> "_InCompiler":
        self._on_start()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        if kind is None:
            self._on_end()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return self._mode.__torch_dispatch__(func, types, args, kwargs)
