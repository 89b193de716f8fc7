#!/usr/bin/env python3
"""large_steps.py PROGRAM [--proof] [OPERATORS...]: prints how long large steps take.

Makes steps with about so many operators (1,000 to 100,000): chains of blocks that are all
equal (regular) or all different (irregular). Prints a Markdown row for each step: the seconds
of CPU time of each command, whose search may take a tenth of a second, and the seconds from
Ctrl-C to the end of a search without a limit. --proof: prints, for each budget, the
seconds of CPU time of a search that may take 40 seconds, its gap and its memory instead.
"""

import dataclasses
import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

_UNIT = 1 << 16
_COMMANDS: dict[str, list[str]] = {
    "plan": ["plan", "--budget", "80%", "--time-limit", ".1"],
    "budget min": ["plan", "--budget", "min", "--time-limit", ".1"],
    "frontier": ["frontier", "--points", "5", "--time-limit", ".1"],
    "explain": ["explain", "--time-limit", ".1"],
    "report": ["report", "--points", "4", "--time-limit", ".1", "-o", "report.html"],
}
# The budgets of --proof, and its limit.
_BUDGETS = ["80%", "30%", "min"]
_PROOF_SECONDS = "40"
# The command that gets Ctrl-C, and the time until then on a step of 100,000 operators.
_INTERRUPTED = ["plan", "--budget", "min", "--time-limit", "none"]
_SECONDS_TO_SEARCH = 8


@dataclasses.dataclass
class _Operator:
    ms: float
    size: int
    saves: str  # "input", "output" or nothing


def _block(source: random.Random) -> list[_Operator]:
    return [
        _Operator(
            source.choice([0.25, 0.5, 1, 2]),
            source.randrange(1, 5) * _UNIT,
            source.choice(["input", "input", "output", ""]),
        )
        for _ in range(source.randrange(4, 11))
    ]


def step(operators: int, is_regular: bool) -> dict[str, Any]:
    """Returns a trace of about `operators` operators, half of them in the forward pass."""
    source = random.Random(1)
    blocks = [_block(source)]
    while sum(map(len, blocks)) < operators // 2:
        blocks.append(blocks[0] if is_regular else _block(source))
    chain = [operator for block in blocks for operator in block]
    forward, end = len(chain), 2 * len(chain)
    storages: list[dict[str, Any]] = [
        {"bytes": _UNIT, "category": "input", "born": -1, "freed": None}
    ]
    tensors = [{"storage": 0, "base": -1, "scope_end": None}]
    calls: list[dict[str, Any]] = [_call(0, -1, 0, forward, end)]
    modules = [{"fqn": "Net", "class": "Net", "parameters": [], "buffers": []}]
    saved: list[dict[str, Any]] = []
    ran: list[dict[str, Any]] = []
    for number, block in enumerate(blocks):
        start = len(ran)
        modules.append(
            {"fqn": f"Net.{number}", "class": "Block", "parameters": [], "buffers": []}
        )
        calls.append(_call(number + 1, 0, start, start + len(block), end))
        for place, operator in enumerate(block, start):
            backward = end - 1 - place
            last = end if place + 1 == forward else place + 2
            storages.append(
                {"bytes": operator.size, "category": "activation", "born": place}
                | {"freed": last, "scope_end": last}
            )
            tensors.append({"storage": place + 1, "base": -1, "scope_end": last})
            ran.append(_operator(operator.ms, number + 1, [place], place + 1))
            ran[-1]["results"] = [place + 1]
            if not operator.saves:
                continue
            kept = place if operator.saves == "input" else place + 1
            saved.append(
                {"storage": kept, "tensor": kept, "requires_grad": kept > 0}
                | {"packed": kept, "call": number + 1}
                | {"unpacked": backward, "local_end": backward + 1}
                | {"released": backward + 1}
            )
            if kept > 0:
                storages[kept]["freed"] = max(storages[kept]["freed"], backward + 1)
    read_by = {save["unpacked"]: save["storage"] for save in saved}
    for time_of in range(forward, end):
        reads = [time_of] if time_of > forward else [forward]
        reads += [read_by[time_of]] if time_of in read_by else []
        storages.append(
            {"bytes": _UNIT, "category": "temporary", "born": time_of}
            | {"freed": min(time_of + 2, end)}
        )
        ran.append(_operator(0.5, -1, sorted({*reads}), time_of + 1))
    return {
        "format": "acplan.trace", "version": 1, "model": {"name": "chain"},
        "forward_end": forward, "backward_end": end, "modules": modules, "calls": calls,
        "operators": ran, "storages": storages, "tensors": tensors, "saved": saved,
    }  # fmt: skip


def _call(module: int, parent: int, start: int, end: int, of_step: int) -> dict[str, Any]:
    """Returns a call of the operators [start, end) in a step of `of_step` operators."""
    return {
        "module": module, "parent": parent, "start": start, "end": end,
        "inputs": [start], "outputs": [end], "arguments": [start],
        "backward_start": of_step - end, "backward_end": of_step - start,
    }  # fmt: skip


def _operator(ms: float, call: int, reads: list[int], created: int) -> dict[str, Any]:
    return {
        "name": "aten.mm.default", "call": call, "runtime_ms": ms,
        "reads": reads, "creates": [created], "outputs": [created],
    }  # fmt: skip


def _cpu_seconds(command: list[str], folder: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if run.returncode not in (0, 3, 4):
        sys.exit(f"large_steps.py: {command}: {run.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def _seconds_to_end(command: list[str], folder: str, seconds: float) -> float | None:
    """Returns the time from Ctrl-C to the end, or None if the command ends before Ctrl-C."""
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        process.wait(seconds)
        return None
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    start = time.monotonic()
    process.wait()
    return time.monotonic() - start


def _times(program: str, size: int, folder: str) -> list[str]:
    """Returns the seconds of all commands, and those after Ctrl-C."""
    cells = []
    for name, *options in _COMMANDS.values():
        seconds = _cpu_seconds([program, name, "step.json", *options], folder)
        cells.append(f"{seconds:.2f}")
    name, *options = _INTERRUPTED
    waited = _seconds_to_end(
        [program, name, "step.json", *options],
        folder,
        0.5 + _SECONDS_TO_SEARCH * size / 100_000,
    )
    return [*cells, "-" if waited is None else f"{waited:.2f}"]


def _proof(program: str, budget: str, folder: str) -> str:
    """Returns the seconds, the gap and the memory of a search."""
    command = [program, "plan", "step.json", "--budget", budget, "--json"]
    process = subprocess.Popen(
        [*command, "--time-limit", _PROOF_SECONDS],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, use = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    plan = json.loads(text)
    gap = {"optimal": "proven", "infeasible": "infeasible"}.get(
        plan["status"], f"{plan.get('gap', 1):.3%}"
    )
    return f"{use.ru_utime + use.ru_stime:.1f} s, {gap}, {use.ru_maxrss // 1024} MB"


def main() -> None:
    arguments = [a for a in sys.argv[1:] if a != "--proof"]
    is_proof = len(arguments) < len(sys.argv) - 1
    if not arguments:
        sys.exit(__doc__)
    program = str(pathlib.Path(arguments[0]).resolve())
    sizes = [int(size) for size in arguments[1:]] or [1_000, 3_000, 10_000, 30_000, 100_000]
    columns = _BUDGETS if is_proof else [*_COMMANDS, "Ctrl-C"]
    print(f"| operators | blocks | {' | '.join(columns)} |")
    print("|---:|---|" + "---:|" * len(columns))
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            for is_regular in (True, False):
                document = step(size, is_regular)
                (pathlib.Path(folder) / "step.json").write_text(json.dumps(document))
                cells = (
                    [_proof(program, budget, folder) for budget in _BUDGETS]
                    if is_proof
                    else _times(program, size, folder)
                )
                kind = "regular" if is_regular else "irregular"
                count = len(document["operators"])
                print(f"| {count:,} | {kind} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
