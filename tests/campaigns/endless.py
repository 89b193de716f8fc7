#!/usr/bin/env python3
"""endless.py PROGRAM DATA [PATTERN]: gives the program's commands pipes that never end.

Each file of each command, one at a time, is a pipe with zeros, random bytes, lines, JSON that
goes on, or gzip data of them. Every run must end with exit code 2 and one line of complaint.
Prints each run that does not, and the ones with the most memory. PATTERN chooses the runs.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator

_PIPE = "PIPE"
_SECONDS = 60
_COMMANDS = (
    "plan PIPE --budget 90%", "plan TRACE --budget 90% --ac-units @PIPE",
    "plan --question PIPE",
    "frontier PIPE", "frontier TRACE --budgets @PIPE", "report PIPE -o r.html",
    "report TRACE PIPE -o r.html", "report TRACE --frontier PIPE -o r.html", "profile PIPE",
    "check PIPE PLAN --budget 90%", "check TRACE PIPE --budget 90%", "show PIPE",
    "show TRACE PIPE", "explain PIPE", "explain TRACE --plan PIPE", "simulate PIPE",
    "simulate TRACE PIPE", "simulate --events PIPE", "simulate --snapshot PIPE",
    "schedule PIPE --budget 75%", "remat PIPE --budget 75%", "remat JOINT --of PIPE",
    "module curve PIPE h", "module policy PIPE h --memory-budget .5", "module dataflow PIPE",
    "lengths plan 32=PIPE --lengths LENGTHS --device-memory 1GiB",
    "lengths plan 32=TRACE --lengths PIPE --device-memory 1GiB",
    "lengths check 32=TRACE --lengths LENGTHS --plan PIPE",
    "lengths simulate 32=TRACE --lengths LENGTHS --plan PIPE",
    "lengths simulate 32=TRACE --lengths PIPE", "train show PIPE --gpu H100 --gpus 8",
    "train show CONFIG --gpu H100 --gpus 8 --systems PIPE",
    "train compare CONFIG tp=2 PIPE --gpu H100 --gpus 8", "train score PIPE",
    "calculon llm PIPE PIPE PIPE", "calculon llm-csv PIPE o.csv",
    "calculon llm-heatmap PIPE o.svg", "calculon llm-merge PIPE TRACE o.json",
    "calculon llm-parameter-calculator PIPE",
)  # fmt: skip


def _text(start: bytes, unit: bytes) -> Callable[[], Iterator[bytes]]:
    def pieces() -> Iterator[bytes]:
        yield start
        while True:
            yield unit * (1 + (1 << 16) // len(unit))

    return pieces


def _packed(pieces: Callable[[], Iterator[bytes]]) -> Callable[[], Iterator[bytes]]:
    def gzip_pieces() -> Iterator[bytes]:
        packer = zlib.compressobj(1, zlib.DEFLATED, 31)
        yield from filter(None, map(packer.compress, pieces()))

    return gzip_pieces


def _random() -> Iterator[bytes]:
    while True:
        yield os.urandom(1 << 16)


_TEXTS = {
    "zeros": _text(b"", b"\0"), "random": _random, "lines": _text(b"", b"y\n"),
    "numbers": _text(b"[1", b",1"), "deep": _text(b"", b"["), "objects": _text(b"", b'{"a":'),
    "string": _text(b'["', b"a"), "blanks": _text(b'{"a":', b" "),
    "values": _text(b"", b"{}\n"),
    "name": _text(b"\x1f\x8b\x08\x08" + bytes(6), b"a"), "events": _text(b"", b"e\n"),
    "lengths": _text(b"", b"32\n"), "comments": _text(b"", b"# a\n"),
}  # fmt: skip
_TEXTS |= {f"gzip of {name}": _packed(_TEXTS[name]) for name in ("zeros", "lines", "numbers")}


def _feed(pipe: str, pieces: Callable[[], Iterator[bytes]], ended: threading.Event) -> None:
    """Writes to whoever opens the pipe, once for each time that it is opened."""
    while not ended.is_set():
        try:
            file = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.001)
            continue
        os.set_blocking(file, True)
        try:
            for piece in pieces():
                os.write(file, piece)
        except BrokenPipeError:
            pass
        os.close(file)


def _run(command: list[str], pieces: Callable[[], Iterator[bytes]]) -> tuple[int, str]:
    """Returns the most MiB that a run takes, and a complaint, "" for none."""
    ended = threading.Event()
    feeder = threading.Thread(target=_feed, args=(_PIPE, pieces, ended), daemon=True)
    feeder.start()
    with open("out", "w+b") as out, open("err", "w+b") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err)
        killer = threading.Timer(_SECONDS, process.kill)
        killer.start()
        _, status, usage = os.wait4(process.pid, 0)
        killer.cancel()
        ended.set()
        feeder.join()
        process.returncode = os.waitstatus_to_exitcode(status)
        texts = [(file.seek(0), file.read().decode())[1] for file in (out, err)]
    is_right = process.returncode == 2 and not texts[0] and texts[1].count("\n") == 1
    complaint = "" if is_right else f"exit code {process.returncode}: {texts}"
    return usage.ru_maxrss >> 10, complaint


def main() -> None:
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    program, data = (pathlib.Path(name).resolve() for name in sys.argv[1:3])
    pattern = re.compile(sys.argv[3] if len(sys.argv) > 3 else "")
    files = {
        "TRACE": data / "traces/gpt2_tiny.json.gz", "JOINT": data / "joint/gpt2_tiny.json.gz",
        "CONFIG": data / "training/models/llama-3.1-8b.json",
        "PLAN": "plan.json", "LENGTHS": "lengths.txt",
    }  # fmt: skip
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.mkfifo(_PIPE)
        pathlib.Path("lengths.txt").write_text("32\n32\n")
        plan = [program, "plan", files["TRACE"], "--budget", "100%", "-o", "plan.json"]
        subprocess.run(plan, check=True, stdout=subprocess.DEVNULL)
        for name, pieces in _TEXTS.items():
            for command in _COMMANDS:
                if not pattern.search(f"{name}: {command}"):
                    continue
                words = re.sub(r"[A-Z]{4,}", lambda m: str(files.get(m[0], m[0])), command)
                mib, complaint = _run([str(program), *words.split()], pieces)
                runs.append((mib, f"{name}: {command}"))
                if complaint:
                    print(f"{name}: {command}: {complaint}", flush=True)
    print(f"{len(runs)} runs; the most memory, in MiB: {sorted(runs)[-3:]}")


if __name__ == "__main__":
    main()
