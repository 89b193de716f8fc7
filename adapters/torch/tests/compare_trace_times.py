"""Times traces of the bundled models beside another version of the adapter, in turns.

    export ACPLAN=../../build/release/cli/acplan PYTHONPATH=. OMP_NUM_THREADS=1
    python tests/compare_trace_times.py OTHER 7 [MODEL...]

in adapters/torch; OTHER is another checkout's adapters/torch, and the number that of rounds.
Without models, all are traced. A model's time is the median of its rounds, not the least: a
collection by Python's garbage collector, which comes in some rounds, is a part of what a user
waits for. Prints a table in Markdown.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import IO

_FOLDER = pathlib.Path(__file__).resolve().parent


def _serve() -> None:
    """Traces what standard input names, and says how many seconds that took."""
    from acplan import trace
    from models import MODELS
    from write_traces import BUNDLED

    print("ready", flush=True)
    for line in sys.stdin:
        make, autocast = MODELS[BUNDLED[line.strip()]]
        model, inputs = make().on_meta()
        begin = time.perf_counter()
        trace(model, autocast=autocast, **inputs)
        print(time.perf_counter() - begin, flush=True)


def _started(adapter: pathlib.Path) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(adapter), str(_FOLDER)])
    started = subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__, "serve"],
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    _answer(started.stdout)
    return started


def _answer(stream: IO[str] | None) -> str:
    assert stream is not None
    line = stream.readline()
    if not line:
        raise SystemExit("a process that traces has ended")
    return line


def _seconds(server: subprocess.Popen[str], name: str) -> float:
    assert server.stdin is not None
    server.stdin.write(name + "\n")
    server.stdin.flush()
    return float(_answer(server.stdout))


def main(other: pathlib.Path, rounds: int, names: list[str]) -> None:
    from write_traces import BUNDLED

    both = [_started(adapter) for adapter in (other, _FOLDER.parent)]
    print("| model | other, s | this, s | this / other |\n|---|---:|---:|---:|", flush=True)
    for name in names or BUNDLED:
        turns = [[_seconds(one, name) for one in both] for _ in range(rounds)]
        before, now = map(statistics.median, zip(*turns))
        print(f"| {name} | {before:.2f} | {now:.2f} | {now / before:.2f} |", flush=True)
    for one in both:
        one.kill()


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        _serve()
    else:
        main(pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]), sys.argv[3:])
