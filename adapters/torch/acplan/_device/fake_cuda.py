"""Fake CUDA tensors on machines without CUDA.

A trace must show what the device would run: on CPU tensors the same model takes
other attention kernels and unfused dropout, and peaks at twice the memory. PyTorch
and libraries get the answers that the named device would give. On machines with
CUDA, PyTorch asks the real device.
"""

import contextlib
import ctypes
import os
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from acplan._base.patching import replaced_here, set_attribute
from acplan._device.attention_kernels import (
    Attention,
    Kernel,
    Layout,
    Platform,
    Switches,
    choose,
    cudnn_version_of,
)
from acplan._device.device_operators import operators_of_cuda, shapes_of_device_operators
from acplan._device.devices import DEVICES, Device
from acplan._device.guard_library import cuda_guard


@contextlib.contextmanager
def fake_cuda(device: Device | None = None) -> Iterator[None]:
    """Lets the block train fake CUDA tensors as on this device, by default an A100. If PyTorch
    finds a CUDA device, the block uses that one."""
    with contextlib.ExitStack() as undo:
        undo.enter_context(shapes_of_device_operators())
        if not torch.cuda.is_available():
            undo.enter_context(_answers_of(device or DEVICES["a100"]))
        yield


@contextlib.contextmanager
def _answers_of(device: Device) -> Iterator[None]:
    guard = cuda_guard()
    platform = platform_of(device)
    # This reference keeps the callback alive as long as C++ has it.
    choice = _ChooseAttention(lambda call: _choose_attention(call.contents, platform))
    guard.acplan_install_cuda_guard(
        ctypes.byref(
            _Device(*device.capability, device.is_rocm, platform.cudnn),
        ),
        choice,
    )
    try:
        with contextlib.ExitStack() as replaced:
            replaced.enter_context(operators_of_cuda())
            replaced.enter_context(set_attribute(torch, "Generator", _generators()))
            for owner, name, value in _replacements(device, platform):
                replaced.enter_context(replaced_here(owner, name, value))
            yield
    finally:
        guard.acplan_remove_cuda_guard()


def platform_of(device: Device) -> Platform:
    """Returns the device with the installed PyTorch. A PyTorch without CUDA counts as having
    the cuDNN of the wheels for CUDA."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    version = (major, minor)
    installed = torch.backends.cudnn.version() if torch.version.cuda else None
    return Platform(
        version,
        device.capability,
        installed or cudnn_version_of(version),
        device.is_rocm,
    )


_DIMENSIONS = 8
# Numbers of c10::ScalarType.
_TYPES = {
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    11: torch.bool,
    15: torch.bfloat16,
}


class _Device(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_int32),
        ("minor", ctypes.c_int32),
        ("is_rocm", ctypes.c_int32),
        ("cudnn_version", ctypes.c_int64),
    ]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("is_defined", ctypes.c_int32),
        ("type", ctypes.c_int32),
        ("requires_grad", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("sizes", ctypes.c_int64 * _DIMENSIONS),
        ("strides", ctypes.c_int64 * _DIMENSIONS),
    ]


class _Attention(ctypes.Structure):
    _fields_ = [
        ("query", _Tensor),
        ("key", _Tensor),
        ("value", _Tensor),
        ("mask", _Tensor),
        ("dropout", ctypes.c_double),
        ("is_causal", ctypes.c_int32),
        ("enable_gqa", ctypes.c_int32),
        ("is_grad_enabled", ctypes.c_int32),
    ]


_ChooseAttention = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(_Attention))


def _choose_attention(call: Any, platform: Platform) -> int:
    kernel = choose(
        Attention(
            _layout(call.query),
            _layout(call.key),
            _layout(call.value),
            _layout(call.mask) if call.mask.is_defined else None,
            call.dropout,
            bool(call.is_causal),
            bool(call.enable_gqa),
            bool(call.is_grad_enabled),
        ),
        platform,
        switches_now(),
    )
    return -1 if kernel is None else int(kernel)


def _layout(tensor: Any) -> Layout:
    dimensions = min(tensor.dimensions, _DIMENSIONS)
    return Layout(
        # Kernels refuse all other types, so any one stands for them.
        _TYPES.get(tensor.type, torch.int64),
        tuple(tensor.sizes[:dimensions]),
        tuple(tensor.strides[:dimensions]),
        tensor.offset,
        bool(tensor.requires_grad),
    )


def switches_now() -> Switches:
    """Returns the current values of PyTorch's switches for attention."""
    backends = torch.backends.cuda
    enabled = {
        Kernel.MATH: backends.math_sdp_enabled(),
        Kernel.FLASH: backends.flash_sdp_enabled(),
        Kernel.EFFICIENT: backends.mem_efficient_sdp_enabled(),
        Kernel.CUDNN: backends.cudnn_sdp_enabled(),
    }
    numbers = {int(kernel) for kernel in Kernel}
    return Switches(
        frozenset(kernel for kernel, is_enabled in enabled.items() if is_enabled),
        tuple(Kernel(k) for k in torch._C._get_sdp_priority_order() if k in numbers),
        torch.are_deterministic_algorithms_enabled()
        and not torch.is_deterministic_algorithms_warn_only_enabled(),
        os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "1",
    )


def _replacements(device: Device, platform: Platform) -> list[tuple[Any, str, Any]]:
    """Returns the functions and constants that describe the device, each as the owner, the name
    and the value to replace it with."""

    def always(value: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: value

    properties = types.SimpleNamespace(
        name=device.product,
        major=device.capability[0],
        minor=device.capability[1],
        total_memory=device.memory,
        multi_processor_count=device.multiprocessors,
        warp_size=64 if device.is_rocm else 32,
        gcnArchName="gfx942" if device.is_rocm else device.product,
    )
    # Nothing is drawn on the device. A program that sets its state gets that state back.
    generator = torch.Generator()
    has_bf16 = device.is_rocm or device.capability[0] >= 8
    cudnn = None if device.is_rocm else platform.cudnn
    return [
        *_random_states(generator),
        # Without a device, autocast for CUDA is switched off or refuses bfloat16.
        (torch.cuda.amp.common, "amp_definitely_not_available", always(False)),
        # An earlier checkpoint on the CPU may have set this to "cpu".
        (torch.utils.checkpoint.DefaultDeviceType, "_default_device_type", "cuda"),
        (torch.cuda, "is_available", always(True)),
        (torch.cuda, "device_count", always(1)),
        (torch.cuda, "current_device", always(0)),
        (torch.cuda, "set_device", always(None)),
        (torch.cuda, "_exchange_device", always(0)),
        (torch.cuda, "_maybe_exchange_device", always(0)),
        (torch.cuda, "synchronize", always(None)),
        (torch.cuda, "is_current_stream_capturing", always(False)),
        (torch.cuda, "reset_peak_memory_stats", always(None)),
        (torch.cuda, "reset_accumulated_memory_stats", always(None)),
        (torch.cuda.nvtx, "range_push", always(0)),
        (torch.cuda.nvtx, "range_pop", always(0)),
        (torch.cuda.nvtx, "mark", always(None)),
        (torch.cuda, "get_device_capability", always(device.capability)),
        (torch.cuda, "get_device_name", always(device.product)),
        (torch.cuda, "get_device_properties", always(properties)),
        (
            torch.cuda,
            "is_bf16_supported",
            lambda including_emulation=True: has_bf16 or including_emulation,
        ),
        (torch.backends.cudnn, "is_available", always(not device.is_rocm)),
        (torch.backends.cudnn, "version", always(cudnn)),
        # Otherwise PyTorch would copy the weights of recurrent modules into one chunk
        # of memory, and asks for their addresses, which fake tensors do not have.
        (torch.backends.cudnn, "is_acceptable", always(False)),
        # This tells the fake tensors' mode that it may use the device.
        (FakeTensorMode, "avoid_device_init", property(always(True))),
        # Otherwise this makes a real tensor: up to PyTorch 2.11 if
        # torch.cuda.is_available() returns true, later if C++ reports a device.
        (fake_tensor, "init_gpu_context", always(None)),
        (torch.version, "cuda", None if device.is_rocm else "13.0"),
        (torch.version, "hip", "7.0" if device.is_rocm else None),
    ]


def _random_states(generator: torch.Generator) -> list[tuple[Any, str, Any]]:
    """Returns replacements of the functions that get and set the state of the device's random
    numbers."""

    def nothing(*_: Any, **__: Any) -> None:
        pass

    def get(device: Any = "cuda") -> torch.Tensor:
        return generator.get_state()

    def set_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
        if not isinstance(new_state, FakeTensor):
            generator.set_state(new_state)

    def seed(number: int) -> None:
        generator.manual_seed(int(number))

    answers = {
        "get_rng_state": get,
        "set_rng_state": set_state,
        "get_rng_state_all": lambda: [get()],
        "set_rng_state_all": nothing,
        "manual_seed": seed,
        "manual_seed_all": seed,
        "seed": nothing,
        "seed_all": nothing,
        "initial_seed": generator.initial_seed,
    }
    owners = (torch.cuda, torch.cuda.random)
    functions = [(owner, name, answers[name]) for owner in owners for name in answers]
    return [*functions, (torch.cuda, "default_generators", (generator,))]


class _IsGenerator(type(torch._C.Generator)):  # type: ignore[misc]
    """A metaclass for which every generator is an instance of the replacing class."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch._C.Generator)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, torch._C.Generator)


def _generators() -> type:
    """Returns the class that replaces torch.Generator. As the device does not exist, its
    generators are those of the CPU, which report the device as theirs."""
    owner = threading.get_ident()

    class Generator(torch._C.Generator, metaclass=_IsGenerator):
        named_device: torch.device

        def __new__(cls, device: Any = "cpu") -> Any:
            named_device = torch.device(device)
            if named_device.type != "cuda" or threading.get_ident() != owner:
                return torch._C.Generator(device)
            # The stubs of PyTorch declare no __new__, and a device that can be set.
            generator = super().__new__(cls, "cpu")  # type: ignore[call-arg]
            generator.named_device = torch.device("cuda", named_device.index or 0)
            return generator

        @property
        def device(self) -> Any:  # type: ignore[override]
            return self.named_device

    return Generator
