"""The library that stands in for a CUDA device (cuda_guard.cpp), compiled once a machine.

It is kept in the user's cache. Its name has a hash of the properties that it was compiled for
and the hash of its bytes. A file of the cache is loaded only if its bytes have that hash, so
that it is whole, and if nobody except this user or root could have written it. If the cache
cannot be used, the library is compiled again, and loaded from a private folder that is removed
at once.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import pathlib
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator

import torch

from acplan._base.errors import AcplanError

_SOURCE = pathlib.Path(__file__).with_name("cuda_guard.cpp")


@functools.cache
def cuda_guard() -> ctypes.CDLL:
    """Returns the library, once a process. Raises AcplanError if it must be compiled and there
    is no compiler, or the compiler fails."""
    return load_guard()


def load_guard() -> ctypes.CDLL:
    """Returns the library of the cache, or else compiles and keeps it."""
    folder, name = _cache(), _name()
    for path in _whole(folder, name):
        with contextlib.suppress(
            OSError
        ):  # another system, which shares the home folder, made it
            return ctypes.CDLL(str(path))
    with tempfile.TemporaryDirectory(prefix="acplan-") as private:
        library = pathlib.Path(private) / f"{name}.so"
        _compile(library)
        return ctypes.CDLL(str(_keep_in_cache(library, folder, name) or library))


def _cache() -> pathlib.Path:
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    with contextlib.suppress(RuntimeError):  # the user has no home folder
        cache = cache.expanduser()
    return cache / "acplan"


def _name() -> str:
    """Returns the part of the file's name that identifies what it was compiled for."""
    parts = (
        _SOURCE.read_bytes(),
        torch.__version__,
        str(torch.compiled_with_cxx11_abi()),
        platform.machine(),
        platform.system(),
        "".join(platform.libc_ver()),
    )
    texts = (part if isinstance(part, bytes) else part.encode() for part in parts)
    return f"cuda_guard_{hashlib.sha256(b'|'.join(texts)).hexdigest()[:16]}"


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _whole(folder: pathlib.Path, name: str) -> Iterator[pathlib.Path]:
    """Yields the files of the cache that may be loaded."""
    if not _is_private(folder):
        return
    for path in sorted(folder.glob(f"{name}_*.so")):
        with contextlib.suppress(OSError):
            if _is_private(path) and path.name == f"{name}_{_hash(path.read_bytes())}.so":
                yield path


def _is_private(path: pathlib.Path) -> bool:
    """Returns whether a file or folder is this user's or root's, and nobody else may write to
    it."""
    try:
        state = path.lstat()
    except OSError:
        return False
    is_plain = stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)
    return is_plain and state.st_uid in (os.getuid(), 0) and not state.st_mode & 0o022


def _keep_in_cache(
    library: pathlib.Path, folder: pathlib.Path, name: str
) -> pathlib.Path | None:
    """Copies the library into the cache, whole. Returns its path there, or None if that
    fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.stat().st_uid == os.getuid():
            folder.chmod(0o700)
        if not _is_private(folder):
            return None
        content = library.read_bytes()
        with tempfile.TemporaryDirectory(dir=folder) as neighbour:
            copy = pathlib.Path(neighbour) / library.name
            copy.write_bytes(content)
            copy.chmod(0o600)
            return copy.replace(folder / f"{name}_{_hash(content)}.so")
    except OSError:
        return None


def _compile(library: pathlib.Path) -> None:
    home = pathlib.Path(torch.__file__).parent
    command = [
        *_compiler(), "-O1", "-shared", "-fPIC", "-std=c++20",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-I{home}/include", f"-I{home}/include/torch/csrc/api/include",
        str(_SOURCE), f"-L{home}/lib", "-lc10", "-ltorch_cpu", "-o", str(library),
    ]  # fmt: skip
    try:
        run = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise AcplanError(
            f"CXX: expected a C++ compiler, found {command[0]!r}, which does not run: "
            f"{error.strerror}"
        ) from None
    if run.returncode != 0:
        raise AcplanError(f"{shlex.join(command)}\nfailed:\n{run.stderr.strip()}")


def _compiler() -> list[str]:
    """Returns the compiler, with the words that $CXX may have before and after it (ccache g++
    -m64)."""
    configured = shlex.split(os.environ.get("CXX", ""))
    compiler = (
        configured or [path for path in map(shutil.which, ("g++", "clang++")) if path][:1]
    )
    if not compiler:
        raise AcplanError(
            "PyTorch finds no CUDA device, so tracing needs a C++ compiler to build a "
            "stand-in for it; found neither $CXX nor g++ nor clang++"
        )
    return compiler
