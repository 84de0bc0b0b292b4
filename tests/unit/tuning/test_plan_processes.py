"""One cache, many processes: no entry is lost or damaged when processes are killed; all replay the same."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kept_files import kept_files
from plan_storm import KILLS, PROCESSES, THREADS, decide_all, problems
from test_dispatch_cache import RATES

from sparloom.files import read_lines
from sparloom.tuning import PlanCache, get_rates, list_plans, put_rates

SCRIPT = Path(__file__).with_name("plan_storm.py")
FAR = 1e3  # seconds: later than any writer that is alive takes


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
    plans = [plan for plan in list_plans(folder, now=time.time()) if plan.kind != "temporary"]
    assert {plan.state for plan in plans} == {"own"}
    assert sorted(plan.kind for plan in plans) == ["csr"] * len(distinct) + ["rates"]


@pytest.mark.cc
@pytest.mark.slow
def test_files_of_killed_writers_are_bounded_and_removed(stormed):
    folder, keys = stormed
    left = {plan.path for plan in list_plans(folder, now=time.time()) if plan.kind == "temporary"}
    assert len(left) <= KILLS
    listed = {plan.path for plan in list_plans(folder, now=time.time())}
    assert {path for path in folder.rglob("*") if path.is_file()} == listed | {folder / "probe_logs.jsonl"}
    for path in left:
        os.utime(path, (time.time() - FAR,) * 2)
    for key in keys:  # the next writer of a bucket clears it
        PlanCache(folder).put("csr", key, PlanCache(folder).get("csr", key))
    assert not [plan for plan in list_plans(folder, now=time.time()) if plan.kind == "temporary"]


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
from sparloom.tuning import PlanCache
cache = PlanCache(Path(sys.argv[1]))
def kill(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)
def half(descriptor, content, write=os.write):
    write(descriptor, content[: len(content) // 2])
    kill()
if sys.argv[2] == "write":
    os.write = half
else:
    os.replace = kill
cache.put("csr", {"op": "spmm"}, {"made": "later", "long": "x" * 100_000})
"""


@pytest.mark.parametrize("place", ["write", "replace"])
def test_a_process_killed_while_writing_leaves_the_old_entry(tmp_path, place):
    key, cache = {"op": "spmm"}, PlanCache(tmp_path)
    cache.put("csr", key, {"made": "before"})
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), place], capture_output=True, check=False)
        assert done.returncode == -9
        assert cache.get("csr", key) == {"made": "before"}
        partial, = (plan for plan in list_plans(tmp_path, now=time.time() + FAR) if plan.kind == "temporary")
        assert partial.state == "orphaned"
        os.utime(partial.path, (time.time() - FAR,) * 2)
        PlanCache(tmp_path).put("csr", key, {"made": "before"})
        assert kept_files(tmp_path) == kept_files(tmp_path, "csr")
        assert len(kept_files(tmp_path)) == 1
