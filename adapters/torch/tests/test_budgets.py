"""Sizes and budgets as texts: which are taken, and what is said of the others."""

from typing import Any

import pytest

from acplan import AcplanError
from acplan._program.budgets import (
    require_budget,
    require_sayable,
    size_bytes,
    size_text,
    size_value,
)

_NO_BUDGET = (
    'budget: expected bytes, a size such as "60GiB", a share such as "60%" or "min", found '
)


def test_sizes() -> None:
    assert size_bytes("held", 5) == 5
    assert size_bytes("held", "1.5 KiB") == 1536
    assert size_bytes("held", "2kB") == 2000
    assert size_bytes("held", "3GiB") == 3 * 2**30
    for wrong in (-1, True, "1XB", "GiB", "60%", "min", "2KB", "1kiB", 1.5):
        with pytest.raises(AcplanError, match="held: expected bytes"):
            size_bytes("held", wrong)  # type: ignore[arg-type]


def test_sizes_in_questions() -> None:
    assert size_text("reserve", 1 << 40) == str(1 << 40)
    assert size_text("reserve", "anything") == "anything"
    assert size_value("reserve", 5) == 5 and size_value("reserve", "5") == "5"
    for wrong in (True, 1.5, None):
        with pytest.raises(AcplanError) as error:
            size_value("reserve", wrong)
        text = f'reserve: expected bytes or a size such as "60GiB", found {wrong!r}'
        assert str(error.value) == text


@pytest.mark.parametrize(
    "budget", [1, "1", "20GiB", "1.6 GiB", "60%", " .5 %", "100.%", "min "]
)
def test_budgets(budget: int | str) -> None:
    require_sayable(budget)
    require_budget(budget)


# `is_sayable`: only the program, or acplan.compile, refuses it.
@pytest.mark.parametrize(
    ("budget", "is_sayable"),
    [
        ("", False),
        ("lots", False),
        ("%", False),
        (0, True),
        (-1, True),
        ("0%", True),
        ("-5%", True),
        ("1 gallon", True),
        ("min1", True),
    ],
)
def test_what_is_no_budget(budget: Any, is_sayable: bool) -> None:
    with pytest.raises(AcplanError) as error:
        require_budget(budget)
    assert str(error.value) == f"{_NO_BUDGET}{budget!r}"
    if is_sayable:
        require_sayable(budget)
        return
    with pytest.raises(AcplanError) as error:
        require_sayable(budget)
    assert str(error.value) == f"{_NO_BUDGET}{budget!r}"


@pytest.mark.parametrize("budget", [1.5, None, [1]])
def test_budgets_are_numbers_or_texts(budget: Any) -> None:
    for require in (require_sayable, require_budget):
        with pytest.raises(AcplanError, match="budget: expected bytes or a size such as"):
            require(budget)


def test_truth_is_no_budget() -> None:
    with pytest.raises(AcplanError, match="^budget: expected bytes or a size such as"):
        require_sayable(True)
    with pytest.raises(AcplanError) as error:
        require_budget(True)
    assert str(error.value) == f"{_NO_BUDGET}True"
