"""Downloads from servers that break off, ignore ranges, send wrong data and fail."""

import hashlib
import multiprocessing
import threading

import numpy as np
import pytest
from broken_mirror import BrokenMirror

from sparloom.sparse import download
from sparloom.sparse.download import RetryPolicy, fetch

CONTENT = np.random.default_rng(0).bytes(300_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
QUICK = RetryPolicy(attempts=3, timeout_seconds=5.0, pause_seconds=0.001)


@pytest.fixture
def server():
    mirror = BrokenMirror()
    mirror.files["/m.tar.gz"] = CONTENT
    thread = threading.Thread(target=mirror.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield mirror
    mirror.shutdown()
    mirror.server_close()
    thread.join()


def get(server, tmp_path, digest=DIGEST, patience=QUICK):
    steps = []
    path = tmp_path / "m.tar.gz"
    fetch(f"{server.address}/m.tar.gz", path, digest=digest, patience=patience,
          advance=lambda reached, total: steps.append((reached, total)))
    assert path.read_bytes() == CONTENT
    assert not (tmp_path / "m.tar.gz.partial").exists()
    return steps


def test_a_healthy_server_gets_one_request_and_progress_is_reported(server, tmp_path):
    steps = get(server, tmp_path)
    assert server.asked("/m.tar.gz") == [None]
    assert steps[-1] == (300_000, 300_000)
    assert [reached for reached, _ in steps] == sorted(reached for reached, _ in steps)


@pytest.mark.parametrize("fault", ["cut", "reset"])
def test_a_broken_download_is_resumed(server, tmp_path, fault):
    server.faults["/m.tar.gz"] = [(fault, 100_000), (fault, 50_000)]
    get(server, tmp_path)
    assert server.asked("/m.tar.gz") == [None, "bytes=100000-", "bytes=150000-"]


def test_progress_resets_the_count_of_attempts(server, tmp_path):
    server.faults["/m.tar.gz"] = [("cut", 20_000)] * 10
    get(server, tmp_path)
    assert len(server.asked("/m.tar.gz")) == 11


def test_a_server_that_ignores_ranges_sends_everything_again(server, tmp_path):
    server.faults["/m.tar.gz"] = [("cut", 100_000), "no_range"]
    get(server, tmp_path)


def test_a_server_that_always_breaks_at_the_same_byte_is_given_up(server, tmp_path):
    server.always["/m.tar.gz"] = ("cut", 0)
    server.faults["/m.tar.gz"] = [("cut", 1000)]
    with pytest.raises(ConnectionError, match=r"m\.tar\.gz: gave up after 3 attempts without progress \(the connection "
                                              r"closed after 1000 of 300000 bytes\); the 1000 bytes received so far "
                                              r"are kept: run again to continue"):
        get(server, tmp_path)
    server.always.clear()
    get(server, tmp_path)
    assert server.asked("/m.tar.gz")[-1] == "bytes=1000-"


def test_a_response_for_another_range_is_not_appended(server, tmp_path):
    server.faults["/m.tar.gz"] = [("cut", 100_000), "from_zero"]
    get(server, tmp_path)
    assert server.asked("/m.tar.gz") == [None, "bytes=100000-", None]


def test_a_response_without_length_is_verified_by_checksum(server, tmp_path):
    server.faults["/m.tar.gz"] = ["no_length"]
    assert get(server, tmp_path)[-1] == (300_000, None)


@pytest.mark.parametrize("fault", ["rubbish", ("short", 1000), ("short", 0)])
def test_a_wrong_checksum_is_refused_and_the_file_removed(server, tmp_path, fault):
    server.always["/m.tar.gz"] = fault
    with pytest.raises(ValueError, match=rf"checksum [0-9a-f]{{64}}, the catalogue says {DIGEST}: refused and removed"):
        get(server, tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []


def test_a_partial_file_of_an_earlier_run_is_resumed(server, tmp_path):
    (tmp_path / "m.tar.gz.partial").write_bytes(CONTENT[:123_456])
    get(server, tmp_path)
    assert server.asked("/m.tar.gz") == ["bytes=123456-"]


def test_a_complete_partial_file_is_only_verified(server, tmp_path):
    (tmp_path / "m.tar.gz.partial").write_bytes(CONTENT)
    get(server, tmp_path)
    assert server.asked("/m.tar.gz") == ["bytes=300000-"]


@pytest.mark.parametrize("left", [b"\0" * 1000, b"\0" * 300_000, b"\0" * 400_000])
def test_a_partial_file_that_does_not_fit_is_dropped(server, tmp_path, left):
    (tmp_path / "m.tar.gz.partial").write_bytes(left)
    get(server, tmp_path)
    assert server.asked("/m.tar.gz")[-1] is None


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_a_temporary_server_error_is_retried(server, tmp_path, status):
    server.faults["/m.tar.gz"] = [status, status]
    get(server, tmp_path)
    assert len(server.asked("/m.tar.gz")) == 3


def test_a_lasting_server_error_is_reported(server, tmp_path):
    server.always["/m.tar.gz"] = 500
    with pytest.raises(ConnectionError, match=r"gave up after 3 attempts without progress \(the server answers 500"):
        get(server, tmp_path)


@pytest.mark.parametrize("status", [404, 403, 410])
def test_a_refused_file_is_requested_once(server, tmp_path, status):
    server.always["/m.tar.gz"] = status
    with pytest.raises(FileNotFoundError, match=rf"/m\.tar\.gz: the server answers {status} "):
        get(server, tmp_path)
    assert len(server.asked("/m.tar.gz")) == 1


def test_silence_counts_as_a_broken_connection(server, tmp_path):
    server.faults["/m.tar.gz"] = [("stall", 30)]
    get(server, tmp_path, patience=RetryPolicy(attempts=3, timeout_seconds=1.0, pause_seconds=0.001))
    assert server.asked("/m.tar.gz") == [None, "bytes=1-"]


@pytest.mark.parametrize("fault", ["trickle", "trickle_headers"])
def test_a_server_below_the_minimum_speed_is_given_up(server, tmp_path, fault):
    server.always["/m.tar.gz"] = (fault, 0.002)
    slow = RetryPolicy(attempts=2, timeout_seconds=0.3, pause_seconds=0.001, least_bytes_per_second=1e7)
    with pytest.raises(ConnectionError, match=r"gave up after 2 attempts without progress \(\d+ bytes in 0\.3 s, the "
                                              r"minimum is 1e\+07 bytes per second\); the \d+ bytes received so far"):
        get(server, tmp_path, patience=slow)
    assert len(server.asked("/m.tar.gz")) == 2


def test_a_broken_response_without_length_is_not_complete(server, tmp_path, monkeypatch):
    server.always["/m.tar.gz"] = ("trickle", 0.002)
    monkeypatch.setattr(download, "_content_length", lambda headers: None)
    slow = RetryPolicy(attempts=1, timeout_seconds=0.3, pause_seconds=0.001, least_bytes_per_second=1e7)
    with pytest.raises(ConnectionError, match="the minimum is"):
        get(server, tmp_path, digest=None, patience=slow)
    assert not (tmp_path / "m.tar.gz").exists()


def test_a_server_that_breaks_off_after_every_byte_is_given_up(server, tmp_path):
    server.always["/m.tar.gz"] = ("cut", 1)
    slow = RetryPolicy(attempts=3, timeout_seconds=0.2, pause_seconds=0.02, least_bytes_per_second=1e7)
    with pytest.raises(ConnectionError, match="gave up after 3 attempts without progress"):
        get(server, tmp_path, patience=slow)


def test_an_unreachable_server_is_reported(tmp_path):
    mirror = BrokenMirror()
    mirror.server_close()
    with pytest.raises(ConnectionError, match=r"gave up after 3 attempts .*refused.*the 0 bytes"):
        get(mirror, tmp_path)


def test_an_endless_file_stops_at_the_limit(server, tmp_path):
    with pytest.raises(ValueError, match="longer than 70000 bytes: raise limit_bytes if the mirror is trusted"):
        get(server, tmp_path, patience=RetryPolicy(limit_bytes=70_000))
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []


def test_an_intact_file_is_not_requested(server, tmp_path):
    (tmp_path / "m.tar.gz").write_bytes(CONTENT)
    get(server, tmp_path)
    assert server.requests == []


def _fetch_into(address, path):
    fetch(f"{address}/m.tar.gz", path, digest=DIGEST, patience=QUICK, advance=lambda reached, total: None)


def test_concurrent_processes_download_a_file_once(server, tmp_path):
    server.faults["/m.tar.gz"] = [("cut", 100_000)]
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_fetch_into, args=(server.address, tmp_path / "m.tar.gz")) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert (tmp_path / "m.tar.gz").read_bytes() == CONTENT
    assert server.asked("/m.tar.gz") == [None, "bytes=100000-"]


def test_a_killed_download_is_resumed(server, tmp_path):
    server.faults["/m.tar.gz"] = [("stall", 30)]
    context = multiprocessing.get_context("spawn")
    worker = context.Process(target=_fetch_into, args=(server.address, tmp_path / "m.tar.gz"))
    worker.start()
    partial = tmp_path / "m.tar.gz.partial"
    while not (partial.exists() and partial.stat().st_size) and worker.is_alive():
        worker.join(0.01)
    worker.kill()
    worker.join()
    assert not (tmp_path / "m.tar.gz").exists()
    assert partial.read_bytes() == CONTENT[:1]
    get(server, tmp_path)
    assert server.asked("/m.tar.gz")[-1] == "bytes=1-"
