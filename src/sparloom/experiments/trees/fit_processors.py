"""Train one GEMM model on the samples of two processors, and judge it on the one with fewer samples."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from sparloom.data import SampleSource
from sparloom.errors import SchemaError
from sparloom.experiments.harness import finish
from sparloom.experiments.trees.evaluation import TreeSubject, best_configs, gemm_subject, static_scores
from sparloom.models.performance import (
    BoostingConfig,
    Grid,
    Measured,
    Target,
    assign_folds,
    out_of_fold,
    problem_folds,
    train_per_fold,
)
from sparloom.ops import Op
from sparloom.report import contrast, efficiencies, efficiency_metrics

if TYPE_CHECKING:
    from sparloom.platforms import CpuKernels

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TwoProcessors:
    """Problems of a new processor, then those of a known one, with one set of folds by shape.

    Raises:
        SchemaError: the processors have different configurations, or equal constants, which models could not tell
            apart.
    """

    new: TreeSubject
    known: TreeSubject
    folds: int
    seed: int

    def __post_init__(self) -> None:
        if self.new.measured.configs != self.known.measured.configs:
            own, others = set(self.new.measured.configs), set(self.known.measured.configs)
            raise SchemaError(f"{len(own ^ others)} configurations were measured on one of the processors only: "
                              "collect both tables with the same sources")
        if self.new.origin.machine == self.known.origin.machine:
            raise SchemaError(f"both tables were collected on processors with {self.new.origin.machine}: models tell "
                              "processors apart by these numbers, so collect one table on another processor")

    @cached_property
    def joined(self) -> Measured:
        new, known = self.new.measured, self.known.measured
        problems = {name: np.concatenate([column, known.problems[name]]) for name, column in new.problems.items()}
        return Measured(problems, new.groups + known.groups, new.configs, np.concatenate([new.seconds, known.seconds]))

    @cached_property
    def fold(self) -> Int[np.ndarray, "problems 1"]:
        """Fold of each joined problem: all problems of a shape, on both processors, are in one."""
        return problem_folds(self.joined, assign_folds(self.joined.groups, self.folds, seed=self.seed))

    @property
    def is_new(self) -> Bool[np.ndarray, "problems 1"]:
        return (np.arange(len(self.joined)) < len(self.new))[:, None]

    def grid(self, target: Target) -> Grid:
        """Evaluate the features of the joined problems, with those that tell the processors apart."""
        return Grid.of(self.new.spec, self.joined, target=target, hardware=True)

    def draw(self, count: int) -> Bool[np.ndarray, "problems 1"]:
        """Draw problems of the new processor, so many that about `count` remain when one fold is held out."""
        order = np.random.default_rng(self.seed).permutation(len(self.new))
        chosen = np.zeros((len(self.joined), 1), bool)
        chosen[order[: round(count * self.folds / (self.folds - 1))]] = True
        return chosen


@dataclass(frozen=True)
class FitProcessors:
    """Compare models of a new processor: from its own samples, from those of a known one, and from both.

    Processors differ in the features of group hardware: the sizes of caches. No model is judged on a shape that it has
    seen on either processor.

    Args:
        samples: of the known processor.
        new: samples of the new processor, on which models are judged.
        counts: numbers of problems of the new processor that models learn from; 0: none.
    """

    gemm: Op
    gemm_platform: "CpuKernels"
    samples: SampleSource
    new: SampleSource
    judging_sweep: int
    target: Target
    growth: BoostingConfig
    folds: int
    counts: Sequence[int]
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_problem.parquet; print efficiencies on the new processor with bounds."""
        began = time.monotonic()
        new, known = (self._subject(samples) for samples in (self.new, self.samples))
        both = TwoProcessors(new, known, self.folds, self.seed)
        frames = [new.judged.choices(method, best_configs(new, scores)) for method, scores in self._scores(both)]
        frames.append(new.judged.choices("noise_ceiling", best_configs(new, new.other)))
        if np.isfinite(new.vendor).any():
            frames.append(new.judged.baseline("vendor", new.vendor).dropna(subset="seconds"))
        rows = pd.concat(frames, ignore_index=True)
        return finish(out, None, self._metrics(rows) | {
            "problems": len(new), "known_problems": len(known), "seconds": time.monotonic() - began}, per_problem=rows)

    def _subject(self, samples: SampleSource) -> TreeSubject:
        subject = gemm_subject(samples, self.gemm_platform, self.gemm, judging=self.judging_sweep)
        return subject.take(~subject.unasked)

    def _scores(self, both: TwoProcessors) -> Iterator[tuple[str, Float[np.ndarray, "problems configs"]]]:
        """Yield methods with scores of the problems of the new processor, low = fast."""
        grid, inside = both.grid(self.target), both.is_new.ravel()
        judged, fold, reached = grid.take(inside), both.fold[inside], efficiencies(both.joined.seconds)
        for count in self.counts:
            own = both.draw(count)
            kinds = {"both": own | ~both.is_new} | ({"own": own} if count else {})
            for kind, kept in kinds.items():
                began = time.monotonic()
                members = train_per_fold(grid, self.growth, both.fold, kept=kept)
                learned = out_of_fold(judged, members, fold, threads=self.growth.threads)
                logger.info("%s, %d problems of the new processor: %.0f s", kind, count, time.monotonic() - began)
                yield f"{kind}_{count}", self.target.sign * learned
            yield f"static_{count}", static_scores(reached, both.fold, kept=own if count else ~both.is_new)[inside]

    def _metrics(self, rows: pd.DataFrame) -> dict[str, float]:
        """`<method>/mean`, `/p10` and `/min`; leads of models of both processors over the others."""
        found: dict[str, float] = {}
        for method, own in rows.groupby("method", sort=False):
            names = {key: f"{method}/{key}" for key in ("mean", "p10", "min")}
            found |= efficiency_metrics(own.reset_index(drop=True), names, seed=self.seed)
        for count in self.counts:
            for other in (f"own_{count}", f"static_{count}"):
                if other in set(rows["method"]):
                    value, low, high = contrast(rows, {f"both_{count}": 1, other: -1}, statistic="mean", seed=self.seed)
                    key = f"both_{count}/lead_over_{other}"
                    found |= {key: value, f"{key}_low": low, f"{key}_high": high}
        return found
