"""The decision cache: values, limits, damage, other processes, forks, full disks, read-only folders and interrupts."""

import copy
import functools
import os
import pickle
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from kept_files import changed, kept_files, rewrite, text_of

from sparloom.tuning import PlanCache, Summary
from sparloom.tuning import cache as module

DAY = 86400.0
KEY = {"op": "spmm", "widths": ((4, 2), (8,)), "threads": 2}


def file_of(folder: Path) -> Path:
    return folder / "decisions.sqlite"


def put(folder: Path, name: object, value: object = "x") -> None:
    PlanCache(folder).put("csr", {"name": name}, {"value": value})


def get(folder: Path, name: object) -> object:
    return (PlanCache(folder).get("csr", {"name": name}) or {}).get("value")


def integrity(folder: Path) -> list[tuple[str]]:
    with closing(sqlite3.connect(file_of(folder))) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall()


@pytest.fixture
def limits(monkeypatch):
    def limit(entries: int = 10_000, megabytes: int = 1) -> None:
        monkeypatch.setenv("SPARLOOM_PLANS_ENTRIES", str(entries))
        monkeypatch.setenv("SPARLOOM_PLANS_MB", str(megabytes))
    return limit


def test_objects_come_back(tmp_path, caplog):
    cache = PlanCache(tmp_path / "new")
    assert cache.get("csr", KEY) is None
    assert not list(tmp_path.iterdir())
    cache.put("csr", KEY, {"made": 1}, summary=Summary(op="spmm"))
    cache.put("csr", KEY, {"made": 2})
    for again in (cache, PlanCache(tmp_path / "new"), copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert again.get("csr", KEY) == {"made": 2}
        assert again.get("class", KEY) is again.get("csr", {**KEY, "threads": 3}) is None
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["decisions.sqlite"]
    assert not caplog.records
    nothing = PlanCache(None)
    nothing.put("csr", KEY, {})
    assert nothing.get("csr", KEY) is None


def test_the_number_of_entries_is_bounded_and_the_newest_are_kept(tmp_path, limits):
    limits(entries=200)
    for number in range(500):
        put(tmp_path, number)
        assert get(tmp_path, number) == "x"
    assert 150 < len(kept_files(tmp_path)) <= 200
    assert [get(tmp_path, number) for number in (299, 350, 499)] == [None, "x", "x"]


def test_the_file_is_bounded(tmp_path, limits):
    limits(megabytes=2)
    for number in range(300):
        put(tmp_path, number, "x" * 10_000)
        assert file_of(tmp_path).stat().st_size <= 2_000_000
    assert len(kept_files(tmp_path)) == pytest.approx(165, abs=20)
    limits(megabytes=1)
    put(tmp_path, "more")
    assert file_of(tmp_path).stat().st_size <= 1_000_000
    put(tmp_path, "large", "x" * 600_000)
    assert (get(tmp_path, "more"), get(tmp_path, "large")) == ("x", None)


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", "9" * 20])
def test_invalid_limits_are_refused(text, monkeypatch):
    monkeypatch.setenv("SPARLOOM_PLANS_MB", text)
    with pytest.raises(ValueError, match=f"SPARLOOM_PLANS_MB='{text}': give a whole number, at least 1, or unset"):
        PlanCache(None)


def test_recently_used_entries_stay_and_those_of_a_clock_that_was_ahead_go_first(tmp_path, limits):
    limits(entries=3)
    for name in "abc":
        put(tmp_path, name)
    for kept in kept_files(tmp_path):
        kept.age(2 * DAY)
    before = file_of(tmp_path).read_bytes()
    assert get(tmp_path, "a") == "x"  # which writes the time of its use, ...
    used = file_of(tmp_path).read_bytes()
    assert get(tmp_path, "a") == "x"  # ... but only once a day
    assert file_of(tmp_path).read_bytes() == used != before
    put(tmp_path, "d")
    put(tmp_path, "e")
    assert [get(tmp_path, name) for name in "abcde"] == ["x", None, None, "x", "x"]
    next(kept for kept in kept_files(tmp_path) if '"e"' in text_of(kept)).age(-10 * DAY)
    put(tmp_path, "f")
    assert [get(tmp_path, name) for name in "adef"] == ["x", "x", None, "x"]


def test_a_second_look_up_does_not_read_the_file(tmp_path, monkeypatch):
    put(tmp_path, "a")
    with monkeypatch.context() as patched:
        assert get(tmp_path, "a") == "x"
        patched.setattr(module, "_transaction", None)
        assert get(tmp_path, "a") == "x"
    file_of(tmp_path).unlink()
    put(tmp_path, "b")
    assert (get(tmp_path, "a"), get(tmp_path, "b")) == (None, "x")


@pytest.mark.parametrize(("damage", "reason"), [
    (lambda kept: rewrite(kept, b""), "Expecting value"), (lambda kept: rewrite(kept, b"{\xff}"), "decode"),
    (lambda kept: rewrite(kept, text_of(kept)[:40]), "line 1 column"), (lambda kept: rewrite(kept, "[]"), "indices"),
    (lambda kept: rewrite(kept, "[" * 100_000), "recursion"),
    (lambda kept: kept.run("UPDATE decisions SET entry = 3 WHERE digest = ?"), "subscriptable"),
    (changed(lambda entry: entry.update(key=None)), "written for something else"),
    (changed(lambda entry: entry["key"].update(name="other")), "written for something else"),
    (changed(lambda entry: entry.update(value=3)), "not iterable"),
    (changed(lambda entry: entry.pop("value")), "value"),
])
def test_a_damaged_entry_is_left_aside_and_replaced(tmp_path, caplog, damage, reason):
    put(tmp_path, "a")
    put(tmp_path, "b")
    damage(next(kept for kept in kept_files(tmp_path) if '"a"' in text_of(kept)))
    assert (get(tmp_path, "a"), get(tmp_path, "b")) == (None, "x")
    assert reason in caplog.text
    assert "it is decided anew" in caplog.text
    put(tmp_path, "a", "again")
    assert get(tmp_path, "a") == "again"


def overwritten(begin: int, content: bytes):
    def write(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(begin)
            file.write(content)
    return write


def made_elsewhere(*statements: str):
    def make(path: Path) -> None:
        path.unlink()
        with closing(sqlite3.connect(path)) as connection, connection:
            for statement in statements:
                connection.execute(statement)
    return make


@pytest.mark.parametrize("damage", [
    lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"{}" * 5000),
    lambda path: os.truncate(path, 5000), overwritten(0, bytes(100)), overwritten(4096, bytes(40_000)),
    overwritten(100, b"\xff" * 3000), made_elsewhere("CREATE TABLE decisions (mine)"),
    made_elsewhere("CREATE VIEW decisions AS SELECT 1 AS digest"),
    made_elsewhere(module.SCHEMA, "CREATE TABLE orders (digest)"),
    made_elsewhere(module.SCHEMA, "CREATE TRIGGER evil AFTER UPDATE ON decisions BEGIN DELETE FROM decisions; END"),
], ids=range(10))
def test_a_damaged_or_foreign_file_is_replaced(tmp_path, caplog, damage):
    for number in range(5):
        put(tmp_path, number, "x" * 2000)
    damage(file_of(tmp_path))
    assert get(tmp_path, 1) in (None, "x" * 2000)
    put(tmp_path, 2, "new")
    assert get(tmp_path, 2) == "new"
    assert all("is damaged" in record.getMessage() for record in caplog.records)
    assert len(caplog.records) <= 1
    assert integrity(tmp_path) == [("ok",)]


def test_a_file_of_another_user_is_checked_page_by_page(tmp_path, monkeypatch, caplog):
    put(tmp_path, "a")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert get(tmp_path, "a") == "x"
    overwritten(file_of(tmp_path).stat().st_size - 4096, b"\xff" * 2000)(file_of(tmp_path))
    assert get(tmp_path, "a") is None
    assert "is damaged" in caplog.text


@pytest.mark.parametrize(("setting", "problem"), [
    ("max_page_count=1", "database or disk is full"), ("query_only=ON", "attempt to write a readonly database")])
def test_a_full_disk_or_a_read_only_folder_keeps_what_was_there_with_one_warning(
    tmp_path, monkeypatch, caplog, setting, problem,
):
    put(tmp_path, "a")
    monkeypatch.setattr(module, "SETTINGS", (*module.SETTINGS, setting))  # to root, every folder is writable
    for kept in kept_files(tmp_path):
        kept.age(2 * DAY)
    for number in range(3):
        put(tmp_path, number, "x" * 100_000)
    assert (get(tmp_path, "a"), get(tmp_path, 0)) == ("x", None)
    (record,) = caplog.records
    assert f"{file_of(tmp_path)} cannot be used ({problem})" in record.getMessage()
    assert "set SPARLOOM_CACHE, or AUTOSAGE_CACHE_DIR" in record.getMessage()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("nowhere/else", path)])
def test_special_files_do_not_block(tmp_path, make, caplog):
    make(file_of(tmp_path))
    put(tmp_path, "a")
    assert get(tmp_path, "a") is None
    assert len(caplog.records) == 1


def test_without_sqlite_nothing_is_stored_and_one_warning_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    put(tmp_path, "a")
    assert get(tmp_path, "a") is None
    assert len(caplog.records) == 1
    assert "sqlite3" in caplog.text


def test_a_file_that_another_process_locks_is_not_waited_for(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.01)
    put(tmp_path, "a")
    assert get(tmp_path, "a") == "x"
    with closing(sqlite3.connect(file_of(tmp_path), isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with caplog.at_level("INFO"):
            put(tmp_path, "b")
        assert (get(tmp_path, "b"), get(tmp_path, "a")) == (None, "x")  # "a" is remembered until the file changes
        assert {record.levelname for record in caplog.records} == {"INFO"}
        assert "is locked by another process" in caplog.text
        other.execute("COMMIT")
    put(tmp_path, "b")
    assert get(tmp_path, "b") == "x"


KILLED = """
import os, signal, sys
from pathlib import Path
from sparloom.tuning import PlanCache, cache
def kill(connection, *arguments):
    connection.execute("PRAGMA cache_spill=1")
    connection.execute("UPDATE decisions SET entry = zeroblob(3000000)")  # more than its memory: pages are written
    os.kill(os.getpid(), signal.SIGKILL)
cache._evict = kill
PlanCache(Path(sys.argv[1])).put("csr", {"name": "a"}, {"value": "later"})
"""


def test_a_process_killed_while_writing_leaves_the_old_entries(tmp_path):
    put(tmp_path, "a", "before")
    put(tmp_path, "b", "before")
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, check=False)
    assert done.returncode == -9
    assert (tmp_path / "decisions.sqlite-journal").exists()
    assert (get(tmp_path, "a"), get(tmp_path, "b")) == ("before", "before")
    assert [path.name for path in tmp_path.iterdir()] == ["decisions.sqlite"]


def forked(work) -> int:
    """Start a function in a forked child."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)


def ended(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_write_at_once_and_are_killed(tmp_path):
    def write(seconds: float) -> None:
        rng, end = random.Random(os.getpid()), time.monotonic() + seconds
        while time.monotonic() < end:
            name = rng.randrange(20)
            put(tmp_path, name, str(name) * 3000)
            assert get(tmp_path, name) in (None, str(name) * 3000)

    for _ in range(5):
        killed, whole = [forked(functools.partial(write, seconds)) for seconds in (60, 0.15)]
        time.sleep(0.1)
        os.kill(killed, signal.SIGKILL)
        assert (ended(killed), ended(whole)) == (-signal.SIGKILL, 0)
    assert all(get(tmp_path, name) in (None, str(name) * 3000) for name in range(20))
    assert len(kept_files(tmp_path)) > 10
    assert integrity(tmp_path) == [("ok",)]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_children_that_are_forked_while_threads_write_do_not_hang(tmp_path):
    stop = threading.Event()

    def write(place: int) -> None:
        while not stop.is_set():
            put(tmp_path, place, str(place) * 2000)

    def child() -> None:
        put(tmp_path, "child")
        assert get(tmp_path, "child") == "x"

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, place) for place in range(2)]
        try:
            assert [ended(forked(child)) for _ in range(10)] == [0] * 10
        finally:
            stop.set()
        assert [writer.result() for writer in writers] == [None, None]
    assert [get(tmp_path, name) for name in (0, 1, "child")] == ["0" * 2000, "1" * 2000, "x"]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, None])
def test_a_call_is_interrupted_by_a_signal(tmp_path, monkeypatch, interrupt):
    put(tmp_path, "a", "before")
    evict, found = module._evict, []

    def handled(*arguments):  # as by a signal handler
        monkeypatch.setattr(module, "_evict", evict)
        put(tmp_path, "b")
        found.append(get(tmp_path, "b"))
        if interrupt:
            raise interrupt
        return evict(*arguments)

    monkeypatch.setattr(module, "_evict", handled)
    if interrupt:
        with pytest.raises(interrupt):
            put(tmp_path, "a", "after")
    else:
        put(tmp_path, "a", "after")
    assert (found, get(tmp_path, "a"), get(tmp_path, "b")) == ([None], "before" if interrupt else "after", None)
    put(tmp_path, "b")
    assert get(tmp_path, "b") == "x"
