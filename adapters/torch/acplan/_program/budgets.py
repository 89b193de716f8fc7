"""Sizes and budgets as callers give them: bytes, "60GiB", a share such as "60%", or "min".

The program reads the texts, and has the last word on them (graph/base/byte_size.h). Here, a
budget is checked before a step is traced or compiled for it, and a size becomes bytes if Python
computes with it.
"""

import operator
import re
from typing import Any

from acplan._base.errors import AcplanError

Budget = int | str

_UNITS = {"": 1, "B": 1} | {
    f"{letter}{kind}": base**power
    for power, letter in enumerate("kMGTP", 1)
    for kind, base in (("B", 1000), ("iB", 1024))
}
_UNITS["KiB"] = _UNITS.pop("kiB")

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
# No model trains in so few bytes: the unit was forgotten.
_MOST_PERCENT = 100
_SHARE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*%")


def size_text(name: str, value: Any) -> str:
    """Returns a size as the program reads it. Raises AcplanError if it is neither a number
    of bytes nor a text."""
    if isinstance(value, str):
        return value
    try:
        if isinstance(value, bool):
            raise TypeError
        return str(operator.index(value))
    except TypeError:
        raise AcplanError(
            f'{name}: expected bytes or a size such as "60GiB", found {value!r}'
        ) from None


def size_value(name: str, value: Any) -> int | str:
    """Returns a size as a question has it. Raises AcplanError if it is not a size."""
    return value if isinstance(value, str) else int(size_text(name, value))


def size_bytes(name: str, value: int | str) -> int:
    """Returns bytes, given as a number or as a size such as "1.5GiB"."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    size = _bytes_of(value) if isinstance(value, str) else None
    if size is None:
        raise AcplanError(f'{name}: expected bytes or a size such as "2GiB", found {value!r}')
    return size


def require_rate(name: str, value: Any) -> None:
    """Raises AcplanError if the program would not take a value as a rate."""
    text = value.strip() if isinstance(value, str) else ""
    if not text.endswith("/s") or not _bytes_of(text.removesuffix("/s")):
        raise AcplanError(f'{name}: expected a rate such as "25GB/s", found {value!r}')


def _bytes_of(text: str) -> int | None:
    match = _SIZE.fullmatch(text)
    if match is None or match[2] not in _UNITS:
        return None
    if not match[2] and "." in match[1]:  # no part of a byte
        return None
    return int(float(match[1]) * _UNITS[match[2]])


def require_budget(budget: Any) -> None:
    """Raises AcplanError if the program would not take it as a budget. Steps are traced and
    compiled after this check."""
    text = size_text("budget", budget).strip()
    if share := _SHARE.fullmatch(text):
        is_known = float(share[1]) > 0
    elif text.isdecimal() and 0 < int(text) <= _MOST_PERCENT:
        raise AcplanError(
            f"budget: found {budget!r}, which is {text} bytes; did you mean "
            f'"{text}%" (of the baseline) or "{text}GiB"?'
        )
    else:
        is_known = text == "min" or (_bytes_of(text) or 0) > 0
    if not is_known:
        raise _no_budget(budget)


def _no_budget(budget: Any) -> AcplanError:
    return AcplanError(
        'budget: expected bytes, a size such as "60GiB", a share such as "60%" or '
        f'"min", found {budget!r}'
    )
