"""Time fused products of three matrices beside all baselines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from sparloom.experiments.fusion.pairs import Block, Case, FusionBench, cases, decide, fusion_set, score
from sparloom.experiments.harness import CaseSteps, finish, run_folder
from sparloom.fusion import Pair
from sparloom.measure import TimingProtocol, cache_levels
from sparloom.platforms import keep_threads_awake
from sparloom.report import draw_fusion, fusion_metrics
from sparloom.sparse import Corpus, MatrixEntry, SparseMatrix
from sparloom.tuning import PlanCache

ARRAYS = 8  # arrays of the size of a dense operand, in addition to those of each method


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
        planned: dict[str, dict[str, dict[str, Case]]] = {"decide": {}, "score": {}}
        for part in self.parts:
            for name, listed in cases(self.blocks.values(), part, self._entries(part)).items():
                fitting = [case for case in listed if _bytes(case, entries[part, name]) <= self.memory_bytes]
                planned["decide"][f"{part} {name}"] = {case.problem: case for case in fitting}
                planned["score"][f"{part} {name}"] = {case.key: case for case in fitting}
        costs = {" ".join(target): float(entry.nnz * len(planned["score"].get(" ".join(target), ())) + 1)
                 for target, entry in entries.items()}
        steps = CaseSteps(self._folder, planned, self._load, self._measure, costs)
        steps.run()
        frame = pd.DataFrame(_rows(steps, entries))
        return finish(out, self._folder, fusion_metrics(frame, seed=self.seed),
                      lambda folder: draw_fusion(frame, folder), per_matrix=frame)

    def _load(self, case: Case) -> SparseMatrix:
        return (self.anchors if case.part == "anchors" else self.corpus).load(case.matrix)

    def _measure(self, step: str, case: Case, matrix: SparseMatrix) -> list[dict[str, Any]]:
        bench = FusionBench({op.name: op for op in self.ops}, self.timing,
                            PlanCache(self._folder / "plans"), self.gemv_flops, self.seed)
        return (decide if step == "decide" else score)(bench, case, matrix)

    def _entries(self, part: str) -> Sequence[MatrixEntry]:
        if part == "anchors":
            return self.anchors.entries()
        return fusion_set(self.corpus, least_nonzeros=self.least_nonzeros)

    @cached_property
    def _folder(self) -> Path:
        return run_folder(self, corpora=[self.anchors if part == "anchors" else self.corpus for part in self.parts],
                          without=("anchors", "corpus"))


def _rows(
    steps: CaseSteps[Case], entries: Mapping[tuple[str, str], MatrixEntry],
) -> Iterator[dict[str, object]]:
    """Yield one row per case and method, with facts of the matrix and of the decision."""
    decided = steps.done("decide")
    for case, row in steps.rows("score"):
        entry = entries[case.part, case.matrix]
        choices = {choice["method"]: choice for choice in decided.get(case.problem, ())}
        yield {"part": case.part, "matrix": case.matrix, "op": case.op, "width": case.width,
               "threads": case.threads, "rows": entry.rows, "nnz": entry.nnz, "kind": entry.kind,
               "spd": entry.spd, "d1_bytes": 4 * entry.cols * case.width,
               "last_cache_bytes": _last_cache_bytes(case.threads), **row, **choices.get(row["method"], {})}


def _bytes(case: Case, entry: MatrixEntry) -> int:
    dense = 4 * entry.rows * case.width * (ARRAYS + len(case.methods))
    return dense + 8 * entry.nnz * (2 + len(case.methods))


def _last_cache_bytes(threads: int) -> int:
    """Return the last-level cache of so many cores; 0 if unknown."""
    levels = cache_levels()
    return threads * levels[max(levels)] if levels else 0
