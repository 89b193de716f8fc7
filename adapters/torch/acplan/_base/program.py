"""The program `acplan`: where it is, and how it is called."""

import contextlib
import dataclasses
import functools
import json
import logging
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from acplan._base.errors import AcplanError
from acplan._base.interrupts import interrupted_as_ever
from acplan._base.package import FOLDER

_LOGGER = logging.getLogger("acplan")

_JSON_ERRORS = ("--errors", "json")
# The program's path in the source tree.
_BUILD_PATH = "build/release/cli/acplan"


@dataclasses.dataclass(frozen=True)
class Outcome:
    exit_code: int
    out: str
    errors: tuple[str, ...] = ()

    def require_success(self) -> "Outcome":
        if self.exit_code == 0:
            return self
        raise AcplanError(self.message, max(self.exit_code, 1))

    @property
    def message(self) -> str:
        """Returns the error that the program reports: a line, or several short ones."""
        if self.errors:
            return self.errors[-1]
        ended = f"exit code {self.exit_code} without a message"
        return f"the program acplan failed: {ended}"


@dataclasses.dataclass(frozen=True)
class _Messages:
    """The messages that the program writes to stderr with `--errors json`."""

    errors: tuple[str, ...]
    warnings: tuple[str, ...]

    @classmethod
    def parse(cls, stderr: str) -> "_Messages":
        errors: list[str] = []
        warnings: list[str] = []
        for line in stderr.splitlines():
            data = _json_object(line)
            if "warning" in data:
                warnings.append(str(data["warning"]))
            elif "error" in data:
                errors.append(str(data["error"]))
            elif line.strip():  # from the system, if the program crashes
                errors.append(line)
        return cls(tuple(errors), tuple(warnings))


def _json_object(line: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def find_program() -> str:
    """Returns $ACPLAN, or else the first `acplan` among the scripts of this Python, on the
    PATH, and in the source tree that this package is run from."""
    configured = os.environ.get("ACPLAN")
    if configured:
        if _is_program(configured):
            return configured
        raise AcplanError(f"$ACPLAN: {configured!r} is not a program that can be run")
    places = list(_places())
    for place in places:
        if _is_program(place):
            return place
    on_path = shutil.which("acplan")
    if on_path:
        return on_path
    build_path = _build_path()
    if build_path and _is_program(build_path):
        return build_path
    searched_places = [
        "$ACPLAN (not set)",
        *places,
        "the PATH",
        *([build_path] if build_path else []),
    ]
    raise AcplanError(
        f"the program acplan was not found; searched {', '.join(searched_places)}: install "
        "the package with pip, which includes the program, or set ACPLAN to its path"
    )


def _places() -> Iterator[str]:
    folders = dict.fromkeys([sysconfig.get_path("scripts"), f"{sys.prefix}/bin"])
    return (str(pathlib.Path(folder) / "acplan") for folder in folders)


def _build_path() -> str | None:
    parents = FOLDER.resolve().parents
    if len(parents) < 3 or not (parents[2] / "cli" / "command.h").exists():
        return None
    return str(parents[2] / _BUILD_PATH)


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


@functools.cache
def _require_command(program: str, command: str) -> None:
    """Raises AcplanError if the program is not an acplan that has the command."""
    try:
        run = subprocess.run(
            [program, command, "--help"], capture_output=True, text=True, timeout=60
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise AcplanError(f"{program}: {error}") from None
    if run.returncode == 0 and f"acplan {command}" in run.stdout:
        return
    raise AcplanError(
        f"{program} does not know the command {command!r}: this package needs the "
        "program acplan of its own version"
    )


def call_acplan(
    arguments: Sequence[str],
    each_second: Callable[[], object] | None = None,
    *,
    folder: str | None = None,
    stdin: str | None = None,
) -> Outcome:
    """Runs `acplan ARGUMENTS`, in a folder, with a text as its standard input. Each distinct
    warning of the program is logged once: the properties of a model do not change from command
    to command.

    Ctrl-C goes to the program, which ends with the best result that it has; if it has none,
    KeyboardInterrupt is raised.
    """
    with interrupted_as_ever():
        return _run_program(arguments, each_second, folder, stdin)


def _run_program(
    arguments: Sequence[str],
    each_second: Callable[[], object] | None,
    folder: str | None,
    stdin: str | None,
) -> Outcome:
    program = os.path.abspath(find_program())
    _require_command(program, arguments[0])
    # In a session of its own, the program gets Ctrl-C from here alone.
    process = subprocess.Popen(
        [program, *arguments, *_JSON_ERRORS],
        cwd=folder,
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    interrupted: KeyboardInterrupt | None = None
    try:
        while True:
            try:
                out, err = process.communicate(stdin, timeout=1 if each_second else None)
                break
            except subprocess.TimeoutExpired:
                stdin = None  # it has been sent already
                if each_second:
                    each_second()
            except KeyboardInterrupt as interrupt:
                stdin = None
                if interrupted:
                    raise
                interrupted = interrupt
                process.send_signal(signal.SIGINT)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if interrupted and process.returncode != 0:
        raise interrupted
    messages = _Messages.parse(err)
    for warning in messages.warnings:
        warn(warning, _warn_once)
    return Outcome(process.returncode, out, messages.errors)


_COLLECTED: ContextVar[dict[str, None] | None] = ContextVar("collected", default=None)


@contextlib.contextmanager
def warnings_collected() -> Iterator[dict[str, None]]:
    """Collects the program's warnings within the block, each once, in order, in place of
    logging them."""
    collected: dict[str, None] = {}
    token = _COLLECTED.set(collected)
    try:
        yield collected
    finally:
        _COLLECTED.reset(token)


def warn(warning: str, log: Callable[[str], None] = _LOGGER.warning) -> None:
    """Logs a warning, or adds it to those that are collected."""
    collected = _COLLECTED.get()
    if collected is None:
        log(warning)
    else:
        collected[warning] = None


@functools.cache
def _warn_once(warning: str) -> None:
    _LOGGER.warning("%s", warning)


def run_acplan(arguments: Sequence[str]) -> str:
    """Returns what `acplan ARGUMENTS` prints."""
    return call_acplan(arguments).require_success().out
