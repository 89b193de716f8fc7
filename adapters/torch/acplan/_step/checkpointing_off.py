"""Switches off a model's own checkpoints and caches: a plan is for the step without them."""

import contextlib
import functools
import inspect
import logging
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    ActivationWrapper,
)

from acplan._base import kv_caches
from acplan._base.patching import in_this_thread, set_attribute

_LOGGER = logging.getLogger("acplan")

# Libraries have checkpoints of their own, which are functions of autograd.
_NAMED_AS_ONE = re.compile("checkpoint|recomput|remat", re.IGNORECASE)


@contextlib.contextmanager
def without_checkpointing(
    model: torch.nn.Module, is_told: bool = True
) -> Iterator[torch.nn.Module]:
    """Yields the model, within the block, without caches and checkpoints: without wrappers of
    PyTorch (also those of a plan of acplan), the attribute `gradient_checkpointing` of modules,
    and calls of torch.utils.checkpoint, or of functions of autograd that run another function
    again. Calls of plans that are applied meanwhile stay. `is_told`: what was switched off is
    logged."""
    switched_off: list[str] = []
    remaining: list[str] = []
    with contextlib.ExitStack() as undo:
        for path, module in model.named_modules():
            name = path or type(module).__name__
            if vars(module).get("gradient_checkpointing") is True:
                switched_off.append(name)
                undo.callback(setattr, module, "gradient_checkpointing", True)
                module.gradient_checkpointing = False
        undo.enter_context(kv_caches.switched_off(model))
        inner = _unwrapped(model, undo, switched_off)
        for owner, attribute, value in _plain(switched_off, remaining):
            undo.enter_context(set_attribute(owner, attribute, value))
        if is_told:
            undo.callback(_tell, switched_off, remaining)
        yield inner


def _unwrapped(
    model: torch.nn.Module, undo: contextlib.ExitStack, switched_off: list[str]
) -> torch.nn.Module:
    while isinstance(model, ActivationWrapper):
        model = model._checkpoint_wrapped_module
        switched_off.append(type(model).__name__)
    for path, parent in list(model.named_modules()):
        for name, child in list(parent._modules.items()):
            if not isinstance(child, ActivationWrapper):
                continue
            switched_off.append(f"{path}.{name}" if path else name)
            undo.callback(parent._modules.__setitem__, name, child)
            while isinstance(child, ActivationWrapper):
                child = child._checkpoint_wrapped_module
            parent._modules[name] = child
    return model


def _plain(switched_off: list[str], remaining: list[str]) -> Iterator[tuple[Any, str, Any]]:
    """Yields the attributes of torch.utils.checkpoint and of autograd through which all callers
    go, however they have imported a checkpoint, as owner, name and replacement. The replacement
    just calls the function."""

    def note(function: Any, among: list[str] = switched_off) -> None:
        function_name = _name_of(function)
        if function_name not in among:
            among.append(function_name)

    # From PyTorch 2.15 on, all callers go through another function.
    name = "_checkpoint_without_reentrant_generator"
    name = f"{name}_impl" if hasattr(torch.utils.checkpoint, f"{name}_impl") else name
    checkpointed = getattr(torch.utils.checkpoint, name)
    signature = inspect.signature(checkpointed)

    def generator(function: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        arguments = signature.bind(function, *args, **kwargs).arguments
        if _is_of_plan(function) or _is_of_plan(arguments.get("context_fn")):
            yield from checkpointed(function, *args, **kwargs)
        else:
            note(function)
            yield

    # The replacement is for this thread: others may train meanwhile.
    yield from _wherever_imported(name, checkpointed, generator)
    yield from _plain_without_function(note)
    owner = torch.autograd.Function
    # It is a class method of Python, or of C from PyTorch 2.14 on.
    original = vars(owner)["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return original.__get__(None, cls)(*args, **kwargs)

    def apply_plainly(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or not _runs_again(cls):
            return apply(cls, *args, **kwargs)
        place = next((k for k, argument in enumerate(args) if callable(argument)), -1)
        out = None
        if place >= 0 and not kwargs:
            out = _forward_with_gradients(cls, place, args)
        if out is None:
            note(cls, remaining)
            return apply(cls, *args, **kwargs)
        note(args[place])
        return out

    yield owner, "apply", classmethod(in_this_thread(apply, apply_plainly))


def _plain_without_function(
    note: Callable[[Any], None],
) -> Iterator[tuple[Any, str, Any]]:
    """Yields the attributes that hold DeepSpeed's checkpoint by hooks on saved tensors."""
    name = "non_reentrant_checkpoint"
    original = getattr(sys.modules.get(_DEEPSPEED), name, None)

    def call(function: Any, *args: Any) -> Any:
        note(function)
        return function(*args)

    if original is not None:
        yield from _wherever_imported(name, original, call)


def _wherever_imported(name: str, original: Any, other: Any) -> Iterator[tuple[Any, str, Any]]:
    replacement = in_this_thread(original, other)
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is original:
            yield module, name, replacement


def _is_of_plan(function: Any) -> bool:
    """Returns whether acplan made the function: a plan calls a module with it, or it is a
    policy."""
    while isinstance(function, functools.partial):
        function = function.func
    is_function = isinstance(function, types.FunctionType | types.MethodType)
    return is_function and (function.__module__ or "").startswith("acplan.")


@functools.cache
def _runs_again(cls: Any) -> bool:
    """Returns whether a function of autograd is a checkpoint: by its name, and because its
    backward switches gradients on. Solvers of equations switch them on, too."""
    if cls is torch.utils.checkpoint.CheckpointFunction:
        return True
    if not _NAMED_AS_ONE.search(cls.__qualname__):
        return False
    code = getattr(inspect.unwrap(cls.backward), "__code__", None)
    return code is not None and not {"enable_grad", "set_grad_enabled"}.isdisjoint(
        code.co_names
    )


class _Context:
    """The context in which forward of a function of autograd keeps tensors for backward, which
    is never run."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def ignore(self, *_: Any) -> None:
        pass

    save_for_forward = mark_dirty = mark_non_differentiable = ignore
    set_materialize_grads = ignore


class _WithGradients:
    """A function that is called with gradients, even if its caller has switched them off."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.enable_grad():
            return self._function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


def _as_in_torch(function: Any, _: bool, *args: Any) -> Any:
    return function(*args)


def _as_in_deepspeed(function: Any, outputs: list[Any], *args: Any) -> Any:
    out = function(*args)
    outputs += [out] if isinstance(out, torch.Tensor) else out
    return out


def _as_in_fairscale(
    _: torch.Tensor, function: Any, context: dict[str, Any], names: Any, *args: Any
) -> Any:
    count = len(args) - len(names)
    out = function(*args[:count], **dict(zip(names, args[count:])))
    context["output_requires_grad"] = True
    if not isinstance(out, torch.Tensor):
        library = sys.modules[_FAIRSCALE]
        out, context["packed_non_tensor_outputs"] = library.split_non_tensors(out)
    return out


_FAIRSCALE = "fairscale.nn.checkpoint.checkpoint_activations"
_DEEPSPEED = "deepspeed.runtime.activation_checkpointing.checkpointing"
# Plain calls, by the module of CheckpointFunction. The rest of what these libraries do reads
# the device's state.
_PLAIN_CALLS: dict[str, Callable[..., Any]] = {
    "torch.utils.checkpoint": _as_in_torch,
    _DEEPSPEED: _as_in_deepspeed,
    _FAIRSCALE: _as_in_fairscale,
}


def _forward_with_gradients(cls: Any, place: int, args: tuple[Any, ...]) -> Any:
    """Returns the output of a checkpoint's function, with the graph that backward would make,
    or None if there is no graph."""
    plain = _PLAIN_CALLS.get(cls.__module__)
    if plain is not None and cls.__name__ == "CheckpointFunction":
        return plain(*args)
    needs = tuple(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
    call_args = (*args[:place], _WithGradients(args[place]), *args[place + 1 :])
    has_context = cls.setup_context is torch.autograd.Function.setup_context
    out = cls.forward(_Context(needs), *call_args) if has_context else cls.forward(*call_args)
    tensors = [out] if isinstance(out, torch.Tensor) else out
    has_graph = isinstance(tensors, list | tuple) and any(
        isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in tensors
    )
    return out if has_graph else None


def _name_of(function: Any) -> str:
    inner = function.func if isinstance(function, functools.partial) else function
    inner = getattr(inner, "__self__", inner)
    name = getattr(inner, "__qualname__", None)
    return str(name or type(inner).__name__)


def _tell(switched_off: list[str], remaining: list[str]) -> None:
    if switched_off:
        _LOGGER.warning(
            "the model uses its own checkpointing (%s), which is off during the trace: "
            "switch it off for training too, before you apply a plan",
            _first_of(switched_off),
        )
    if remaining:
        _LOGGER.warning(
            "the model uses its own checkpointing (%s), which acplan cannot switch off: in "
            "the trace, recomputation is part of backward; switch it off before you trace",
            _first_of(remaining),
        )


def _first_of(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return names[0] + more
