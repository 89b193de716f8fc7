"""Questions to the program: a command's arguments as JSON, and files for values."""

import contextlib
import json
import numbers
import operator
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from acplan._base.errors import AcplanError
from acplan._base.program import Outcome, call_acplan


class Saveable(Protocol):
    """A value that can be a file: a trace, a profile or a plan."""

    def save(self, path: str) -> None: ...


class QuestionFolder:
    """A temporary folder in which the program runs: a value that is written there has the plain
    name in messages by which the user knows it ("trace: operators[3]: ...")."""

    def __init__(self, path: str) -> None:
        self._path = path

    def add(self, name: str, value: "Saveable | str | os.PathLike[str]") -> str:
        """Returns the path by which the program finds a value: the path of a file that the user
        names, or `name`, under which the value is saved in this folder."""
        if isinstance(value, (str, os.PathLike)):
            return os.path.abspath(value)
        path = self.path_of(name)
        path.parent.mkdir(exist_ok=True)
        value.save(str(path))
        return name

    def path_of(self, name: str) -> pathlib.Path:
        """Returns the path of a file of this name, which the program may have written."""
        return pathlib.Path(self._path, name)

    def ask(
        self,
        command: str,
        question: Mapping[str, Any],
        each_second: Callable[[], object] | None = None,
    ) -> Outcome:
        """Runs a command of the program ("plan", "module policy") on these
        arguments (docs/file_formats.md, acplan.question), except those that are None. Raises
        AcplanError for a value that is not a number, a text or a list of texts."""
        values = {key: _json_value(value) for key, value in question.items()}
        for key, value in values.items():
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError):
                raise AcplanError(
                    f"{command}: {key}: expected a number, a text or a list of texts, found "
                    f"{question[key]!r}"
                ) from None
        text = json.dumps({"format": "acplan.question", "version": 1, **values})
        return call_acplan(
            [*command.split(), "--question", "-"], each_second, folder=self._path, stdin=text
        )


@contextlib.contextmanager
def question_folder() -> Iterator[QuestionFolder]:
    """Yields a folder for one question, which is removed after the block."""
    with tempfile.TemporaryDirectory(prefix="acplan-") as path:
        yield QuestionFolder(path)


def _json_value(value: Any) -> Any:
    """Returns a value as JSON has it. NumPy's numbers and iterables of texts are allowed,
    too."""
    if value is None or isinstance(value, (str, bool)):
        return value
    with contextlib.suppress(TypeError):
        return operator.index(value)
    if isinstance(value, numbers.Real):
        return float(value)
    with contextlib.suppress(TypeError):
        return list(value)
    return value
