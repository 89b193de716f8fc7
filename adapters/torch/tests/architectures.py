"""Tiny models of many architectures, with the inputs that training gives them."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Inputs = Callable[[], dict[str, Any]]

BATCH = 3
LENGTH = 24
VOCABULARY = 100
_LENGTHS = (24, 17, 9)


@dataclasses.dataclass(frozen=True)
class Architecture:
    """`make` seeds the model's weights; `variants` name what a batch may look like.
    `exceptions` are the steps whose trace may differ from the real one, with the
    reason; "" stands for all of them."""

    group: str
    make: Callable[[], nn.Module]
    variants: Mapping[str, Inputs]
    exceptions: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def exception(self, step: str) -> str:
        """Returns why the trace of a step may differ, "" if it may not."""
        return self.exceptions.get(step, self.exceptions.get("", ""))


def seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Weights and inputs are the same each time."""

    def seeded_model() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return make()

    return seeded_model


def tokens(batch: int = BATCH, length: int = LENGTH, vocabulary: int = VOCABULARY) -> Tensor:
    """Ids without the first few, which stand for padding, beginnings and ends."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(5, vocabulary, (batch, length), generator=generator)


def floats(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def mask(side: str, batch: int = BATCH, length: int = LENGTH) -> Tensor:
    """Ones, with padding on a side: "right", "left", or "" for none."""
    ones = torch.ones(batch, length, dtype=torch.long)
    for row, length_of_row in enumerate(_LENGTHS[:batch]):
        length_of_row = length_of_row * length // LENGTH
        if side == "right":
            ones[row, length_of_row:] = 0
        if side == "left":
            ones[row, : length - length_of_row] = 0
    return ones


def masked_variants(
    inputs: Callable[[int, Tensor | None], dict[str, Any]],
    length: int = LENGTH,
    sides: tuple[str, ...] = ("right", "left"),
) -> dict[str, Inputs]:
    """Returns batches for a model that takes a mask: without one, of ones, padded, of one row.

    inputs: from the size of a batch and its mask to what the model is called with.
    """
    variants: dict[str, Inputs] = {
        "no mask": lambda: inputs(BATCH, None),
        "ones": lambda: inputs(BATCH, mask("", BATCH, length)),
        "batch of one": lambda: inputs(1, mask("", 1, length)),
    }
    for side in sides:
        variants[f"padded {side}"] = lambda side=side: inputs(  # type: ignore[misc]
            BATCH, mask(side, BATCH, length)
        )
    return variants


def batches(inputs: Callable[[int], dict[str, Any]]) -> dict[str, Inputs]:
    """Returns batches for a model that takes no mask."""
    return {"no mask": lambda: inputs(BATCH), "batch of one": lambda: inputs(1)}


def architectures() -> dict[str, Architecture]:
    """Returns all architectures that the installed libraries can make."""
    import architectures_torch
    import architectures_transformers

    by_name = architectures_transformers.ARCHITECTURES | architectures_torch.ARCHITECTURES
    try:
        import architectures_diffusers
    except ImportError:
        return by_name
    return by_name | architectures_diffusers.ARCHITECTURES
