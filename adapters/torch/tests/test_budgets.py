"""Sizes and budgets as texts: which are taken, and what is said of the others."""

from typing import Any

import pytest

from acplan import AcplanError
from acplan._program.budgets import (
    require_budget,
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
    "budget", [101, "101", "20GiB", "1.6 GiB", "60%", " .5 %", "100.%", "min "]
)
def test_budgets(budget: int | str) -> None:
    require_budget(budget)


@pytest.mark.parametrize(
    "budget", ["", "lots", "%", 0, -1, "0%", "-5%", "1 gallon", "min1", "1.5", "0.5"]
)
def test_what_is_no_budget(budget: Any) -> None:
    with pytest.raises(AcplanError) as error:
        require_budget(budget)
    assert str(error.value) == f"{_NO_BUDGET}{budget!r}"


@pytest.mark.parametrize("budget", [1, 75, "98", " 100 "])
def test_units_that_were_forgotten(budget: int | str) -> None:
    with pytest.raises(AcplanError) as error:
        require_budget(budget)
    bytes_ = str(budget).strip()
    assert str(error.value) == (
        f"budget: found {budget!r}, which is {bytes_} bytes; did you mean "
        f'"{bytes_}%" (of the baseline) or "{bytes_}GiB"?'
    )
    require_budget(101)


@pytest.mark.parametrize("budget", [1.5, None, [1], True])
def test_budgets_are_numbers_or_texts(budget: Any) -> None:
    with pytest.raises(AcplanError, match="^budget: expected bytes or a size such as"):
        require_budget(budget)
