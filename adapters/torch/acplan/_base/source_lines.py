"""Finds the line of Python from which each operator of a traced step is run."""

import bisect
import os
import sys
import sysconfig
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any

import torch

from acplan._base.package import FOLDER

# PyTorch and acplan call operators on behalf of the model: their frames say nothing about it.
_FOLDERS = tuple(
    os.path.join(os.path.realpath(os.path.dirname(path)), "")
    for path in (torch.__file__, FOLDER / "__init__.py")
)
_STANDARD = os.path.join(os.path.realpath(sysconfig.get_paths()["stdlib"]), "")
_PACKAGES = ("site-packages", "dist-packages")
_NONE = -1


class SourceLines:
    """The distinct lines of a step, and for each operator the innermost one outside of PyTorch,
    acplan and Python's own library, or -1 if there is none.

    An operator that autograd runs has no such frame, but a node of the graph: its line is that
    of the forward operator before which the node was numbered, as in PyTorch's profiler. Frames
    of the code objects in `outer_codes`, and the frames that called them, are not part of the
    step.
    """

    def __init__(self, outer_codes: Iterable[CodeType] = ()) -> None:
        # For a code object, a file to name, "" for no file, or None at the end of the step. The
        # key is the id of the code object, which is faster than the code object itself and is
        # valid as long as `_codes` holds it.
        self._codes: list[CodeType] = list(outer_codes)
        self._files: dict[int, str | None] = dict.fromkeys(map(id, self._codes))
        self._by_place: dict[tuple[int, int], int] = {}
        self._by_line: dict[tuple[str, int, str], int] = {}
        # For operators that autograd does not run: the number that the next node will have,
        # ascending, and the line of the first operator at which it was seen.
        self._next_nodes: list[int] = []
        self._lines: list[int] = []

    def of_operator(self) -> int:
        """Returns the line of the current operator, as an index into the table."""
        line = self._of_frames()
        node = torch._C._current_autograd_node()
        if line == _NONE and node is not None:
            return self._of_node(node._sequence_nr())
        number = torch._C._autograd._get_sequence_nr()
        if not self._next_nodes or number > self._next_nodes[-1]:
            self._next_nodes.append(number)
            self._lines.append(line)
        return line

    def table(self) -> list[dict[str, Any]]:
        return [
            {"file": file, "line": line, "function": function}
            for file, line, function in self._by_line
        ]

    def _of_frames(self) -> int:
        # The locals of frames are not read: that would keep tensors alive.
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            key = id(code)
            if key not in self._files:
                self._files[key] = file_of(code.co_filename)
                self._codes.append(code)
            file = self._files[key]
            if file is None:
                break
            if file:
                return self._line_at(file, frame)
            frame = frame.f_back
        return _NONE

    def _line_at(self, file: str, frame: FrameType) -> int:
        place = (id(frame.f_code), frame.f_lasti)
        index = self._by_place.get(place)
        if index is None:
            line = (file, frame.f_lineno or 1, frame.f_code.co_name)
            index = self._by_line.setdefault(line, len(self._by_line))
            self._by_place[place] = index
        return index

    def _of_node(self, number: int) -> int:
        # A node takes its number before its operator runs.
        place = bisect.bisect_right(self._next_nodes, number)
        return self._lines[place] if place < len(self._lines) else _NONE


def place_in_python() -> str:
    """Returns the innermost current line outside of PyTorch and acplan, such as `model.py:12`,
    or "" if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = file_of(frame.f_code.co_filename)
        if file:
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def file_of(name: str) -> str:
    """Returns the file as it is shown, or "" for a file that is of no interest: its path in the
    package that it was installed with, or its path relative to the working directory, or its
    name alone, so that no folder of a user is shown."""
    if name.startswith("<"):
        return name if name == "<stdin>" else ""
    path = os.path.realpath(name)
    parts = path.split(os.sep)
    for package in _PACKAGES:
        if package in parts:
            if path.startswith(_FOLDERS):
                return ""
            last = len(parts) - 1 - parts[::-1].index(package)
            return "/".join(parts[last + 1 :])
    if path.startswith((*_FOLDERS, _STANDARD)):
        return ""
    cell = _cell_of(name)
    if cell:
        return cell
    relative_path = os.path.relpath(path)
    return (
        parts[-1] if relative_path.startswith(os.pardir) else relative_path.replace(os.sep, "/")
    )


def _cell_of(name: str) -> str:
    """Returns a notebook's name for the cell that it wrote to this file, such as In[3]."""
    shell = sys.modules.get("IPython.core.interactiveshell")
    if shell is None or not shell.InteractiveShell.initialized():
        return ""
    label = shell.InteractiveShell.instance().compile.format_code_name(name)
    return str(label[1]) if label else ""
