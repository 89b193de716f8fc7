"""The library that stands in for a CUDA device (cuda_guard.cpp), which the wheel has for the
versions of PyTorch that it was made with, and which is compiled once a machine for others.

The compiled library is kept in the user's cache, under a name that says what it was compiled
for and the hash of its bytes. A file is loaded only if its bytes have that hash, so that it is
whole, and a file of the cache only if nobody but this user or root could have written it. If
the cache cannot be used, the library is compiled again, and loaded from a private folder that
is removed at once.

    python -c "from acplan._device.guard_library import compile_into; compile_into('FOLDER')"

compiles the library for the wheel (scripts/build_wheel.sh), under a name that says for which
commit of PyTorch: the builds of a release for CPUs and for each CUDA share it.
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
_OF_WHEEL = pathlib.Path(__file__).with_name("guards")


@functools.cache
def cuda_guard() -> ctypes.CDLL:
    """Returns the library, once a process. Raises AcplanError where it must be compiled and
    there is no compiler, or the compiler fails."""
    return load_guard()


def load_guard() -> ctypes.CDLL:
    """Returns the library of the wheel or of the cache, or else compiles and keeps it."""
    folder, name = _cache(), _name(torch.__version__, "".join(platform.libc_ver()))
    for path in (*_whole(_OF_WHEEL, _name_in_wheel()), *_whole_and_private(folder, name)):
        with contextlib.suppress(OSError):  # Another system, which shares the home, made it.
            return ctypes.CDLL(str(path))
    with _private_folder() as private:
        library = private / f"{name}.so"
        _compile(library)
        copy = _keep(library, folder, name)
        if copy is not None:
            with contextlib.suppress(OSError):  # Nothing in the cache's folder may run.
                return ctypes.CDLL(str(copy))
        try:
            return ctypes.CDLL(str(library))
        except OSError as error:
            raise AcplanError(
                f"the stand-in for a CUDA device cannot be loaded from {private}, nor from "
                f"{folder} (XDG_CACHE_HOME): {error}"
            ) from None


def compile_into(folder: str) -> None:
    """Compiles the library for the wheel."""
    to = pathlib.Path(folder)
    to.mkdir(parents=True, exist_ok=True)
    with _private_folder() as private:
        library = private / "library.so"
        _compile(library)
        content = library.read_bytes()
    (to / f"{_name_in_wheel()}_{_hash(content)}.so").write_bytes(content)


@contextlib.contextmanager
def _private_folder() -> Iterator[pathlib.Path]:
    """Yields a folder that is removed after the block."""
    try:
        private = tempfile.TemporaryDirectory(prefix="acplan-")
    except OSError as error:
        raise AcplanError(
            "the stand-in for a CUDA device is compiled in a temporary folder (TMPDIR), "
            f"which cannot be created: {error.strerror}"
        ) from None
    with private as path:
        yield pathlib.Path(path)


def _cache() -> pathlib.Path:
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    with contextlib.suppress(RuntimeError):  # The user has no home.
        cache = cache.expanduser()
    return cache / "acplan"


def _name(*versions: str) -> str:
    """Returns the part of the file's name that says what it was compiled for."""
    abi = str(torch.compiled_with_cxx11_abi())
    texts = (abi, platform.machine(), platform.system(), *versions)
    parts = (_SOURCE.read_bytes(), *(text.encode() for text in texts))
    return f"cuda_guard_{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}"


def _name_in_wheel() -> str:
    """Returns the part for the wheel's library, which needs no newer glibc than PyTorch."""
    return _name(torch.__version__.partition("+")[0], str(torch.version.git_version))


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _whole(folder: pathlib.Path, name: str) -> Iterator[pathlib.Path]:
    """Yields the files of a folder that have all of the bytes that were written to them."""
    for path in sorted(folder.glob(f"{name}_*.so")):
        with contextlib.suppress(OSError):
            if path.name == f"{name}_{_hash(path.read_bytes())}.so":
                yield path


def _whole_and_private(folder: pathlib.Path, name: str) -> Iterator[pathlib.Path]:
    """Yields those that nobody else may have written."""
    if _is_private(folder):
        yield from filter(_is_private, _whole(folder, name))


def _is_private(path: pathlib.Path) -> bool:
    """Returns whether a file or folder is this user's or root's, and nobody else may write
    to it."""
    try:
        state = path.lstat()
    except OSError:
        return False
    is_plain = stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)
    return is_plain and state.st_uid in (os.getuid(), 0) and not state.st_mode & 0o022


def _keep(library: pathlib.Path, folder: pathlib.Path, name: str) -> pathlib.Path | None:
    """Puts the library into the cache, whole; returns where, or None where it cannot."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.stat().st_uid == os.getuid():
            folder.chmod(0o700)
        if not _is_private(folder):
            return None
        content = library.read_bytes()
        with tempfile.TemporaryDirectory(dir=folder) as temporary_folder:
            copy = pathlib.Path(temporary_folder) / library.name
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
    """Returns the compiler, with what $CXX may say before and after it (ccache g++ -m64)."""
    text = os.environ.get("CXX", "")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise AcplanError(f"CXX: expected a C++ compiler, found {text!r}: {error}") from None
    compiler = words or [path for path in map(shutil.which, ("g++", "clang++")) if path][:1]
    if not compiler:
        raise AcplanError(
            "PyTorch finds no CUDA device, so tracing needs a C++ compiler to build a "
            "stand-in for it; found neither $CXX nor g++ nor clang++"
        )
    return compiler
