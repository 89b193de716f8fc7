"""JSON files, gzipped where the name ends in .gz."""

import gzip
import json
import os
import pathlib
import tempfile
from typing import Any

from acplan.errors import AcplanError

PathLike = str | os.PathLike[str]

_GZIP = b"\x1f\x8b"


def read_json(path: PathLike) -> Any:
    try:
        raw = pathlib.Path(path).read_bytes()
        return json.loads(gzip.decompress(raw) if raw[:2] == _GZIP else raw)
    except (ValueError, EOFError, RecursionError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise AcplanError(f"{path}: {reason or error}") from None


def write_json(path: PathLike, data: Any) -> None:
    """Writes the file whole or not at all."""
    target = pathlib.Path(path)
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
    if target.suffix == ".gz":
        text = gzip.compress(text, mtime=0)
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as folder:
            written = pathlib.Path(folder) / target.name
            written.write_bytes(text)
            written.replace(target)
    except OSError as error:
        raise AcplanError(f"{path}: {error.strerror}") from None


def require_writable(path: PathLike) -> None:
    """Refuses what `write_json` would fail at, before the work is done."""
    target = pathlib.Path(path)
    if target.is_dir():
        raise AcplanError(f"{path}: expected a file's name, found a folder")
    if not target.parent.is_dir():
        raise AcplanError(f"{path}: there is no folder {str(target.parent)!r}")
    if not os.access(target.parent, os.W_OK):
        raise AcplanError(f"{path}: the folder {str(target.parent)!r} is read-only")
