"""A bounded cache in one file: values, limits, damage, locks, forks, full disks and interrupts."""

import copy
import errno
import os
import pickle
import random
import signal
import sqlite3
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from kept_files import kept_files

from sparloom.tuning import DiskCache, PlanCache, disk_cache

SCHEDULE = {"op": "spmm", "threads": 2}
DAY = 86400.0


def small(folder: Path, *, entries: int = 512, size_bytes: int = 1 << 20) -> DiskCache:
    return DiskCache(folder, entries=entries, size_bytes=size_bytes)


def kept_of(folder: Path, keys) -> list[bool]:
    """Tell which keys the file has; no memory is asked."""
    fresh = small(folder)
    return [fresh.get(key) is not None for key in keys]


def test_values_come_back_until_they_are_removed(tmp_path):
    cache = small(tmp_path)
    assert cache.get("one") is None
    assert not list(tmp_path.iterdir())
    cache.put("one", b"1")
    cache.put("two", b"")
    cache.put("one", b"\x00\n" * 300)
    assert (cache.get("one"), cache.get("two")) == (b"\x00\n" * 300, b"")
    assert small(tmp_path).get("one") == cache.get("one")
    first, second = cache.stored()
    assert (first.value, second.value) == (b"", b"\x00\n" * 300)
    assert cache.remove([second]) == [second.digest]
    assert cache.remove([second]) == []
    assert (cache.get("one"), cache.get("two")) == (None, b"")
    assert [path.name for path in tmp_path.iterdir()] == ["decisions.sqlite"]


def test_entries_and_bytes_are_bounded_and_the_newest_are_kept(tmp_path):
    few, little = small(tmp_path / "few", entries=200), small(tmp_path / "little", size_bytes=100_000)
    for number in range(600):
        few.put(str(number), b"x")
        little.put(str(number), bytes(300))
        assert small(few.path.parent).get(str(number)) is not None
        assert little.path.stat().st_size <= 100_000
    assert kept_of(tmp_path / "few", ("399", "400", "599")) == [False, True, True]
    assert 100 < len(little.stored()) < 250


def test_a_lower_limit_shrinks_the_file(tmp_path):
    large = small(tmp_path)
    for number in range(60):
        large.put(str(number), bytes(10_000))
    assert large.path.stat().st_size > 600_000
    small(tmp_path, size_bytes=200_000).put("more", b"x")
    assert large.path.stat().st_size <= 200_000
    assert large.get("more") == b"x"


def test_recently_used_entries_stay(tmp_path):
    cache = small(tmp_path, entries=3)
    for key in "abc":
        cache.put(key, b"x")
    for kept in kept_files(tmp_path):
        kept.age(2 * DAY)
    assert cache.get("a") == b"x"  # which writes the time of its use
    cache.put("d", b"x")
    cache.put("e", b"x")
    assert kept_of(tmp_path, "abcde") == [True, False, False, True, True]


def test_reading_writes_the_time_of_use_once_a_day(tmp_path):
    cache = small(tmp_path)
    cache.put("one", b"1")
    before = cache.path.read_bytes()
    assert small(tmp_path).get("one") == b"1"
    assert cache.path.read_bytes() == before
    kept_files(tmp_path)[0].age(2 * DAY)
    before = cache.path.read_bytes()
    assert small(tmp_path).get("one") == b"1"
    assert cache.path.read_bytes() != before


def test_an_entry_dated_later_than_now_goes_first(tmp_path):
    cache = small(tmp_path, entries=2)
    cache.put("a", b"x")
    kept_files(tmp_path)[0].age(-1e6)  # by a machine whose clock is ahead
    cache.put("b", b"x")
    cache.put("c", b"x")
    assert kept_of(tmp_path, "abc") == [False, True, True]


def test_a_value_larger_than_the_cache_is_not_stored(tmp_path):
    cache = small(tmp_path, size_bytes=100_000)
    cache.put("one", bytes(100_001))
    assert cache.get("one") is None


def test_a_second_look_up_does_not_read_the_file(tmp_path, monkeypatch):
    cache = small(tmp_path)
    cache.put("one", b"1")
    monkeypatch.setattr(DiskCache, "_perform", None)
    assert cache.get("one") == b"1"
    os.unlink(cache.path)
    monkeypatch.undo()
    cache.put("two", b"2")
    assert (cache.get("one"), cache.get("two")) == (None, b"2")


def test_the_memory_of_a_process_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_cache, "MEMORY_ENTRIES", 10)
    monkeypatch.setattr(disk_cache, "MEMORY_BYTES", 500)
    cache = small(tmp_path)
    for number in range(30):
        cache.put(str(number), bytes(20))
    assert list(cache._memory) == [str(number) for number in range(20, 30)]
    for number in range(30):
        cache.put(str(number), bytes(100))
    assert list(cache._memory) == ["25", "26", "27", "28", "29"]
    cache.put("29", bytes(1 << 17))
    assert len(cache._memory) == 4
    assert len(cache.get("29")) == 1 << 17


def test_entries_that_are_marked_as_used_again_and_again_fill_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_cache, "MEMORY_BYTES", 500)
    monkeypatch.setattr(disk_cache, "TOUCH_SECONDS", -1.0)
    cache = small(tmp_path)
    cache.put("one", bytes(100))
    for _ in range(10):
        assert cache.get("one") == bytes(100)
    assert list(cache._memory) == ["one"]


def made_elsewhere(*statements: str):
    def make(path: Path) -> None:
        path.unlink()
        with closing(sqlite3.connect(path)) as connection, connection:
            for statement in statements:
                connection.execute(statement)
    return make


def overwritten(begin: int, content: bytes):
    def write(path: Path) -> None:
        whole = path.read_bytes()
        path.write_bytes(whole[:begin] + content + whole[begin + len(content):])
    return write


TRIGGER = "CREATE TRIGGER evil AFTER UPDATE ON entries BEGIN DELETE FROM entries; END"


@pytest.mark.parametrize("damage", [
    lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"{}" * 5000),
    lambda path: path.write_bytes(path.read_bytes()[:5000]), overwritten(0, bytes(100)),
    overwritten(4096, bytes(4096)), overwritten(100, b"\xff" * 3000),
    made_elsewhere("CREATE TABLE entries (mine)"), made_elsewhere("CREATE VIEW entries AS SELECT 1 AS digest"),
    made_elsewhere(*disk_cache.SCHEMA, TRIGGER), made_elsewhere(*disk_cache.SCHEMA[:2]),
    made_elsewhere(*disk_cache.SCHEMA),  # without the number of entries
], ids=range(11))
def test_a_damaged_file_counts_as_absent_and_is_replaced(tmp_path, caplog, damage):
    cache = small(tmp_path)
    for number in range(5):
        cache.put(str(number), bytes(2000))
    cache._disconnect()
    damage(cache.path)
    fresh = small(tmp_path)
    found = fresh.get("1")
    assert found in (None, bytes(2000))
    fresh.put("2", b"new")
    assert small(tmp_path).get("2") == b"new"
    assert len(caplog.records) <= 1
    assert all("is damaged" in record.getMessage() for record in caplog.records)
    with closing(sqlite3.connect(cache.path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert disk_cache._layout(connection) == disk_cache.LAYOUT


@pytest.mark.parametrize("spoil", ["value = x'00'", "value = 'text'", "checksum = 'text'"])
def test_a_damaged_value_is_reported_and_replaced_by_the_next_put(tmp_path, spoil):
    cache = small(tmp_path)
    cache.put("one", b"1")
    with closing(sqlite3.connect(cache.path)) as connection, connection:
        connection.execute(f"UPDATE entries SET {spoil}")
    fresh = small(tmp_path)
    with pytest.raises(ValueError, match="its checksum differs"):
        fresh.get("one")
    assert [each.value for each in fresh.stored()] == [None]
    fresh.put("one", b"2")
    assert fresh.get("one") == b"2"


@pytest.mark.parametrize("total", [-5, 0, 10**12])
def test_a_wrong_number_of_entries_corrects_itself(tmp_path, total):
    cache = small(tmp_path, entries=20)
    for number in range(20):
        cache.put(str(number), b"x")
    with closing(sqlite3.connect(cache.path)) as connection, connection:
        connection.execute("UPDATE totals SET entries = ?", (total,))
    cache = small(tmp_path, entries=20)
    for number in range(100):
        cache.put(str(number), b"y")
    assert len(cache.stored()) == 20


def test_a_file_of_another_user_is_checked_page_by_page(tmp_path, monkeypatch, caplog):
    cache = small(tmp_path)
    cache.put("one", b"1")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert small(tmp_path).get("one") == b"1"
    cache._disconnect()
    overwritten(cache.path.stat().st_size - 4096, b"\xff" * 2000)(cache.path)
    assert small(tmp_path).get("one") is None
    assert "is damaged" in caplog.text


def test_a_full_disk_keeps_the_old_entry(tmp_path):
    cache = small(tmp_path)
    cache.put("one", b"1")
    (pages,) = cache._connection.execute("PRAGMA page_count").fetchone()
    cache._connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(OSError, match="full") as raised:
        cache.put("one", bytes(100_000))
    assert raised.value.errno == errno.ENOSPC
    assert cache.get("one") == b"1"
    assert [each.value for each in small(tmp_path).stored()] == [b"1"]


def read_only(monkeypatch) -> None:
    """Make SQLite refuse to write; to root, every folder is writable."""
    monkeypatch.setattr(disk_cache, "SETTINGS", (*disk_cache.SETTINGS, "query_only=ON"))


def test_a_read_only_folder_is_read_with_one_warning(tmp_path, monkeypatch, caplog):
    PlanCache(tmp_path).put("csr", SCHEDULE, {"made": "before"})
    read_only(monkeypatch)
    for store in PlanCache(tmp_path).stores:
        store._disconnect()
        store._forget()
    for number in range(5):
        PlanCache(tmp_path).put("csr", {**SCHEDULE, "number": number}, {})
    assert PlanCache(tmp_path).get("csr", SCHEDULE) == {"made": "before"}
    (record,) = caplog.records
    assert f"{tmp_path} cannot be written to: attempt to write a readonly database" in record.getMessage()
    assert "set SPARLOOM_CACHE, or AUTOSAGE_CACHE_DIR" in record.getMessage()


def test_an_unreadable_folder_gives_one_warning(tmp_path, monkeypatch, caplog):
    def refused(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    PlanCache(tmp_path).put("csr", SCHEDULE, {})
    monkeypatch.setattr(disk_cache, "_identity", refused)
    assert [PlanCache(tmp_path).get("csr", {**SCHEDULE, "number": number}) for number in range(3)] == [None] * 3
    (record,) = caplog.records
    assert "cannot be read: Permission denied: its decisions are made anew" in record.getMessage()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_special_files_do_not_block(tmp_path, make):
    cache = small(tmp_path)
    make(cache.path)
    for use in (lambda: cache.get("one"), lambda: cache.put("one", b"1"), cache.stored):
        with pytest.raises(OSError, match="it is no regular file"):
            use()


def test_without_sqlite_nothing_is_stored_and_one_warning_says_so(tmp_path, monkeypatch, caplog):
    def missing():
        raise OSError(errno.ENOSYS, "this Python has no sqlite3")

    monkeypatch.setattr(disk_cache, "_library", missing)
    for number in range(3):
        PlanCache(tmp_path).put("csr", {**SCHEDULE, "number": number}, {})
        assert PlanCache(tmp_path).get("csr", {**SCHEDULE, "number": number}) is None
    (record,) = caplog.records
    assert "this Python has no sqlite3" in record.getMessage()


def test_a_put_that_another_process_keeps_waiting_is_lost_and_logged(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(disk_cache, "WAITS", 2)
    plans = PlanCache(tmp_path)
    plans.put("csr", SCHEDULE, {"made": "before"})
    now = [0.0]
    monkeypatch.setattr(disk_cache, "clock", lambda: now[0])
    with closing(sqlite3.connect(plans.stores[0].path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with caplog.at_level("INFO"):
            plans.put("csr", {**SCHEDULE, "number": 1}, {})
            assert plans.get("csr", {**SCHEDULE, "number": 2}) is None
        assert [record.levelname for record in caplog.records] == ["INFO"] * 2
        assert "locked by another process: a decision is not stored" in caplog.text
        assert plans.get("csr", SCHEDULE) == {"made": "before"}  # in memory
        other.execute("COMMIT")
    plans.put("csr", {**SCHEDULE, "number": 1}, {})  # not tried so soon
    assert plans.get("csr", {**SCHEDULE, "number": 1}) is None
    now[0] += disk_cache.PAUSE_SECONDS
    plans.put("csr", {**SCHEDULE, "number": 1}, {})
    assert plans.get("csr", {**SCHEDULE, "number": 1}) == {}


def test_an_interrupt_undoes_what_was_begun(tmp_path, monkeypatch):
    cache, evict = small(tmp_path), DiskCache._evict
    cache.put("one", b"1")

    def interrupted(*arguments):
        evict(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(DiskCache, "_evict", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.put("one", b"2")
    assert cache.get("one") == b"1"
    other = small(tmp_path)
    other.put("two", b"2")
    assert other.get("one") == b"1"


def interrupted_at(point: int, call) -> bool:
    """Raise KeyboardInterrupt where the interpreter may run signal handlers in disk_cache.py; False if it ended before.
    """
    passed = 0

    def step(frame, event, argument):
        nonlocal passed
        if event in ("call", "return", "c_return") and frame.f_code.co_filename == disk_cache.__file__:
            passed += 1
            if passed == point:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(step)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.parametrize("known", [False, True])
def test_an_interrupt_at_any_point_leaves_a_cache_that_works(tmp_path, known):
    point, going = 0, True
    while going:
        point += 1
        folder = tmp_path / str(point)
        cache = small(folder)
        if known:
            cache.put("one", b"1")

        def use(cache=cache):
            cache.put("one", b"2")
            cache.get("two")

        going = interrupted_at(point, use)
        assert not cache._lock._is_owned()
        other = small(folder)
        assert other.get("one") in (b"1" if known else None, b"2")
        other.put("two", b"2")  # no lock of the file is left
        cache.put("three", b"3")
        assert (small(folder).get("two"), cache.get("three")) == (b"2", b"3")
        assert cache.get("one") in (b"1" if known else None, b"2")
    assert point > 50


def test_a_call_that_interrupts_another_one_finds_nothing(tmp_path, monkeypatch):
    plans, found = PlanCache(tmp_path), []
    evict = DiskCache._evict

    def handled(*arguments):  # as by a signal handler
        if not found:
            found.append(plans.get("csr", {**SCHEDULE, "number": 1}))
            plans.put("csr", {**SCHEDULE, "number": 1}, {})
        return evict(*arguments)

    monkeypatch.setattr(DiskCache, "_evict", handled)
    plans.put("csr", SCHEDULE, {"made": 1})
    assert (plans.get("csr", SCHEDULE), found) == ({"made": 1}, [None])
    assert plans.get("csr", {**SCHEDULE, "number": 1}) is None


def test_threads_that_put_and_get_at_once_see_whole_values(tmp_path):
    cache = small(tmp_path, entries=256)

    def use(place: int) -> bool:
        cache.put(str(place % 5), bytes([place]) * 2000)
        found = cache.get(str(place % 5))
        return found is None or found in {bytes([each]) * 2000 for each in range(200)}

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(200)))


def forked(work) -> int:
    """Run a function in a forked child; return its exit code, or minus the signal that killed it."""
    process = os.fork()
    if not process:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_children_open_files_of_their_own(tmp_path):
    cache = small(tmp_path)
    cache.put("one", b"1")

    def child() -> None:
        assert cache._connection is None
        assert cache.get("one") == b"1"
        cache.put("two", b"2")

    assert forked(child) == 0
    assert (cache.get("one"), cache.get("two")) == (b"1", b"2")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_in_the_middle_of_a_put_harms_neither_process(tmp_path, monkeypatch):
    cache, evict, status = small(tmp_path), DiskCache._evict, []

    def child() -> None:
        assert cache._connection is None
        with pytest.raises(TimeoutError):  # locked by its parent
            cache.get("one")

    def fork(*arguments):  # as by a signal handler
        monkeypatch.setattr(DiskCache, "_evict", evict)
        monkeypatch.setattr(disk_cache, "WAITS", 1)
        status.append(forked(child))
        return evict(*arguments)

    monkeypatch.setattr(DiskCache, "_evict", fork)
    cache.put("one", b"1")
    assert status == [0]
    assert small(tmp_path).get("one") == b"1"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_killed_writers_leave_a_whole_file(tmp_path):
    def write() -> None:
        cache, rng = small(tmp_path), random.Random(os.getpid())
        while True:
            key = str(rng.randrange(20))
            cache.put(key, key.encode() * 3000)

    for _ in range(6):
        children = []
        for _ in range(2):
            process = os.fork()
            if not process:
                try:
                    write()
                finally:
                    os._exit(1)
            children.append(process)
        time.sleep(0.05)
        for process in children:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    stored = small(tmp_path).stored()
    assert stored
    assert all(each.value is not None for each in stored)
    with closing(sqlite3.connect(tmp_path / "decisions.sqlite")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_copies_and_pickles_read_the_same_file(tmp_path):
    plans = PlanCache(tmp_path)
    plans.put("csr", SCHEDULE, {"made": 1})
    for again in (copy.deepcopy(plans), pickle.loads(pickle.dumps(plans))):
        assert again.get("csr", SCHEDULE) == {"made": 1}


def test_the_limits_are_those_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARLOOM_PLANS_ENTRIES", "256")
    monkeypatch.setenv("SPARLOOM_PLANS_MB", "1")
    for number in range(600):
        PlanCache(tmp_path).put("csr", {**SCHEDULE, "number": number}, {})
    assert len(kept_files(tmp_path)) == 256
    PlanCache(tmp_path).put("csr", SCHEDULE, {"long": "x" * 1_000_000})
    assert PlanCache(tmp_path).get("csr", SCHEDULE) is None
    for text in ("0", "-1", "many", "1.5", "9" * 20):
        monkeypatch.setenv("SPARLOOM_PLANS_MB", text)
        with pytest.raises(ValueError, match=f"SPARLOOM_PLANS_MB='{text}': give a whole number, at least 1, or unset"):
            PlanCache(tmp_path)
