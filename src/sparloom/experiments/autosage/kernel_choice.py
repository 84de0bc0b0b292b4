"""Check whether kernels rank on a sample of the rows as on all rows; choose small portfolios of kernels of a GPU."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sparloom import report
from sparloom.baselines import VENDOR
from sparloom.data import SampleSource
from sparloom.errors import MissingArtifact, SchemaError
from sparloom.experiments.harness import check_width, finish
from sparloom.ops import Op, Operands
from sparloom.space import Config
from sparloom.sparse import Corpus, Pattern
from sparloom.tuning import portfolio
from sparloom.tuning.sparse import CudaEstimate, CudaRates, kernel_kind, safe_kernel, shortlist

if TYPE_CHECKING:
    from sparloom.platforms import CudaPlatform


SUBGRAPH_ROWS = 256
"""Fewest rows of a subgraph."""


def induced_subgraph(
    pattern: Pattern, share: float, rng: np.random.Generator, *, least_rows: int = SUBGRAPH_ROWS,
) -> Pattern | None:
    """Return random rows of a square pattern and the same columns; None if it is not square.

    Args:
        share: of the rows, ...
        least_rows: ... but at least so many, or all.
    """
    if pattern.rows != pattern.cols:
        return None
    count = min(pattern.rows, max(least_rows, int(share * pattern.rows)))
    kept = np.sort(rng.choice(pattern.rows, count, replace=False))
    return Pattern.from_scipy(pattern.to_scipy()[kept][:, kept])


@dataclass(frozen=True)
class ChooseStoredKernels:
    """Choose portfolios of a GPU's kernels from stored samples, and judge them on the test matrices.

    Speeds are shares of the fastest measured kernel; of several kernels the fastest counts, as if a race measured them.

    Args:
        platform: space and device of the samples.
        ops: operations, each with samples of the platform.
        samples: the portfolio is chosen on their training and validation matrices.
        corpus: source of the patterns, which the estimate reads.
        counts: numbers of kernels that are compared; the portfolio has as many as the largest.
        draws: random choices of so many kernels, of which the mean counts.
    """

    platform: "CudaPlatform"
    ops: Sequence[Op]
    samples: SampleSource
    corpus: Corpus
    counts: Sequence[int]
    draws: int
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_matrix.parquet and portfolios.json; return mean shares with bounds over matrices."""
        frames, chosen = [], {}
        for op in self.ops:
            chosen[op.name], shares = self._judged(op)
            frames.append(shares.assign(op=op.name))
        frame = pd.concat(frames, ignore_index=True)
        metrics: dict[str, float] = {}
        for (op, method), rows in frame.groupby(["op", "method"], sort=False):
            metrics |= report.ratio_bounds(f"{op}/{method}", rows["share"], seed=self.seed)
        return finish(out, None, metrics, facts={"portfolios": chosen}, per_matrix=frame)

    def _judged(self, op: Op) -> tuple[list[str], pd.DataFrame]:
        """Return the portfolio of one operation, and the shares that methods reach on each test matrix."""
        seconds, roles = self._seconds(op, self.platform.preset), self.samples.split()
        tested = np.array([roles[name] == "test" for name in seconds.index])
        if tested.all() or not tested.any():
            raise SchemaError(f"samples of {op.name}: {tested.sum()} of {len(tested)} matrices are for tests, and both "
                              "kinds are needed: collect both, experiment=collect_cuda")
        chosen = portfolio(seconds[~tested].to_numpy(), max(self.counts))
        judged = seconds[tested]
        shares = judged.min(axis=1).to_numpy()[:, None] / judged.to_numpy()
        columns = {key: column for column, key in enumerate(judged.columns)}
        found = {"default": shares[:, columns[safe_kernel(self.platform.space(op), op.name).key]]}
        for count in self.counts:
            found[f"portfolio_{count}"] = shares[:, chosen[:count]].max(axis=1)
            found[f"random_{count}"] = self._drawn(shares, count)
        for method, favoured in (("estimate", ()), ("both", [seconds.columns[column] for column in chosen])):
            reached = [self._shortlisted(op, name, columns, shares[row], favoured)
                       for row, name in enumerate(judged.index)]
            found |= {f"{method}_{count}": np.array(each)
                      for count, each in zip(self.counts, zip(*reached, strict=True), strict=True)}
        with suppress(MissingArtifact):  # no library has attention on a pattern
            vendor = self._seconds(op, VENDOR).min(axis=1).reindex(judged.index)
            found["vendor"] = (judged.min(axis=1) / vendor).to_numpy()
        rows = [{"matrix": name, "method": method, "share": share}
                for method, values in found.items() for name, share in zip(judged.index, values, strict=True)]
        return [seconds.columns[column] for column in chosen], pd.DataFrame(rows)

    def _seconds(self, op: Op, preset: str) -> pd.DataFrame:
        """Seconds of every matrix (index) and configuration (columns) in the first round, without those that failed."""
        table = self.samples.table(self.platform.name, preset, op.name)
        rows = table.sweeps().query("round == 0")
        check_width(table, self.platform, op)
        return rows.pivot(index="matrix", columns="config", values="seconds").dropna(axis=1)

    def _shortlisted(
        self, op: Op, name: str, columns: Mapping[str, int], shares: np.ndarray, favoured: Collection[str],
    ) -> list[float]:
        """Return the best share on one matrix, by count, of what a decision would measure by its estimate.

        The rates are those of the data sheet.
        """
        estimate = CudaEstimate(CudaRates.of_data_sheet(self.platform.limits), {op.name: favoured})
        operands = Operands.unfilled(self.corpus.load(name), self.platform.width)
        configs = [Config.parse(self.platform.name, key) for key in columns]
        lists = (shortlist(estimate, op.name, operands, configs, count=count, kind=kernel_kind)
                 for count in self.counts)
        return [float(max(shares[columns[config.key]] for config in listed)) for listed in lists]

    def _drawn(self, shares: np.ndarray, count: int) -> np.ndarray:
        """Return the mean share (matrices,) of the fastest of `count` random kernels."""
        rng = np.random.default_rng([self.seed, count])
        picks = [rng.choice(shares.shape[1], count, replace=False) for _ in range(self.draws)]
        return np.mean([shares[:, pick].max(axis=1) for pick in picks], axis=0)
