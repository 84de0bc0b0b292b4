"""Files and lines are complete or absent, despite concurrent writers and killed processes."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from sparloom import files
from sparloom.files import (
    append_lines,
    atomic_folder,
    atomic_path,
    check_sum,
    locked,
    read_json,
    read_lines,
    remove_leftovers,
    scratch_folder,
    write_checked_json,
    write_sums,
    write_text,
)

WRITER = """
import sys
from pathlib import Path
from sparloom.files import append_lines

for number in range(int(sys.argv[3])):
    append_lines(Path(sys.argv[1]), [f"{sys.argv[2]} {number} " + "x" * 5000])
"""


def writer(path, name, lines):
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), name, str(lines)])


def test_a_file_is_complete_and_flushed_when_it_gets_its_name(tmp_path, monkeypatch):
    synced, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(descriptor) or sync(descriptor))
    path = tmp_path / "new" / "file"
    write_text(path, "content")
    assert path.read_text() == "content"
    assert [each.name for each in path.parent.iterdir()] == ["file"]
    assert len(synced) == 2


def test_lines_are_appended_and_read(tmp_path):
    path = tmp_path / "new" / "lines"
    assert read_lines(path) == []
    append_lines(path, ["a", "b"])
    append_lines(path, [])
    append_lines(path, ["ü"])
    assert read_lines(path) == [b"a", b"b", "ü".encode()]


@pytest.mark.parametrize("torn", ["c", "c" * 200_000])
def test_torn_line_is_not_read_and_not_joined(tmp_path, torn):
    path = tmp_path / "lines"
    path.write_text(f"a\n{torn}")
    assert read_lines(path) == [b"a"]
    append_lines(path, ["b"])
    assert read_lines(path) == [b"a", b"b"]


def test_lines_of_concurrent_writers_are_not_mixed(tmp_path):
    path, count = tmp_path / "lines", 25
    killed = writer(path, "killed", 10**6)
    writers = [writer(path, name, count) for name in "abc"]
    for process in writers:
        assert process.wait() == 0
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    append_lines(path, ["end"])
    *lines, last = read_lines(path)
    assert last == b"end"
    assert all(line.endswith(b"x" * 5000) and len(line.split()) == 3 for line in lines)
    for name in "abc":
        assert [line.split()[1] for line in lines if line.startswith(f"{name} ".encode())] == [
            str(number).encode() for number in range(count)]


KILLED = """
import os, signal, sys
from pathlib import Path
from sparloom.files import atomic_folder, atomic_path, scratch_folder

with atomic_path(Path(sys.argv[1]) / "file") as partial, atomic_folder(Path(sys.argv[1]) / "model") as made:
    with scratch_folder("test") as scratch:
        for path in (partial, made / "a", scratch / "a"):
            path.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_leftovers_of_killed_processes_are_removed_a_week_later(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "tmp").mkdir()
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    left = list(tmp_path.rglob(".*.partial"))
    assert len(left) == 3
    for folder in (tmp_path, tmp_path / "tmp"):
        remove_leftovers(folder)
    assert set(tmp_path.rglob(".*.partial")) == set(left)
    for path in left:
        os.utime(path, (time.time() - 8 * 86_400,) * 2)
    files._remove_once.cache_clear()
    with atomic_path(tmp_path / "other") as partial, scratch_folder("test") as scratch:
        assert set(tmp_path.rglob(".*.partial")) == {scratch}
        partial.write_text("whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "tmp"]
    assert not list((tmp_path / "tmp").iterdir())


def test_an_unfinished_folder_keeps_the_old_one(tmp_path):
    with atomic_folder(tmp_path / "model") as made:
        (made / "a").write_text("1")
    with pytest.raises(IsADirectoryError), atomic_folder(tmp_path / "model") as made:
        made.write_text("2")
    assert (tmp_path / "model" / "a").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("exchanged", [True, False])
def test_a_folder_is_replaced(tmp_path, monkeypatch, exchanged):
    if not exchanged:
        monkeypatch.setattr(files, "_exchange", lambda first, second: False)
    for content in "12":
        with atomic_folder(tmp_path / "model") as made:
            (made / "a").write_text(content)
        assert (tmp_path / "model" / "a").read_text() == content
        assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_changed_json_with_a_checksum_is_refused(tmp_path):
    path = tmp_path / "a.json"
    write_checked_json(path, {"b": 1, "a": [0.5]})
    assert read_json(path) == {"b": 1, "a": [0.5]}
    path.write_text(path.read_text().replace("0.5", "0.7"))
    with pytest.raises(ValueError, match="its checksum does not match its content"):
        read_json(path)
    for damage in ('"checksum": "', 'sparloom-sha256-'):
        write_checked_json(path, {"b": 1})
        path.write_text(path.read_text().replace(damage, damage + "x"))
        with pytest.raises(ValueError, match="its checksum does not match its content"):
            read_json(path)
    stored = '{\n  "b": 1,\n  "checksum": "sparloom-sha256-%s-sparloom-sha256"\n}\n'  # as version 0.1 wrote it
    path.write_text(stored % "7e3080b50696e4fd59fee3ca032c4a688138ce17f09580edc0dd2b4deb949d45")
    assert read_json(path) == {"b": 1}
    path.write_text('{"old": 1}')
    assert read_json(path) == {"old": 1}


def test_sums_detect_a_changed_file_and_suit_sha256sum(tmp_path):
    (tmp_path / "run").mkdir()
    write_text(tmp_path / "run" / "a.json", "{}")
    write_sums(tmp_path / "run", {"metrics.json": "{1}"})
    check_sum(tmp_path / "run" / "a.json", b"{}")
    check_sum(tmp_path / "run" / "unlisted.json", b"{}")
    for name in ("a.json", "metrics.json"):
        with pytest.raises(ValueError, match=r"its checksum differs from that in .*SHA256SUMS"):
            check_sum(tmp_path / "run" / name, b"{2}")
    (tmp_path / "run" / "SHA256SUMS").rename(tmp_path / "SHA256SUMS")
    (tmp_path / "SHA256SUMS").write_text((tmp_path / "SHA256SUMS").read_text().replace("  ", "  run/"))
    with pytest.raises(ValueError, match=r"its checksum differs from that in .*SHA256SUMS"):
        check_sum(tmp_path / "run" / "a.json", b"{2}")


def test_a_lock_of_this_thread_is_shared(tmp_path):
    """Otherwise a signal handler that acquires the lock would wait for the call that it interrupts."""
    lock, had = tmp_path / "lock", []

    def other():
        with locked(lock):
            had.append(1)

    waiting = threading.Thread(target=other)
    with locked(lock):
        with locked(lock), locked(tmp_path / "other"):
            pass
        waiting.start()
        with lock.open("a") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert not had
    waiting.join(20)
    assert had


def test_a_call_that_interrupts_the_acquisition_of_a_lock_shares_it(tmp_path, monkeypatch):
    """The lock is taken, but this is not noted yet: another descriptor would wait for ever."""
    lock, had, take = tmp_path / "lock", [], fcntl.flock

    def interrupted(file, operation):
        take(file, operation)
        if operation == fcntl.LOCK_EX and not had:
            had.append(1)
            with (locked(lock.parent / ".." / lock.parent.name / "lock"), lock.open("a") as other,
                  pytest.raises(BlockingIOError)):
                take(other, fcntl.LOCK_EX | fcntl.LOCK_NB)

    monkeypatch.setattr(fcntl, "flock", interrupted)
    with locked(lock):
        assert had
    with lock.open("a") as other:
        take(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("place", ["flock", "truncate", "write", "written", "fsync", "unlock"])
@pytest.mark.parametrize("raises", [False, True])
def test_lines_of_a_call_that_interrupts_another_are_neither_lost_nor_joined(tmp_path, monkeypatch, place, raises):
    path, done = tmp_path / "journal", []
    path.write_text("before\ntorn li")

    def interrupt():
        if not done:
            done.append(place)
            append_lines(path, ["handler"])
            if raises:
                raise KeyboardInterrupt

    def interrupting(module, name, here):
        function = getattr(module, name)

        def call(*given):
            if here == place and here != "written":
                interrupt()
            result = function(*given)
            if here == "write" and place == "written":
                interrupt()
            return result
        monkeypatch.setattr(module, name, call)

    flock = fcntl.flock

    def lock(file, operation):
        if place == ("unlock" if operation == fcntl.LOCK_UN else "flock"):
            interrupt()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", lock)
    interrupting(files, "_cut_torn_line", "truncate")
    interrupting(os, "write", "write")
    interrupting(os, "fsync", "fsync")
    try:
        append_lines(path, ["call"])
    except KeyboardInterrupt:
        assert raises
    assert done
    append_lines(path, ["after"])
    found = path.read_text().splitlines()
    assert found[0] == "before"
    assert found[-1] == "after"
    assert sorted(set(found[1:-1]) | {"call"}) == ["call", "handler"]
    assert raises or len(found) == 4


def test_a_forked_child_does_not_keep_a_file_locked(tmp_path, monkeypatch):
    journal, children, write = tmp_path / "journal", [], os.write
    waits, ends = os.pipe()

    def fork(descriptor, text):
        if not children:
            children.append(os.fork())
            if children[0] == 0:  # it has the descriptor, too
                os.close(ends)
                os.read(waits, 1)
                os._exit(0)
        return write(descriptor, text)

    monkeypatch.setattr(os, "write", fork)
    append_lines(journal, ["a"])
    with journal.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(ends)
    os.waitpid(children[0], 0)
    os.close(waits)


def test_a_forked_child_does_not_release_the_lock_of_its_parent(tmp_path):
    lock = tmp_path / "lock"
    with lock.open("a") as other:
        with locked(lock):
            child = os.fork()
            if child:
                assert os.waitpid(child, 0)[1] == 0
                with pytest.raises(BlockingIOError):
                    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not child:
            os._exit(0)
