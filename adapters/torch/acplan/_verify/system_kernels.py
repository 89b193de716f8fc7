"""The kernels that measure-system runs: products, attention, norms, copies, collectives."""

import contextlib
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

# The time of attention's backward pass relative to its forward pass, as in
# costmodel/training/layer/operation_times.cc: 2.5 times the products at .8 of the speed.
_BACKWARD_ATTENTION = 2.5 / 0.8
_WARM_UPS = 2


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes that are measured: large on a GPU, small if only the code is tried."""

    products: tuple[tuple[int, int, int], ...]  # rows, columns, inner
    attention: tuple[tuple[int, int, int, int], ...]  # batch, heads, sequence, dim
    rows: tuple[tuple[int, int], ...]  # of a norm: tokens, hidden
    copy_bytes: tuple[int, ...]  # bytes
    gather_bytes: tuple[int, ...]  # bytes of a collective


LARGE = Sizes(
    products=(
        (8192, 8192, 8192),
        (8192, 28672, 8192),
        (8192, 8192, 28672),
        (4096, 14336, 4096),
        (4096, 6144, 4096),
        (16384, 4096, 4096),
        (2048, 4096, 4096),
    ),
    attention=((1, 32, 4096, 128), (1, 32, 8192, 128), (4, 16, 2048, 128)),
    rows=((8192, 8192), (16384, 4096)),
    copy_bytes=(1 << 28, 1 << 29),
    gather_bytes=(1 << 26, 1 << 28),
)
SMALL = Sizes(
    products=((128, 128, 128), (256, 128, 64)),
    attention=((1, 2, 64, 16),),
    rows=((64, 128),),
    copy_bytes=(1 << 16,),
    gather_bytes=(1 << 16,),
)


@dataclasses.dataclass(frozen=True)
class Point:
    """Work that ran, in FLOPs or bytes, and the median of its times."""

    what: str
    shape: tuple[int, ...]
    work: float
    seconds: float

    @property
    def rate(self) -> float:
        return self.work / self.seconds


class Clock:
    """A clock of the median seconds of a call on the device."""

    def __init__(self, device: str, repeats: int) -> None:
        self.device = device
        self._repeats = repeats

    def seconds(self, call: Callable[[], object], calls: int = 1) -> float:
        for _ in range(_WARM_UPS):
            call()
        times = []
        for _ in range(self._repeats):
            self._wait()
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            self._wait()
            times.append((time.perf_counter() - begin) / calls)
        # A clock of coarse steps may show no time at all.
        return max(statistics.median(times), 1e-9)

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def measure_products(clock: Clock, sizes: Sizes) -> list[Point]:
    points = []
    for rows, columns, inner in sizes.products:
        a = torch.randn(rows, inner, device=clock.device, dtype=torch.bfloat16)
        b = torch.randn(inner, columns, device=clock.device, dtype=torch.bfloat16)
        seconds = clock.seconds(functools.partial(torch.matmul, a, b), calls=4)
        shape = (rows, columns, inner)
        points.append(Point("bf16", shape, 2.0 * rows * columns * inner, seconds))
    return points


def measure_products_fp8(clock: Clock, sizes: Sizes) -> list[Point]:
    """Measures products in fp8. Returns no points if the device, or this PyTorch, has no such
    products."""
    if clock.device != "cuda" or torch.cuda.get_device_capability() < (8, 9):
        return []
    points = []
    scale = torch.ones((), device=clock.device)
    for rows, columns, inner in sizes.products:
        try:
            a = torch.randn(rows, inner, device=clock.device).to(torch.float8_e4m3fn)
            b = torch.randn(columns, inner, device=clock.device)
            b = b.to(torch.float8_e4m3fn).t()
            seconds = clock.seconds(
                functools.partial(
                    torch._scaled_mm,
                    a,
                    b,
                    scale_a=scale,
                    scale_b=scale,
                    out_dtype=torch.bfloat16,
                ),
                calls=4,
            )
        except (RuntimeError, AttributeError, TypeError):
            return []
        shape = (rows, columns, inner)
        points.append(Point("fp8", shape, 2.0 * rows * columns * inner, seconds))
    return points


@contextlib.contextmanager
def _backend(name: str | None) -> Iterator[None]:
    if name is None:
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(getattr(SDPBackend, name)):
        yield


def _attention_step(inputs: Sequence[torch.Tensor]) -> None:
    query, key, value = inputs
    result = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.autograd.grad(result.sum(), inputs)


def measure_attention(clock: Clock, sizes: Sizes, backend: str | None) -> list[Point]:
    """Measures forward and backward. Returns no points if PyTorch cannot run that kernel."""
    points = []
    for batch, heads, sequence, dim in sizes.attention:
        inputs = [
            torch.randn(
                batch,
                heads,
                sequence,
                dim,
                device=clock.device,
                dtype=torch.bfloat16,
                requires_grad=True,
            )
            for _ in range(3)
        ]

        try:
            with _backend(backend):
                seconds = clock.seconds(functools.partial(_attention_step, inputs))
        except (RuntimeError, AttributeError, ImportError):
            return []
        flops = 2.0 * batch * heads * sequence * sequence * dim  # of the causal half
        points.append(
            Point(
                f"attention {backend or ''}".strip(),
                (batch, heads, sequence, dim),
                flops * (1 + _BACKWARD_ATTENTION),
                seconds,
            )
        )
    return points


def measure_memory(clock: Clock, sizes: Sizes) -> tuple[list[Point], list[Point]]:
    """Measures copies inside of the device, and norms, by their traffic."""
    copies = []
    for size in sizes.copy_bytes:
        source = torch.zeros(size, dtype=torch.uint8, device=clock.device)
        target = torch.empty_like(source)
        seconds = clock.seconds(functools.partial(target.copy_, source), calls=4)
        copies.append(Point("copy", (size,), 2.0 * size, seconds))
    norms = []
    for rows, hidden in sizes.rows:
        x = torch.randn(rows, hidden, device=clock.device, dtype=torch.bfloat16)
        weight = torch.ones(hidden, device=clock.device, dtype=torch.bfloat16)
        seconds = clock.seconds(
            functools.partial(functional.layer_norm, x, (hidden,), weight), calls=4
        )
        norms.append(Point("norm", (rows, hidden), 4.0 * rows * hidden, seconds))
    return copies, norms


def measure_host_link(clock: Clock, sizes: Sizes) -> list[Point]:
    points = []
    for size in sizes.copy_bytes:
        host = torch.empty(size, dtype=torch.uint8, pin_memory=clock.device == "cuda").fill_(1)
        near = torch.empty(size, dtype=torch.uint8, device=clock.device)
        to_device = clock.seconds(functools.partial(near.copy_, host, non_blocking=True))
        to_host = clock.seconds(functools.partial(host.copy_, near, non_blocking=True))
        points.append(Point("from the host", (size,), float(size), to_device))
        points.append(Point("to the host", (size,), float(size), to_host))
    return points


def measure_launches(clock: Clock) -> Point:
    """Measures operators that take the device less time than the host."""
    x = torch.zeros(1, device=clock.device)
    return Point("launch", (1,), 1.0, clock.seconds(lambda: x.add_(1), calls=500))


def measure_collectives(
    clock: Clock, sizes: Sizes, group: Any, size: int, what: str
) -> list[Point]:
    """Measures all-gathers of a group of `size` ranks, by the bytes that each rank receives."""
    if size < 2:
        return []
    points = []
    for whole in sizes.gather_bytes:
        part = torch.zeros(whole // size, dtype=torch.uint8, device=clock.device)
        parts = [torch.empty_like(part) for _ in range(size)]
        seconds = clock.seconds(functools.partial(dist.all_gather, parts, part, group))
        received_bytes = float(part.numel() * (size - 1))
        points.append(Point(what, (whole, size), received_bytes, seconds))
    return points
