"""Which few kernels of sparse operations are worth a measurement: those of which one is near the best everywhere."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pandas as pd

from sparloom import log
from sparloom.data import write_frame
from sparloom.experiments.case_journal import journal_folder
from sparloom.experiments.dispatch_calls import OPS
from sparloom.experiments.dispatch_cases import DispatchCase, large_cases
from sparloom.experiments.timed_cases import statistics_of, timed_cases
from sparloom.files import write_json
from sparloom.measure import TimingProtocol
from sparloom.ops import Operands
from sparloom.platforms import CpuKernels, interleaved, keep_threads_awake, reallocated
from sparloom.report import in_stored_order, portfolio_metrics, portfolio_seconds, portfolio_table
from sparloom.sparse import Corpus, SparseMatrix
from sparloom.tuning import search as portfolio
from sparloom.tuning.sparse import CpuPlace

__all__ = ["ChooseKernels"]

Row = dict[str, Any]


@dataclass(frozen=True)
class ChooseKernels:
    """Time all kernels side by side, and choose a portfolio of each operation.

    A run that is killed goes on where it was, as long as commit and settings are the same.

    Args:
        corpus: of matrices, none of which a decision is judged on.
        count: of matrices that are timed, evenly over their nonzeros.
        least_nonzeros: a matrix has more.
        ops: "spmm", "sddmm", "attention", with the widths of dense operands, all heads together.
        heads: of attention.
        most: kernels of a portfolio.
        timing: of the kernels side by side.
        memory_bytes: cases that need more are left out.
        journals: folder of what is under way; emptied when it is complete.
        seed: of operands and of the bootstrap.
    """

    corpus: Corpus
    count: int
    least_nonzeros: int
    ops: Mapping[str, Sequence[int]]
    heads: int
    most: int
    timing: TimingProtocol
    threads: int
    memory_bytes: float
    journals: str
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_case.parquet, a row for each kernel, and portfolios.json; returns what portfolios lose.

        There are two for each operation, of all kernels and of those that take rows as they are stored.
        """
        keep_threads_awake()
        planned, weights = large_cases(self.corpus.entries(), self.ops, least_nonzeros=self.least_nonzeros,
                                       count=self.count, memory_bytes=self.memory_bytes)
        folder = journal_folder(self.journals, self.timing, self.heads, self.threads, self.seed, corpora=[self.corpus])
        rows_of = partial(self._rows, lru_cache(1)(self.corpus.load))  # cases of a matrix follow each other
        frame = timed_cases(rows_of, planned, folder / "cases.jsonl", threads=self.threads, weights=weights)
        write_frame(out / "per_case.parquet", frame)
        write_json(out / "portfolios.json", {
            order: {op: self._chosen(rows[rows["op"] == op]) for op in self.ops}
            for order, rows in (("any", frame), ("stored", in_stored_order(frame)))})
        metrics = portfolio_metrics(frame, self._chosen, seed=self.seed)
        log.console.print(portfolio_table(metrics))
        shutil.rmtree(folder)
        return metrics

    def _chosen(self, rows: pd.DataFrame) -> list[str]:
        """Name the kernels of a portfolio."""
        seconds = portfolio_seconds(rows)
        return [seconds.columns[place] for place in portfolio(seconds.to_numpy(), self.most)]

    def _rows(self, load: Callable[[str], SparseMatrix], case: DispatchCase) -> list[Row]:
        op, place = OPS[case.op](self.heads), CpuPlace(self.threads)
        operands: Operands = reallocated(op.operands(load(case.matrix), case.width, self.seed))
        family, safe = CpuKernels(self.threads, case.width).family(op), place.safe(op, operands).key
        result = family.result(operands)
        calls = {config.key: family.bind(operands, config, result) for config in family.space()}
        taken = interleaved(calls, self.timing, threads=self.threads)
        known = {"op": case.op, "matrix": case.matrix, "width": case.width, "nnz": operands.matrix.pattern.nnz}
        return [{**known, "config": name, "safe": name == safe, **statistics_of(each)} for name, each in taken.items()]
