"""The compiled stand-in for a CUDA device: in the wheel, and in every state that a cache can be
in. The compiler is a script that copies a library and counts its calls."""

import ctypes
import os
import pathlib
import stat
import sys
import tempfile

import pytest
import torch

from acplan import AcplanError
from acplan._device import guard_library
from acplan._device.guard_library import compile_into, cuda_guard, load_guard


@pytest.fixture(scope="module")
def library() -> bytes:
    return pathlib.Path(cuda_guard()._name).read_bytes()


@pytest.fixture
def compiled(
    tmp_path: pathlib.Path, library: bytes, monkeypatch: pytest.MonkeyPatch
) -> pathlib.Path:
    """A file with a line for each call of the compiler; the cache is empty."""
    (tmp_path / "library.so").write_bytes(library)
    log, script = tmp_path / "log", tmp_path / "compiler.py"
    script.write_text(
        "import shutil, sys\n"
        f"open({str(log)!r}, 'a').write('called\\n')\n"
        f"shutil.copy({str(tmp_path / 'library.so')!r}, sys.argv[-1])\n"
    )
    log.touch()
    monkeypatch.setattr(guard_library, "_OF_WHEEL", tmp_path / "guards")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", f"'{sys.executable}' {script}")
    return log


def _calls(log: pathlib.Path) -> int:
    return len(log.read_text().splitlines())


def _only_file(log: pathlib.Path) -> pathlib.Path:
    (path,) = (log.parent / "cache" / "acplan").iterdir()
    return path


def test_it_is_compiled_once_with_what_cxx_says_and_nobody_else_may_write_to_it(
    compiled: pathlib.Path,
) -> None:
    for _ in range(3):
        assert load_guard().acplan_install_cuda_guard
    assert _calls(compiled) == 1
    path = _only_file(compiled)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("change", ["cut", "empty", "other", "longer"])
def test_a_file_that_is_not_whole_is_not_loaded(compiled: pathlib.Path, change: str) -> None:
    load_guard()
    path = _only_file(compiled)
    content = path.read_bytes()
    # A new file: the library that is loaded is mapped from the one before.
    path.unlink()
    other = bytearray(content)
    other[len(other) // 2] ^= 1
    path.write_bytes(
        {
            "cut": content[: len(content) // 2],
            "empty": b"",
            "other": bytes(other),
            "longer": content + b" ",
        }[change]
    )
    path.chmod(0o600)
    assert load_guard().acplan_install_cuda_guard
    assert _calls(compiled) == 2
    assert _only_file(compiled).read_bytes() == content


def test_a_file_that_others_may_write_to_is_not_loaded(compiled: pathlib.Path) -> None:
    load_guard()
    _only_file(compiled).chmod(0o666)
    load_guard()
    assert _calls(compiled) == 2
    assert stat.S_IMODE(_only_file(compiled).stat().st_mode) == 0o600


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("is_folder", [False, True])
def test_what_belongs_to_another_user_is_not_loaded(
    compiled: pathlib.Path, is_folder: bool
) -> None:
    load_guard()
    path = _only_file(compiled)
    os.chown(path.parent if is_folder else path, 12345, 12345)
    assert load_guard().acplan_install_cuda_guard
    assert _calls(compiled) == 2


def test_a_link_is_not_loaded(compiled: pathlib.Path) -> None:
    load_guard()
    path = _only_file(compiled)
    target = compiled.parent / "elsewhere.so"
    path.rename(target)
    path.symlink_to(target)
    load_guard()
    assert _calls(compiled) == 2
    assert not _only_file(compiled).is_symlink()


@pytest.mark.parametrize("place", ["a file", "in a file", "nowhere"])
def test_without_a_cache_it_is_compiled_in_a_private_folder(
    compiled: pathlib.Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = compiled.parent / "blocked"
    blocked.write_text("")
    places = {"a file": blocked, "in a file": blocked / "cache", "nowhere": "/proc/none"}
    monkeypatch.setenv("XDG_CACHE_HOME", str(places[place]))
    monkeypatch.setenv("TMPDIR", str(compiled.parent))
    before = {*compiled.parent.iterdir()}
    for _ in range(2):
        assert load_guard().acplan_install_cuda_guard
    assert _calls(compiled) == 2
    assert {*compiled.parent.iterdir()} == before


def test_compilers_that_do_not_work_are_told(
    compiled: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(AcplanError, match="CXX: .*found 'no-such-compiler'.*No such file"):
        load_guard()
    monkeypatch.setenv("CXX", "'g++")
    with pytest.raises(AcplanError, match='CXX: expected .*, found "\'g..": No closing'):
        load_guard()
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(AcplanError, match="(?s)false -O1 .*failed"):
        load_guard()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(AcplanError, match="neither .CXX nor g.. nor clang.."):
        load_guard()
    assert not (compiled.parent / "cache").exists()


def test_the_library_of_the_wheel_is_loaded_where_it_is_for_this_pytorch(
    compiled: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_into(str(compiled.parent / "guards"))
    (shipped,) = (compiled.parent / "guards").iterdir()
    log = _calls(compiled)
    assert load_guard()._name == str(shipped)
    # A build of the same release for another CUDA is of the same commit.
    monkeypatch.setattr(torch, "__version__", torch.__version__.partition("+")[0] + "+cu999")
    assert load_guard()._name == str(shipped)
    assert _calls(compiled) == log
    monkeypatch.setattr(torch.version, "git_version", "another")
    assert load_guard()._name != str(shipped)
    assert _calls(compiled) == log + 1


def test_a_library_of_the_wheel_that_is_not_whole_is_not_loaded(
    compiled: pathlib.Path,
) -> None:
    compile_into(str(compiled.parent / "guards"))
    (shipped,) = (compiled.parent / "guards").iterdir()
    shipped.write_bytes(shipped.read_bytes()[:-1])
    log = _calls(compiled)
    assert load_guard()._name != str(shipped)
    assert _calls(compiled) == log + 1


def test_where_libraries_of_the_cache_may_not_be_loaded_it_is_loaded_from_elsewhere(
    compiled: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = ctypes.CDLL
    refused = [str(compiled.parent / "cache")]

    def loaded(path: str) -> ctypes.CDLL:
        if any(map(path.startswith, refused)):
            raise OSError(f"{path}: failed to map segment from shared object")
        return load(path)

    monkeypatch.setattr(ctypes, "CDLL", loaded)
    assert load_guard().acplan_install_cuda_guard
    refused.append("/")
    with pytest.raises(AcplanError, match="(?s)cannot be loaded.*XDG_CACHE_HOME.*map segment"):
        load_guard()


def test_without_a_temporary_folder_there_is_one_line(
    compiled: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(compiled.parent / "none"))
    with pytest.raises(AcplanError, match="TMPDIR.*No such file"):
        load_guard()
