"""Selective checkpoints: which operators of a unit are saved, by a plan's list."""

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from acplan.errors import AcplanError

try:
    from torch.distributed.fsdp import FSDPModule
except ImportError:
    raise AcplanError(
        "expected PyTorch 2.6 or later, with torch.distributed, found "
        f"{torch.__version__}"
    ) from None


def class_name_of(module: torch.nn.Module) -> str:
    """The name of its class, be it sharded or not: fully_shard makes another one."""
    classes = type(module).__mro__
    return next(c for c in classes if not issubclass(c, FSDPModule)).__name__


class Decision(Protocol):
    """What a plan says of an operator, by any of the names that PyTorch gives it."""

    @property
    def name(self) -> str: ...

    @property
    def save(self) -> bool: ...


def checkpoint_of(fqn: str, decisions: Sequence[Decision]) -> Callable[..., Any]:
    """Calls a module in a checkpoint, for `checkpoint_wrapper`.

    What the module runs must be what the plan lists, operator by operator; under
    torch.compile, which leaves out and rewrites operators, what the plan saves must be
    there as often as the plan lists it. Anything else raises AcplanError.
    """
    saved = _saved_by_name(decisions)

    def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        context_fn: Callable[[], Contexts]
        if torch.compiler.is_compiling():
            # A constant, by which the compiler knows what may share its code.
            context_fn = functools.partial(_contexts_in_compiler, saved)
        else:
            context_fn = functools.partial(_contexts, module, fqn, decisions)
        return checkpoint(
            module, *args, use_reentrant=False, context_fn=context_fn, **kwargs
        )

    return call


Contexts = tuple[TorchDispatchMode, TorchDispatchMode]


def _contexts(
    module: torch.nn.Module, fqn: str, decisions: Sequence[Decision]
) -> Contexts:
    sharded = [m for m in module.modules() if isinstance(m, FSDPModule)]
    saved = [decision.name for decision in decisions if decision.save]
    return _watched(_ByOrder(fqn, decisions), saved, sharded)


def _contexts_in_compiler(saved: str) -> Contexts:
    names = [line.split(" ")[0] for line in saved.splitlines()]
    return _watched(_ByName(saved), names, [])


def _watched(
    plan: "_ByOrder | _ByName",
    saved: Sequence[str],
    sharded: Sequence[torch.nn.Module],
) -> Contexts:
    def policy(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if plan.saves(func):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    # What is written to in place is saved together with what writes to it.
    writes = any(_writes_in_place(name) for name in saved)
    forward, recomputation = create_selective_checkpoint_contexts(
        policy, allow_cache_entry_mutation=writes
    )
    return (
        _Watched(forward, sharded, plan.start, plan.end),
        _Watched(recomputation, sharded, plan.start, lambda: None),
    )


def _writes_in_place(name: str) -> bool:
    parts = name.split(".")
    return (parts[1] if len(parts) > 1 else name).endswith("_")


class _ByOrder:
    def __init__(self, fqn: str, decisions: Sequence[Decision]) -> None:
        self._fqn = fqn
        self._decisions = decisions
        self._place = 0

    def start(self) -> None:
        self._place = 0

    def saves(self, func: Any) -> bool:
        planned = self._planned()
        if planned is None or planned.name not in _names(func):
            raise self._error(func)
        self._place += 1
        return planned.save

    def end(self) -> None:
        if self._planned():
            raise self._error("missing")

    def _planned(self) -> Decision | None:
        is_inside = self._place < len(self._decisions)
        return self._decisions[self._place] if is_inside else None

    def _error(self, found: Any) -> AcplanError:
        planned = self._planned()
        expected = planned.name if planned else "no more operators"
        return AcplanError(
            f"{self._fqn}: operator {self._place} is {found}, the plan expects "
            f"{expected}; trace the model as it is trained and plan anew"
        )


def _saved_by_name(decisions: Sequence[Decision]) -> str:
    """Of operators that are saved at all, which times: `aten.mm.default 01`."""
    times: dict[str, str] = defaultdict(str)
    for decision in decisions:
        times[decision.name] += str(int(decision.save))
    return "\n".join(f"{name} {at}" for name, at in times.items() if "1" in at)


class _ByName:
    def __init__(self, saved: str) -> None:
        self._times = dict(line.split(" ") for line in saved.splitlines())
        self._seen: Counter[str] = Counter()

    def start(self) -> None:
        self._seen.clear()

    def saves(self, func: Any) -> bool:
        name = next((n for n in _names(func) if n in self._times), None)
        if name is None:
            return False
        place = self._seen[name]
        self._seen[name] += 1
        if place == len(self._times[name]):
            raise self._error(name, "more often")
        return self._times[name][place] == "1"

    def end(self) -> None:
        for name, times in self._times.items():
            if self._seen[name] < len(times):
                raise self._error(name, f"{self._seen[name]} times")

    def _error(self, name: str, found: str) -> AcplanError:
        return AcplanError(
            f"a compiled unit runs {name} {found}, the plan, which saves some, "
            f"expects {len(self._times[name])}; trace the model as it is trained and "
            "plan anew, or train it without torch.compile"
        )


def _names(func: Any) -> tuple[str, ...]:
    packet = getattr(func, "_overloadpacket", None)
    return str(func), func.__name__, getattr(packet, "__name__", func.__name__)


class _Watched(TorchDispatchMode):
    """One of torch's modes of a selective checkpoint, which sees nothing of what
    fully_shard does around the forward of modules in it: gathering parameters,
    casting inputs. That happens each time in its own way, when a unit runs again too.
    """

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __init__(
        self,
        mode: TorchDispatchMode,
        sharded: Sequence[torch.nn.Module],
        on_start: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mode = mode
        self._sharded = sharded
        self._on_start = on_start
        self._on_end = on_end
        self._is_blind = False
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    @property
    def ac_graph_id(self) -> Any:
        return getattr(self._mode, "ac_graph_id", None)

    @ac_graph_id.setter
    def ac_graph_id(self, value: Any) -> None:
        # torch.compile numbers its checkpoints here.
        self._mode.ac_graph_id = value  # type: ignore[attr-defined]

    def __enter__(self) -> "_Watched":
        self._on_start()
        for module in self._sharded:
            # As the first hook and the last one, before forward and after it.
            self._handles += [
                module.register_forward_pre_hook(self._close_eyes, prepend=True),
                module.register_forward_pre_hook(self._open_eyes),
                module.register_forward_hook(self._close_eyes, prepend=True),
                module.register_forward_hook(self._open_eyes),
            ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if kind is None:
            self._on_end()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if self._is_blind:
            return func(*args, **(kwargs or {}))
        return self._mode.__torch_dispatch__(func, types, args, kwargs)

    def _close_eyes(self, *_: Any) -> None:
        self._is_blind = True

    def _open_eyes(self, *_: Any) -> None:
        self._is_blind = False
