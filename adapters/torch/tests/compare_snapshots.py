"""Memory snapshots of PyTorch, recorded on GPUs, beside the simulated allocator.

    python tests/compare_snapshots.py FILE.pickle...

For each device with a recording, prints a row of docs/measured/snapshots.csv, without the columns
that say where the file is from: the recording is run again with its own settings, each
allocation's address is compared, and at the end each segment and its blocks. After a failure the
run is repeated on the device of the recording, which must fail at the same request.
"""

import csv
import json
import pathlib
import sys
import tempfile
from typing import Any

from acplan._base.program import call_acplan
from acplan._files.json_files import write_json
from acplan._files.snapshot_file import read_snapshot

COLUMNS = (
    "file", "device", "segments kind", "events", "allocations", "older blocks",
    "same address", "segments", "same segments", "peak reserved bytes", "retries",
    "failures", "same failure", "least device native", "least device expandable",
)  # fmt: skip


def simulated(path: str, device: int, *flags: str) -> dict[str, Any]:
    question = ["simulate", "--snapshot", path, "--device", str(device), "--json", *flags]
    answer: dict[str, Any] = json.loads(call_acplan(question).require_success().out)
    return answer


def rows_of(path: pathlib.Path) -> list[list[Any]]:
    snapshot = read_snapshot(path)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/snapshot.json.gz"
        write_json(file, snapshot)
        for number, device in enumerate(snapshot["devices"]):
            if not any(event[0] == "alloc" for event in device["events"]):
                continue
            run = simulated(file, number, "--without-least-device")
            recorded, comparison = run["recorded"], run["recorded"]["simulated"]
            least = [
                simulated(file, number, "--allocator", conf)["least_device_bytes"]
                for conf in ("native", "expandable_segments:True")
            ]
            failure = "-"
            if recorded["failures"]:
                memory = str(recorded["device_bytes"])
                end = simulated(file, number, "--device-memory", memory)["failure"]
                failure = "yes" if end and end["failed_in_recording"] else "no"
            is_expandable = any(s["expandable"] for s in device["segments"])
            rows.append(
                [
                    path.name,
                    number,
                    "expandable" if is_expandable else "native",
                    run["events"],
                    recorded["allocations"],
                    recorded["older_blocks"],
                    comparison["equal_allocations"],
                    comparison["segments"],
                    comparison["equal_segments"],
                    recorded["reserved_bytes"],
                    recorded["retries"],
                    recorded["failures"],
                    failure,
                    *least,
                ]
            )
    return rows


if __name__ == "__main__":
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    for name in sys.argv[1:]:
        writer.writerows(rows_of(pathlib.Path(name)))
