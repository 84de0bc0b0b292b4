"""Time k products with one matrix and few columns: plain, blocked and chosen, beside SciPy and MKL."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse

from sparloom.baselines import mkl_spmm
from sparloom.errors import SparloomError, Unsupported
from sparloom.experiments.harness import finish, run_folder, statistics_of, timed_cases
from sparloom.measure import Caches, TimingProtocol
from sparloom.platforms import interleaved
from sparloom.report import ratio_bounds
from sparloom.solvers import MatrixPowers
from sparloom.sparse import Corpus, MatrixEntry, Pattern, SparseMatrix
from sparloom.sparse.generators.structured import stencil

logger = logging.getLogger(__name__)

OWN = ("plain", "blocked", "auto")
SERIAL = ("scipy",)
ENTRY_BYTES = 12  # of a nonzero in CSR, float64
RATIOS = {  # key -> methods, slow and fast
    "auto_over_plain": ("plain", "auto"), "blocked_over_plain": ("plain", "blocked"),
    "auto_over_scipy": ("scipy", "auto"), "auto_over_mkl": ("mkl", "auto"), "plain_over_mkl": ("mkl", "plain"),
}

Row = dict[str, Any]
Call = Callable[[], object]


def _band(rows: int, half: int, share: float) -> Pattern:
    """Fill a share of a band around a full diagonal."""
    rng = np.random.default_rng(half)
    kept, columns = [np.arange(rows)], [np.arange(rows)]
    for distance in range(1, half + 1):
        lower = np.arange(distance, rows)
        lower = lower[rng.random(lower.size) < share]
        kept += [lower, lower - distance]
        columns += [lower - distance, lower]
    return Pattern.from_coo(np.concatenate(kept), np.concatenate(columns), (rows, rows))


def _grid(rows: int, dimensions: int, reach: int, *, unknowns: int = 1, shuffle: bool = False) -> Pattern:
    """Connect neighbours in a grid, with some unknowns per point, in the order of the grid or at random."""
    side = max(2, round((rows / unknowns) ** (1 / dimensions)))
    points = stencil((side,) * dimensions, reach)
    if unknowns > 1:
        blocks = scipy.sparse.kron(points.to_scipy(), np.ones((unknowns, unknowns), np.float32), format="csr")
        points = Pattern.from_scipy(blocks)
    if not shuffle:
        return points
    number = np.random.default_rng(0).permutation(points.rows)
    return Pattern.from_coo(number[points.row_ids()], number[points.indices], points.shape)


def _random(rows: int, degree: int) -> Pattern:
    """Draw the columns of every row at random."""
    columns = np.random.default_rng(0).integers(0, rows, rows * degree)
    return Pattern.from_scipy(scipy.sparse.coo_array(
        (np.ones(columns.size, bool), (np.repeat(np.arange(rows), degree), columns)), shape=(rows, rows)))


GENERATED: Mapping[str, Mapping[str, Callable[[float], Pattern]]] = {  # part -> name -> factor of the rows -> pattern
    "bands": {
        "tridiagonal": lambda scale: _band(int(4e6 * scale), 1, 1.0),
        "half 4": lambda scale: _band(int(2e6 * scale), 4, 1.0),
        "half 12": lambda scale: _band(int(1e6 * scale), 12, 1.0),
        "half 10, 60 % full": lambda scale: _band(int(1.5e6 * scale), 10, 0.6),
        "half 24, 30 % full": lambda scale: _band(int(1e6 * scale), 24, 0.3),
    },
    "meshes": {
        "plane, 5 points": lambda scale: _grid(int(2.2e6 * scale), 2, 1),
        "plane, 9 points": lambda scale: _grid(int(1.6e6 * scale), 2, 2),
        "plane, 9 points, shuffled": lambda scale: _grid(int(8e5 * scale), 2, 2, shuffle=True),
        "plane, 5 points, 3 unknowns": lambda scale: _grid(int(1e6 * scale), 2, 1, unknowns=3),
        "space, 7 points": lambda scale: _grid(int(1.5e6 * scale), 3, 1),
        "space, 27 points": lambda scale: _grid(int(6e5 * scale), 3, 3),
    },
    "graphs": {
        "8 per row": lambda scale: _random(int(1e6 * scale), 8),
        "24 per row": lambda scale: _random(int(5e5 * scale), 24),
    },
}


@dataclass(frozen=True)
class BenchPowers:
    """Time A^k X by own plain products, blocked ones, the chosen ones, SciPy and MKL, all in turn.

    Every result is compared with SciPy's first. Preparation is timed apart. Finished matrices are journaled.

    Args:
        corpus: matrices of the part "real": square ones that exceed the last-level cache, up to `most_nonzeros`.
        parts: "bands", "meshes" and "graphs", which are generated, and "real".
        scale: factor of the rows of generated matrices.
        steps, columns: products, and columns of X.
        kept: "all": every product is written to memory; "last": only the last one.
    """

    corpus: Corpus
    parts: Sequence[str]
    scale: float
    steps: Sequence[int]
    columns: Sequence[int]
    kept: Sequence[str]
    threads: int
    timing: TimingProtocol
    most_nonzeros: int
    journals: str
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_matrix.parquet, a row per case and method; return ratios of seconds, see `powers_metrics`."""
        try:
            _by_mkl(_scaled(Pattern.identity(1), self.seed), np.ones((1, 1)), 1, last=True, threads=self.threads)
        except Unsupported as error:
            logger.warning("MKL is left out: %s", error)
        loads = {f"{part} {name}": (part, name, load) for (part, name), load in self._matrices().items()}
        corpora = [self.corpus] if "real" in self.parts else []
        folder = run_folder(self, corpora=corpora, without=("corpus",))
        frame = timed_cases(self._rows, loads, folder, costs=dict.fromkeys(loads, 1.0), threads=self.threads)
        return finish(out, folder, powers_metrics(frame, seed=self.seed), per_matrix=frame)

    def _matrices(self) -> dict[tuple[str, str], Callable[[], Pattern]]:
        """Map part and name to what makes the pattern."""
        found: dict[tuple[str, str], Callable[[], Pattern]] = {}
        for part in self.parts:
            if part == "real":
                entries = filter(self._is_large, self.corpus.entries())
                found |= {(part, entry.name): lambda entry=entry: self.corpus.load(entry.name).pattern
                          for entry in entries}
            else:
                found |= {(part, name): lambda make=make: make(self.scale) for name, make in GENERATED[part].items()}
        return found

    def _is_large(self, entry: MatrixEntry) -> bool:
        least = Caches.here(self.threads).far_bytes / ENTRY_BYTES
        return entry.rows == entry.cols and least < entry.nnz <= self.most_nonzeros

    def _rows(self, case: tuple[str, str, Callable[[], Pattern]]) -> list[Row]:
        """Time all cases of a matrix; none if it cannot be read."""
        part, name, load = case
        try:
            matrix = _scaled(load(), self.seed)
        except (OSError, ValueError, SparloomError) as error:
            logger.warning("%s is left out: %s", name, error)
            return []
        prepared, seconds = {}, {}
        for method in OWN:
            start = time.perf_counter()
            prepared[method] = MatrixPowers(matrix, k=max(self.steps), columns=self.columns[0], method=method,
                                            threads=self.threads)
            seconds[method] = time.perf_counter() - start
        facts = {"part": part, "matrix": name, "rows": matrix.pattern.rows, "nnz": matrix.pattern.nnz,
                 "threads": self.threads}
        found = []
        for columns in self.columns:
            x = np.random.default_rng(self.seed).standard_normal((matrix.pattern.rows, columns))
            for k in self.steps:
                for kept in self.kept:
                    found += [{**facts, "columns": columns, "steps": k, "kept": kept, **row,
                               "preparation_seconds": seconds.get(row["method"], 0.0)}
                              for row in self._case(matrix, prepared, x, k, kept == "last")]
        return found

    def _case(
        self, matrix: SparseMatrix, prepared: Mapping[str, MatrixPowers], x: np.ndarray, k: int, last: bool,
    ) -> list[Row]:
        plans = {name: own.plan(k, x.shape[1], last=last) for name, own in prepared.items()}
        calls: dict[str, Call] = {name: lambda own=own: own.powers(x, k, last=last) for name, own in prepared.items()}
        if plans["blocked"].depth == 1:
            del calls["blocked"]
        same = plans["auto"].depth == 1
        if same:
            del calls["auto"]
        calls["scipy"] = lambda: _by_scipy(matrix, x, k, last=last)
        with suppress(Unsupported):  # `run` says so
            calls["mkl"] = _by_mkl(matrix, x, k, last=last, threads=self.threads)
        wanted = calls["scipy"]()
        for name, call in calls.items():
            error = np.abs(call() - wanted).max(initial=0) / np.abs(wanted).max(initial=1e-300)
            if not error < 1e-12 * (k + 1):
                raise AssertionError(f"the result of {name} differs from SciPy's by {error:.1e}")
        taken = interleaved(calls, self.timing, threads=self.threads, serial=SERIAL)
        rows = [{"method": name, **statistics_of(measured)} for name, measured in taken.items()]
        if same:  # the same program, which is not timed twice
            rows += [{**row, "method": "auto"} for row in rows if row["method"] == "plain"]
        for row in rows:
            plan = plans.get(row["method"])
            row |= {"depth": 1 if plan is None else plan.depth, "renumbered": plan is not None and plan.renumbered}
        return rows


def powers_metrics(frame: pd.DataFrame, *, seed: int) -> dict[str, float]:
    """Compute speedups of chosen and of blocked products.

    Args:
        frame: per_matrix.parquet of `BenchPowers`.
        seed: of the bootstrap over matrices.

    Returns:
        `<part>/<key>` and `all/<key>` for the keys `auto_over_plain`, `blocked_over_plain` (where blocking is
        possible), `auto_over_scipy`, `auto_over_mkl` and `plain_over_mkl`: geometric means of ratios of median seconds
        over matrices, of which each counts by the geometric mean of its cases, with 95 % bootstrap bounds `_low` and
        `_high` over matrices; `_min` and `_max` are over cases. `<part>/<kept>/<columns>/<k>/<key>` are those of one
        case. `<part>/matrices` counts.
    """
    index = ["part", "matrix", "kept", "columns", "steps"]
    seconds = frame.pivot(index=index, columns="method", values="median")
    found: dict[str, float] = {}
    groups = [("all", seconds), *((str(part), rows) for part, rows in seconds.groupby("part", sort=False))]
    for part, rows in groups:
        found[f"{part}/matrices"] = rows.index.get_level_values("matrix").nunique()
        for key, (slow, fast) in RATIOS.items():
            if not {slow, fast} <= set(rows):
                continue
            ratio = (rows[slow] / rows[fast]).dropna()
            by_matrix = np.exp(np.log(ratio).groupby(["part", "matrix"]).mean())
            found |= ratio_bounds(f"{part}/{key}", by_matrix, seed=seed)
            if len(ratio):
                found |= {f"{part}/{key}_min": float(ratio.min()), f"{part}/{key}_max": float(ratio.max())}
            for case, values in ratio.groupby(["kept", "columns", "steps"]):
                found[f"{part}/{'/'.join(map(str, case))}/{key}"] = float(np.exp(np.log(values).mean()))
    return found


def _scaled(pattern: Pattern, seed: int) -> SparseMatrix:
    """Give a pattern random values such that powers neither grow nor vanish."""
    values = np.random.default_rng(seed).random(pattern.nnz) + 0.5
    values /= np.maximum(np.bincount(pattern.row_ids(), values, pattern.rows), 1e-300)[pattern.row_ids()]
    return SparseMatrix(pattern, values, np.float64)


def _by_scipy(matrix: SparseMatrix, x: np.ndarray, k: int, *, last: bool) -> np.ndarray:
    """Multiply k times by SciPy, which allocates every product and runs on one thread."""
    a, found = matrix.to_scipy(), [x]
    for _ in range(k):
        found = [a @ found[-1]] if last else [*found, a @ found[-1]]
    return found[0] if last else np.array(found)


def _by_mkl(matrix: SparseMatrix, x: np.ndarray, k: int, *, last: bool, threads: int) -> Call:
    """Bind k products by MKL into preallocated arrays.

    Raises:
        Unsupported: MKL is not installed.
    """
    if last:
        ring = [np.empty_like(x), np.empty_like(x)]
        arrays = [x, *(ring[p % 2] for p in range(k))]
    else:
        kept = np.empty((k + 1, *x.shape))
        kept[0] = x
        arrays = list(kept)
    products = [mkl_spmm(matrix, arrays[p], arrays[p + 1], threads=threads) for p in range(k)]

    def call() -> np.ndarray:
        for product in products:
            product()
        return arrays[-1] if last else kept

    return call
