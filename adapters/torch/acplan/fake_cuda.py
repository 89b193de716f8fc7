"""Fake CUDA tensors on machines without CUDA.

A trace must show what the device would run: on CPU tensors the same model takes
other attention kernels and unfused dropout, and peaks at twice the memory.
"""

import contextlib
import ctypes
import functools
import hashlib
import math
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from acplan.errors import AcplanError

_SOURCE = pathlib.Path(__file__).with_name("cuda_guard.cpp")
_SDPA = F.scaled_dot_product_attention
_HALF = (torch.float16, torch.bfloat16)


@contextlib.contextmanager
def fake_cuda() -> Iterator[None]:
    """While it lasts, fake CUDA tensors can be trained as on a CUDA device."""
    guard = None if torch.cuda.is_available() else _guard()
    if guard:
        guard.acplan_install_cuda_guard()
    try:
        with contextlib.ExitStack() as replaced:
            for owner, name, value in _REPLACEMENTS:
                replaced.enter_context(mock.patch.object(owner, name, value))
            yield
    finally:
        if guard:
            guard.acplan_remove_cuda_guard()


@functools.cache
def _guard() -> ctypes.CDLL:
    source = _SOURCE.read_bytes()
    key = hashlib.sha256(source + torch.__version__.encode()).hexdigest()[:16]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    library = cache / "acplan" / f"cuda_guard_{key}.so"
    if not library.exists():
        _build(library)
    return ctypes.CDLL(str(library))


def _build(library: pathlib.Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise AcplanError(
            "PyTorch finds no CUDA device, so tracing needs a C++ compiler to build a "
            "stand-in for it; found neither $CXX nor g++ nor clang++"
        )
    home = pathlib.Path(torch.__file__).parent
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = pathlib.Path(folder) / library.name
        command = [
            compiler, "-O1", "-shared", "-fPIC", "-std=c++20",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            f"-I{home}/include", f"-I{home}/include/torch/csrc/api/include",
            str(_SOURCE), f"-L{home}/lib", "-lc10", "-ltorch_cpu", "-o", str(built),
        ]  # fmt: skip
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode != 0:
            raise AcplanError(f"{' '.join(command)}\nfailed:\n{run.stderr.strip()}")
        built.replace(library)


def _cuda_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """The kernel that CUDA takes, which PyTorch chooses by asking the real device:
    flash for half precision without a mask, else the memory-efficient one."""
    if query.device.type != "cuda":
        extra: dict[str, Any] = {"enable_gqa": True} if enable_gqa else {}
        return _SDPA(
            query, key, value, attn_mask=attn_mask, dropout_p=dropout_p,
            is_causal=is_causal, scale=scale, **extra,
        )  # fmt: skip
    width = query.shape[-1]
    is_plain = key.shape[-1] == value.shape[-1] == width and width <= 256
    if attn_mask is None and query.dtype in _HALF and is_plain:
        padding = -width % 8
        if scale is None:
            scale = 1 / math.sqrt(width)
        if padding:
            query, key, value = (F.pad(t, (0, padding)) for t in (query, key, value))
        out = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, scale=scale
        )[0]
        return out[..., :width] if padding else out
    if key.shape[1] != query.shape[1]:
        repeats = query.shape[1] // key.shape[1]
        key = key.repeat_interleave(repeats, 1)
        value = value.repeat_interleave(repeats, 1)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(
                attn_mask.logical_not(), -math.inf
            )
        attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
    needs_log = torch.is_grad_enabled() and any(
        t.requires_grad for t in (query, key, value)
    )
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, needs_log, dropout_p, is_causal, scale=scale
    )[0]


_REPLACEMENTS = (
    (F, "scaled_dot_product_attention", _cuda_attention),
    # Without a device, autocast for CUDA is switched off or refuses bfloat16.
    (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
    (torch.cuda, "is_bf16_supported", lambda *args, **kwargs: True),
    # That of an A100, from which on experts are run by grouped matrix products.
    (torch.cuda, "get_device_capability", lambda device=None: (8, 0)),
)
