"""A step of a model with fewer repeated layers, which is traced in a fraction of the time."""

import dataclasses
from collections import Counter
from collections.abc import Iterator

import torch

from acplan._advise.precision import copy_on_meta, optimizer_for_others
from acplan._step.training_step import TrainingStep

_FEWEST = 4  # layers of a list that is worth to be cut


def repeated_count(model: torch.nn.Module) -> int | None:
    """Returns how many layers the lists have that `shortened` cuts, or None if no layers of the
    model repeat."""
    sizes = Counter[int]()
    for _, _, layers in _lists_of(model):
        sizes[len(list(layers.children()))] += sum(p.numel() for p in layers.parameters())
    return max(sizes, key=lambda count: sizes[count]) if sizes else None


def shortened(step: TrainingStep, count: int) -> TrainingStep:
    """Returns the step with a copy of the model whose lists of repeated layers, those that
    repeated_count counts, have only their first `count` layers."""
    cut = copy_on_meta(step)
    full = repeated_count(cut.model)
    for owner, name, layers in list(_lists_of(cut.model)):
        children = list(layers.children())
        if len(children) == full:
            kind = type(layers)
            is_list = kind is torch.nn.ModuleList
            owner._modules[name] = (
                kind(children[:count]) if is_list else kind(*children[:count])
            )
    return dataclasses.replace(cut, optimizer=optimizer_for_others(step))


def _lists_of(
    model: torch.nn.Module,
) -> Iterator[tuple[torch.nn.Module, str, torch.nn.Module]]:
    """Yields the outermost lists of layers that are alike, with their owners and names."""
    for name, module in model.named_children():
        layers = list(module.children())
        is_list = type(module) in (torch.nn.ModuleList, torch.nn.Sequential)
        if is_list and len(layers) >= _FEWEST and len({*map(_signature, layers)}) == 1:
            yield model, name, module
        else:
            yield from _lists_of(module)


def _signature(layer: torch.nn.Module) -> tuple[object, ...]:
    parameters = ((name, p.shape, p.dtype) for name, p in layer.named_parameters())
    return type(layer), tuple(parameters)
