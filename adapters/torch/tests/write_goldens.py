"""Writes tests/data/traces: traces of small models, and what PyTorch runs and uses
when their modules really are checkpointed.

    python adapters/torch/tests/write_goldens.py tests/data/traces
"""

import gzip
import itertools
import json
import pathlib
import sys

from acplan import trace
from acplan._verify.retrace import measure
from zoo import EXAMPLES, plans


def main(folder: pathlib.Path) -> None:
    for name, make in EXAMPLES.items():
        example = make()
        model, inputs = example.on_meta()
        traced = trace(model, source=False, **inputs)
        traced.save(folder / f"{name}.trace.json.gz")
        measured = []
        for label, plan in plans(example, traced):
            steps = measure(model, plan, **inputs)
            changes = itertools.pairwise([0, *(step.live_bytes for step in steps)])
            measured.append(
                {
                    "label": label,
                    "modules": [
                        {
                            "fqn": module.fqn,
                            "save": [int(op.save) for op in module.operators],
                        }
                        for module in plan.modules
                    ],
                    "operators": [step.name for step in steps],
                    # Differences compress to a third of what the sums do.
                    "live_bytes_changes": [after - before for before, after in changes],
                }
            )
        text = json.dumps(measured, separators=(",", ":")).encode()
        path = folder / f"{name}.measured.json.gz"
        path.write_bytes(gzip.compress(text, mtime=0))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
