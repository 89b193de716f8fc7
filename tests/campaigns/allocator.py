"""Runs PyTorch's own caching allocator beside ours on random requests, and compares.

    python tests/campaigns/allocator.py FOLDER [--torch 2.9.1 2.11.0 2.13.0 2.15.0]
        [--events 10000000] [--first SEED] [--jobs 2]
    python tests/campaigns/allocator.py FOLDER --write-goldens

Needs a C++ compiler, fmt and pip; no GPU. For each version, pip downloads PyTorch's wheel for
CUDA (half a gigabyte, which is unpacked to two libraries and headers) and CUDA's headers, and
the libraries run over a stand-in for the CUDA runtime (allocator/stand_in.cc). The folder
keeps what was downloaded.

Sequences have 2,000 events each: sizes around every threshold and of every magnitude, frees in
any order, several streams with record_stream, empty_cache, private pools of CUDA graphs and of
use_mem_pool, devices that are too small, and every option of PYTORCH_ALLOC_CONF that concerns
blocks. After each event the block's segment and its place there, allocated and reserved bytes,
both peaks, the bytes of the device that are in use, retries and failures must be equal.
Prints each difference and, for each version, what
was compared; exit code 1 where something differs.

--write-goldens writes tests/data/allocator/goldens.txt.gz: short sequences with what the
real allocator does at each event. It also writes snapshots.jsonl.gz there: memory snapshots of
the real allocator with their history, and what the same requests take with other settings.
"""

import argparse
import concurrent.futures
import glob
import gzip
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = pathlib.Path(__file__).resolve().parent / "allocator"
GOLDENS = ROOT / "tests/data/allocator/goldens.txt.gz"
SNAPSHOTS = ROOT / "tests/data/allocator/snapshots.jsonl.gz"
VERSIONS = ("2.9.1", "2.11.0", "2.13.0", "2.15.0")
# The parts of PyTorch's wheel that are unpacked.
PARTS = ("torch/lib/libc10", "torch/include/c10/", "torch/include/torch/headeronly/")
OURS = (
    "allocator/allocator_config",
    "allocator/blocks",
    "allocator/caching_allocator",
    "allocator/config_tokens",
    "allocator/device_memory",
    "allocator/expandable_segments",
    "allocator/free_list",
    "allocator/reclaim",
    "allocator/set_up",
    "base/message_text",
    "base/nearest_names",
)
SEQUENCE_EVENTS = 2000


def minor(version: str) -> int:
    """Returns 13 for "2.13.0"."""
    return int(version.split(".")[1])


def download(folder: pathlib.Path, requirements: list[str], parts: tuple[str, ...]) -> None:
    """Unpacks those parts of wheels into the folder, and the metadata of each."""
    wheels = folder / "wheels"
    # A machine may limit what is installed; this is only unpacked.
    environment = {**os.environ, "PIP_CONSTRAINT": os.devnull}
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        wheels,
    ]
    subprocess.run([*command, *requirements], check=True, env=environment)
    for path in wheels.glob("*.whl"):
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                if name.startswith(parts) or name.endswith(".dist-info/METADATA"):
                    wheel.extract(name, folder)
    shutil.rmtree(wheels)


def cuda_headers(torch: pathlib.Path) -> list[str]:
    """Returns the packages with the headers of the CUDA release that PyTorch was built for."""
    metadata = next(torch.glob("torch-*.dist-info/METADATA")).read_text()
    older = re.search(r"nvidia-cuda-runtime-cu12==(12\.\d+)\.\d+", metadata)
    if older:
        return [
            f"nvidia-cuda-runtime-cu12=={older[1]}.*",
            f"nvidia-cuda-nvcc-cu12=={older[1]}.*",
        ]
    newer = re.search(r"cuda-toolkit\S*==(13\.\d+)\.\d+", metadata)
    assert newer, "no CUDA release in the wheel's metadata"
    return [f"nvidia-cuda-runtime=={newer[1]}.*", f"nvidia-cuda-crt=={newer[1]}.*"]


def run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True)


class Build:
    """The two allocators of one version in one program, and the real one alone."""

    def __init__(self, folder: pathlib.Path, version: str) -> None:
        self.version = version
        self.folder = folder.resolve() / version
        self.torch = self.folder / "torch_wheel"
        if not (self.torch / "torch/lib").is_dir():
            download(self.torch, [f"torch==={version}"], PARTS)
        self.cuda = self.folder / "cuda_wheels"
        if not self.cuda.is_dir():
            download(self.cuda, cuda_headers(self.torch), ("nvidia/",))
        self.libraries = self.folder / "libraries"
        self.libraries.mkdir(exist_ok=True)

    def make(self) -> None:
        """Compiles what has no object file yet, and links."""
        folders = glob.glob(f"{self.cuda}/nvidia/**/include", recursive=True)
        include = [f"-I{path}" for path in folders]
        is_new = any("cu13" in path for path in folders)
        runtime = f"libcudart.so.{13 if is_new else 12}"
        exports = self.folder / "exports.map"
        exports.write_text(f"{runtime} {{ global: *; }};\n")
        object_folder = self.folder / "objects"
        object_folder.mkdir(exist_ok=True)
        stub = object_folder / "not_called.o"
        run("cc", "-fPIC", "-c", SOURCES / "not_called.c", "-o", stub)
        run(
            *("c++", "-w", "-std=c++20", "-O2", "-fPIC", "-shared", *include),
            *(SOURCES / "stand_in.cc", stub, f"-Wl,-soname,{runtime}"),
            *(f"-Wl,--version-script={exports}", "-o", self.libraries / runtime),
        )
        nvml = "libnvidia-ml.so.1"
        run(
            *("cc", "-shared", "-fPIC", SOURCES / "nvml.c", f"-Wl,-soname,{nvml}"),
            *("-o", self.libraries / nvml),
        )
        real = object_folder / "real_allocator.o"
        run(
            *("c++", "-w", "-std=c++20", "-O1", f"-I{self.torch}/torch/include", *include),
            f"-DTORCH_MINOR={minor(self.version)}",
            *("-c", SOURCES / "real_allocator.cc", "-o", real),
        )
        link = [
            *(real, f"-L{self.torch}/torch/lib", "-lc10_cuda", "-lc10"),
            *(f"-L{self.libraries}", f"-l:{runtime}", "-Wl,--allow-shlib-undefined"),
            f"-Wl,-rpath,{self.torch}/torch/lib:{self.libraries}",
        ]
        optimised = ("c++", "-std=c++20", "-O2", f"-I{ROOT}")
        run(*optimised, SOURCES / "drive.cc", *link, "-o", self.folder / "drive")
        ours = [ROOT / f"graph/{name}.cc" for name in OURS]
        compare = self.folder / "compare"
        run(*optimised, SOURCES / "compare.cc", *ours, *link, "-lfmt", "-o", compare)

    def environment(self) -> dict[str, str]:
        """Returns the environment in which PyTorch finds the stand-in of NVML."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self.libraries)}

    def compare(self, first: int, count: int) -> tuple[str, bool]:
        """Compares so many sequences. Returns what is printed and whether all are equal."""
        numbers = [first, count, SEQUENCE_EVENTS, minor(self.version)]
        outcome = subprocess.run(
            [str(self.folder / "compare"), *map(str, numbers)],
            capture_output=True,
            text=True,
            env=self.environment(),
        )
        return outcome.stdout, outcome.returncode == 0

    def drive(self, settings: str, device_bytes: int, events: str) -> list[str]:
        """Returns a line for each event of what the real allocator does."""
        outcome = subprocess.run(
            [str(self.folder / "drive"), settings, str(device_bytes)],
            input=events,
            capture_output=True,
            text=True,
            check=True,
            env=self.environment(),
        )
        return outcome.stdout.splitlines()


def totals_of(text: str, totals: dict[str, int]) -> None:
    """Adds the numbers of a run's last line to the totals."""
    for number, name in re.findall(r"(\d+) ([a-z ]+)", text.splitlines()[-1]):
        totals[name] = totals.get(name, 0) + int(number)


def campaign(build: Build, events: int, first: int, jobs: int) -> bool:
    """Compares so many events of one version. Returns whether all are equal."""
    totals: dict[str, int] = {}
    is_equal = True
    chunk = 100
    chunks = -(-events // (chunk * SEQUENCE_EVENTS))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        seeds = range(first, first + chunks * chunk, chunk)
        for text, same in pool.map(lambda seed: build.compare(seed, chunk), seeds):
            is_equal &= same
            print("".join(line + "\n" for line in text.splitlines()[:-1]), end="", flush=True)
            totals_of(text, totals)
    summary = ", ".join(f"{number:,} {name}" for name, number in totals.items())
    print(f"PyTorch {build.version}: {summary}", flush=True)
    return is_equal


MEBIBYTE = 1 << 20
# Settings and the oldest minor version that has them.
GOLDEN_SETTINGS = (
    ("", 9),
    ("expandable_segments:True", 9),
    ("max_split_size_mb:24,max_non_split_rounding_mb:30", 9),
    ("roundup_power2_divisions:[1:4,4:8,16:2,>:1]", 9),
    ("expandable_segments:True,max_split_size_mb:21,roundup_power2_divisions:4", 9),
    ("per_process_memory_fraction:0.6,garbage_collection_threshold:0.5", 10),
    ("large_segment_size_mb:32,max_split_size_mb:40", 11),
    ("expandable_segments:True,large_segment_size_mb:12", 11),
    ("throw_on_cudamalloc_oom:True", 12),
    ("expandable_segments:True,expandable_segments_reserve:0.4", 15),
)


def golden_events(generator: random.Random) -> list[str]:
    """Returns 48 requests, some of them for more than a small device has."""
    events: list[str] = []
    live: list[int] = []
    edges = (512, MEBIBYTE, 2 * MEBIBYTE, 10 * MEBIBYTE, 20 * MEBIBYTE, 24 * MEBIBYTE)
    while len(events) < 48:
        kind = generator.random()
        if kind < 0.02:
            events.append("e")
        elif live and kind < 0.4:
            events.append(f"f {live.pop(generator.randrange(len(live)))}")
        else:
            size = generator.choice(edges) + generator.choice((-512, -1, 0, 1, 513, MEBIBYTE))
            if generator.random() < 0.4:
                size = int(2 ** generator.uniform(4, 25.5))
            block = len(events)
            stream = int(generator.random() < 0.2)
            events.append(f"a {block} {size} {stream}")
            live.append(block)
            if generator.random() < 0.1:
                events.append(f"s {block} {2 - stream}")
    return events


def with_pools(events: list[str], is_released: bool) -> list[str]:
    """Adds a capture, two pools at once, and the release of one."""
    end = ["q 2", "d 2", "d 1"] if is_released else ["q 2"]
    parts = [events[:8], ["g 1"], events[8:20], ["q 1"], events[20:26], ["p 1"], events[26:30]]
    parts += [["p 2"], events[30:36], ["q 1"], events[36:40], end, events[40:]]
    return [event for part in parts for event in part]


def write_goldens(folder: pathlib.Path) -> None:
    """Writes the goldens of all versions."""
    lines = [
        "# What PyTorch's own allocator does, event by event: tests/campaigns/allocator.py",
        "# case VERSION DEVICE_BYTES SETTINGS",
        "# EVENT | SEGMENT+OFFSET (-: none) ALLOCATED RESERVED RETRIES FAILURES",
    ]
    generator = random.Random(17)
    cases: list[tuple[str, int, int, list[str]]] = []
    for settings, since in GOLDEN_SETTINGS:
        for device in (64, 130):
            cases.append((settings, since, device * MEBIBYTE, golden_events(generator)))
    for settings in ("", "", "expandable_segments:True"):
        events = with_pools(golden_events(generator), "expand" not in settings)
        cases.append((settings, 9, 130 * MEBIBYTE, events))
    for version in VERSIONS:
        build = Build(folder, version)
        build.make()
        for settings, since, device, events in cases:
            if minor(version) < since:
                continue
            lines.append(f"case 2.{minor(version)} {device} {settings}")
            rows = build.drive(settings, device, "\n".join(events) + "\n")
            lines += [f"{event} | {row}" for event, row in zip(events, rows, strict=True)]
    GOLDENS.parent.mkdir(parents=True, exist_ok=True)
    GOLDENS.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))
    print(f"{GOLDENS}: {len(lines):,} lines")


# Settings, and whether requests fail on a small device.
SNAPSHOT_SETTINGS = (
    ("", False),
    ("expandable_segments:True", False),
    ("", True),
    ("expandable_segments:True", True),
    ("max_split_size_mb:24", False),
    ("roundup_power2_divisions:4", False),
)


def write_snapshots(folder: pathlib.Path) -> None:
    """Writes snapshots of PyTorch's allocator: whole runs, and runs that are recorded from some
    event on. The former with the peaks of the same requests under other settings."""
    build = Build(folder, "2.13.0")
    build.make()
    generator = random.Random(23)
    lines = []
    for settings, is_small in SNAPSHOT_SETTINGS:
        for is_cut in (False, True):
            device = 130 * MEBIBYTE if is_small else 1 << 34
            events = golden_events(generator)
            if not is_cut:
                # The program's own calls of empty_cache are known by their lines alone.
                events = [event for event in events if event[0] not in "se"]
            else:
                events = with_pools(events, is_released=False)
            begin = len(events) // 3 if is_cut else 0
            recorded = [*events[:begin], "r", *events[begin:], "w"]
            rows = build.drive(settings, device, "\n".join(recorded) + "\n")
            others = []
            for other, _ in () if is_cut or is_small else SNAPSHOT_SETTINGS:
                row = build.drive(other, device, "\n".join([*events, "k"]) + "\n")[-1]
                allocated, reserved = map(int, row.split()[:2])
                others.append({"allocator": other, "peaks": [allocated, reserved]})
            failures = int(rows[-2].split()[-1])
            case = {"cut": is_cut, "failures": failures, "others": others}
            lines.append(json.dumps({**case, "snapshot": json.loads(rows[-1])}))
    SNAPSHOTS.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))
    print(f"{SNAPSHOTS}: {len(lines):,} snapshots")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--torch", nargs="+", default=list(VERSIONS))
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write-goldens", action="store_true")
    options = parser.parse_args()
    if options.write_goldens:
        write_goldens(options.folder)
        write_snapshots(options.folder)
        return 0
    is_equal = True
    for version in options.torch:
        build = Build(options.folder, version)
        build.make()
        is_equal &= campaign(build, options.events, options.first, options.jobs)
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
