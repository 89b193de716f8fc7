"""python -m acplan measure-system: the user's own GPU, in a file that `acplan train` reads.

Rates are the best that were measured, unless --vendor has the vendor's; shares are relative to
these rates. A product's time is taken apart in the way in which the cost model puts it
together: tiles of the result, each multiprocessor one at a time, the last wave by half. So the
model's time for these shapes is, in the median, the measured time.
"""

import argparse
import contextlib
import dataclasses
import datetime
import math
import os
import platform
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from acplan._base.errors import AcplanError
from acplan._device.product_times import IDLE_SHARE, TENSOR_CORE_TILES, TILE_OVERHEAD
from acplan._files.json_files import require_writable, write_json
from acplan._verify.system_kernels import (
    LARGE,
    SMALL,
    Clock,
    Point,
    Sizes,
    measure_attention,
    measure_collectives,
    measure_host_link,
    measure_launches,
    measure_memory,
    measure_products,
    measure_products_fp8,
)

VENDOR_KEYS = (
    "bf16_tflops",
    "fp8_tflops",
    "memory_gbs",
    "nvlink_gbs",
    "host_gbs",
    "network_gbs",
)


def product_share(points: Sequence[Point], peak: float, processors: int) -> float:
    """Returns the share of the peak at which the model's time is, in the median, the measured
    time."""
    ratios = []
    for point in points:
        rows, columns, inner = point.shape
        best = math.inf
        for tile_rows, tile_columns, speed in TENSOR_CORE_TILES:
            tiles = math.ceil(rows / tile_rows) * math.ceil(columns / tile_columns)
            full = tiles / processors
            waves = max(1.0, full + IDLE_SHARE * (math.ceil(full) - full))
            steps = tile_rows * tile_columns * (inner + TILE_OVERHEAD)
            best = min(best, waves * 2 * steps * processors / (peak * speed))
        ratios.append(best / point.seconds)
    return statistics.median(ratios)


class _Numbers:
    """The numbers of a GPU, each with its source."""

    def __init__(self, vendor: dict[str, float]) -> None:
        self.values: dict[str, Any] = {}
        self._vendor = vendor

    def add(self, key: str, value: float, source: str) -> None:
        self.values[key] = {"value": float(f"{value:.6g}"), "from": source}

    def add_rate(self, key: str, measured: float, source: str) -> float:
        """Adds a rate, the vendor's if it is given, else the measured one. Returns it."""
        vendor_rate = self._vendor.get(key)
        self.add(
            key,
            measured if vendor_rate is None else vendor_rate,
            source if vendor_rate is None else "--vendor",
        )
        return measured if vendor_rate is None else vendor_rate

    def add_share(self, key: str, share: float, source: str) -> None:
        self.add(key, min(1.0, max(0.01, share)), source)


def _median_rate(points: Sequence[Point]) -> float:
    return statistics.median(point.rate for point in points)


def _best_rate(points: Sequence[Point]) -> float:
    return max(point.rate for point in points)


@dataclasses.dataclass(frozen=True)
class Ranks:
    """The processes that measure together."""

    near: int = 1  # in a node
    nodes: int = 1
    near_group: Any = None
    far_group: Any = None


@dataclasses.dataclass(frozen=True)
class Device:
    name: str
    memory_gib: float
    multiprocessors: int


def find_device(device: str, name: str | None) -> Device:
    if device == "cuda":
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        return Device(
            name or properties.name,
            properties.total_memory / 2**30,
            properties.multi_processor_count,
        )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Device(name or platform.machine() or "cpu", max(1.0, memory), os.cpu_count() or 1)


def measure(
    clock: Clock, sizes: Sizes, device: Device, ranks: Ranks, vendor: dict[str, float]
) -> tuple[dict[str, Any], list[Point]]:
    """Measures the GPU. Returns its numbers as a system file has them, and the points that
    ran."""
    numbers = _Numbers(vendor)
    points = _measured_points(clock, sizes, ranks)
    numbers.add("memory_gib", device.memory_gib, "reported by the device")
    numbers.add("multiprocessors", device.multiprocessors, "reported by the device")
    _add_compute(numbers, points, device.multiprocessors)
    link = _add_memory(numbers, points)
    _add_ranks(numbers, points, ranks, link)
    numbers.add(
        "host_factor", 1, "not measured: software's time for a launch is fitted to runs"
    )
    return numbers.values, points.all()


@dataclasses.dataclass(frozen=True)
class _Points:
    """The points that ran, by what they measure."""

    products: Sequence[Point]
    products_fp8: Sequence[Point]
    flash: Sequence[Point]
    cudnn: Sequence[Point]
    copies: Sequence[Point]
    norms: Sequence[Point]
    host: Sequence[Point]
    launch: Point
    near: Sequence[Point]
    far: Sequence[Point]

    def all(self) -> list[Point]:
        compute = [*self.products, *self.products_fp8, *self.flash, *self.cudnn]
        memory = [*self.copies, *self.norms, *self.host]
        return [*compute, *memory, self.launch, *self.near, *self.far]


def _measured_points(clock: Clock, sizes: Sizes, ranks: Ranks) -> _Points:
    is_cuda = clock.device == "cuda"
    products = measure_products(clock, sizes)
    low = measure_products_fp8(clock, sizes)
    flash = measure_attention(clock, sizes, "FLASH_ATTENTION") if is_cuda else []
    flash = flash or measure_attention(clock, sizes, None)
    cudnn = measure_attention(clock, sizes, "CUDNN_ATTENTION") if is_cuda else []
    copies, norms = measure_memory(clock, sizes)
    host = measure_host_link(clock, sizes)
    launch = measure_launches(clock)
    near = measure_collectives(clock, sizes, ranks.near_group, ranks.near, "near")
    far = measure_collectives(clock, sizes, ranks.far_group, ranks.nodes, "far")
    return _Points(products, low, flash, cudnn, copies, norms, host, launch, near, far)


def _add_compute(numbers: _Numbers, points: _Points, multiprocessors: int) -> None:
    """Adds the rates and shares of products and attention."""
    products, low = points.products, points.products_fp8
    peak = numbers.add_rate(
        "bf16_tflops", _best_rate(products) / 1e12, "measured: the fastest product"
    )
    fp8_peak = numbers.add_rate(
        "fp8_tflops",
        _best_rate(low) / 1e12 if low else 0.0,
        "measured: the fastest product" if low else "no such products ran",
    )
    numbers.add("fp4_tflops", 0, "not measured")
    numbers.add_share(
        "product_share",
        product_share(products, peak * 1e12, multiprocessors),
        f"measured: median of {len(products)} products in bf16",
    )
    numbers.add_share(
        "fp8_product_share",
        product_share(low, fp8_peak * 1e12, multiprocessors) if low else 0.5,
        f"measured: median of {len(low)} products" if low else "no such products ran",
    )
    new = points.cudnn or points.flash
    for key, attention in (("flash_share", points.flash), ("flash_new_share", new)):
        numbers.add_share(
            key,
            _median_rate(attention) / (peak * 1e12),
            f"measured: {attention[0].what}, forward and backward",
        )


def _add_memory(numbers: _Numbers, points: _Points) -> float:
    """Adds the rates of the device's memory and of the host's link. Returns the rate of the
    link in GB/s."""
    memory_points = [*points.copies, *points.norms]
    memory = numbers.add_rate(
        "memory_gbs", _best_rate(memory_points) / 1e9, "measured: the fastest copy or norm"
    )
    numbers.add_share(
        "memory_share",
        _median_rate(memory_points) / (memory * 1e9),
        "measured: median of copies and norms",
    )
    return numbers.add_rate(
        "host_gbs",
        _best_rate(points.host) / 1e9,
        "measured: the fastest copy from or to the host",
    )


def _add_ranks(numbers: _Numbers, points: _Points, ranks: Ranks, link: float) -> None:
    """Adds the rates between ranks; `link`, in GB/s, replaces rates that could not be
    measured."""
    near, far = points.near, points.far
    numbers.add("nvlink_domain", ranks.near, "ranks of a node that measured")
    nvlink = numbers.add_rate(
        "nvlink_gbs",
        _best_rate(near) / 1e9 if near else link,
        "measured: the fastest all-gather"
        if near
        else "one rank: the value of the host's link",
    )
    numbers.add_share(
        "nvlink_share",
        _median_rate(near) / (nvlink * 1e9) if near else 0.7,
        "measured: median of all-gathers" if near else "not measured: one rank",
    )
    numbers.add_rate(
        "network_gbs",
        _best_rate(far) / 1e9 if far else link,
        "measured: the fastest all-gather between nodes"
        if far
        else "one node: the value of the host's link",
    )


def to_data(device: Device, numbers: dict[str, Any], points: Sequence[Point]) -> dict[str, Any]:
    return {
        "format": "acplan.system",
        "version": 1,
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "accelerators": [{"name": device.name, **numbers}],
        "measured": [dataclasses.asdict(point) for point in points],
    }


def add_parser(commands: Any) -> None:
    """Adds the sub-command to those of `python -m acplan`."""
    parser = commands.add_parser(
        "measure-system",
        help="measure this GPU; `acplan train show --system` reads the file",
        description="Measures products, attention, norms, copies and the host's link; under "
        "torchrun collectives too. With --device cpu small sizes, to try it.",
    )
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help=".json[.gz]")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument(
        "--name", help="name of the GPU in the file; default: the name that it reports"
    )
    parser.add_argument("--repeats", type=int, default=10, metavar="N", help="default: 10")
    parser.add_argument(
        "--vendor",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"the vendor's number, in place of the best measured: {', '.join(VENDOR_KEYS)}",
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    parser.set_defaults(run=_run_command)


def _run_command(flags: argparse.Namespace) -> int:
    require_writable(flags.output)
    if flags.repeats < 1:
        raise AcplanError(f"--repeats: expected a number above 0, found {flags.repeats}")
    if flags.name is not None and not flags.name.strip():
        raise AcplanError("--name: expected a name, found none")
    vendor = dict(_vendor_number(text) for text in flags.vendor)
    if flags.device == "cuda" and not torch.cuda.is_available():
        raise AcplanError(
            "measure-system: expected a CUDA device, PyTorch finds none; --device cpu tries "
            "the code on small sizes"
        )
    with _ranks(flags.device) as (ranks, is_first):
        device = find_device(flags.device, flags.name)
        sizes = LARGE if flags.device == "cuda" else SMALL
        clock = Clock(flags.device, flags.repeats)
        numbers, points = measure(clock, sizes, device, ranks, vendor)
        if is_first:
            write_json(flags.output, to_data(device, numbers, points))
            _print(device, points, flags.output)
    return 0


def _vendor_number(text: str) -> tuple[str, float]:
    key, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if key not in VENDOR_KEYS or not 0 < number < 1e6:
        raise AcplanError(
            f"--vendor: expected one of {', '.join(VENDOR_KEYS)}, '=' and a number above 0, "
            f"found {text!r}"
        )
    return key, number


@contextlib.contextmanager
def _ranks(device: str) -> Iterator[tuple[Ranks, bool]]:
    """Yields the ranks of torchrun, whose variables give their number, or this process alone,
    and whether this process is the first."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks(), True
        return
    rank = int(os.environ["RANK"])
    local = int(os.environ["LOCAL_RANK"])
    near = int(os.environ["LOCAL_WORLD_SIZE"])
    if device == "cuda":
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        nodes = world // near
        mine = near_group = far_group = None
        for node in range(nodes):
            mine = dist.new_group(list(range(node * near, (node + 1) * near)))
            near_group = mine if rank // near == node else near_group
        for place in range(near):
            mine = dist.new_group(list(range(place, world, near)))
            far_group = mine if rank % near == place else far_group
        yield Ranks(near, nodes, near_group, far_group), rank == 0
    finally:
        dist.destroy_process_group()


def _print(device: Device, points: Sequence[Point], output: str) -> None:
    print(f"{device.name}: {len(points)} measurements, written to {output}")
    for point in points:
        unit = "launches" if point.what == "launch" else "G"
        rate = point.rate if point.what == "launch" else point.rate / 1e9
        shape = " x ".join(map(str, point.shape))
        print(
            f"  {point.what:28s}{shape:24s}{1e3 * point.seconds:10.4f} ms{rate:14.1f} {unit}/s"
        )
