#!/usr/bin/env python3
"""run_commands.py ROOT PROGRAM PAGE...: fails if a command `acplan ...` of a page fails.

The commands of a page run in its order, in an empty folder that has the folders `data` and
`examples` and the files that the pages say a reader has. Commands in ```console blocks are
left to check_commands.py, and those of --help to tests/cli/help_test.cc.
"""

import gzip
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator

# Files that a reader has, as text, or as a file of the source tree.
_TEXTS = {
    "config.yaml": "base_model: gpt2\ngradient_checkpointing: true\n",
    "train.sh": "trl sft --gradient_checkpointing true\n",
    "config_registry.py": "def llama3_8b():\n"
    "    return Trainer.Config(activation_checkpoint=FullAC.Config())\n",
    "run.txt": "a 1 31457280\nf 1\na 2 41943040\nf 2\n",
}
_FILES = {
    "runs.csv": "data/training/runs.csv",
    "config.json": "data/training/models/llama-3.1-8b.json",
    "graph.json": "tests/data/clp_assertion.joint.json",
    "step.trace.json.gz": "data/traces/gpt2_small.json.gz",
    "gpt2.dataflow.json.gz": "data/dataflow/gpt2_tiny.json.gz",
}
# The example of the same command in --help takes seconds in place of minutes.
_LEFT_OUT = ("turing-530B",)


def commands(page: str) -> Iterator[str]:
    """Yields the commands of a page, in order, in code that is fenced or indented."""
    fence = None
    text = re.sub(r"<!-- acplan.*?<!-- end -->", "", page, flags=re.DOTALL)
    for line in re.sub(r"\\\n\s*", "", text).split("\n"):
        if line.startswith("```"):
            fence = line.strip("`") if fence is None else None
        elif fence in ("", "bash") or (fence is None and line.startswith("    ")):
            if re.match(r"acplan [a-z]+ [^,]*$", line.strip()):
                yield line.strip()


def _fill(folder: pathlib.Path, root: pathlib.Path) -> None:
    for name in ("data", "examples"):
        (folder / name).symlink_to(root / name)
    for name, text in _TEXTS.items():
        (folder / name).write_text(text)
    for name, path in _FILES.items():
        content = (root / path).read_bytes()
        is_packed = path.endswith(".gz") and not name.endswith(".gz")
        (folder / name).write_bytes(gzip.decompress(content) if is_packed else content)
    with gzip.open(root / "tests/data/allocator/snapshots.jsonl.gz", "rt") as snapshots:
        snapshot = json.loads(next(iter(snapshots)))["snapshot"]
    (folder / "memory.pickle.json").write_text(json.dumps(snapshot))
    systems = json.loads((root / "data/training/systems.json").read_text())
    gpu = next(g for g in systems["accelerators"] if g["name"] == "H100-SXM5")
    gpu |= {"name": "mine", "bf16_tflops": {"value": 900, "from": "measured"}}
    mine = {"format": "acplan.system", "version": 1, "accelerators": [gpu]}
    (folder / "mine.json").write_text(json.dumps(mine))


def _main(root_folder: str, program: str, *pages: str) -> int:
    root = pathlib.Path(root_folder).resolve()
    path = f"{pathlib.Path(program).resolve().parent}:{os.environ['PATH']}"
    status = count = 0
    for page in pages:
        with tempfile.TemporaryDirectory() as folder:
            _fill(pathlib.Path(folder), root)
            for command in commands((root / page).read_text()):
                if any(name in command for name in _LEFT_OUT):
                    continue
                count += 1
                process = subprocess.run(
                    command, shell=True, cwd=folder, capture_output=True, text=True,
                    env={**os.environ, "PATH": path},
                )  # fmt: skip
                if process.returncode != 0:
                    status = 1
                    print(f"{page}: {command}: exit {process.returncode}\n{process.stderr}")
    if not count:
        print("no page has a command")
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
