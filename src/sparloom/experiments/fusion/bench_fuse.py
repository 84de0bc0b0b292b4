"""Time functions compiled by `fuse` beside their loops one after the other, our executors, and libraries."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sparloom import log
from sparloom.baselines import scipy_pair, torch_pair
from sparloom.experiments.harness import finish, statistics_of
from sparloom.fusion import fprange, fuse, pinned
from sparloom.fusion.decorator import Budget
from sparloom.measure import TimingProtocol, cache_bytes_per_core
from sparloom.ops import GemmSpmm, Operands
from sparloom.platforms import interleaved
from sparloom.report import ratio_bounds
from sparloom.solvers import MatrixPowers
from sparloom.sparse import Corpus, SparseMatrix
from sparloom.tuning import PlanCache, plan_pair

SERIAL = ("scipy",)
TOLERANCE = 1e-4  # of results in float32, relative to the largest element
RATIOS = {  # key -> methods, slow and fast
    "fused_over_loops": ("loops", "fused"), "recognised_over_own": ("own", "recognised"),
    "own_over_own_unfused": ("own_unfused", "own"), "own_over_fused": ("fused", "own"),
    "fused_over_scipy": ("scipy", "fused"), "own_over_scipy": ("scipy", "own"), "own_over_torch": ("torch", "own"),
}

Call = Callable[[], Any]


def _chebyshev_steps(A, X, n, width):
    """Two steps of a filter with few columns: 2 A (A X) - X, the Chebyshev polynomial of degree two."""
    T = np.zeros((n, width))
    D = np.zeros((n, width))
    for i in fprange(n):
        for k in range(A.p[i], A.p[i + 1]):
            for c in range(width):
                T[i, c] += A.x[k] * X[A.i[k], c]
    for i in fprange(n):
        for c in range(width):
            D[i, c] -= X[i, c]
        for k in range(A.p[i], A.p[i + 1]):
            for c in range(width):
                D[i, c] += 2.0 * A.x[k] * T[A.i[k], c]
    return D


def _graph_convolution(A, X, W, bias, n, inner, width):
    """A layer of a graph network: A (X W) + bias."""
    H = np.zeros((n, width))
    D = np.zeros((n, width))
    for i in fprange(n):
        for k in range(inner):
            for c in range(width):
                H[i, c] += X[i, k] * W[k, c]
    for i in fprange(n):
        for c in range(width):
            D[i, c] += bias[c]
        for k in range(A.p[i], A.p[i + 1]):
            for c in range(width):
                D[i, c] += A.x[k] * H[A.i[k], c]
    return D


def _product(A, B, C, n, inner, width):
    """A (B C), Listing 1 of the paper."""
    H = np.zeros((n, width))
    D = np.zeros((n, width))
    for i in fprange(n):
        for k in range(inner):
            for c in range(width):
                H[i, c] += B[i, k] * C[k, c]
    for i in fprange(n):
        for k in range(A.p[i], A.p[i + 1]):
            for c in range(width):
                D[i, c] += A.x[k] * H[A.i[k], c]
    return D


def _transposed_product(A, B, C, n, inner, width):
    """A (B C^T): the second operand is transposed, as in the paper's §5.2.1."""
    H = np.zeros((n, width))
    D = np.zeros((n, width))
    for i in fprange(n):
        for k in range(inner):
            for c in range(width):
                H[i, c] += B[i, k] * C[c, k]
    for i in fprange(n):
        for k in range(A.p[i], A.p[i + 1]):
            for c in range(width):
                D[i, c] += A.x[k] * H[A.i[k], c]
    return D


@dataclass(frozen=True)
class Program:
    """A function of two loops.

    Args:
        recognised: whether it is a product that `fuse` runs with the kernels of hand-written executors.
        bias: whether a bias is added.
    """

    function: Callable[..., Any]
    op: GemmSpmm | None = None
    recognised: bool = False
    bias: bool = False


PROGRAMS: Mapping[str, Program] = {
    "chebyshev": Program(_chebyshev_steps),
    "layer": Program(_graph_convolution, GemmSpmm(), bias=True),
    "product": Program(_product, GemmSpmm(), recognised=True),
    "transposed": Program(_transposed_product, GemmSpmm(c_transposed=True), recognised=True),
}


@dataclass(frozen=True)
class BenchFuse:
    """Time programs compiled by `fuse`, in turn with all other methods; every result is compared with SciPy's first.

    Methods: "fused" and "loops" run the generated bodies tile by tile and one loop after the other; "recognised" runs
    the kernels of our executors through `fuse`; "own" and "own_unfused" are hand-written: plans of `plan_pair` with and
    without fusion, or `MatrixPowers`; "scipy" and "torch".

    Args:
        corpus: square matrices.
        programs: names from `PROGRAMS`.
        widths: columns of all dense matrices but those of "chebyshev".
        columns: columns of "chebyshev".
    """

    corpus: Corpus
    programs: Sequence[str]
    widths: Sequence[int]
    columns: Sequence[int]
    threads: int
    timing: TimingProtocol
    seed: int
    cache: PlanCache = field(default_factory=PlanCache.of_this_user)

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_matrix.parquet, a row per case and method; return ratios of seconds, see `fuse_metrics`."""
        rows = []
        compiled = {name: self._compiled(PROGRAMS[name]) for name in self.programs}
        with pinned(self.threads):
            for entry in log.track(self.corpus.entries(), "matrices"):
                matrix = self.corpus.load(entry.name)
                for name in self.programs:
                    for width in self.columns if PROGRAMS[name].op is None else self.widths:
                        facts = {"program": name, "matrix": entry.name, "width": width, "threads": self.threads}
                        rows += [{**facts, **row} for row in self._case(PROGRAMS[name], compiled[name], matrix, width)]
        frame = pd.DataFrame(rows)
        return finish(out, None, fuse_metrics(frame, seed=self.seed), per_matrix=frame)

    def _compiled(self, program: Program) -> dict[str, Any]:
        """Compile a program with generated bodies and, where it is a known product, with recognised ones."""
        budget = Budget(self.threads, cache_bytes_per_core())
        kinds = ("generated", "recognised") if program.recognised else ("generated",)
        return {kind: fuse(program.function, budget=budget, bodies=kind) for kind in kinds}

    def _case(
        self, program: Program, compiled: Mapping[str, Any], matrix: SparseMatrix, width: int,
    ) -> list[dict[str, Any]]:
        calls = (self._chebyshev if program.op is None else self._pair)(program, compiled, matrix, width)
        wanted = np.array(calls["scipy"]())
        for name, call in calls.items():
            error = np.abs(call() - wanted).max(initial=0)
            if not error <= TOLERANCE * np.abs(wanted).max(initial=1):
                raise AssertionError(f"the result of {name} differs from SciPy's by {error:.1e}")
        taken = interleaved(calls, self.timing, threads=self.threads, serial=SERIAL)
        return [{"method": name, **statistics_of(measured)} for name, measured in taken.items()]

    def _chebyshev(
        self, _: Program, compiled: Mapping[str, Any], matrix: SparseMatrix, columns: int,
    ) -> dict[str, Call]:
        x = np.random.default_rng(self.seed).standard_normal((matrix.pattern.rows, columns)).astype(np.float32)
        arguments = (matrix, x, matrix.pattern.rows, columns)
        prepared = MatrixPowers(matrix, k=2, columns=columns, threads=self.threads)
        a = matrix.to_scipy()
        return {
            "own": lambda: prepared.polynomial(x, [0.0, 0.0, 1.0], basis="chebyshev"),
            "fused": partial(compiled["generated"], *arguments),
            "loops": partial(compiled["generated"].unfused, *arguments),
            "scipy": lambda: 2 * (a @ (a @ x)) - x,
        }

    def _pair(
        self, program: Program, compiled: Mapping[str, Any], matrix: SparseMatrix, width: int,
    ) -> dict[str, Call]:
        op = program.op
        operands = op.operands(matrix, width, self.seed)
        b, c = operands.dense["B"], operands.dense["C"]
        bias = np.linspace(-1, 1, width, dtype=np.float32)
        arguments = (matrix, b, c, *((bias,) if program.bias else ()), matrix.pattern.rows, b.shape[1], width)
        calls: dict[str, Call] = {name: self._planned(op, operands, fuse=kind, bias=bias if program.bias else None)
                                  for name, kind in (("own", "auto"), ("own_unfused", "never"))}
        calls["fused"] = partial(compiled["generated"], *arguments)
        calls["loops"] = partial(compiled["generated"].unfused, *arguments)
        if program.recognised:
            calls["recognised"] = partial(compiled["recognised"], *arguments)
        for name, bind in (("scipy", scipy_pair), ("torch", partial(torch_pair, threads=self.threads))):
            result = np.empty((matrix.pattern.rows, width), np.float32)
            calls[name] = _finished(bind(op, operands, result), result, bias if program.bias else None)
        return calls

    def _planned(self, op: GemmSpmm, operands: Operands, *, fuse: str, bias: np.ndarray | None) -> Call:
        executor = plan_pair(op, operands, fuse=fuse, threads=self.threads, cache=self.cache).executor
        result = executor.result(operands)
        return _finished(executor.bind(operands, result), result, bias)


def fuse_metrics(frame: pd.DataFrame, *, seed: int) -> dict[str, float]:
    """Compute ratios between methods.

    Args:
        frame: per_matrix.parquet of `BenchFuse`.
        seed: of the bootstrap over matrices.

    Returns:
        `<program>/<key>` for the keys of `RATIOS`, "a_over_b" is how many times as fast a is as b: geometric means over
        matrices, of which each counts by the geometric mean over widths, with bounds and extremes as `ratio_bounds`.
    """
    found: dict[str, float] = {}
    seconds = frame.pivot(index=["program", "matrix", "width"], columns="method", values="median")
    for program, rows in seconds.groupby("program", sort=False):
        for key, (slow, fast) in RATIOS.items():
            if slow in rows and fast in rows:
                logs = np.log((rows[slow] / rows[fast]).dropna())
                found |= ratio_bounds(f"{program}/{key}", np.exp(logs.groupby("matrix").mean()), seed=seed)
    return found


def _finished(call: Call, result: np.ndarray, bias: np.ndarray | None) -> Call:
    """Return the result of a bound product, with the bias added."""
    def run() -> np.ndarray:
        call()
        if bias is not None:
            np.add(result, bias, out=result)
        return result

    return run
