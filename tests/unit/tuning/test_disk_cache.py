"""A bounded cache on disk: values, limits, full disks and killed writers."""

import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kept_files import kept_files

from sparloom.tuning import DiskCache, PlanCache, Pruning, list_plans, prune_plans

SCHEDULE = {"op": "spmm", "threads": 2}


def small(folder: Path, *, entries: int = 512, size_bytes: int = 1 << 20) -> DiskCache:
    return DiskCache(folder, entries=entries, size_bytes=size_bytes)


def test_values_come_back_until_they_are_removed(tmp_path):
    cache = small(tmp_path)
    assert cache.get("one") is None
    cache.put("one", b"1")
    cache.put("two", b"")
    cache.put("one", b"\x00\n" * 300)
    assert (cache.get("one"), cache.get("two")) == (b"\x00\n" * 300, b"")
    assert small(tmp_path).get("one") == cache.get("one")
    cache.path("one").unlink()
    assert (cache.get("one"), cache.get("two")) == (None, b"")
    assert list(cache.entries()) == kept_files(tmp_path) == [cache.path("two")]
    cache.path("two").unlink()
    assert kept_files(tmp_path) == list(cache.entries()) == []


def test_entries_and_bytes_are_bounded_and_the_newest_are_kept(tmp_path):
    few, little = small(tmp_path / "few", entries=512), small(tmp_path / "little", size_bytes=256 * 1000)
    for number in range(1500):
        few.put(str(number), b"x")
        little.put(str(number), bytes(300))
        assert few.get(str(number)) is not None
    assert 256 < len(list(few.entries())) <= 512
    assert sum(path.stat().st_size for path in little.entries()) < 256 * 1100


def test_recently_used_entries_stay(tmp_path):
    cache, now = DiskCache(tmp_path, entries=3, size_bytes=1 << 20, buckets=1), time.time()
    for place, key in enumerate("abc"):
        cache.put(key, b"x")
        os.utime(cache.path(key), (now - 100 + place,) * 2)
    os.utime(cache.path("a"), (now - 10, now - 100))  # as a reader leaves it
    cache.put("d", b"x")
    cache.put("e", b"x")
    assert [cache.get(key) is not None for key in "abcde"] == [True, False, False, True, True]


def test_an_entry_that_is_new_but_dated_long_ago_is_kept(tmp_path):
    cache = DiskCache(tmp_path, entries=1, size_bytes=1 << 20, buckets=1)
    cache.put("a", b"x")
    os.utime(cache.path("a"), (time.time() + 1e6,) * 2)  # by a machine whose clock is ahead
    cache.put("b", b"x")
    assert (cache.get("a"), cache.get("b")) == (None, b"x")


def test_a_value_larger_than_the_cache_is_not_stored(tmp_path):
    cache = small(tmp_path, size_bytes=256 * 100)
    cache.put("one", bytes(101))
    assert cache.get("one") is None
    DiskCache(tmp_path, entries=512, size_bytes=1 << 30).put("one", bytes(101))
    assert cache.get("one") is None


def test_one_put_looks_at_one_bucket(tmp_path, monkeypatch):
    cache, looked_at, scan = small(tmp_path), [], os.scandir
    for number in range(400):
        cache.put(str(number), b"x")
    monkeypatch.setattr(os, "scandir", lambda path: looked_at.append(path) or scan(path))
    cache.put("more", b"x")
    assert cache.get("more") == b"x"
    assert looked_at == [str(cache.path("more").parent)]


def failing(code: int):
    def fail(*arguments, **options):
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("name", ["write", "replace", "open"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_failed_write_keeps_the_old_entry(tmp_path, monkeypatch, name, code):
    cache = small(tmp_path)
    cache.put("one", b"1")
    with monkeypatch.context() as patched:
        patched.setattr(os, name, failing(code))
        with pytest.raises(OSError, match=os.strerror(code)):
            cache.put("one", b"2")
    assert cache.get("one") == b"1"
    assert kept_files(tmp_path) == [cache.path("one")]


@pytest.mark.parametrize("name", ["write", "replace", "close"])
def test_an_interrupt_leaves_no_file_behind(tmp_path, monkeypatch, name):
    cache, real = small(tmp_path), getattr(os, name)
    cache.put("one", b"1")

    def interrupted(*arguments):
        real(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.put("one", b"2")
    assert cache.get("one") in (b"1", b"2")
    assert kept_files(tmp_path) == [cache.path("one")]


def test_a_disk_that_takes_little_at_a_time_gets_all(tmp_path, monkeypatch):
    cache, write = small(tmp_path), os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:7]))
        cache.put("one", bytes(range(100)))
    assert cache.get("one") == bytes(range(100))


def test_special_files_do_not_block(tmp_path):
    cache = small(tmp_path)
    for key in ("pipe", "folder"):
        cache.path(key).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(cache.path("pipe"))
    cache.path("folder").mkdir()
    with pytest.raises(ValueError, match="does not begin like an entry"):
        cache.get("pipe")
    with pytest.raises(IsADirectoryError):
        cache.get("folder")
    with pytest.raises(IsADirectoryError):
        cache.put("folder", b"x")
    assert list(cache.entries()) == []


def test_threads_that_put_and_get_at_once_see_whole_values(tmp_path):
    cache = small(tmp_path, entries=256)

    def use(place: int) -> bool:
        cache.put(str(place % 5), bytes([place]) * 2000)
        found = cache.get(str(place % 5))
        return found is None or found in {bytes([each]) * 2000 for each in range(200)}

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(200)))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_read_only_folder_is_read_with_one_warning(tmp_path, monkeypatch, caplog, code):
    PlanCache(tmp_path).put("csr", SCHEDULE, {"made": "before"})
    monkeypatch.setattr(os, "write", failing(code))
    for number in range(5):
        PlanCache(tmp_path).put("csr", {**SCHEDULE, "number": number}, {})
    assert PlanCache(tmp_path).get("csr", SCHEDULE) == {"made": "before"}
    (record,) = caplog.records
    assert f"{tmp_path} cannot be written to: {os.strerror(code)}" in record.getMessage()
    assert "set SPARLOOM_CACHE, or AUTOSAGE_CACHE_DIR" in record.getMessage()


def test_an_unreadable_folder_gives_one_warning(tmp_path, monkeypatch, caplog):
    PlanCache(tmp_path).put("csr", SCHEDULE, {})
    monkeypatch.setattr(os, "open", failing(errno.EACCES))
    assert [PlanCache(tmp_path).get("csr", {**SCHEDULE, "number": number}) for number in range(3)] == [None] * 3
    (record,) = caplog.records
    assert "cannot be read: Permission denied: its decisions are made anew" in record.getMessage()


def test_the_limits_are_those_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARLOOM_PLANS_ENTRIES", "256")
    monkeypatch.setenv("SPARLOOM_PLANS_MB", "1")
    for number in range(600):
        PlanCache(tmp_path).put("csr", {**SCHEDULE, "number": number}, {})
    assert len(kept_files(tmp_path)) <= 256
    PlanCache(tmp_path).put("csr", SCHEDULE, {"long": "x" * 10_000})
    assert PlanCache(tmp_path).get("csr", SCHEDULE) is None
    for text in ("0", "-1", "many", "1.5", "9" * 20):
        monkeypatch.setenv("SPARLOOM_PLANS_MB", text)
        with pytest.raises(ValueError, match=f"SPARLOOM_PLANS_MB='{text}': give a whole number, at least 1, or unset"):
            PlanCache(tmp_path)


PAIR = '{"version": 1, "key": {}, "choice": {}}'
OLD = {f"schedule-{'1' * 64}.json": "xxxx", f"schedule-{'2' * 64}.json": PAIR, "3" * 64 + ".json": PAIR,
       "4" * 64 + ".json": PAIR[:7], f"rates-{'5' * 16}-2.json": "", f"order-{'6' * 32}-metis-{'7' * 16}.npy": "",
       f".schedule-{'8' * 64}.json.12-34.partial": "{"}
OTHERS = {"notes.json": PAIR, "a" * 64 + ".json": '{"mine": 1}', f"schedule-{'b' * 64}.json": '{"days": []}',
          "probe_logs.jsonl": PAIR}


def test_files_of_earlier_versions_are_pruned_and_others_stay(tmp_path):
    for name, text in (OLD | OTHERS).items():
        (tmp_path / name).write_text(text)
    PlanCache(tmp_path).put("csr", SCHEDULE, {})
    listed = {entry.path.name: entry for entry in list_plans(tmp_path, now=time.time()) if entry.kind == "old"}
    assert set(listed) == set(OLD)
    assert {entry.state for entry in listed.values()} == {"foreign"}
    assert len(prune_plans(list(listed.values()), Pruning("foreign"))) == len(OLD)
    assert {path.name for path in tmp_path.iterdir()} == {*OTHERS, "decisions"}
    assert PlanCache(tmp_path).get("csr", SCHEDULE) == {}


def test_a_put_looks_at_no_files_of_earlier_versions(tmp_path, monkeypatch):
    for number in range(300):
        (tmp_path / f"schedule-{number:064x}.json").write_text(PAIR)
    looked_at, scan = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: looked_at.append(Path(path)) or scan(path))
    for number in range(40):
        PlanCache(tmp_path).put("csr", {**SCHEDULE, "number": number}, {})
    assert {path.parent for path in looked_at} == {tmp_path / "decisions"}
