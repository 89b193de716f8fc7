"""The training steps of compare_third_party.py, by package."""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor

from acplan._step.training_step import TrainingStep

Make = Callable[[], TrainingStep]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A training step of a package of PyPI. `make` imports the package and makes model,
    inputs and loss anew; `modules` are imported once for all entries of the package."""

    package: str
    name: str
    make: Make
    modules: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"{self.package}: {self.name}"

    def new_step(self) -> TrainingStep:
        """Makes the step, with the same weights and inputs each time."""
        seed()
        return self.make()


ENTRIES: dict[str, Entry] = {}


def seed() -> None:
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


def add(package: str, name: str, make: Make, *modules: str) -> None:
    """Adds an entry; `modules` are those to import where the package has another name."""
    entry = Entry(package, name, make, modules or (package.replace("-", "_"),))
    if entry.key in ENTRIES:
        raise ValueError(f"{entry.key}: there twice")
    ENTRIES[entry.key] = entry


def entry(package: str, *modules: str) -> Callable[[Make], Make]:
    """Adds what is decorated, by the function's name."""

    def adding(make: Make) -> Make:
        add(package, make.__name__.strip("_").replace("_", " "), make, *modules)
        return make

    return adding


def own(loss: Tensor) -> Tensor:
    """Returns the output itself, for models that return their loss."""
    return loss


def images(batch: int = 2, size: int = 64, channels: int = 3) -> Tensor:
    return torch.rand(batch, channels, size, size)


def classes(batch: int = 2, count: int = 10) -> Tensor:
    return torch.arange(batch) % count


def words(batch: int = 2, length: int = 16, vocabulary: int = 64) -> Tensor:
    return torch.randint(4, vocabulary, (batch, length))


def classifying(model: torch.nn.Module, *args: Any, count: int = 10) -> TrainingStep:
    """Returns a step of a classifier, whose loss is the cross entropy of its logits."""
    labels = classes(len(args[0]), count)

    def loss(model: torch.nn.Module, *args: Any) -> Tensor:
        *inputs, labels = args
        return torch.nn.functional.cross_entropy(model(*inputs), labels)

    return TrainingStep(model, (*args, labels), forward_fn=loss)
