"""How fast operations are whose kernel is decided by measurement, beside other libraries and the best they could do."""

import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from sparloom import log
from sparloom.data import write_frame
from sparloom.errors import SparloomError
from sparloom.experiments.case_journal import CaseJournal, journal_folder
from sparloom.experiments.decision_way import DecisionWay, ready_ways
from sparloom.experiments.dispatch_cases import TRAINING, DispatchCase, dispatch_cases, spread_out
from sparloom.experiments.dispatch_frames import CANDIDATES, DECISIONS, PER_CASE, frame_of
from sparloom.experiments.dispatch_score import DispatchBench
from sparloom.experiments.fanout import run_apart
from sparloom.experiments.kernel_peers import peer_versions
from sparloom.experiments.processors import alone
from sparloom.files import write_json
from sparloom.measure import TimingProtocol
from sparloom.nn import SPARSE_LIBRARIES
from sparloom.platforms import keep_threads_awake
from sparloom.report import dispatch_metrics, dispatch_tables, draw_dispatch
from sparloom.sparse import Corpus, MatrixEntry
from sparloom.tuning.sparse import CsrPolicy

__all__ = ["BenchDispatch"]

FIXED = 1_000_000  # nonzeros that take about as long as what a case takes however small its matrix is
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BenchDispatch:
    """Time SpMM, SDDMM and attention on a sparse pattern, as users call them, beside other libraries.

    First a process makes the first calls of every case, which decide; another one finds the decisions in the cache,
    checks every method against float64 and times all of them side by side. A third one explores some cases: it times
    every candidate, so that it is known what a decision could have won, and decides anew several times and in other
    ways. A run that is killed goes on where it was, as long as commit and settings are the same; other ways explore
    anew and keep what is timed.

    Args:
        corpus: of matrices.
        count: of matrices that are timed, evenly over their nonzeros; None: all.
        ops: "spmm", "sddmm", "attention"; on the square patterns "sage_training", the means over neighbours in a step
            of training GraphSAGE with their gradients, and "sage_steps", whole steps. Each with the widths of dense
            operands, all heads together.
        heads: of attention.
        explored: matrices that are explored, likewise.
        explored_widths: for these.
        repeats: of a cold decision on them.
        ways: other ways to decide, by name; `ready_ways` leaves out what cannot be compared.
        policy: of decisions.
        timing: of methods side by side.
        memory_bytes: cases that need more are left out, and peers that do.
        journals: folder of what is under way; emptied when it is complete.
        seed: of operands and of the bootstrap.
    """

    corpus: Corpus
    count: int | None
    ops: Mapping[str, Sequence[int]]
    heads: int
    explored: int
    explored_widths: Sequence[int]
    repeats: int
    ways: Mapping[str, DecisionWay]
    policy: CsrPolicy
    timing: TimingProtocol
    threads: int
    memory_bytes: float
    journals: str
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_case.parquet, decisions.parquet, candidates.parquet, peers.json and figures; returns ratios.

        Raises:
            ValueError: variables AUTOSAGE_* are set, which change what is decided, or where it is kept.
        """
        given = sorted(name for name, value in os.environ.items() if name.startswith("AUTOSAGE_") and value)
        if given:
            raise ValueError(f"{', '.join(given)}: this bench decides by task.policy alone, unset them")
        return replace(self, ways=ready_ways(self.ways, self.corpus.entries()))._run(out)

    def _run(self, out: Path) -> Mapping[str, float]:
        keep_threads_awake()
        planned = {step: self._planned(step) for step in ("decide", "score", "explore")}
        entries = {entry.name: entry for entry in self.corpus.entries()}
        with alone():
            for step, cases in planned.items():
                waiting = {name: name for name in cases if self._missing(step, cases[name])}
                logger.info("%s: %d of %d matrices", step, len(waiting), len(cases))
                weights = {name: float((entries[name].nnz + FIXED) * len(cases[name])) for name in waiting}
                for name, reason in run_apart(partial(self.step, step), waiting, weights=weights, description=step):
                    if reason:
                        logger.warning("%s is left out: %s", name, reason)
        scored, decided, explored = (
            list(self._rows(step, planned[step], entries)) for step in ("score", "decide", "explore"))
        frames = {
            "per_case": frame_of(scored, PER_CASE),
            "decisions": frame_of([*({**row, "way": "", "repeat": 0} for row in decided),
                                   *(row for row in explored if "way" in row)], DECISIONS),
            "candidates": frame_of((row for row in explored if "way" not in row), CANDIDATES)}
        for name, frame in frames.items():
            write_frame(out / f"{name}.parquet", frame)
        write_json(out / "peers.json", peer_versions())
        metrics = dispatch_metrics(**frames, seed=self.seed)
        for table in dispatch_tables(metrics):
            log.console.print(table)
        draw_dispatch(**frames, folder=out)
        shutil.rmtree(self._folder)
        return metrics

    def step(self, step: str, name: str) -> str:
        """Do what a matrix lacks; returns why nothing could be done, or nothing."""
        try:
            matrix = self.corpus.load(name)
        except (OSError, ValueError, SparloomError) as error:
            return f"cannot be read: {error}"
        bench = DispatchBench(
            self.timing, self.threads, self.heads, self.policy, SPARSE_LIBRARIES, self.memory_bytes, self.ways,
            self.repeats, self._folder / "plans", self.seed)
        for case in self._missing(step, self._planned(step)[name]):
            self._journal(step).append(case.key, getattr(bench, step)(case, matrix))
        return ""

    def _planned(self, step: str) -> dict[str, list[DispatchCase]]:
        """Cases by matrix."""
        entries: Sequence[MatrixEntry] = spread_out(self.corpus.entries(), self.count)
        ops = self.ops
        if step != "score":
            ops = {op: widths for op, widths in ops.items() if op not in TRAINING}
        if step == "explore":
            entries, ops = spread_out(entries, self.explored), dict.fromkeys(ops, self.explored_widths)
        return dispatch_cases(entries, ops, memory_bytes=self.memory_bytes)

    def _missing(self, step: str, cases: Sequence[DispatchCase]) -> list[DispatchCase]:
        done = self._journal(step).rows()
        return [case for case in cases if case.key not in done]

    def _rows(
        self, step: str, planned: Mapping[str, Sequence[DispatchCase]], entries: Mapping[str, MatrixEntry],
    ) -> Iterator[dict[str, object]]:
        """One row per case and method, with what is known of the matrix."""
        done = self._journal(step).rows()
        for name, cases in planned.items():
            for case in cases:
                for row in done.get(case.key, ()):
                    yield {"op": case.op, "matrix": name, "width": case.width, "rows": entries[name].rows,
                           "nnz": entries[name].nnz, "kind": entries[name].kind, **row}

    def _journal(self, step: str) -> CaseJournal:
        folder = journal_folder(str(self._folder), self.ways, self.repeats) if step == "explore" else self._folder
        return CaseJournal(folder / f"{step}.jsonl")

    @cached_property
    def _folder(self) -> Path:
        """Where this run is under way: another commit or other settings begin anew."""
        return journal_folder(self.journals, self.timing, self.policy, self.heads, self.threads, self.seed,
                              corpora=[self.corpus])
