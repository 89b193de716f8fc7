"""Changes each figure of plan files, and requires that check refuses them.

    python3 tests/campaigns/perturb_plans.py build/release/cli/acplan . [SEED]

Plans of all kinds are made of bundled files: on traces, for a device, with offload, for several
ranks, of profiles at both granularities. Every figure and every name that check compares
(docs/file_formats.md) is changed, one at a time. Prints each false plan that holds, then a
count; exit code 1 if one holds.
"""

import copy
import json
import pathlib
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

QUESTIONS = [
    ("tests/data/traces/gpt2.trace.json.gz", "--budget min"),
    ("tests/data/traces/gpt2.trace.json.gz", "--budget 100%"),
    ("tests/data/traces/gpt2.trace.json.gz", "--budget min --decisions save,recompute"),
    ("tests/data/traces/gpt2.trace.json.gz", "--budget min --world-size 4"),
    ("tests/data/traces/repeated_modules.trace.json.gz", "--budget min"),
    ("data/traces/gpt2_tiny.json.gz", "--budget min --offload 25GB/s --time-limit 1"),
    ("data/traces/vit_base.json.gz", "--device-memory 2.2GiB --reserve 16MiB --time-limit 4"),
    ("data/profiles/transformer4.json.gz", "--budget 70%"),
    ("data/profiles/transformer4.json.gz", "--budget 70% --without-states"),
    ("data/profiles/transformer4.json.gz", "--budget 70% --granularity module"),
    ("data/profiles/transformer4.json.gz", "--budget 70% --tradeoff fit"),
    (
        "data/profiles/transformer4.json.gz",
        "--budget 70% --tradeoff profile --world-size 2 --memory-model torch --reserve 1MiB",
    ),
]
FIGURES = """
    peak_bytes peak_module recompute_ms gap overhead bound_ms distance runtime_ms
    host_bytes sent_bytes storages stall_ms allocated_bytes reserved_bytes
    least_device_bytes retries default_least_device_bytes discard_ratio memory_budget
    discarded_bytes index name
""".split()

Place = tuple[str | int, ...]


def places(data: Any, r: random.Random, above: Place = ()) -> Iterator[Place]:
    if isinstance(data, dict):
        for key, value in data.items():
            if key in FIGURES and above[:1] != ("solver",):
                yield (*above, key)
            yield from places(value, r, (*above, key))
    elif isinstance(data, list):
        for index in r.sample(range(len(data)), min(3, len(data))):
            yield from places(data[index], r, (*above, index))


def false_values(place: Place, value: Any, is_trace: bool) -> Iterator[Any]:
    if isinstance(value, str):
        yield from (value + "x", value.upper() if value.upper() != value else value.lower())
        return
    rounding = 1e-6 * abs(value) + 1e-9
    if not isinstance(value, float):
        # Sums of profiles are rounded to bytes.
        rounding = 0 if is_trace or place[-1] == "index" else 1
    for changed in (
        value + 1,
        value - 1,
        value * 2,
        value / 2,
        value * 1.001,
        0,
        2**53,
        1 - value,
    ):
        if isinstance(value, int):
            changed = int(changed)
        # No plan is known to be better than a lower bound.
        is_bound = place[-1] == "bound_ms" and changed < value
        if abs(changed - value) > rounding and not is_bound:
            yield changed


def changed(plan: Any, place: Place, value: Any) -> Any:
    result = copy.deepcopy(plan)
    inner = result
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return result


def holds(check: list[Any]) -> bool:
    return subprocess.run(check, capture_output=True, check=False).returncode == 0


def main() -> int:
    program, root = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    r = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
    tried_plans = false_plans = 0
    with tempfile.TemporaryDirectory() as folder:
        original, file = f"{folder}/original.json", pathlib.Path(folder, "plan.json")
        for source, flags in QUESTIONS:
            command = [program, "plan", root / source, *flags.split(), "-q", "-o", original]
            subprocess.run(command, check=True, capture_output=True)
            plan = json.loads(pathlib.Path(original).read_text())
            limit = "--device-memory" if "device" in plan else "--budget"
            check = [program, "check", root / source, file, limit, str(plan["budget_bytes"])]
            file.write_text(json.dumps(plan))
            assert subprocess.run(check, capture_output=True, check=False).returncode == 0, (
                flags
            )
            for place in places(plan, r):
                value = plan
                for key in place:
                    value = value[key]
                for wrong in false_values(place, value, "traces" in source):
                    file.write_text(json.dumps(changed(plan, place, wrong)))
                    tried_plans += 1
                    if holds(check):
                        false_plans += 1
                        print(f"{source} {flags}: {place} {wrong!r}, not {value!r}")
    print(f"{tried_plans} false plans, {false_plans} hold")
    return int(false_plans > 0)


if __name__ == "__main__":
    sys.exit(main())
