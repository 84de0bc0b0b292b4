"""How fast Jacobi's method for many right-hand sides is, two steps fused, beside one step after the other."""

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import pandas as pd

from sparloom import log
from sparloom.data import write_frame
from sparloom.errors import SparloomError
from sparloom.experiments.case_journal import CaseJournal, journal_folder
from sparloom.experiments.fanout import run_apart
from sparloom.experiments.jacobi_cases import jacobi_set, system
from sparloom.experiments.jacobi_score import JacobiBench, decide_jacobi, score_jacobi
from sparloom.experiments.processors import alone
from sparloom.measure import TimingProtocol
from sparloom.platforms import keep_threads_awake
from sparloom.report import draw_jacobi, jacobi_metrics, jacobi_table
from sparloom.sparse import Corpus, MatrixEntry
from sparloom.tuning import PlanCache

__all__ = ["BenchJacobi"]

Place = tuple[str, str]
"""Part and matrix."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BenchJacobi:
    """Time two steps of Jacobi's method on real and generated systems, and solve them, fused and not.

    First a process decides, for every system, the best unfused, fused and best program; another finds these decisions
    in the cache, checks that all methods make the same iterates and times them side by side. Both write what they have
    done to journals, so a run that is killed goes on where it was, as long as commit and settings are the same.

    Args:
        corpus: has the parts "definite" and "pattern", see `jacobi_set`.
        anchors: the part of this name.
        parts: which are run.
        columns: right-hand sides.
        least_nonzeros: a matrix has more.
        tolerance, most_steps: of the solutions; those that need more steps are not finished.
        journals: folder of what is under way; emptied when it is complete.
        seed: of right-hand sides and of the bootstrap.
    """

    corpus: Corpus
    anchors: Corpus
    parts: Sequence[str]
    columns: int
    threads: int
    timing: TimingProtocol
    least_nonzeros: int
    tolerance: float
    most_steps: int
    journals: str
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_matrix.parquet and the figure; returns geometric means of ratios, with bounds."""
        keep_threads_awake()
        entries = {(part, entry.name): entry for part in self.parts for entry in self._entries(part)}
        with alone():
            for step in ("decide", "score"):
                done = self._journal(step).rows()
                waiting = {" ".join(place): place for place in entries if " ".join(place) not in done}
                logger.info("%s: %d of %d systems", step, len(waiting), len(entries))
                weights = {key: float(entries[place].nnz) for key, place in waiting.items()}
                for name, reason in run_apart(partial(self.step, step), waiting, weights=weights, description=step):
                    if reason:
                        logger.info("%s is left out: %s", name, reason)
        frame = pd.DataFrame(self._rows(entries))
        write_frame(out / "per_matrix.parquet", frame)
        metrics = jacobi_metrics(frame, seed=self.seed)
        log.console.print(jacobi_table(frame))
        for key, value in metrics.items():
            if key.endswith(("speedup_over_unfused", "speedup_over_best_unfused", "speedup_over_unfused_min")):
                log.console.print(f"{key} {value:.3f}")
        draw_jacobi(frame, out / "jacobi")
        shutil.rmtree(self._folder)
        return metrics

    def step(self, step: str, place: Place) -> str:
        """Decide or score one system; returns why it cannot be done, or nothing."""
        part, name = place
        try:
            matrix = system((self.anchors if part == "anchors" else self.corpus).load(name), part)
        except (OSError, ValueError, SparloomError) as error:
            self._journal(step).append(" ".join(place), [])
            return str(error)
        bench = JacobiBench(self.columns, self.threads, self.timing, self.tolerance, self.most_steps,
                            PlanCache(self._folder / "plans", keep_busy=True), self.seed)
        if step == "decide":
            rows = decide_jacobi(bench, matrix, definite=part == "definite")
        else:
            rows = score_jacobi(bench, matrix, self._journal("decide").rows()[" ".join(place)])
        self._journal(step).append(" ".join(place), rows)
        return ""

    def _entries(self, part: str) -> Sequence[MatrixEntry]:
        return jacobi_set(self.anchors if part == "anchors" else self.corpus, part, least_nonzeros=self.least_nonzeros)

    def _rows(self, entries: Mapping[Place, MatrixEntry]) -> list[dict[str, object]]:
        """One row per system and method, with what is known of the matrix and of the decision."""
        scored, decided = self._journal("score").rows(), self._journal("decide").rows()
        found = []
        for place, entry in entries.items():
            chosen = {row["method"]: row for row in decided[" ".join(place)]}
            for row in scored[" ".join(place)]:
                found.append({
                    "part": place[0], "matrix": entry.name, "rows": entry.rows, "nnz": entry.nnz, "kind": entry.kind,
                    "columns": self.columns, "threads": self.threads,
                    "relaxation": chosen["auto"]["relaxation"], **row, **chosen.get(row["method"], {})})
        return found

    def _journal(self, step: str) -> CaseJournal:
        return CaseJournal(self._folder / f"{step}.jsonl")

    @cached_property
    def _folder(self) -> Path:
        """Where this run is under way: another commit or other settings begin anew."""
        corpora = [self.anchors if part == "anchors" else self.corpus for part in self.parts]
        return journal_folder(self.journals, self.timing, self.columns, self.threads, self.tolerance, self.most_steps,
                              self.seed, corpora=corpora)
