"""Caches that are read-only, damaged or owned by others; machines without a compiler or a home."""

import ctypes
import os
import pwd
import re
import shutil
import signal
import tempfile
import threading
from pathlib import Path

import pytest

from sparloom.errors import CompileError
from sparloom.jit import Source, cache_folder, compile_c
from sparloom.jit import cache as module
from sparloom.jit import toolchain as tools
from sparloom.jit.cache import Cache, build_folder, load
from sparloom.jit.toolchain import Toolchain

pytestmark = pytest.mark.cc

EVERYBODYS = "/tmp"  # where any user may write
OTHER = 54321  # number of a user that is not there
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def source(value):
    return Source("answer", (), f"void answer(void) {{}}\nint value(void) {{ return {value}; }}\n")


def value(library):
    (handle,) = library._handles
    return handle.value()


@pytest.fixture(autouse=True)
def places(monkeypatch, tmp_path):
    """Set separate temporary folders and reset the warnings."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    module._warn_once.cache_clear()
    module._unwritable.clear()
    tools._reported.cache_clear()
    return folder


@pytest.fixture
def runs(monkeypatch):
    """Record the compiled libraries."""
    done, compile_ = [], Toolchain.compile

    def count(self, source, library, *rest):
        done.append(library)
        compile_(self, source, library, *rest)

    monkeypatch.setattr(Toolchain, "compile", count)
    return done


def files(folder, pattern):
    return sorted(path for path in (folder / "jit").glob(pattern) if path.is_file())


def occupy(path):
    """Put a folder in the path of a file, or a file in the path of a folder."""
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("")
    else:
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()


def test_a_cache_that_cannot_be_made_is_replaced_by_a_private_one(monkeypatch, tmp_path, places, runs, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path / "file" / "cache"))
    assert [value(compile_c([source(number)])) for number in (1, 2, 1)] == [1, 2, 1]
    assert len(runs) == 2, "what is there is used"
    (private,) = places.iterdir()
    assert private.stat().st_mode & 0o777 == 0o700
    (told,) = caplog.messages
    assert "Not a directory" in told
    assert "set SPARLOOM_CACHE to a writable folder" in told


def test_without_a_writable_folder_kernels_are_compiled_but_not_cached(monkeypatch, tmp_path, places, runs, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path / "file"))
    module._private_path().write_text("")
    assert [value(compile_c([source(1)])) for _ in range(2)] == [1, 1]
    assert len(runs) == 2
    assert list(places.iterdir()) == [module._private_path()], "nothing is left"
    assert len(caplog.messages) == 1
    assert "SPARLOOM_CACHE" in caplog.text


@pytest.mark.parametrize("where", ["locks", "objects", "keys", "locks/*", "objects/*", "keys/*/*", "any"])
def test_a_folder_in_the_path_of_a_file_and_vice_versa(cache, runs, where):
    compile_c([source(1)])
    for path in list((cache / "jit").glob(where)):
        occupy(path)
    assert [value(compile_c([source(number)])) for number in (1, 2, 1)] == [1, 2, 1]
    assert len(runs) <= 3


def test_a_filled_cache_is_used_without_a_compiler(cache, runs, monkeypatch, tmp_path):
    compile_c([source(1)])
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert value(compile_c([source(1)])) == 1
    with pytest.raises(CompileError, match="no C compiler found"):
        compile_c([source(3)])
    monkeypatch.setenv("CC", "no-such-compiler")
    assert value(compile_c([source(1)])) == 1
    with pytest.raises(CompileError, match="CC='no-such-compiler' is not a program on PATH"):
        compile_c([source(3)])
    assert len(runs) == 1


def test_a_key_with_the_library_of_another_key_is_not_used(cache, runs):
    compile_c([source(1)])
    (first,) = files(cache, "keys/*/*")
    compile_c([source(2)])
    (second,) = set(files(cache, "keys/*/*")) - {first}
    first.write_bytes(second.read_bytes())
    assert value(compile_c([source(1)])) == 1
    assert len(runs) == 3


def test_a_user_without_a_home(monkeypatch, places, runs, caplog):
    monkeypatch.delenv("SPARLOOM_CACHE")
    monkeypatch.delenv("HOME", raising=False)

    def missing(number):
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", missing)
    assert cache_folder() == places / f"sparloom-{os.geteuid()}"
    assert cache_folder().stat().st_mode & 0o777 == 0o700
    assert [value(compile_c([source(1)])) for _ in range(2)] == [1, 1]
    assert len(runs) == 1
    assert len(caplog.messages) == 1
    assert "set SPARLOOM_CACHE" in caplog.text


def test_an_unusable_home_is_ignored(monkeypatch, places):
    monkeypatch.delenv("SPARLOOM_CACHE")
    monkeypatch.setenv("HOME", "relative")
    assert cache_folder().parent == places


@pytest.mark.parametrize("way", ["open", "linked"])
def test_a_private_folder_that_is_not_private_is_not_used(monkeypatch, tmp_path, way):
    monkeypatch.setenv("SPARLOOM_CACHE", "/dev/null/cache")
    folder = module._private_path()
    if way == "linked":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    assert value(compile_c([source(1)])) == 1
    assert not list(folder.iterdir())


@as_root
@pytest.mark.parametrize("pattern", ["objects/*", "keys/*/*"])
def test_files_that_others_put_into_an_open_folder_are_not_used(cache, runs, caplog, pattern):
    compile_c([source(1)])
    (file,) = files(cache, pattern)
    os.chown(file, OTHER, OTHER)
    compile_c([source(1)])
    assert len(runs) == 1, "nobody else can write there"
    file.parent.chmod(0o1777)
    assert value(compile_c([source(1)])) == 1
    assert len(runs) == 2
    assert "SPARLOOM_CACHE" in caplog.text


@as_root
def test_another_user_uses_a_cache_that_only_its_owner_can_write(monkeypatch, runs):
    folder = Path(tempfile.mkdtemp(dir=EVERYBODYS))
    try:
        folder.chmod(0o755)
        monkeypatch.setenv("SPARLOOM_CACHE", str(folder / "cache"))
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        compile_c([source(1)])
        os.seteuid(OTHER)
        try:
            assert value(compile_c([source(1)])) == 1
            monkeypatch.setattr(tempfile, "tempdir", EVERYBODYS)
            assert value(compile_c([source(2)])) == 2
            assert module._private_folder().stat().st_uid == OTHER
        finally:
            os.seteuid(0)
        assert len(runs) == 2
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(Path(EVERYBODYS) / f"sparloom-{OTHER}", ignore_errors=True)


def test_files_are_writable_by_their_owner_only_under_any_umask(cache):
    mask = os.umask(0)
    try:
        compile_c([source(1)])
    finally:
        os.umask(mask)
    (library,) = files(cache, "objects/*")
    assert not library.stat().st_mode & 0o022


def test_a_folder_from_which_nothing_may_run(cache, runs, monkeypatch):
    compile_c([source(5)])
    open_ = ctypes.CDLL

    def refuse(name, *rest, **more):
        if str(name).startswith(str(cache)):
            raise OSError(f"{name}: failed to map segment from shared object: Operation not permitted")
        return open_(name, *rest, **more)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert value(compile_c([source(5)])) == 5
    assert value(compile_c([source(6)])) == 6
    assert len(runs) == 2


def test_an_intact_library_that_does_not_load_is_compiled_again(cache, runs, tmp_path, caplog):
    compile_c([source(1)])
    (key,) = files(cache, "keys/*/*")
    other = tmp_path / "other.so"
    other.write_bytes(b"made for another machine")
    Cache(cache / "jit").store(other.read_bytes(), [("keys", key.name)])
    assert value(compile_c([source(1)])) == 1
    assert len(runs) == 2
    assert "does not load" in caplog.text


def test_missing_memory_for_a_library_is_reported(tmp_path, monkeypatch):
    library = tmp_path / "library.so"
    library.write_bytes(b"0" * 1000)
    monkeypatch.setattr(module, "_has_memory", lambda size: False)
    with pytest.raises(MemoryError, match=r"1000 bytes of compiled kernels, .*library\.so"):
        load(library)


def test_folders_of_compilations_are_removed(places):
    with build_folder(places) as folder:
        assert folder.parent == places
    assert not folder.exists()


def test_the_cache_has_room_to_compile_in_if_nothing_else_has(cache, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null")
    assert value(compile_c([source(1)])) == 1
    monkeypatch.setenv("SPARLOOM_CACHE", "/dev/null/cache")
    with pytest.raises(CompileError, match="set TMPDIR or SPARLOOM_CACHE to a writable folder"):
        compile_c([source(2)])


@pytest.mark.parametrize("logged", [True, False])
def test_compiling_is_reported_once(cache, monkeypatch, caplog, capsys, logged):
    monkeypatch.setattr(tools, "_REPORT_AFTER_SECONDS", 0.0)
    if not logged:
        monkeypatch.setattr(tools.log, "hasHandlers", lambda: False)
    with caplog.at_level("INFO"):
        compile_c([source(1)])
        compile_c([source(2)])
    said = [record.message for record in caplog.records] if logged else capsys.readouterr().err.splitlines()
    said = [text.removeprefix("sparloom: ") for text in said if "compiling kernels" in text]
    assert len(said) == 1
    assert re.fullmatch(r"compiling kernels for this processor \(\S+\.c\); later runs load "
                        rf"them from {re.escape(os.environ['SPARLOOM_CACHE'])}", said[0])


@pytest.mark.parametrize("private", [True, False])
def test_compiling_names_the_folder_that_keeps_kernels(places, monkeypatch, caplog, private):
    monkeypatch.setenv("SPARLOOM_CACHE", "/dev/null/cache")
    monkeypatch.setattr(tools, "_REPORT_AFTER_SECONDS", 0.0)
    if not private:
        (places / f"sparloom-{os.geteuid()}").write_text("a file in the way")
    with caplog.at_level("INFO"):
        compile_c([source(1)])
    (said,) = [record.message for record in caplog.records if "compiling kernels" in record.message]
    assert said.endswith(f"; later runs load them from {places / f'sparloom-{os.geteuid()}'}" if private
                         else "; none are kept")


def test_one_warning_is_given_for_all_folders_of_the_cache(places, monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("SPARLOOM_CACHE", "/dev/null/cache")
    compile_c([source(1)])
    module.warn_unwritable(Path("/dev/null/cache/plans"), "decisions are not kept")
    assert caplog.text.count("SPARLOOM_CACHE") == 1
    assert "decisions" not in caplog.text
    for _ in range(2):
        module.warn_unwritable(tmp_path, "elsewhere")
    assert caplog.text.count("elsewhere") == 1


def test_a_compiler_that_cannot_be_started(monkeypatch, tmp_path):
    toolchain = Toolchain((str(tmp_path / "none"),), "c", "", "")
    with pytest.raises(CompileError, match=r"none cannot be started \(No such file or directory\): k\.c is not comp"):
        toolchain.compile(tmp_path / "k.c", tmp_path / "k.so", ())


def test_the_least_recently_used_files_are_deleted_once_a_day(cache, runs, monkeypatch):
    for number in (1, 2, 3):
        compile_c([source(number)])
    for path in (cache / "jit").rglob("*"):
        os.utime(path, (0, 0))
    compile_c([source(1)])  # which notes its use
    sizes = [path.stat().st_blocks * 512 for path in files(cache, "objects/*")]
    monkeypatch.setattr(module, "MAX_BYTES", sum(sizes[:2]) + 12_288)  # two libraries and their keys
    compile_c([source(4)])
    assert len(files(cache, "objects/*")) == 2
    monkeypatch.setattr(module, "MAX_BYTES", 0)
    assert [value(compile_c([source(number)])) for number in (1, 4, 2)] == [1, 4, 2]
    assert len(runs) == 5


def test_only_one_process_compiles_at_a_time_and_waiting_ends(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(module, "WAITS", ((0.05, "waiting for it"), (0.2, "no longer waiting")))
    store, order = Cache(tmp_path), []

    def take():
        with store.turn("key", "compile b"):
            order.append("b")

    with store.turn("key", "compile a"):
        other = threading.Thread(target=take)
        other.start()
        other.join()
    said = [f"another process has been holding {tmp_path / 'locks' / 'ke'} for 0 s, to compile b: {then}"
            for then in ("waiting for it", "no longer waiting")]
    assert (caplog.messages, order) == (said, ["b"])
    process = os.fork()
    if process == 0:
        with store.turn("key", "compile c"):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(process, 0)
    with store.turn("key", "compile d"):
        pass
    assert caplog.messages == said, "the lock of a killed process is free"
