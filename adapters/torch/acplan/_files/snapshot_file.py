"""Snapshots of PyTorch's memory (torch.cuda.memory._dump_snapshot) as JSON for the program.

A snapshot is a pickle, often of somebody else. Here it is read without running any of its code:
only dicts, lists, tuples, strings, numbers, booleans and None are made.
"""

import io
import json
import os
import pickle
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from acplan._base.errors import AcplanError, reason_of
from acplan._files.json_files import PathLike, path_of, read_bytes

_MOST = 1 << 62  # addresses and bytes
_MOST_BYTES = 1 << 31  # of a file
# The first bytes of pickles of all protocols, and of JSON.
_STARTS = (b"\x80", *(bytes([byte]) for byte in b"(])}{[ \t\r\n"))
_EXPECTED = "expected a pickle of plain values, as torch.cuda.memory._dump_snapshot writes it"
_ACTIONS = (
    "alloc", "free_requested", "free_completed", "free", "segment_alloc", "segment_free",
    "segment_map", "segment_unmap", "oom",
)  # fmt: skip
_ALIASES = {"free": "free_completed"}  # of PyTorch 2.0
_STATES = {
    "active_allocated": "allocated",
    "active_awaiting_free": "waiting",
    "active_pending_free": "waiting",
    "inactive": "free",
}
_CONFS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, _: Any) -> NoReturn:
        raise pickle.UnpicklingError("it asks for an object outside of the file")


def read_snapshot(path: PathLike) -> dict[str, Any]:
    """Returns the snapshot of a file, a pickle or the same as JSON, in the form that `acplan
    simulate --snapshot` reads (docs/file_formats.md). Runs no code of the file. Raises
    AcplanError if it is no snapshot."""
    file = path_of(path)
    try:
        raw = read_bytes(file, _require_snapshot, _MOST_BYTES)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise AcplanError(f"{path}: {reason or error}") from None
    return _Converter(os.fspath(file)).convert(_plain_value(os.fspath(file), bytes(raw)))


def _require_snapshot(start: bytes) -> None:
    if start[:1] not in _STARTS:
        raise ValueError(f"{_EXPECTED}, found something that begins with {start[:8]!r}")


def _plain_value(path: str, raw: bytes) -> Any:
    if raw.lstrip()[:1] in (b"{", b"["):
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            pass  # also a pickle of protocol 0 may begin so
    try:
        return _PlainUnpickler(io.BytesIO(raw)).load()
    except Exception as error:  # an unpickler raises anything on other bytes
        words = reason_of(error, "unpickling")[:200]
        raise AcplanError(f"{path}: {_EXPECTED}: {words}") from None


class _Converter:
    def __init__(self, path: str) -> None:
        self._path = path
        self._lines: dict[str, int] = {}
        # Frames are shared between events.
        self._line_by_frames: dict[int, int] = {}

    def _fail(self, place: str, expected: str, value: Any) -> NoReturn:
        text = " ".join(repr(value).split())[:60]
        raise AcplanError(f"{self._path}: {place}: expected {expected}, found {text}")

    def _list(self, place: str, value: Any) -> Sequence[Any]:
        if not isinstance(value, (list, tuple)):
            self._fail(place, "a list", value)
        return value

    def _entry(self, place: str, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self._fail(place, "a dict", value)
        return value

    def _number(self, place: str, entry: Mapping[str, Any], key: str, least: int = 0) -> int:
        value = entry.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
            self._fail(f"{place}.{key}", "a whole number", value)
        return value

    def convert(self, snapshot: Any) -> dict[str, Any]:
        root = self._entry("snapshot", snapshot)
        for key in ("segments", "device_traces"):
            if key not in root:
                raise AcplanError(
                    f"{self._path}: expected a snapshot of torch.cuda.memory._dump_snapshot, "
                    f"which has {key!r}"
                )
        traces = self._list("device_traces", root["device_traces"])
        devices: list[dict[str, Any]] = [
            {
                "segments": [],
                "events": self._events(f"device_traces[{d}]", self._list("device_traces", t)),
            }
            for d, t in enumerate(traces)
        ]
        for s, value in enumerate(self._list("segments", root["segments"])):
            place = f"segments[{s}]"
            entry = self._entry(place, value)
            device = self._number(place, entry, "device") if "device" in entry else 0
            if device >= 1024:
                self._fail(f"{place}.device", "a device", device)
            while device >= len(devices):
                devices.append({"segments": [], "events": []})
            devices[device]["segments"].append(self._segment(place, entry))
        return {
            "format": "acplan.snapshot",
            "version": 1,
            "allocator": self._allocator(root),
            "devices": devices,
            "lines": list(self._lines),
        }

    def _events(self, place: str, trace: Sequence[Any]) -> list[list[Any]]:
        events = []
        for k, value in enumerate(trace):
            where = f"{place}[{k}]"
            entry = self._entry(where, value)
            action = entry.get("action")
            if not isinstance(action, str):
                self._fail(f"{where}.action", "a text", action)
            if action not in _ACTIONS:
                continue  # snapshot, and what later versions may add
            address = self._number(where, entry, "device_free" if action == "oom" else "addr")
            events.append(
                [
                    _ALIASES.get(action, action),
                    address,
                    self._number(where, entry, "size"),
                    self._number(where, entry, "stream"),
                    self._line(entry.get("frames")),
                    *(["cache"] if self._is_cache_call(action, entry) else []),
                ]
            )
        return events

    def _is_cache_call(self, action: str, entry: Mapping[str, Any]) -> bool:
        """Returns whether the program itself emptied the cache here."""
        return action in ("segment_free", "segment_unmap") and any(
            isinstance(frame, dict) and frame.get("name") == "empty_cache"
            for frame in entry.get("frames") or ()
        )

    def _segment(self, place: str, entry: Mapping[str, Any]) -> dict[str, Any]:
        kind = entry.get("segment_type")
        if kind not in ("small", "large"):
            self._fail(f"{place}.segment_type", "small or large", kind)
        pool = entry.get("segment_pool_id", (0, 0))
        address = at = self._number(place, entry, "address")
        blocks = []
        for b, value in enumerate(self._list(f"{place}.blocks", entry.get("blocks"))):
            where = f"{place}.blocks[{b}]"
            block = self._entry(where, value)
            size = self._number(where, block, "size")
            state = block.get("state")
            if not isinstance(state, str) or state not in _STATES:
                self._fail(f"{where}.state", f"one of {', '.join(_STATES)}", state)
            asked_bytes = (
                self._number(where, block, "requested_size")
                if "requested_size" in block
                else size
            )
            at = self._number(where, block, "address") if "address" in block else at
            line = self._line(block.get("frames") or _oldest_frames(block))
            blocks.append([_STATES[state], at, size, asked_bytes, line])
            at += size
        return {
            "address": address,
            "bytes": self._number(place, entry, "total_size"),
            "stream": self._number(place, entry, "stream"),
            "pool": kind,
            "expandable": entry.get("is_expandable") is True,
            "private_pool": None if pool in ((0, 0), [0, 0], 0) else self._pool(place, pool),
            "blocks": blocks,
        }

    def _pool(self, place: str, pool: Any) -> list[int]:
        parts = self._list(f"{place}.segment_pool_id", pool)
        if len(parts) != 2 or not all(type(p) is int and 0 <= p <= _MOST for p in parts):
            self._fail(f"{place}.segment_pool_id", "two numbers", pool)
        return list(parts)

    def _line(self, frames: Any) -> int:
        """Returns the place in `lines` of the line of Python that asked, or -1."""
        if not isinstance(frames, (list, tuple)) or not frames:
            return -1
        if id(frames) not in self._line_by_frames:
            text = _line_of(frames)
            line = -1 if text is None else self._lines.setdefault(text, len(self._lines))
            self._line_by_frames[id(frames)] = line
        return self._line_by_frames[id(frames)]

    def _allocator(self, root: Mapping[str, Any]) -> str | None:
        """Returns the settings as the text of PYTORCH_ALLOC_CONF, or None if they are not in
        the snapshot."""
        settings = root.get("allocator_settings")
        if not isinstance(settings, dict):
            return None
        text = next((settings[key] for key in _CONFS if settings.get(key)), "")
        if not isinstance(text, str):
            self._fail("allocator_settings", "a text", text)
        is_expandable = settings.get("expandable_segments")
        if isinstance(is_expandable, bool) and is_expandable != (
            "expandable_segments:True" in text
        ):
            # Set after the variable was read.
            text += f"{',' if text else ''}expandable_segments:{is_expandable}"
        return text


def _oldest_frames(block: Mapping[str, Any]) -> Any:
    """Returns the frames where versions up to 2.0 have them."""
    history = block.get("history")
    if isinstance(history, list) and history and isinstance(history[0], dict):
        return history[0].get("frames")
    return None


def _line_of(frames: Sequence[Any]) -> str | None:
    """Returns the innermost line of Python outside of PyTorch, or else the innermost one."""
    lines = [
        frame
        for frame in frames
        if isinstance(frame, dict) and str(frame.get("filename")).endswith(".py")
    ]
    own = [frame for frame in lines if not _is_of_torch(str(frame["filename"]))]
    for frame in own or lines:
        name = str(frame.get("name"))[:100]
        return f"{_short(str(frame['filename']))}:{frame.get('line')} {name}"[:300]
    return None


def _is_of_torch(filename: str) -> bool:
    return "/torch/" in filename or "/torch\\" in filename


def _short(filename: str) -> str:
    """Returns the path from the package on, or the last two parts."""
    parts = filename.replace("\\", "/").split("/")
    if "site-packages" in parts:
        return "/".join(parts[parts.index("site-packages") + 1 :])
    return "/".join(parts[-2:])
