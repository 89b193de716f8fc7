"""A step of a model with fewer repeated layers, which is traced in a fraction of the time."""

import dataclasses
from collections import Counter

import torch

from acplan._advise.precision import copy_on_meta, optimizer_for_others
from acplan._step.training_step import TrainingStep

_FEWEST = 4  # layers of a list that is worth to be cut


def repeated_count(model: torch.nn.Module) -> int | None:
    """Returns how many layers the lists have that `shortened` cuts, or None if no layers of the
    model repeat."""
    sizes = Counter[int]()
    for layers in _lists_of(model).values():
        sizes[len(list(layers.children()))] += sum(p.numel() for p in layers.parameters())
    return max(sizes, key=lambda count: sizes[count]) if sizes else None


def repeated_lists(model: torch.nn.Module) -> list[str]:
    """Returns the names of the lists of layers that `shortened` cuts."""
    count = repeated_count(model)
    lists = _lists_of(model).items()
    return [name for name, layers in lists if len(list(layers.children())) == count]


def shortened(step: TrainingStep, count: int) -> TrainingStep:
    """Returns the step with a copy of the model whose lists of repeated layers, those that
    repeated_lists names, have only their first `count` layers."""
    cut = copy_on_meta(step)
    for name in repeated_lists(cut.model):
        layers = cut.model.get_submodule(name)
        owner, _, own_name = name.rpartition(".")
        children = list(layers.children())[:count]
        is_list = type(layers) is torch.nn.ModuleList
        short = torch.nn.ModuleList(children) if is_list else torch.nn.Sequential(*children)
        cut.model.get_submodule(owner)._modules[own_name] = short
    return dataclasses.replace(cut, optimizer=optimizer_for_others(step))


def _lists_of(model: torch.nn.Module, prefix: str = "") -> dict[str, torch.nn.Module]:
    """Returns the outermost lists of layers that are alike, indexed by name."""
    lists: dict[str, torch.nn.Module] = {}
    for own_name, module in model.named_children():
        name = f"{prefix}{own_name}"
        layers = list(module.children())
        is_list = type(module) in (torch.nn.ModuleList, torch.nn.Sequential)
        if is_list and len(layers) >= _FEWEST and len({*map(_signature, layers)}) == 1:
            lists[name] = module
        else:
            lists |= _lists_of(module, f"{name}.")
    return lists


def _signature(layer: torch.nn.Module) -> tuple[object, ...]:
    parameters = ((name, p.shape, p.dtype) for name, p in layer.named_parameters())
    return type(layer), tuple(parameters)
