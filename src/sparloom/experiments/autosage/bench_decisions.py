"""Measure what deciding costs, and whether several programs decide alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from sparloom.experiments.autosage.cases import OPERATIONS, DispatchCase, dispatch_cases
from sparloom.experiments.autosage.cpu_cases import SERIAL, DispatchBench
from sparloom.experiments.harness import CaseSteps, evenly_by_size, finish, run_folder, statistics_of
from sparloom.fusion import pinned
from sparloom.measure import TimingProtocol
from sparloom.nn import SPARSE_LIBRARIES
from sparloom.ops import Operands
from sparloom.platforms import CpuKernels, interleaved, reallocated
from sparloom.space import Config
from sparloom.sparse import Corpus, MatrixEntry, SparseMatrix
from sparloom.tuning.sparse import CsrPolicy

NEAR, SAME = 1.03, 0.9  # ratio of seconds, and share of equal decisions, up to and from which programs decide alike
LEAST_SECONDS = 0.5e-3  # of a call, from which on the cost of a decision counts
FIXED = 1_000_000  # nonzeros that take about as long as the fixed cost of a case
TIME = "time"  # the last step

Row = dict[str, Any]


@dataclass(frozen=True)
class BenchDecisions:
    """Decide the same cases in several programs, then time all that they have chosen in turn.

    Every program is a process of its own that decides all cases with an empty cache. An interrupted run continues with
    the next case.

    Args:
        corpus, count, ops, heads, policy, timing, threads, memory_bytes, journals, seed: as in `BenchDispatch`.
        programs: number of processes.
    """

    corpus: Corpus
    count: int | None
    ops: Mapping[str, Sequence[int]]
    heads: int
    programs: int
    policy: CsrPolicy
    timing: TimingProtocol
    threads: int
    memory_bytes: float
    journals: str
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write decisions.parquet; return costs and the share of cases in which the programs decide alike."""
        steps = self._stages
        steps.run()
        frame = pd.DataFrame(self._rows(steps))
        return finish(out, self._folder, decision_metrics(frame), decisions=frame)

    @cached_property
    def _stages(self) -> CaseSteps[DispatchCase]:
        entries: Sequence[MatrixEntry] = evenly_by_size(self.corpus.entries(), self.count)
        planned = dispatch_cases(entries, self.ops, memory_bytes=self.memory_bytes)
        costs = {entry.name: float((entry.nnz + FIXED) * len(planned.get(entry.name, ()))) for entry in entries}
        return CaseSteps(self._folder, dict.fromkeys([*self._programs, TIME], planned), self._load, self._measure,
                         costs)

    def _load(self, case: DispatchCase) -> SparseMatrix:
        return self.corpus.load(case.matrix)

    def _measure(self, step: str, case: DispatchCase, matrix: SparseMatrix) -> list[Row]:
        """Decide a case, or time the choices of all programs."""
        bench = DispatchBench(self.timing, self.threads, self.heads, self.policy, SPARSE_LIBRARIES, self.memory_bytes,
                              {}, 1, self._folder / step, self.seed)
        if step == TIME:
            return self._timed(bench, case, matrix)
        rows = bench.decide(case, matrix)
        rows[0]["choice"] = bench.decided(case, matrix).choice.name
        return rows

    def _timed(self, bench: DispatchBench, case: DispatchCase, matrix: SparseMatrix) -> list[Row]:
        """Time every choice of the programs in turn."""
        torch.set_num_threads(self.threads)
        choices = {row["choice"] for step in self._programs for row in self._stages.done(step).get(case.key, ())}
        operands = reallocated(bench.operands(case, matrix))
        calls = {name: self._call(case, operands, name) for name in sorted(choices)}
        with pinned(self.threads), torch.inference_mode():
            taken = interleaved(calls, self.timing, threads=self.threads, serial=SERIAL)
        return [{"choice": name, "choice_seconds": statistics_of(each)["median"]} for name, each in taken.items()]

    def _call(self, case: DispatchCase, operands: Operands, name: str) -> Callable[[], Any]:
        """Bind a choice by its name."""
        libraries = SPARSE_LIBRARIES.get(case.op, {})
        if name in libraries:
            product = libraries[name](operands.matrix, self.threads)
            return lambda: product(operands)
        key, _, threads = name.partition(",threads=")
        family = CpuKernels(int(threads or self.threads), case.width).family(OPERATIONS[case.op](self.heads))
        return family.bind(operands, Config.parse(CpuKernels.name, key), family.result(operands))

    def _rows(self, steps: CaseSteps[DispatchCase]) -> Iterator[Row]:
        """Yield a row per case and program."""
        timed = steps.done(TIME)
        for program, step in enumerate(self._programs):
            for case, row in steps.rows(step):
                seconds = {row["choice"]: row["choice_seconds"] for row in timed.get(case.key, ())}
                yield {"op": case.op, "matrix": case.matrix, "width": case.width, "program": program, **row,
                       "choice_seconds": seconds.get(row["choice"], np.nan)}

    @property
    def _programs(self) -> list[str]:
        return [f"program_{number}" for number in range(self.programs)]

    @cached_property
    def _folder(self) -> Path:
        return run_folder(self, corpora=[self.corpus])


def decision_metrics(frame: pd.DataFrame) -> dict[str, float]:
    """Reduce the decisions of several programs.

    Args:
        frame: decisions.parquet of `BenchDecisions`.

    Returns:
        `cases`; `alike_share`, the share of them in which at least nine of ten programs choose the same or all choices
        are within 3 % of each other, and `large/alike_share`, the same of calls of at least half a millisecond;
        `<op>/alike_share`; `calls_until_decided`, the median, and `calls_until_decided_max`. Of large cases,
        `probe_runs_median` and `probe_runs_max`, over all decisions: the time that the first calls took longer than
        those of a program that finds the decision, in calls; `probe_runs_repeated_max`, the worst median of a case.
    """
    case = ["op", "matrix", "width"]
    large = frame[frame["call_seconds"].groupby([frame[name] for name in case]).transform("median") >= LEAST_SECONDS]
    found = {"cases": frame.groupby(case).ngroups, "alike_share": _alike_share(frame, case),
             "calls_until_decided": float(frame["calls"].median()),
             "calls_until_decided_max": float(frame["calls"].max())}
    found |= {f"{op}/alike_share": _alike_share(rows, case) for op, rows in frame.groupby("op", sort=False)}
    if len(large):
        runs = (large["beyond_seconds"] / large["call_seconds"]).groupby([large[name] for name in case])
        found |= {"large/cases": runs.ngroups, "large/alike_share": _alike_share(large, case),
                  "probe_runs_median": float(runs.median().median()), "probe_runs_max": float(runs.max().max()),
                  "probe_runs_repeated_max": float(runs.median().max())}
    return found


def _alike_share(frame: pd.DataFrame, case: list[str]) -> float:
    return float(np.mean([are_alike(rows) for _, rows in frame.groupby(case)]))


def are_alike(decisions: pd.DataFrame) -> bool:
    """Tell whether the programs of one case decide alike."""
    most, seconds = decisions["choice"].value_counts().iloc[0], decisions["choice_seconds"]
    return bool(most >= SAME * len(decisions) or seconds.max() <= NEAR * seconds.min())
