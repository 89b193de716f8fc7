"""Answers an update's questions about values that fake tensors do not have: whether gradients
are finite, how long a step is."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakIdKeyDictionary

from acplan._base.operators import device_asked
from acplan._base.patching import set_attribute
from acplan._base.stand_ins import is_run_inside
from acplan._base.tensors import tensors_in
from acplan._fakes.followed_numbers import suspended

# The dispatch keys of kernels that run for fake tensors, too.
_FAKED_BY = (
    "Meta",
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)
_ITEM = torch.ops.aten._local_scalar_dense.default


class Assumed(TorchDispatchMode):
    """A mode in which `.item()` has an answer within `answering()`: for a tensor of one element
    that comes from constants its value, else the value that it has if all floating-point
    numbers are 1. So no gradient is infinite or NaN, a GradScaler lets the optimizer step, and
    Adafactor's parameters have a length above its threshold.

    An operator that only writes, and that PyTorch has no fake of, does nothing: nobody could
    notice.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._is_answering = False
        self._values: Any = WeakIdKeyDictionary()

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        self._is_answering = True
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(suspended())
                if not torch.cuda.is_available():
                    # Optimizers with kernels of their own wait for these kernels.
                    stack.enter_context(
                        set_attribute(torch.cuda, "synchronize", _wait_for_nothing)
                    )
                yield
        finally:
            self._is_answering = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if (of_tensor := device_asked(func, args)) is not None:
            return of_tensor
        if any(map(is_run_inside, types)):
            return NotImplemented
        kwargs = kwargs or {}
        if not self._is_answering:
            return func(*args, **kwargs)
        if func is _ITEM:
            try:
                return func(*args, **kwargs)
            except DataDependentOutputException:
                return self._value(args[0])
        if _only_writes(func):
            return None
        out = func(*args, **kwargs)
        if isinstance(out, FakeTensor):
            self._note(func, args, kwargs, out)
        return out

    def _note(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: FakeTensor
    ) -> None:
        read = tensors_in((args, kwargs))
        from_known = out.numel() == 1 and all(self._is_known(t) for t in read)
        is_answer = out.dtype == torch.bool and bool(read)
        value = self._computed(func, args, kwargs) if from_known or is_answer else None
        if value is None:
            self._values.pop(out, None)
        else:
            self._values[out] = value

    def _computed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the result that an operator has if each tensor has one element, its assumed
        value, or None if it cannot be computed."""

        def real(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                shape = [1] * value.dim()
                return torch.full(shape, self._value(value), dtype=value.dtype)
            return torch.device("cpu") if isinstance(value, torch.device) else value

        with no_dispatch():
            try:
                out = func(*tree_map(real, args), **tree_map(real, kwargs))
                return out.flatten()[0].item()
            except (IndexError, NotImplementedError, RuntimeError):
                return None  # not for such shapes, or not on a CPU

    def _is_known(self, tensor: torch.Tensor) -> bool:
        return tensor in self._values or not isinstance(tensor, FakeTensor)

    def _value(self, tensor: torch.Tensor) -> Any:
        if tensor in self._values:
            return self._values[tensor]
        if not isinstance(tensor, FakeTensor) and tensor.numel() == 1:
            with no_dispatch():
                return tensor.item()
        if tensor.dtype == torch.bool:
            return False
        return 1.0 if tensor.is_floating_point() else 1


def _only_writes(func: Any) -> bool:
    """Returns whether an operator writes to its arguments, returns nothing, and has no fake."""
    schema = func._schema
    if schema.returns or not schema.is_mutable:
        return False
    return not any(
        torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key) for key in _FAKED_BY
    )


def _wait_for_nothing(device: Any = None) -> None:
    pass
