#!/usr/bin/env python3
"""check_commands.py ROOT PROGRAM FILE...: fails if a command that a document shows prints
anything but the output in the document.

A block that opens with ```console holds lines `$ acplan ...`, each with its output below.
The commands run in ROOT. A line `...` stands for any lines, `*` for any text of a line.
"""

import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(document: str) -> Iterator[tuple[str, str]]:
    """Yields the commands of the document, each with its stated output."""
    for block in _BLOCK.finditer(document):
        for example in re.split(r"^\$ ", block.group(1), flags=re.MULTILINE)[1:]:
            command, _, output = example.partition("\n")
            yield command, output


def matches(expected: str, printed: str) -> bool:
    pattern = ""
    for line in expected.rstrip("\n").split("\n"):
        if line == "...":
            pattern += r"(?:[^\n]*\n)*"
        else:
            pattern += r"[^\n]*".join(map(re.escape, line.split("*"))) + r"\n"
    return re.fullmatch(pattern, printed.rstrip("\n") + "\n") is not None


def _main(root: str, program: str, *documents: str) -> int:
    status = count = 0
    for document in documents:
        for command, expected in commands(pathlib.Path(root, document).read_text()):
            count += 1
            name, *arguments = shlex.split(command)
            if name != "acplan":
                print(f"{document}: {command}: no command of acplan")
                status = 1
                continue
            process = subprocess.run(
                [program, *arguments], cwd=root, capture_output=True, text=True
            )
            if not matches(expected, process.stdout):
                print(f"{document}: $ {command}\nprints\n{process.stdout}{process.stderr}")
                status = 1
    if not count:
        print("no document shows a command")
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
