"""The lists of rooms have all that acplan replaces in PyTorch while it traces."""

import fnmatch
import functools
import importlib
import importlib.util
import pathlib
import pkgutil
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import acplan
from acplan._base import patching
from acplan._base.stand_ins import StandIn
from acplan._device.devices import DEVICES
from acplan._device.fake_cuda import fake_cuda

_CHECK = pathlib.Path(__file__).parents[3] / "tests" / "structure" / "check_structure.py"
_WHEREVER_IMPORTED = "_checkpoint_without_reentrant_generator"
# The room, the owner and the name of an attribute that is replaced.
Replacement = tuple[str, Any, str]


class _Net(nn.Module):
    """Has a checkpoint of its own, logs its loss and computes with the number."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.mean = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = checkpoint(self.first, x, use_reentrant=False)
        loss = self.second(y).pow(2).mean()
        self.mean = 0.9 * self.mean + 0.1 * float(loss.item())
        return loss


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> list[Replacement]:
    """The replacements of a test, as a list that grows."""
    replacements: list[Replacement] = []

    def recording(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(owner: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            caller = str(sys._getframe(1).f_globals["__name__"])
            if caller != patching.__name__:
                replacements.append((caller.split(".")[1], owner, name))
            return function(owner, name, *args, **kwargs)

        return call

    for name in ("set_attribute", "replaced_here"):
        original = getattr(patching, name)
        other = recording(original)
        for module in [m for key, m in sys.modules.items() if key.startswith("acplan")]:
            if vars(module).get(name) is original:
                monkeypatch.setattr(module, name, other)
    return replacements


def _is_of(owner: Any, place: str) -> bool:
    """Returns whether the place, a name in full, is that of the owner or of a class of it."""
    try:
        thing = pkgutil.resolve_name(place)
    except (ImportError, AttributeError):  # of a library that is not installed
        return False
    if not isinstance(thing, type):
        return owner is thing
    return issubclass(owner if isinstance(owner, type) else type(owner), thing)


@functools.cache
def _listed(room: str) -> list[str]:
    spec = importlib.util.spec_from_file_location("check_structure", _CHECK)
    assert spec is not None and spec.loader is not None
    check = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check)
    module = importlib.import_module(f"acplan.{room}")
    listed: list[str] = check.listed_replacements(module.__doc__)
    return listed


def _require_listed(replacements: list[Replacement]) -> set[str]:
    """Returns the lines of lists that have these replacements."""
    lines = set()
    for room, owner, name in replacements:
        if _is_of_acplan(owner):
            continue
        matches = []
        for line in _listed(room):
            place, _, pattern = line.rpartition(".")
            if fnmatch.fnmatchcase(name, pattern):
                if name.startswith(_WHEREVER_IMPORTED) or _is_of(owner, place):
                    matches.append(line)
        assert matches, f"{room} replaces {name} of {owner}, which its list does not have"
        lines.update(matches)
    return lines


def _is_of_acplan(owner: Any) -> bool:
    if isinstance(owner, types.ModuleType):
        return owner.__name__.startswith("acplan.")
    # Its module says "torch".
    return owner is StandIn


def test_what_a_trace_replaces_is_listed(replaced: list[Replacement]) -> None:
    acplan.trace(
        _Net(), torch.randn(4, 8), optimizer="adamw", clip_grad_norm=1.0, forward_fn=_loss_of
    )
    names = _require_listed(replaced)
    fake = "torch._subclasses.fake_tensor.FakeTensor"
    assert names >= {
        "torch.autograd.Function.apply",
        "torch.cuda.is_available",
        "torch.nn.Module._call_impl",
        "torch.utils._foreach_utils._foreach_supported_types",
        f"{fake}.item",
        f"{fake}.__new__",
        "json.JSONEncoder.default",
        "math.*",
    }


def _loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(x)
    return loss


def test_what_a_fake_device_replaces_is_listed(replaced: list[Replacement]) -> None:
    for device in ("a100", "mi300x"):
        with fake_cuda(DEVICES[device]):
            pass
    names = _require_listed(replaced)
    assert names >= {"torch.version.cuda", "torch.cuda.random.seed_all", "torch.Generator"}
