"""Checks that calls of acplan that are ended by chance in their midst leave nothing behind.

    python tests/left_behind.py 500 [SEED]

Each trial calls a function of acplan that an error ends at its n-th operator, or a signal
at a moment by chance, and compares all that is looked at before and after: the model to
the last attribute and version, what a hook of its user's has written to, random states,
modes, autocast, settings and functions of PyTorch and transformers, signal handlers,
warnings' filters, the environment, threads, descriptors and temporary files.
"""

import collections
import contextlib
import importlib
import io
import os
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy
import torch
import torch._dynamo
import torch._functorch.config
import torch._inductor.config
import torch.utils.checkpoint
import transformers.utils.import_utils
from torch import nn
from torch._functorch import partitioners
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _len_torch_dispatch_stack

import acplan
from acplan._fakes import known_values
from acplan._fakes.known_values import ValuedFakeTensorMode


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(self.norm(x)).relu()


class Net(nn.Module):
    """Statistics, numbers drawn, and state in containers that an error cuts in half."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(16, 4)
        self.draws = collections.deque([0], maxlen=3)
        self.counts: dict[str, Any] = {"calls": {"forward": 0}}
        self.chance = random.Random(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._note()
        for block in self.blocks:
            x = torch.nn.functional.dropout(block(x), 0.1, self.training)
        return self.head(x).square().mean()

    @torch._dynamo.disable
    def _note(self) -> None:
        self.counts["calls"]["forward"] += 1
        self.draws.append(self.chance.random())


_OWNERS = (
    torch.cuda, torch.cuda.amp.common, torch.backends.cudnn, torch.version, torch._VF,
    torch.utils.checkpoint, torch._subclasses, torch._subclasses.fake_tensor, FakeTensor,
    FakeTensorMode, nn.Module, partitioners,
    importlib.import_module("torch.optim.optimizer"), torch.utils._foreach_utils,
    transformers.utils.import_utils,
)  # fmt: skip
_CONFIGS = (torch._dynamo.config, torch._functorch.config, torch._inductor.config)


def state_of(model: nn.Module) -> dict[str, Any]:
    """Returns values that can be compared, indexed by name."""
    state: dict[str, Any] = dict(_of_process())
    for owner in _OWNERS:
        state |= {
            f"{owner} {name}": id(value)
            for name, value in vars(owner).items()
            if not name.startswith("cache")  # statistics
        }
    for config in _CONFIGS:
        state |= {f"{config.__name__} {k}": repr(v) for k, v in config._config.items()}
    for path, module in model.named_modules():
        state |= dict(_of_attributes(path, module))
    for path, tensor in model.state_dict(keep_vars=True).items():
        facts = (id(tensor), type(tensor), tensor._version, tensor.requires_grad)
        state[f"tensor {path}"] = (*facts, tensor.grad is None, tensor.tolist())
    return state


def _of_attributes(path: str, module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        contents: Any = None
        if isinstance(value, dict):
            contents = [(key, id(one), repr(one)[:80]) for key, one in value.items()]
        elif isinstance(value, collections.deque):
            contents = [*map(repr, value)]
        elif isinstance(value, random.Random):
            contents = value.getstate()
        yield f"{path}.{name}", (id(value), contents)


def _of_process() -> Iterator[tuple[str, Any]]:
    yield (
        "modes",
        (_len_torch_dispatch_stack(), len(torch.overrides._get_current_function_mode_stack())),
    )
    yield "grad", (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    yield "threads of autograd", torch._C._is_multithreading_enabled()
    for device in ("cpu", "cuda"):
        is_on = torch.is_autocast_enabled(device)
        yield f"autocast {device}", (is_on, torch.get_autocast_dtype(device))
    yield "autocast", torch.is_autocast_cache_enabled()
    yield "defaults", (torch.get_default_dtype(), torch.get_default_device())
    yield "deterministic", torch.are_deterministic_algorithms_enabled()
    yield "torch's numbers", torch.get_rng_state().tolist()
    yield "Python's numbers", random.getstate()
    yield "NumPy's numbers", repr(numpy.random.get_state())
    yield "saved hooks", torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    yield "filters", repr(warnings.filters)
    yield "environment", dict(os.environ)
    yield "signals", [signal.getsignal(number) for number in (2, 10, 14, 15)]
    yield "threads", sorted(thread.name for thread in threading.enumerate())
    yield "descriptors", len(os.listdir("/proc/self/fd"))
    yield "files", sorted(map(str, pathlib.Path(tempfile.gettempdir()).glob("acplan-*")))
    yield "trace", (sys.gettrace(), sys.getprofile())


class Case:
    """A model of its own, with a hook of its user's, and a call of acplan."""

    def __init__(self, call: Callable[["Case"], object]) -> None:
        self.model, self.x = Net(), torch.randn(8, 16)
        self.model._is_torch_compile = True  # PyTorch's mark
        self.noted: list[Any] = []
        self.model.blocks[0].register_forward_hook(lambda *a: self.noted.append(a[2]))
        self.call = call

    def state(self) -> dict[str, Any]:
        # A caller who asks for a trace may have hooks that note what runs in it.
        is_asked_for = self.call in (CALLS["trace"], CALLS["verify"])
        return state_of(self.model) | {"noted": 0 if is_asked_for else len(self.noted)}


def _applied(case: Case) -> None:
    names = [f"Net.blocks.{k}" for k in range(2)]
    plan = acplan.Plan(tuple(map(acplan.PlannedModule, names)))
    acplan.remove(acplan.apply(case.model, plan))


def _plan_step(case: Case, by_block: bool) -> None:
    from acplan._compile.compile import partitioner
    from acplan._compile.step_plan import Compilation

    planner = partitioner("100%", model=case.model, strict=True, fused=False)
    blocks = tuple(case.model.blocks) if by_block else ()
    planner.plan_step(Compilation(case.model, blocks, "aot_eager"), (case.x,), {})


CALLS: dict[str, Callable[[Case], object]] = {
    "trace": lambda case: acplan.trace(case.model, case.x),
    "verify": lambda case: acplan.verify(case.model, acplan.Plan(()), case.x),
    "apply and remove": _applied,
    "a compiled step": lambda case: _plan_step(case, False),
    "a step of compiled blocks": lambda case: _plan_step(case, True),
}


class Midway(Exception):
    """The error that ends a call by chance."""


@contextlib.contextmanager
def error_at(count: int) -> Iterator[None]:
    dispatch = ValuedFakeTensorMode.dispatch
    remaining = [count]

    def counting_dispatch(mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        remaining[0] -= known_values._can_end_at(func)
        if remaining[0] == 0:
            remaining[0] = -1
            raise Midway
        return dispatch(mode, func, *args, **kwargs)

    with mock.patch.object(ValuedFakeTensorMode, "dispatch", counting_dispatch):
        yield


@contextlib.contextmanager
def signal_after(seconds: float) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _seconds_of(name: str) -> float:
    case, begin = Case(CALLS[name]), time.monotonic()
    case.call(case)
    return time.monotonic() - begin


def _quietly(case: Case, ends: contextlib.AbstractContextManager[None]) -> str:
    try:
        with ends, contextlib.redirect_stderr(io.StringIO()):
            case.call(case)
    except (Midway, KeyboardInterrupt) as error:
        return type(error).__name__
    except acplan.AcplanError:
        return "AcplanError"
    return "ended"


def main(trials: int, seed: int) -> int:
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    # Others write where temporary files are by default.
    with tempfile.TemporaryDirectory() as tempfile.tempdir:
        return _wrong(trials, seed)


def _wrong(trials: int, seed: int) -> int:
    chance = random.Random(seed)
    seconds = {name: min(_seconds_of(name) for _ in range(2)) for name in CALLS}
    ways: collections.Counter[tuple[str, str]] = collections.Counter()
    wrong = 0
    for trial in range(trials):
        name = chance.choice([*CALLS])
        case = Case(CALLS[name])
        before = case.state()
        if chance.random() < 0.5 and name != "apply and remove":
            how = _quietly(case, error_at(chance.randint(1, 300)))
        else:
            how = _quietly(case, signal_after(chance.uniform(0, 1.2) * seconds[name]))
        after = case.state()
        ways[name, how] += 1
        differ = sorted(k for k in {*before, *after} if before.get(k) != after.get(k))
        if differ:
            wrong += 1
            print(f"trial {trial}: {name}, {how}: {differ[:6]}", flush=True)
            torch._dynamo.reset()
    for (name, how), count in sorted(ways.items()):
        print(f"{name}: {how}: {count}")
    print(f"{trials} trials, {wrong} left something behind")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int((sys.argv[2:] or ["0"])[0])))
