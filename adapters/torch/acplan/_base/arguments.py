"""Checks of arguments: a wrong one is reported in one line before any work is done."""

import functools
import operator
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import torch

from acplan._base.errors import AcplanError

_P = ParamSpec("_P")
_R = TypeVar("_R")


def with_old_name(
    old: str, new: str, kind: type | tuple[type, ...]
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Returns a decorator for a function whose argument `new` was called `old` in the release
    before: a value of `kind` under that name is taken for it, with a FutureWarning."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            if new not in kwargs and isinstance(kwargs.get(old), kind):
                name = function.__name__
                text = f"{name}: {old}= is now {new}=; the next release refuses it"
                warnings.warn(text, FutureWarning, stacklevel=2)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


def require_module(model: Any, name: str = "model") -> None:
    """Raises AcplanError if `model` is not a torch.nn.Module."""
    if not isinstance(model, torch.nn.Module):
        raise AcplanError(f"{name}: expected a module, found {type(model).__name__}")


def require_function(value: Any, name: str, argument: str) -> None:
    """Raises AcplanError if `value` is given and cannot be called. The message says that a
    function of `argument` was expected."""
    if value is not None and not callable(value):
        raise AcplanError(
            f"{name}: expected a function of {argument}, found {type(value).__name__}"
        )


def require_mapping(value: Any, name: str) -> None:
    """Raises AcplanError if `value` is not a mapping whose keys are names of inputs."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise AcplanError(
            f"{name}: expected a dict of inputs by name, found {type(value).__name__}"
        )


def require_attributes(value: Any, name: str, kind: str, attributes: str) -> None:
    """Raises AcplanError if `value` is not what others call a `kind`: it is a module, or lacks
    one of these attributes, which are separated by spaces."""
    if isinstance(value, torch.nn.Module) or not all(
        hasattr(value, attribute) for attribute in attributes.split()
    ):
        raise AcplanError(f"{name}: expected {kind}, found {type(value).__name__}")


def whole_number(value: Any, name: str, least: int) -> int:
    """Returns `value` as an int. Raises AcplanError if it is not a whole number, or less than
    `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise AcplanError(f"{name}: expected a whole number, {least} or more, found {value!r}")
    return number


def model_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the model's arguments by position and by name."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, tuple):
        return inputs, {}
    return (inputs,), {}
