"""The checkpoints that a model has of its own, in the words of a configuration."""

import dataclasses
import functools
import json
from typing import Any

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper

from acplan._base.errors import AcplanError

_WRAPPED = "._checkpoint_wrapped_module"
_LAYER = "GradientCheckpointingLayer"


@dataclasses.dataclass(frozen=True)
class OwnCheckpoints:
    """A configuration that makes the checkpoints which a model has; `modules` are the names of
    the checkpointed ones."""

    trainer: str
    config_format: str
    text: str
    modules: tuple[str, ...]

    def require_units(self, units: list[str]) -> None:
        """Raises AcplanError if an audit did not find these modules."""
        names = {unit.partition(".")[2] for unit in units}
        if names != set(self.modules):
            other = min(names ^ set(self.modules))
            raise AcplanError(
                f"audit: expected checkpoints that {self.trainer}'s configuration can say, "
                f"found others at {other}"
            )

    def save(self, path: str) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.text)


def own_checkpoints(model: torch.nn.Module) -> OwnCheckpoints:
    """Returns the checkpoints of transformers' layers, of checkpoint_wrapper, or none. Raises
    AcplanError for checkpoints with options that a configuration cannot say."""
    wrappers = {
        name.replace(_WRAPPED, ""): module
        for name, module in model.named_modules()
        if isinstance(module, CheckpointWrapper)
    }
    layers = {
        name: module
        for name, module in model.named_modules()
        if any(cls.__name__ == _LAYER for cls in type(module).__mro__)
    }
    on = tuple(name for name, layer in layers.items() if _is_on(layer))
    if not wrappers:
        return _of_layers(layers, on)
    if on:
        raise AcplanError(
            f"audit: expected one kind of checkpoints, found {next(iter(wrappers))} in a "
            f"checkpoint_wrapper and {on[0]} with transformers' own"
        )
    for name, wrapper in wrappers.items():
        _require_options(name, wrapper.checkpoint_fn, {"use_reentrant": False})
    text = f"BLOCKS = {list(wrappers)!r}\nSAVED = set()\n"
    return OwnCheckpoints("torch", "python", text, tuple(wrappers))


def _is_on(layer: Any) -> bool:
    return bool(layer.gradient_checkpointing)


def _of_layers(layers: dict[str, Any], on: tuple[str, ...]) -> OwnCheckpoints:
    options: dict[str, object] = {"use_reentrant": False}
    if on:
        function = layers[on[0]]._gradient_checkpointing_func
        options = {**options, **_options(function)}
        _require_options(on[0], function, {"use_reentrant": options["use_reentrant"]})
        options["every_n_layers"] = _period(list(layers), on)
    text = json.dumps(
        {"gradient_checkpointing": bool(on), "gradient_checkpointing_kwargs": options}
    )
    return OwnCheckpoints("transformers", "json", text, on)


def _period(layers: list[str], on: tuple[str, ...]) -> int:
    for period in range(1, len(layers) + 1):
        if tuple(layers[::period]) == on:
            return period
    raise AcplanError(f"audit: expected every n-th layer with checkpoints, found {on[-1]}")


def _options(function: Any) -> dict[str, object]:
    options: dict[str, object] = {}
    while isinstance(function, functools.partial):
        options = {**function.keywords, **options}
        function = function.func
    return options


def _require_options(name: str, function: Any, expected: dict[str, object]) -> None:
    defaults = {"preserve_rng_state": True, "determinism_check": "default", "debug": False}
    for key, value in _options(function).items():
        if {**defaults, **expected}.get(key) != value:
            raise AcplanError(
                f"audit: {name}: expected a checkpoint without the option {key}={value!r}"
            )
