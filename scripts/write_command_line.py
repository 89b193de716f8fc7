#!/usr/bin/env python3
"""write_command_line.py PROGRAM PAGE [--check]: writes what `--help` prints into a page.

The page has one block for each command, between two comments:

    <!-- acplan train plan --help; flags of: acplan train show -->
    <!-- end -->

The script fills it with the description, the synopsis, the arguments and the flags, and refers
to the command behind "flags of:", if there is one, for the flags that both share. With --check
it writes nothing, and the exit code is 1 if a block differs or a command has no block.
"""

import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

_BLOCK = re.compile(
    r"<!-- (?P<command>acplan[\w -]*?) --help(?:; flags of: (?P<other>acplan[\w -]+?))? -->\n"
    r".*?<!-- end -->\n",
    re.DOTALL,
)
# Matches a flag or argument of a help text, with its description.
_FLAG = re.compile(r"^  (?=[-A-Z])\S.*\n(?: {10,}\S.*\n)*", re.MULTILINE)
_EMPTY_SECTION = re.compile(r"^(?:Positionals|Options):\n(?:\n|\Z)", re.MULTILINE)
# The flags of all commands, which the page explains once.
_COMMON = ("-h,", "--question", "--color", "--errors", "-q,", "-v,")
# The command that runs the Python package, which has pages of its own.
_PYTHON = "acplan torch"


def _help_of(program: str, command: str) -> str:
    arguments = [program, *command.split()[1:], "--help"]
    return subprocess.run(arguments, capture_output=True, text=True, check=True).stdout


def _commands(program: str, command: str = "acplan") -> Iterator[str]:
    """Yields `command` and all commands below it."""
    yield command
    text = _help_of(program, command)
    if "[SUBCOMMAND]" not in text:
        return
    for name in re.findall(r"^  ([a-z][\w-]*)(?:, \w+)?(?:  |$)", text, re.MULTILINE):
        if f"{command} {name}" != _PYTHON:
            yield from _commands(program, f"{command} {name}")


def _block(program: str, match: re.Match[str]) -> str:
    """Returns the block that `match` stands for, filled with what the program prints now."""
    command, other = match["command"], match["other"]
    text = _help_of(program, command)
    description, _, rest = text.partition("\nUsage: ")
    usage, _, rest = rest.partition("\n\n")
    repeated = set(_FLAG.findall(_help_of(program, other))) if other else set()

    def own_flag(entry: re.Match[str]) -> str:
        is_common = command != "acplan" and entry[0].strip().startswith(_COMMON)
        return "" if is_common or entry[0] in repeated else entry[0]

    rest = _EMPTY_SECTION.sub("", _FLAG.sub(own_flag, rest)).strip()
    is_open = " open" if "[SUBCOMMAND]" in usage else ""
    reference = f"All flags of `{other}`, and these:\n\n" if other else ""
    return (
        match[0].partition("\n")[0]
        + f"\n{description}.\n\n"
        + f"<details{is_open}><summary><code>{' '.join(usage.split())}</code></summary>\n\n"
        + f"{reference}```text\n{rest}\n```\n\n</details>\n<!-- end -->\n"
    )


def _main(program: str, path: str, *flags: str) -> int:
    page = pathlib.Path(path)
    text = page.read_text()
    missing = set(_commands(program)) - {match["command"] for match in _BLOCK.finditer(text)}
    for command in sorted(missing):
        print(f"{path}: {command} --help has no block")
    filled = _BLOCK.sub(lambda match: _block(program, match), text)
    if "--check" not in flags:
        page.write_text(filled)
    elif filled != text:
        print(f"{path} differs from --help: run {sys.argv[0]} {program} {path}")
    return int(bool(missing) or ("--check" in flags and filled != text))


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
