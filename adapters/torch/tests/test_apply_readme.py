"""The rules of acplan/_apply/README.md, which are run as they stand there."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import acplan
from acplan import PlannedOperator

_README = Path(acplan.__file__).with_name("_apply") / "README.md"
_SHARED, *_RULES = re.findall(r"```python\n(.*?)```", _README.read_text(), re.DOTALL)
_TITLES = re.findall(r"^## \d\. (\w+)", _README.read_text(), re.MULTILINE)

pytestmark = pytest.mark.usefixtures("one_thread")


class _Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _names_of_operators() -> Iterator[list[str]]:
    with _Names() as mode:
        yield mode.names


def _names() -> dict[str, Any]:
    """Returns what the rules call by name."""
    names: dict[str, Any] = {
        "acplan": acplan,
        "nn": nn,
        "Op": PlannedOperator,
        "pytest": pytest,
        "torch": torch,
        "names_of_operators": _names_of_operators,
    }
    exec(_SHARED, names)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.block = names["Block"]()

        def forward(self, x: torch.Tensor) -> Any:
            return self.block(x)

    torch.manual_seed(1)
    x = torch.randn(4, 8)

    def gradients_of(model: nn.Module) -> list[Any]:
        return [None if p.grad is None else p.grad.tolist() for p in model.parameters()]

    def gradients_without_a_plan() -> list[Any]:
        model = Net()
        model(x).sum().backward()
        return gradients_of(model)

    return names | {
        "Net": Net,
        "x": x,
        "gradients_of": gradients_of,
        "gradients_without_a_plan": gradients_without_a_plan,
    }


def test_there_are_six_rules() -> None:
    assert _TITLES == ["Saved", "Skipped", "Stale", "Lost", "Started", "Quiet"]
    assert len(_RULES) == len(_TITLES)


@pytest.mark.parametrize("rule", range(len(_RULES)), ids=_TITLES)
def test_a_rule_holds(rule: int) -> None:
    exec(_RULES[rule], _names())
