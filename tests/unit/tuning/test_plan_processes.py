"""One cache, many processes: no entry is lost or damaged when processes are killed; all replay the same."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kept_files import kept_files
from plan_storm import PROCESSES, THREADS, decide_all, problems
from test_dispatch_cache import RATES

from sparloom.files import read_lines
from sparloom.tuning import PlanCache, get_rates, list_plans, put_rates

SCRIPT = Path(__file__).with_name("plan_storm.py")


def ran(*arguments: object) -> str:
    """Run the script; logged warnings are errors."""
    done = subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True,
                          check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def stormed(tmp_path_factory):
    """Run processes that decide and are killed; return their folder and the keys that they reported as stored."""
    folder, reports = tmp_path_factory.mktemp("plans"), tmp_path_factory.mktemp("reports")
    put_rates(PlanCache(folder), RATES, threads=THREADS, kernels="sparse")
    warm = PlanCache(tmp_path_factory.mktemp("warm"))  # compiles the kernels
    put_rates(warm, RATES, threads=THREADS, kernels="sparse")
    decide_all(warm, random.Random(0))
    ran("storm", folder, reports)
    told = [line for path in reports.glob("*.jsonl") for line in read_lines(path)]
    return folder, [json.loads(line) for line in told]


@pytest.mark.cc
@pytest.mark.slow
def test_no_stored_decision_is_lost_or_damaged(stormed, caplog):
    folder, keys = stormed
    distinct = {json.dumps(key, sort_keys=True) for key in keys}
    assert len(distinct) == len(list(problems()))
    assert len(keys) >= PROCESSES * len(distinct)  # who is not killed makes them all
    kept = [PlanCache(folder).get("csr", json.loads(key)) for key in distinct]
    assert sum(plan["decision"]["origin"] == "measured" for plan in kept) > len(kept) / 2
    assert get_rates(PlanCache(folder), threads=THREADS, kernels="sparse") == RATES
    assert caplog.text == ""
    plans = list_plans(folder, now=time.time())
    assert {plan.state for plan in plans} == {"own"}
    assert sorted(plan.kind for plan in plans) == ["csr"] * len(distinct) + ["rates"]


@pytest.mark.cc
@pytest.mark.slow
def test_killed_writers_leave_one_whole_file(stormed):
    folder, _ = stormed
    assert {path.name for path in folder.iterdir()} == {"decisions.sqlite", "probe_logs.jsonl"}
    assert {plan.state for plan in list_plans(folder, now=time.time())} == {"own"}


@pytest.mark.cc
@pytest.mark.slow
def test_processes_that_replay_measure_nothing_and_compute_the_same(stormed):
    folder, _ = stormed
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    first, second = json.loads(ran("replay", folder)), json.loads(ran("replay", folder))
    assert len(first) == len(list(problems()))
    assert first == second
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


KILLED = """
import os, signal, sys
from pathlib import Path
from sparloom.tuning import DiskCache, PlanCache
cache, evict = PlanCache(Path(sys.argv[1])), DiskCache._evict
def kill(self, connection, *arguments):
    evict(self, connection, *arguments)
    connection.execute("PRAGMA cache_spill=1")
    connection.execute("UPDATE entries SET value = zeroblob(3000000)")  # more than its memory: pages are written
    os.kill(os.getpid(), signal.SIGKILL)
DiskCache._evict = kill
cache.put("csr", {"op": "spmm"}, {"made": "later", "long": "x" * 100_000})
"""


def test_a_process_killed_while_writing_leaves_the_old_entry(tmp_path):
    key, cache = {"op": "spmm"}, PlanCache(tmp_path)
    cache.put("csr", key, {"made": "before"})
    cache.put("csr", {"op": "sddmm"}, {"made": "before"})
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, check=False)
        assert done.returncode == -9
        assert (tmp_path / "decisions.sqlite-journal").exists()
        for store in cache.stores:
            store._forget()
        assert cache.get("csr", key) == {"made": "before"}
        assert not (tmp_path / "decisions.sqlite-journal").exists()
        assert len(kept_files(tmp_path, "csr")) == 2
