"""Check whether kernels rank on a sample of the rows as on all rows; choose small portfolios of kernels of a GPU."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sparloom import report
from sparloom.baselines import VENDOR
from sparloom.data import SampleSource
from sparloom.errors import MissingArtifact, SchemaError
from sparloom.experiments.autosage.cases import OPERATIONS, DispatchCase, large_cases
from sparloom.experiments.harness import check_width, finish, run_folder, statistics_of, timed_cases
from sparloom.measure import Measurement, TimingProtocol
from sparloom.ops import Op, Operands
from sparloom.platforms import interleaved, keep_threads_awake
from sparloom.space import Config
from sparloom.sparse import Corpus, Pattern, SparseMatrix
from sparloom.tuning import portfolio, shortlist
from sparloom.tuning.sparse import (
    CandidateSet,
    CpuBackend,
    CsrPolicy,
    CudaEstimate,
    CudaRates,
    kernel_kind,
    safe_kernel,
    sample_rows,
)

if TYPE_CHECKING:
    from sparloom.platforms import CudaPlatform


SUBGRAPH_ROWS = 256
"""Fewest rows of a subgraph."""

Row = dict[str, Any]


@dataclass(frozen=True)
class CheckProbe:
    """Check whether kernels rank on a sample of the rows as on all rows.

    Samples are those of our decisions, "rows": blocks of neighbouring rows with all their columns, and those of
    AutoSAGE, "subgraph": random rows, and the columns with the same numbers. An interrupted run continues if commit and
    settings are unchanged.

    Args:
        count: number of timed matrices, evenly over their nonzeros.
        least_nonzeros: lower bound of the nonzeros, so that samples are parts of a matrix.
        ops: "spmm", "sddmm", "attention" -> widths of dense operands, all heads together.
        kernels: number of timed kernels: the default, and others drawn from those that may be measured on a sample.
        shares: shares of the nonzeros, or of the rows of a subgraph.
        draws: number of samples of each share.
        policy: policy of decisions, with the least size and the number of parts of a sample.
        timing: protocol for kernels in turn.
    """

    corpus: Corpus
    count: int
    least_nonzeros: int
    ops: Mapping[str, Sequence[int]]
    heads: int
    kernels: int
    shares: Sequence[float]
    draws: int
    policy: CsrPolicy
    timing: TimingProtocol
    threads: int
    memory_bytes: float
    journals: str
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_case.parquet, a row for each kernel and sample, and a figure; return errors and regrets."""
        keep_threads_awake()
        planned, costs = large_cases(self.corpus.entries(), self.ops, least_nonzeros=self.least_nonzeros,
                                     count=self.count, memory_bytes=self.memory_bytes)
        folder = run_folder(self, corpora=[self.corpus])
        rows_of = partial(self._rows, lru_cache(1)(self.corpus.load))  # cases of a matrix follow each other
        frame = timed_cases(rows_of, planned, folder, threads=self.threads, costs=costs)
        return finish(out, folder, report.probe_metrics(frame, seed=self.seed),
                      lambda out: report.draw_probe(frame, out / "probe"), per_case=frame)

    def _rows(self, load: Callable[[str], SparseMatrix], case: DispatchCase) -> list[Row]:
        """Time kernels on all rows, then on each sample."""
        op, backend = OPERATIONS[case.op](self.heads), CpuBackend(self.threads)
        operands = op.operands(load(case.matrix), case.width, self.seed)
        configs = self._configs(backend, op, operands)
        known = {"op": case.op, "matrix": case.matrix, "width": case.width, "nnz": operands.matrix.pattern.nnz}
        found = []
        for sample, share, draw, parts in self._samples(op, operands, case.width):
            nonzeros = sum(part.matrix.pattern.nnz for part in parts)
            taken = self._timed(CandidateSet(op, backend, configs, {}, parts))
            found += [{**known, "sample": sample, "share": share, "draw": draw, "sampled": nonzeros, "config": name,
                       **statistics_of(each)} for name, each in taken.items()]
        return found

    def _configs(self, backend: CpuBackend, op: Op, operands: Operands) -> list[Config]:
        """Take the safe configuration, then others at random."""
        safe = backend.default_config(op, operands)
        others = [config for config in backend.configs(op, operands, sampled=True) if config != safe]
        drawn = np.random.default_rng(self.seed).permutation(len(others))[:self.kernels - 1]
        return [safe, *(others[number] for number in drawn)]

    def _samples(
        self, op: Op, operands: Operands, width: int,
    ) -> Iterator[tuple[str, float, int, Sequence[Operands]]]:
        """Yield samples, all rows first: name, share, draw, and operands of the parts."""
        yield "all", 1.0, 0, [operands]
        pattern = operands.matrix.pattern
        for share in self.shares:
            for draw in range(self.draws):
                wanted = max(self.policy.least_nonzeros, int(share * pattern.nnz))
                sample = sample_rows(pattern, nonzeros=wanted, parts=self.policy.parts, seed=self.seed + draw)
                yield "rows", share, draw, [operands.take_rows(rows, op.name) for rows in sample.parts]
                thinned = induced_subgraph(pattern, share, np.random.default_rng(self.seed + draw))
                if thinned is not None and thinned.nnz:
                    ones = SparseMatrix(thinned, np.ones(thinned.nnz, np.float32))
                    yield "subgraph", share, draw, [op.operands(ones, width, self.seed)]

    def _timed(self, candidates: CandidateSet) -> Mapping[str, Measurement]:
        calls = {name: candidates.call(number) for number, name in enumerate(candidates.names)}
        return interleaved(calls, self.timing, threads=self.threads, settle=0.0)


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
