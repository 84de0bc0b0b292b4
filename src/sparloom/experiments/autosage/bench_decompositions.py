"""Time truncated decompositions of sparse matrices on `sparloom.SparseArray` beside SciPy's array."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse

from sparloom.arrays import SparseArray
from sparloom.experiments.harness import finish, run_folder, timed_cases
from sparloom.platforms import keep_threads_awake

Row = dict[str, Any]

logger = logging.getLogger(__name__)

TOLERANCE = 1e-6  # of singular values, relative to the largest


@dataclass(frozen=True)
class RandomMatrix:
    """A matrix of uniformly random nonzeros.

    Args:
        density: share of the elements that are nonzeros.
    """

    rows: int
    cols: int
    density: float

    def build(self, dtype: str, seed: int) -> scipy.sparse.csr_array:
        """Generate the matrix."""
        rng = np.random.default_rng((seed, self.rows, self.cols))
        return scipy.sparse.random_array((self.rows, self.cols), density=self.density, format="csr",
                                         dtype=np.dtype(dtype), rng=rng)


@dataclass(frozen=True)
class BenchDecompositions:
    """Decompose random matrices by functions of SciPy and scikit-learn, given SciPy's array and ours in turn.

    Both must find the same singular values. Seconds are those of whole decompositions, including dense factorisations
    and conversions. Finished cases are journaled, so an interrupted run continues.

    Args:
        matrices: name -> matrix.
        solvers: names in `SOLVERS`.
        components: singular triplets that are computed.
        rounds: decompositions by each; the first of ours also prepares, and counts.
    """

    matrices: Mapping[str, RandomMatrix]
    solvers: Sequence[str]
    components: int
    dtypes: Sequence[str]
    rounds: int
    threads: int
    journals: str
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_case.parquet; return the speedups over SciPy's array."""
        unknown = set(self.solvers) - set(SOLVERS)
        if unknown:
            raise ValueError(f"no solver {', '.join(sorted(unknown))}: choose from {', '.join(SOLVERS)}")
        folder = run_folder(self)
        cases = {f"{name}/{dtype}": (name, dtype) for name in self.matrices for dtype in self.dtypes}
        frame = timed_cases(self._score, cases, folder, costs=dict.fromkeys(cases, 1.0), threads=None)
        return finish(out, folder, decomposition_metrics(frame), per_case=frame)

    def _score(self, case: tuple[str, str]) -> list[Row]:
        name, dtype = case
        keep_threads_awake()
        plain, rows = self.matrices[name].build(dtype, self.seed), []
        logger.info("%s, %s: %d x %d with %d nonzeros", name, dtype, *plain.shape, plain.nnz)
        for solver in self.solvers:
            solve = SOLVERS[solver]
            taken: dict[str, list[float]] = {"scipy": [], "sparloom": []}
            found: dict[str, np.ndarray] = {}
            ours = SparseArray(plain, threads=self.threads)
            for _ in range(self.rounds):
                for method, array in (("scipy", plain), ("sparloom", ours)):
                    start = time.perf_counter()
                    values = solve(array, self.components, self.seed)
                    taken[method].append(time.perf_counter() - start)
                    found[method] = np.sort(values)
            error = np.abs(found["scipy"] - found["sparloom"]).max() / found["scipy"].max()
            limit = TOLERANCE if dtype == "float64" else np.sqrt(np.finfo(np.float32).eps)
            assert error <= limit, f"{solver} of {name}: singular values differ by {error:.1e}, more than {limit:.1e}"
            rows.append({"matrix": name, "rows": plain.shape[0], "cols": plain.shape[1], "nnz": plain.nnz,
                         "dtype": dtype, "solver": solver, "error": float(error), **taken})
        return rows


def decomposition_metrics(frame: pd.DataFrame) -> dict[str, float]:
    """Reduce seconds to speedups: medians of SciPy's over those of ours.

    Args:
        frame: per_case.parquet of `BenchDecompositions`.

    Returns:
        `<matrix>/<dtype>/<solver>/over_scipy` for each case, with `.../low` and `.../high`, the least and the largest
        ratio in one round; `over_scipy`, the geometric mean, and `over_scipy_min`.
    """
    metrics, speedups = {}, []
    for row in frame.to_dict("records"):
        theirs, ours = np.asarray(row["scipy"]), np.asarray(row["sparloom"])
        name = f"{row['matrix']}/{row['dtype']}/{row['solver']}/over_scipy"
        speedups.append(float(np.median(theirs) / np.median(ours)))
        metrics |= {name: speedups[-1], f"{name}/low": float((theirs / ours).min()),
                    f"{name}/high": float((theirs / ours).max())}
    return metrics | {"over_scipy": float(np.exp(np.mean(np.log(speedups)))), "over_scipy_min": min(speedups)}


def _randomized_svd(array: Any, components: int, seed: int) -> np.ndarray:
    from sklearn.utils.extmath import randomized_svd

    return randomized_svd(array, components, random_state=seed)[1]


def _pca(array: Any, components: int, seed: int) -> np.ndarray:
    from sklearn.decomposition import PCA

    return PCA(components, svd_solver="arpack", random_state=seed).fit(array).singular_values_


def _svds(array: Any, components: int, seed: int) -> np.ndarray:
    from scipy.sparse.linalg import svds

    return svds(array, components, return_singular_vectors=False, rng=np.random.default_rng(seed))


SOLVERS: Mapping[str, Callable[[Any, int, int], np.ndarray]] = {
    "randomized_svd": _randomized_svd, "pca": _pca, "svds": _svds}
"""Name -> function of matrix, number of components and seed that returns singular values: scikit-learn's randomised
decomposition and PCA with implicit centring by ARPACK, and SciPy's by ARPACK."""
