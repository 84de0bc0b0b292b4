"""Downloads from servers that break off, send wrong data and fail."""

import hashlib
import multiprocessing

import numpy as np
import pytest
from broken_mirror import BrokenMirror

from sparloom.sparse.download import RetryPolicy, fetch

CONTENT = np.random.default_rng(0).bytes(300_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
QUICK = RetryPolicy(attempts=3, timeout_seconds=5.0, pause_seconds=0.001)


@pytest.fixture
def server():
    mirror = BrokenMirror()
    mirror.files["/m.tar.gz"] = CONTENT
    with mirror.running():
        yield mirror


def get(address, folder, digest=DIGEST, policy=QUICK):
    fetch(f"{address}/m.tar.gz", folder / "m.tar.gz", digest=digest, policy=policy)
    assert (folder / "m.tar.gz").read_bytes() == CONTENT


def left(folder):
    return [path.name for path in folder.iterdir() if path.is_file()]


@pytest.mark.parametrize("faults", [
    [], [("cut", 100_000), ("cut", 0)], [503, 429], [("stall", 30)], ["no_length"], [("cut", 1), 500]])
def test_a_download_is_repeated_until_it_is_complete(server, tmp_path, faults):
    server.faults["/m.tar.gz"] = [*faults]
    get(server.address, tmp_path, policy=RetryPolicy(attempts=3, timeout_seconds=1.0, pause_seconds=0.001))
    assert len(server.requests) == len([fault for fault in faults if fault != "no_length"]) + 1
    assert left(tmp_path) == ["m.tar.gz"]
    get(server.address, tmp_path)
    assert len(server.requests) <= len(faults) + 1  # an intact file is not requested


@pytest.mark.parametrize(("fault", "digest", "message"), [
    (("cut", 1000), DIGEST, r"gave up after 3 attempts \(the connection closed after 1000 of 300000 bytes\)"),
    (("cut", 1000), None, "gave up after 3 attempts"), (500, DIGEST, r"gave up after 3 attempts \(.* 500\)")])
def test_a_lasting_fault_is_reported(server, tmp_path, fault, digest, message):
    server.always["/m.tar.gz"] = fault
    with pytest.raises(ConnectionError, match=rf"/m\.tar\.gz: {message}"):
        get(server.address, tmp_path, digest)
    assert len(server.requests) == 3
    assert left(tmp_path) == []


@pytest.mark.parametrize("fault", ["rubbish", ("short", 1000), ("short", 0)])
def test_a_wrong_checksum_is_refused_and_nothing_is_kept(server, tmp_path, fault):
    server.always["/m.tar.gz"] = fault
    with pytest.raises(ValueError, match=rf"checksum [0-9a-f]{{64}}, the catalogue says {DIGEST}: refused and removed"):
        get(server.address, tmp_path)
    assert left(tmp_path) == []


def test_an_endless_file_stops_at_the_limit(server, tmp_path):
    with pytest.raises(ValueError, match="longer than 70000 bytes: raise limit_bytes if the mirror is trusted"):
        get(server.address, tmp_path, policy=RetryPolicy(limit_bytes=70_000))
    assert left(tmp_path) == []


def test_concurrent_processes_download_a_file_once(server, tmp_path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=get, args=(server.address, tmp_path)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert server.requests == ["/m.tar.gz"]
