"""Measure the quality of decisions that are made while other programs use the processors."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table

from sparloom import log
from sparloom.errors import NotDecided
from sparloom.experiments.harness import CaseJournal, commit, exclusive_timing, journal_folder
from sparloom.files import atomic_path
from sparloom.measure import KEEP_BUSY
from sparloom.report import report_table
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import LoadWatch, PlanCache
from sparloom.tuning.sparse import CsrPlan, Prepared

Row = dict[str, Any]

logger = logging.getLogger(__name__)

CONTEXT = get_context("spawn")  # forked children lose the threads of OpenMP
FAST, SLOW = 1.2, 1.5  # relative to the best of our kernels
STARTING_SECONDS = 2.0  # until busy processes compute


@dataclass(frozen=True)
class BusyCase:
    """Processes that run while decisions are made.

    Args:
        deciding: processes that decide for the same matrices at the same time, with one cache.
        busy: processes that compute something else.
    """

    deciding: int
    busy: int


@dataclass(frozen=True)
class BenchDecisionsBusy:
    """Decide for generated matrices while other processes run, then time the decisions on the idle machine.

    For each case new processes decide with an empty cache. When they have ended, another process looks the decisions up
    and times them in turn with decisions among our kernels that are made then. Decisions that were not cached are left
    to later programs. Finished cases are journaled, so an interrupted run continues.

    Args:
        cases: name -> processes.
        rows, degrees: sizes and nonzeros per row of the square matrices, in all combinations.
        threads: threads of every call.
        pairs: number of compared pairs of runs.
    """

    cases: Mapping[str, BusyCase]
    rows: Sequence[int]
    degrees: Sequence[int]
    widths: Sequence[int]
    threads: int
    pairs: int
    journals: str
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_case.parquet; return how many decisions were cached, and their slowdown against the best."""
        journal, done = CaseJournal(self._folder / "cases.jsonl"), {}
        with exclusive_timing():
            for name, case in self.cases.items():
                done = journal.rows()
                if name not in done:
                    logger.info("%s: %d processes decide beside %d busy ones", name, case.deciding, case.busy)
                    journal.append(name, self.score(name, case))
        done = journal.rows()
        frame = pd.DataFrame([{"case": name, **row} for name in self.cases for row in done[name]])
        with atomic_path(out / "per_case.parquet") as path:
            frame.to_parquet(path, compression="zstd")
        metrics = busy_metrics(frame, {name: case for name, case in self.cases.items() if case != BusyCase(1, 0)})
        log.console.print(_table(frame))
        for key, value in metrics.items():
            log.console.print(f"{key} {value:.4g}")
        if metrics["scored_busy_share"]:
            logger.warning("other programs used the processors while %.0f %% of the decisions were used: run it again "
                           "when the machine is idle", 100 * metrics["scored_busy_share"])
        shutil.rmtree(self._folder)
        return metrics

    def score(self, name: str, case: BusyCase) -> list[Row]:
        """Decide in a case, then use the cached decisions."""
        folder, found = self._folder / name, self._folder / f"{name}.rows"
        shutil.rmtree(folder, ignore_errors=True)
        with _busy(case.busy):
            _run([(self._decide, folder)] * case.deciding)
        _run([(self._use, folder, found)])
        rows = CaseJournal(found).rows()[name]
        shutil.rmtree(folder, ignore_errors=True)
        found.unlink()
        return rows

    def _decide(self, folder: Path) -> None:
        os.environ.pop(KEEP_BUSY, None)
        for matrix, dense, _ in self._problems():
            self._prepared(matrix, PlanCache(folder)).plan("spmm", B=dense)

    def _use(self, folder: Path, found: Path) -> None:
        """Time the cached decisions in turn with the best of our kernels; write rows."""
        rows = []
        for matrix, dense, about in self._problems():
            best = self._prepared(matrix, PlanCache(None, keep_busy=True), libraries={})
            fastest = best.plan("spmm", B=dense)
            row = {**about, "best": fastest.choice.name, "kept": "", "ratio": None, "seconds": None}
            cached = self._prepared(matrix, PlanCache(folder), replay_only=True)
            watch = LoadWatch()
            with watch.over():
                plan = _plan(cached, dense)
                if plan is not None:
                    ours, theirs = self._timed(best, cached, dense)
                    row |= {"kept": plan.choice.name, "ratio": theirs / ours, "seconds": theirs}
            rows.append({**row, "busy": watch.close()})
        CaseJournal(found).append(folder.name, rows)

    def _timed(self, best: Prepared, cached: Prepared, dense: np.ndarray) -> tuple[float, float]:
        """Return the median seconds of both, run in turn."""
        taken: tuple[list[float], list[float]] = ([], [])
        for _ in range(self.pairs):
            for ready, seconds in zip((best, cached), taken, strict=True):
                start = time.perf_counter()
                ready.spmm(dense)
                seconds.append(time.perf_counter() - start)
        return median(taken[0]), median(taken[1])

    def _problems(self) -> Iterator[tuple[SparseMatrix, np.ndarray, Row]]:
        for rows in self.rows:
            for degree in self.degrees:
                rng = np.random.default_rng((self.seed, rows, degree))
                pattern = Pattern.from_coo(np.repeat(np.arange(rows), degree), rng.integers(0, rows, rows * degree),
                                           (rows, rows))
                matrix = SparseMatrix(pattern, rng.standard_normal(pattern.nnz).astype(np.float32))
                for width in self.widths:
                    yield matrix, np.ones((rows, width), np.float32), {"rows": rows, "degree": degree, "width": width}

    def _prepared(self, matrix: SparseMatrix, cache: PlanCache, **options: Any) -> Prepared:
        return Prepared(matrix, threads=self.threads, cache=cache, **options)

    @property
    def _folder(self) -> Path:
        return journal_folder(self.journals, commit(), self.cases, self.rows, self.degrees, self.widths, self.threads,
                              self.pairs, self.seed)


def busy_metrics(frame: pd.DataFrame, cases: Mapping[str, BusyCase]) -> dict[str, float]:
    """Reduce ratios of all decisions that were made while other processes ran.

    Args:
        frame: per_case.parquet of `BenchDecisionsBusy`.

    Returns:
        `decisions`; `kept`, the number of cached ones; `slower_share`, the share of cached decisions that take more
        than 1.2 times as long as the best of our kernels; `much_slower`, how many take more than 1.5 times as long;
        `worst`, the largest ratio; the same by case, `<case>/...`; `scored_busy_share`, the share that was timed while
        the machine was busy, whose ratios are unreliable.
    """
    metrics = _reduced(frame[frame["case"].isin(cases)], "")
    for name, rows in frame.groupby("case", sort=False):
        metrics |= _reduced(rows, f"{name}/")
    return metrics | {"scored_busy_share": float((frame["busy"] != "").sum() / max(1, len(frame)))}


def _reduced(rows: pd.DataFrame, prefix: str) -> dict[str, float]:
    ratios = rows["ratio"].astype(float).dropna()
    return {f"{prefix}decisions": len(rows), f"{prefix}kept": len(ratios),
            f"{prefix}slower_share": float((ratios > FAST).sum() / max(1, len(rows))),
            f"{prefix}much_slower": int((ratios > SLOW).sum()), f"{prefix}worst": float(max(ratios, default=0.0))}


def _table(frame: pd.DataFrame) -> Table:
    table = report_table(("case", "rows", "degree", "width", "time / best of ours", "kept"), text=("case", "kept"),
                         wrap=True)
    for row in frame.to_dict("records"):
        ratio = "" if not row["kept"] else f"{row['ratio']:.2f}"
        table.add_row(row["case"], *(str(row[name]) for name in ("rows", "degree", "width")), ratio, row["kept"] or "—")
    return table


def _plan(cached: Prepared, dense: np.ndarray) -> CsrPlan | None:
    """Look up a decision; None if it was not cached."""
    try:
        return cached.plan("spmm", B=dense)
    except NotDecided:
        return None


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """Run processes that compute until the block ends."""
    processes = [CONTEXT.Process(target=_compute, args=(os.getpid(),), daemon=True) for _ in range(count)]
    try:
        for process in processes:
            process.start()
        time.sleep(STARTING_SECONDS if count else 0.0)
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _compute(parent: int) -> None:
    numbers = np.ones(1 << 16)
    while os.getppid() == parent:
        numbers = np.sqrt(numbers + 1.0)


def _run(calls: Sequence[tuple[Any, ...]]) -> None:
    """Run calls in concurrent processes.

    Raises:
        RuntimeError: one of them failed.
    """
    processes = [CONTEXT.Process(target=call, args=arguments) for call, *arguments in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    failed = [process.exitcode for process in processes if process.exitcode]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(processes)} processes failed, with exit codes {failed}: see above")
