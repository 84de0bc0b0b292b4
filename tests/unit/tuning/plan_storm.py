"""Processes decide concurrently in one folder and are killed: plan_storm.py storm|replay FOLDER [REPORTS]."""

import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

import sparloom
from sparloom.tuning import MeasurementBudget, PlanCache
from sparloom.tuning.sparse import CsrPolicy

__all__ = ["KILLS", "PROCESSES", "THREADS", "decide_all", "problems"]

PROCESSES, KILLS, THREADS = 8, 40, 1
LONGEST_PAUSE = 0.05  # seconds between kills
POLICY = CsrPolicy(least_nonzeros=200, least_seconds=0, runs=1e6, effort=MeasurementBudget(
    candidates=2, repetitions=1, pairs=(1, 2), executions=6, seconds=60.0, short_seconds=1e-6))


class Reporting(PlanCache):
    """Reads decisions while others write them, and makes them all the same; notes each one after it was kept."""

    def __init__(self, folder: Path, report: Path) -> None:
        super().__init__(folder)
        self._report = os.open(report, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def get(self, kind: str, key: Mapping[str, Any], *parse: Any) -> Any:
        found = super().get(kind, key, *parse)  # a warning if it is torn
        return None if kind == "csr" else found

    def put(self, kind: str, key: Mapping[str, Any], value: Mapping[str, Any], **options: Any) -> None:
        super().put(kind, key, value, **options)
        if kind == "csr":
            os.write(self._report, json.dumps(key).encode() + b"\n")


def problems() -> Iterator[tuple[str, scipy.sparse.csr_array, int]]:
    """Return operation, matrix and width, always the same ones."""
    for seed in range(4):
        matrix = scipy.sparse.random_array((150 + seed, 120), density=0.05, format="csr", dtype=np.float32,
                                           rng=np.random.default_rng(seed))
        for width in (4, 8):
            yield from (("spmm", matrix, width), ("sddmm", matrix, width))


def decide_all(cache: PlanCache, rng: random.Random, **options: Any) -> dict[str, str]:
    """Run all problems in an order of its own; returns problem -> choice and digest of the result, by problem."""
    told = {}
    for op, matrix, width in rng.sample(list(problems()), len(list(problems()))):
        dense = np.random.default_rng(width).uniform(-1, 1, (sum(matrix.shape), width)).astype(np.float32)
        left, right = np.split(dense, [matrix.shape[0]])
        ready = sparloom.prepare(matrix, threads=THREADS, cache=cache, policy=POLICY, **options)
        result, plan = (ready.spmm(right), ready.plan("spmm", B=right)) if op == "spmm" else (
            ready.sddmm(left, right), ready.plan("sddmm", B=left, C=right))
        told[f"{op} {matrix.shape} {width}"] = f"{plan.choice} {hashlib.sha256(result.tobytes()).hexdigest()}"
    return dict(sorted(told.items()))


def storm(folder: Path, reports: Path) -> None:
    """Run deciding processes, kill and restart them one after the other, and finally let all of them end."""
    rng, stop = random.Random(0), reports / "stop"
    running = {place: _started(folder, reports / f"{place}.jsonl", stop, seed=place) for place in range(PROCESSES)}
    for kill in range(KILLS):
        time.sleep(rng.uniform(0, LONGEST_PAUSE))
        place = rng.randrange(PROCESSES)
        os.kill(running[place], signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(running[place], 0)[1]) == -signal.SIGKILL
        running[place] = _started(folder, reports / f"{place}.jsonl", stop, seed=PROCESSES + kill)
    stop.touch()
    for process in running.values():
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


def _started(folder: Path, report: Path, stop: Path, *, seed: int) -> int:
    """Fork a process that decides all, again and again; nothing here has started a thread."""
    driver, process = os.getpid(), os.fork()
    if process:
        return process
    status = 1
    try:
        cache, rng = Reporting(folder, report), random.Random(seed)
        decide_all(cache, rng)
        while not stop.exists() and os.getppid() == driver:
            decide_all(cache, rng)
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    if sys.argv[1] == "storm":
        storm(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        found = decide_all(PlanCache(Path(sys.argv[2])), random.Random(0), replay_only=True)
        sys.stdout.write(json.dumps(found))
