"""Files and lines that are whole or not there, whoever writes at the same time and whatever is killed."""

import fcntl
import os
import signal
import subprocess
import sys
import threading

import pytest

from sparloom.files import append_lines, locked, read_lines, write_text

WRITER = """
import sys
from pathlib import Path
from sparloom.files import append_lines

for number in range(int(sys.argv[3])):
    append_lines(Path(sys.argv[1]), [f"{sys.argv[2]} {number} " + "x" * 5000])
"""


def writer(path, name, lines):
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), name, str(lines)])


@pytest.mark.parametrize("wait", [True, False])
def test_a_file_is_whole_when_it_has_its_name_and_comes_to_the_disk(tmp_path, monkeypatch, wait):
    synced, done, sync = [], threading.Event(), os.fsync

    def noted(descriptor):
        sync(descriptor)
        synced.append(descriptor)
        if len(synced) == 2:
            done.set()

    monkeypatch.setattr(os, "fsync", noted)
    path = tmp_path / "new" / "file"
    write_text(path, "content", wait=wait)
    assert path.read_text() == "content"
    assert [each.name for each in path.parent.iterdir()] == ["file"]
    assert done.wait(0 if wait else 60)


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


def test_writers_at_once_keep_their_lines_apart(tmp_path):
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


def test_a_lock_that_this_thread_holds_is_had_again(tmp_path):
    """A signal handler that asks for it would wait for the call that it interrupts."""
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
