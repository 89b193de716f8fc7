"""Data types, and torch.autocast as a setting that can be checked before it is used."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from acplan._base.errors import AcplanError

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

# The names that PyTorch and trainers use.
AUTOCASTS: Mapping[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


@dataclasses.dataclass(frozen=True)
class Autocast:
    """The settings of torch.autocast for CUDA."""

    dtype: torch.dtype
    keeps_casts: bool = True

    def context(self) -> torch.autocast:
        return torch.autocast("cuda", self.dtype, cache_enabled=self.keeps_casts)


AutocastLike = Autocast | torch.autocast | torch.dtype | str | None


def autocast_of(value: AutocastLike) -> Autocast | None:
    """Returns the settings that a data type, its name or a torch.autocast stands for; None
    stands for no autocast."""
    if value is None or isinstance(value, Autocast):
        return value
    if isinstance(value, str) and value.removeprefix("torch.") in AUTOCASTS:
        return Autocast(AUTOCASTS[value.removeprefix("torch.")])
    if isinstance(value, torch.dtype) and value in AUTOCASTS.values():
        return Autocast(value)
    if isinstance(value, torch.autocast) and value.device == "cuda":
        return _autocast_like(value)
    actual = f"one for {value.device!r}" if isinstance(value, torch.autocast) else f"{value!r}"
    raise AcplanError(
        f"autocast: expected one of {', '.join(AUTOCASTS)}, their torch.dtype, or a "
        f"torch.autocast for 'cuda', found {actual}"
    )


def _autocast_like(value: Any) -> Autocast | None:
    # Without CUDA it is switched off, even if it was asked for.
    if torch.cuda.is_available() and not value._enabled:
        return None
    if value.fast_dtype not in AUTOCASTS.values():
        raise AcplanError(
            "autocast: expected a torch.autocast of bfloat16 or float16, found "
            f"{value.fast_dtype}"
        )
    return Autocast(value.fast_dtype, value._cache_enabled)


@contextlib.contextmanager
def autocast_as_it_was() -> Iterator[None]:
    """Restores autocast after the block, even if an error is raised: an autocast that fails at
    its beginning stays switched on."""
    is_on = torch.is_autocast_enabled("cuda")
    dtype = torch.get_autocast_dtype("cuda")
    keeps_casts = torch.is_autocast_cache_enabled()
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", is_on)
        torch.set_autocast_dtype("cuda", dtype)
        torch.set_autocast_cache_enabled(keeps_casts)
