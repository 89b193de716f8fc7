"""JSON files, gzipped if the name ends in .gz."""

import codecs
import contextlib
import gzip
import io
import json
import os
import pathlib
import secrets
import zlib
from collections.abc import Callable
from typing import Any

from acplan._base.errors import AcplanError

PathLike = str | os.PathLike[str]

_GZIP = b"\x1f\x8b"
_MOST = 1 << 29  # bytes of a file's text, as in the program
_PIECE = 1 << 20


def path_of(path: PathLike, name: str = "path") -> pathlib.Path:
    """Returns the path. Raises AcplanError if it is not a path."""
    if not isinstance(path, (str, os.PathLike)):
        raise AcplanError(f"{name}: expected a file's path, found {type(path).__name__}")
    return pathlib.Path(path)


def read_json(path: PathLike) -> Any:
    file = path_of(path)
    try:
        return json.loads(read_bytes(file, _require_json, _MOST))
    except (ValueError, EOFError, RecursionError, OSError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise AcplanError(f"{path}: {reason or error}") from None


def read_bytes(
    path: pathlib.Path, require_start: Callable[[bytes], None], most: int
) -> bytearray:
    """Returns the bytes of a file, unpacked if they are gzip data. Raises ValueError for more
    than `most`, and what `require_start` raises for the first of them, as a pipe may have no
    end."""
    with path.open("rb") as raw:
        if raw.peek(2)[:2] != _GZIP:
            return _read(raw, require_start, most)
        with gzip.GzipFile(fileobj=raw) as packed:
            if raw.seekable():
                # A few kilobytes may hold gigabytes: they are counted before memory is taken.
                size = 0
                while piece := packed.read(_PIECE):
                    size += len(piece)
                    _require_size(size, most)
                packed.rewind()
            return _read(packed, require_start, most)


def _read(
    file: io.BufferedIOBase, require_start: Callable[[bytes], None], most: int
) -> bytearray:
    text = bytearray()
    while piece := file.read(_PIECE):
        if not text:
            require_start(piece)
        text += piece
        _require_size(len(text), most)
    return text


def _require_size(size: int, most: int) -> None:
    if size > most:
        raise ValueError(f"expected at most {most} bytes, found more")


def _require_json(start: bytes) -> None:
    first = start.removeprefix(codecs.BOM_UTF8).lstrip(b" \t\r\n")[:1]
    if first and first not in b'{["-0123456789tfnNI':
        json.loads(start)  # raises an error with the place
    if b"\0" in start:
        raise ValueError("expected JSON, found a zero byte")


def write_json(path: PathLike, data: Any) -> None:
    """Writes the file whole or not at all; if it is a link, the file to which the link points.
    A path that is not a regular file, such as a pipe or /dev/null, is written to and stays."""
    target = path_of(path)
    try:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, TypeError) as error:
        raise AcplanError(f"{path}: cannot be written as JSON: {error}") from None
    if target.suffix == ".gz":
        text = gzip.compress(text, mtime=0)
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(text)
        else:
            _replace(pathlib.Path(os.path.realpath(target)), text)
    except OSError as error:
        raise AcplanError(f"{path}: {error.strerror}") from None


def _replace(target: pathlib.Path, text: bytes) -> None:
    neighbour = target.with_name(f".{target.name[:64]}.{secrets.token_hex(8)}")
    try:
        _write_new(neighbour, text)
        neighbour.replace(target)
    finally:
        neighbour.unlink(missing_ok=True)


def _write_new(path: pathlib.Path, text: bytes) -> None:
    """Writes a new file that gets its name only when it is whole, on a file system that has
    files without names: a process that is killed meanwhile leaves no file behind."""
    try:
        with contextlib.ExitStack() as opened:
            folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, folder)
            flags = os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC
            file = opened.enter_context(open(os.open(path.parent, flags, 0o666), "wb"))
            file.write(text)
            file.flush()
            # With a folder of its own, os.link follows the link in /proc.
            os.link(f"/proc/self/fd/{file.fileno()}", path.name, dst_dir_fd=folder)
    except (OSError, AttributeError):
        path.write_bytes(text)


def require_writable(path: PathLike) -> None:
    """Raises AcplanError for a path to which `write_json` would fail to write, before any work
    is done."""
    target = path_of(path)
    if target.is_dir():
        raise AcplanError(f"{path}: expected a file's name, found a folder")
    if not target.parent.is_dir():
        raise AcplanError(f"{path}: there is no folder {str(target.parent)!r}")
    if target.exists() and not target.is_file():
        if not os.access(target, os.W_OK):
            raise AcplanError(f"{path}: cannot be written to")
    elif not os.access(target.parent, os.W_OK):
        raise AcplanError(f"{path}: the folder {str(target.parent)!r} is read-only")
