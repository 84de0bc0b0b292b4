"""Time fused products of three matrices beside all baselines."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from sparloom import log
from sparloom.data import write_frame
from sparloom.errors import SparloomError
from sparloom.experiments.fusion.pairs import Block, Case, FusionBench, cases, decide, fusion_set, score
from sparloom.experiments.harness import CaseJournal, journal_folder, run_steps
from sparloom.fusion import Pair
from sparloom.measure import TimingProtocol, cache_levels
from sparloom.platforms import keep_threads_awake
from sparloom.report import draw_fusion, fusion_metrics, fusion_tables
from sparloom.sparse import Corpus, MatrixEntry
from sparloom.tuning import PlanCache

STEPS = ("decide", "score")
ARRAYS = 8  # arrays of the size of a dense operand, in addition to those of each method

Target = tuple[str, str]
"""Part and matrix."""


@dataclass(frozen=True)
class BenchFusion:
    """Time GeMM-SpMM, SpMM-SpMM and SpMM-GeMM, fused and not, beside other libraries and other ways to fuse.

    One process decides for every product the best unfused program and the best of all; another finds these decisions
    in the cache, checks every method and times all of them in turn. Finished cases are journaled, so an interrupted run
    continues if commit and settings are unchanged.

    Args:
        anchors, corpus: matrices of the parts "anchors" and "real"; the latter restricted by `fusion_set`.
        blocks: name -> methods to time on some operations, widths and matrices.
        parts: "anchors" or "real", or both.
        least_nonzeros: lower bound of the nonzeros of real matrices.
        gemv_flops: fused GeMV with more flops is left out.
    """

    ops: Sequence[Pair]
    anchors: Corpus
    corpus: Corpus
    blocks: Mapping[str, Block]
    parts: Sequence[str]
    timing: TimingProtocol
    least_nonzeros: int
    memory_bytes: float
    gemv_flops: float
    journals: str
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_matrix.parquet and figures; return geometric means of ratios, with bounds."""
        keep_threads_awake()
        entries = {(part, entry.name): entry for part in self.parts for entry in self._entries(part)}
        planned = {name: chosen for part in self.parts for name, chosen in self._planned(part).items()}
        run_steps(
            STEPS, self.step,
            lambda step: {" ".join(target): target for target, cases in planned.items() if self._missing(step, cases)},
            planned=lambda step: map(" ".join, planned),
            weight=lambda target: float(entries[target].nnz * len(planned[target]) + 1))
        frame = pd.DataFrame(self._rows(planned, entries))
        write_frame(out / "per_matrix.parquet", frame)
        metrics = fusion_metrics(frame, seed=self.seed)
        for table in fusion_tables(metrics):
            log.console.print(table)
        draw_fusion(frame, out)
        shutil.rmtree(self._folder)
        return metrics

    def step(self, step: str, target: Target) -> str:
        """Run the missing cases of a matrix; return the reason why that is impossible, or ""."""
        part, name = target
        corpus = self.anchors if part == "anchors" else self.corpus
        missing = self._missing(step, self._planned(part)[target])
        try:
            matrix = corpus.load(name)
        except (OSError, ValueError, SparloomError) as error:
            return f"cannot be read: {error}"
        bench = FusionBench({op.name: op for op in self.ops}, self.timing,
                            PlanCache(self._folder / "plans", keep_busy=True), self.gemv_flops, self.seed)
        for case in missing:
            rows = (decide if step == "decide" else score)(bench, case, matrix)
            self._journal(step).append(_key(step, case), rows)
        return ""

    def _entries(self, part: str) -> Sequence[MatrixEntry]:
        if part == "anchors":
            return self.anchors.entries()
        return fusion_set(self.corpus, least_nonzeros=self.least_nonzeros)

    def _planned(self, part: str) -> dict[Target, list[Case]]:
        """List cases by matrix; cases that do not fit the memory are left out."""
        entries = {entry.name: entry for entry in self._entries(part)}
        found = {}
        for name, listed in cases(self.blocks.values(), part, list(entries.values())).items():
            found[part, name] = [case for case in listed if _bytes(case, entries[name]) <= self.memory_bytes]
        return found

    def _missing(self, step: str, listed: Sequence[Case]) -> list[Case]:
        done = self._journal(step).rows()
        return [case for case in listed if _key(step, case) not in done]

    def _rows(
        self, planned: Mapping[Target, Sequence[Case]], entries: Mapping[Target, MatrixEntry],
    ) -> Iterator[dict[str, object]]:
        """Yield one row per case and method, with facts of the matrix and of the decision."""
        scored, decided = self._journal("score").rows(), self._journal("decide").rows()
        for target, listed in planned.items():
            entry = entries[target]
            for case in listed:
                choices = {row["method"]: row for row in decided.get(case.problem, ())}
                for row in scored.get(case.key, ()):
                    yield {"part": case.part, "matrix": case.matrix, "op": case.op, "width": case.width,
                           "threads": case.threads, "rows": entry.rows, "nnz": entry.nnz, "kind": entry.kind,
                           "spd": entry.spd, "d1_bytes": 4 * entry.cols * case.width,
                           "last_cache_bytes": _last_cache_bytes(case.threads), **row, **choices.get(row["method"], {})}

    def _journal(self, step: str) -> CaseJournal:
        return CaseJournal(self._folder / f"{step}.jsonl")

    @cached_property
    def _folder(self) -> Path:
        return journal_folder(self.journals, self.timing, self.gemv_flops, self.seed, self.ops, self.blocks,
                              corpora=[self.anchors if part == "anchors" else self.corpus for part in self.parts])


def _key(step: str, case: Case) -> str:
    return case.problem if step == "decide" else case.key


def _bytes(case: Case, entry: MatrixEntry) -> int:
    dense = 4 * entry.rows * case.width * (ARRAYS + len(case.methods))
    return dense + 8 * entry.nnz * (2 + len(case.methods))


def _last_cache_bytes(threads: int) -> int:
    """Return the last-level cache of so many cores; 0 if unknown."""
    levels = cache_levels()
    return threads * levels[max(levels)] if levels else 0
