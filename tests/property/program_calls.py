"""Draws calls of solvers and fused pairs, and numbers of threads, as `array_calls` does of operations."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse
from array_calls import BAD_THREADS, GOOD_THREADS, Case, Wrong, close, in_child, pick, unchanged
from fused_cases import gemm_spmm, spmm_spmm
from ragged_calls import linear_product
from sparse_fuzz import POLICY
from sparse_inputs import read_only

import sparloom
from sparloom.errors import Unfusable
from sparloom.fusion import FusedFunction, fuse
from sparloom.fusion.decorator import csr
from sparloom.ops import GemmSpmm, Operands, SpmmGemm, SpmmSpmm
from sparloom.ragged import Executable
from sparloom.solvers import JacobiResult, JacobiSolver, jacobi
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import PairPlan, plan_pair

__all__ = ["draw_fused", "draw_jacobi", "draw_pair", "draw_solver_steps", "draw_threads"]

THREADS = 2
SQUARE = (1, 6, 40)
OPS = {"gemm_spmm": GemmSpmm, "spmm_gemm": SpmmGemm, "spmm_spmm": SpmmSpmm}


@cache
def _square(size: int) -> Pattern:
    """A pattern with a full diagonal."""
    inside = np.random.default_rng(size).random((size, size)) < min(1, 4 / size)
    made = scipy.sparse.csr_array(inside | np.eye(size, dtype=bool))
    return Pattern(made.shape, made.indptr, made.indices)


def _drawn(rng: np.random.Generator, *shape: int, dtype: Any = np.float64) -> np.ndarray:
    return rng.uniform(-1, 1, shape).astype(dtype)


def _dense(matrix: SparseMatrix) -> np.ndarray:
    shape = matrix.pattern.shape
    return scipy.sparse.csr_array((matrix.values.astype(np.float64), matrix.pattern.indices, matrix.pattern.indptr),
                                  shape=shape).toarray()


# Jacobi's method.

def _system(rng: np.random.Generator, size: int, *, dominant: bool = True) -> SparseMatrix:
    pattern = _square(size)
    values = _drawn(rng, pattern.nnz)
    rows = pattern.row_ids()
    sums = np.bincount(rows, np.abs(values), size)
    diagonal = rows == pattern.indices
    values[diagonal] = sums * rng.choice([-1, 1], size) * (1.5 if dominant else 0.4)
    return SparseMatrix(pattern, values, np.float64)


def _with(array: np.ndarray, value: Any) -> np.ndarray:
    made = array.copy()
    made.flat[made.size // 2] = value
    return made


WRONG_SIDES: dict[str, tuple[Callable[[np.ndarray], Any], str]] = {
    "NaN": (lambda b: _with(b, np.nan), "right-hand side"),
    "infinity": (lambda b: _with(b, -np.inf), "right-hand side"),
    "complex": (lambda b: b * (1 + 0j), "right-hand side"),
    "text": (lambda b: b.astype(str), "right-hand side"),
    "objects": (lambda b: b.astype(object), "right-hand side"),
    "dates": (lambda b: b.astype("datetime64[s]"), "right-hand side"),
    "vector": (lambda b: b[:, 0], "right-hand side"),
    "a row more": (lambda b: np.concatenate([b, b[:1]]), "right-hand side"),
    "no columns": (lambda b: b[:, :0], "right-hand side"),
    "three axes": (lambda b: b[None], "right-hand side"),
    "sparse": (scipy.sparse.csr_array, "right-hand side"),
    "masked": (lambda b: np.ma.masked_array(b, mask=np.ones(b.shape, bool)), "right-hand side"),
    "None": (lambda b: None, "right-hand side"),
}
WRONG_OPTIONS: dict[str, tuple[str, Any]] = {
    f"{name}={value!r}": (name, value) for name, values in {
        "tolerance": (0, -1.0, np.nan, np.inf, "1", None, 1j), "max_iterations": (0, -2, 1.5, "7", None),
        "relaxation": (0, -1, np.nan, np.inf, "1", None, 1j), "numbering": ("best", None, 3),
        "fuse": ("maybe", None, 1),
        "dtype": ("int32", "float16", "complex128", "nothing", object)}.items() for value in values}
WRONG_SYSTEMS: dict[str, Callable[[SparseMatrix], Any]] = {
    "zero": lambda a: _changed_diagonal(a, 0), "NaN": lambda a: _changed_diagonal(a, np.nan),
    "infinity": lambda a: _changed_diagonal(a, np.inf), "dense": _dense, "None": lambda a: None,
    "scipy": lambda a: scipy.sparse.csr_array(_dense(a)),
    "not square": lambda a: SparseMatrix(Pattern((a.pattern.rows, a.pattern.cols + 1), a.pattern.indptr,
                                                 a.pattern.indices), a.values, np.float64),
}


def _changed_diagonal(a: SparseMatrix, value: float) -> SparseMatrix:
    values = a.values.copy()
    values[np.flatnonzero(a.pattern.row_ids() == a.pattern.indices)[-1]] = value
    return SparseMatrix(a.pattern, values, np.float64)


def _check_solution(found: JacobiResult, a: np.ndarray, b: np.ndarray, scale: float, tolerance: float) -> None:
    """Check the reported status of all columns; `scale` is that of x."""
    x, diagonal = found.solution.astype(np.float64) / scale, np.diag(a)[:, None]
    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(b / diagonal, axis=0)
        residuals = np.linalg.norm((b - a @ x) / diagonal, axis=0) / np.where(lengths > 0, lengths, 1)
    if (found.converged & ~(residuals <= 1.01 * tolerance)).any():
        raise Wrong(f"converged, but the residuals are {residuals}, said to be {found.residuals}")
    if (found.converged & found.diverged).any():
        raise Wrong("a column has converged and diverged")
    if (found.iterations % 2).any() or found.solution.shape != b.shape:
        raise Wrong(f"iterations {found.iterations}, solution of {found.solution.shape}")


def draw_jacobi(rng: np.random.Generator) -> Case:
    """Draw a system in any units, or an invalid one."""
    size, columns = pick(rng, SQUARE), pick(rng, (1, 3))
    matrix, b = _system(rng, size, dominant=rng.random() < 0.8), _drawn(rng, size, columns)
    wide = rng.random() < 0.6
    tolerance = 1e-9 if wide else 1e-5
    options: dict[str, Any] = {
        "tolerance": tolerance, "dtype": "float64" if wide else "float32",
        "fuse": pick(rng, ("auto", "never", "always")),
        "max_iterations": pick(rng, (300, 1, 7)), "relaxation": pick(rng, (1.0, 1.0, 0.7)), "threads": THREADS}
    kind = pick(rng, ("right", "right", "right", "side", "option", "system"))
    if kind != "right":
        form = pick(rng, {"side": WRONG_SIDES, "option": WRONG_OPTIONS, "system": WRONG_SYSTEMS}[kind])
        fault = {"side": r"right-hand side|columns", "system": r"matrix|diagonal"}.get(kind, "")
        given, sides = matrix, b
        if kind == "side":
            sides = WRONG_SIDES[form][0](b)
        elif kind == "system":
            given = WRONG_SYSTEMS[form](matrix)
        else:
            name, options[WRONG_OPTIONS[form][0]] = WRONG_OPTIONS[form][0], WRONG_OPTIONS[form][1]
            fault = {"max_iterations": "iterations", "dtype": "dtype|type|values"}.get(name, name)
        return Case(f"jacobi {kind} {form}, {size} x {columns}", lambda: jacobi(given, sides, **options), fault)
    most = 1000 if wide else 100
    of_a = int(rng.integers(-most, most))
    of_x = int(np.clip(rng.integers(-most, most), -1000 - of_a, 1000 - of_a))
    if rng.random() < 0.4:
        of_a = of_x = 0
    scaled = SparseMatrix(matrix.pattern, np.ldexp(matrix.values, of_a), np.float64)
    if rng.random() < 0.2:
        b[:, 0] = 0
    sides = np.ldexp(b, of_a + of_x)
    form = pick(rng, ("plain", "Fortran", "rows apart", "read-only"))
    sides = {"plain": lambda: sides, "Fortran": lambda: np.asfortranarray(sides),
             "rows apart": lambda: np.repeat(sides, 2, axis=0)[::2], "read-only": lambda: read_only(sides)}[form]()

    def call() -> None:
        with unchanged(scaled.values, sides):
            found = jacobi(scaled, sides, **options)
        _check_solution(found, _dense(matrix), b, 2.0 ** of_x, tolerance)
        if options["max_iterations"] == 300 and matrix is not None and _dominates(matrix) and not found.converged.all():
            raise Wrong(f"a dominant system did not converge: {found.residuals}")

    return Case(f"jacobi {form}, {size} x {columns}, 2^{of_a}, 2^{of_x}, {options}", call)


def _dominates(matrix: SparseMatrix) -> bool:
    a = np.abs(_dense(matrix))
    return bool((2 * np.diag(a) > 1.2 * a.sum(axis=1)).all())


# Products of three matrices.

@cache
def _plan(name: str, dtype: str, size: int, width: int, kind: str) -> PairPlan:
    op = OPS[name](dtype=dtype)
    return plan_pair(op, op.operands(SparseMatrix(_square(size), np.ones(_square(size).nnz, dtype), dtype), width, 0),
                     threads=THREADS, fuse=kind)


WRONG_RESULTS: dict[str, Callable[[np.ndarray], Any]] = {
    "a row less": lambda d: d[1:], "a column more": lambda d: np.zeros((d.shape[0], d.shape[1] + 1), d.dtype),
    "integers": lambda d: np.zeros(d.shape, np.int32), "half": lambda d: d.astype(np.float16),
    "byte order": lambda d: d.astype(d.dtype.newbyteorder()), "read-only": read_only,
    "every second": lambda d: np.repeat(d, 2, axis=0)[::2], "Fortran": np.asfortranarray,
}


def draw_pair(rng: np.random.Generator) -> Case:
    """Draw valid or invalid operands of a plan."""
    name, dtype = pick(rng, OPS), pick(rng, ("float32", "float64"))
    size, width, kind = pick(rng, SQUARE[1:]), pick(rng, (3, 8)), pick(rng, ("auto", "always", "never"))
    op = OPS[name](dtype=dtype)
    matrix = SparseMatrix(_square(size), _drawn(rng, _square(size).nnz, dtype=dtype), dtype)
    operands = op.operands(matrix, width, int(rng.integers(2**31)))
    form = pick(rng, ("right", "right", "result", "overlap", "operand", "values"))
    fault, detail, result = None, "", np.full((size, width), np.nan, dtype)
    dense = dict(operands.dense)
    which = pick(rng, dense)
    if form == "result":
        detail, fault = pick(rng, WRONG_RESULTS), r"result|array of"
        result = WRONG_RESULTS[detail](result)
    elif form == "overlap":
        room = np.zeros(max(dense[which].size, result.size) + 1, dtype)
        dense[which] = room[: dense[which].size].reshape(dense[which].shape)
        result, fault = room[1 : 1 + result.size].reshape(result.shape), rf"overlaps {which}\b"
    elif form == "operand":
        detail, fault = pick(rng, ("a row more", "half", "gaps")), rf"\b{which}\b|array of"
        dense[which] = {"a row more": lambda x: np.concatenate([x, x[:1]]), "half": lambda x: x.astype(np.float16),
                        "gaps": lambda x: np.repeat(x, 2, axis=0)[::2]}[detail](dense[which])
    elif form == "values":
        other = SparseMatrix(_square(46 - size), np.ones(_square(46 - size).nnz), dtype)
        operands, fault = op.operands(other, width, 0), r"schedule|pattern|result"
        dense = dict(operands.dense)
        result = np.zeros((46 - size, width), dtype)
    given = Operands(operands.matrix, dense, right=operands.right)

    def call() -> None:
        plan = _plan(name, dtype, size, width, kind)
        with unchanged(given.matrix.values, *dense.values()):
            plan.executor.bind(given, result)()
        a = _dense(given.matrix)
        wide = {each: array.astype(np.float64) for each, array in dense.items()}
        second = _dense(given.right) if given.right is not None else wide["B"]
        bound = np.abs(a) @ np.abs(second) @ np.abs(wide["C"])
        close(result, a @ second @ wide["C"], 64 * np.finfo(dtype).eps * bound, dtype=np.dtype(dtype))

    return Case(f"pair {name}, {dtype}, {size}, width {width}, {kind}: {form} {detail} {which}", call, fault)


@cache
def _fused(name: str, bodies: str) -> FusedFunction:
    return fuse({"gemm_spmm": gemm_spmm, "spmm_spmm": spmm_spmm}[name], bodies=bodies)


def draw_fused(rng: np.random.Generator) -> Case:
    """Draw arguments of a decorated function; reads beyond the end of an array must be refused."""
    name, bodies, dtype = pick(rng, ("gemm_spmm", "spmm_spmm")), pick(rng, ("recognised", "generated")), "float64"
    size, inner, width = pick(rng, SQUARE[1:]), 4, 3
    a, b = (SparseMatrix(_square(size), _drawn(rng, _square(size).nnz), dtype) for _ in range(2))
    gemm = name == "gemm_spmm"
    arguments: dict[str, Any] = {
        "A": a, "B": _drawn(rng, size, inner) if gemm else b, "C": _drawn(rng, inner if gemm else size, width),
        "n": size, **({"bCol": inner} if gemm else {}), "cCol": width}
    second = arguments["B"] if gemm else _dense(b)
    expected = _dense(a) @ second @ arguments["C"]
    form, fault = pick(rng, ("right", "scipy", "Csr", "gaps", "less", "more", "type", "other")), None
    if form == "scipy":
        arguments["A"] = scipy.sparse.csr_array((a.values, a.pattern.indices, a.pattern.indptr), shape=a.pattern.shape)
    elif form == "Csr":
        arguments["A"] = csr(a)
    elif form == "gaps":
        arguments["C"] = np.repeat(arguments["C"], 2, axis=0)[::2]
    elif form == "less":
        which = pick(rng, ("B", "C") if gemm else ("C",))
        arguments[which], fault = arguments[which][:-1], rf"\b({which}|n|bCol)\b"
    elif form == "more":
        which = pick(rng, ("n", "bCol", "cCol") if gemm else ("n", "cCol"))
        arguments[which] += int(rng.integers(1, 10**6))
        fault = r"\b(A|B|C|D|D1|n|bCol|cCol)\b"
    elif form == "type":
        which = pick(rng, ("B", "C") if gemm else ("C",))
        arguments[which] = pick(rng, (lambda x: x.tolist(), lambda x: None, lambda x: x.astype(object),
                                      lambda x: x.astype(np.float16), lambda x: x.astype(str)))(arguments[which])
        fault = rf"\b{which}\b"
    elif form == "other":
        arguments["A"], fault = (SparseMatrix(_square(46 - size), np.ones(_square(46 - size).nnz), dtype),
                                 r"\b(A|n|B|D|D1)\b")

    def call() -> None:
        found = _fused(name, bodies)(**arguments)
        bound = np.abs(_dense(a)) @ np.abs(second) @ np.abs(arguments["C"])
        close(found, expected, 64 * np.finfo(np.float64).eps * bound, dtype=np.float64)

    return Case(f"fused {name}, {bodies}, {size}: {form}", call, fault, (TypeError, ValueError, IndexError, Unfusable))


def draw_solver_steps(rng: np.random.Generator) -> Case:
    """Draw several right-hand sides for one solver, some from two threads or in a forked child."""
    matrix, wide = _system(rng, pick(rng, SQUARE)), rng.random() < 0.6
    numbering, fuse_steps = pick(rng, (("natural", "never"), ("bandwidth", "always"), ("natural", "auto")))
    names = [pick(rng, ("solve", "solve", "together", "in_child")) for _ in range(rng.integers(2, 5))]
    tolerance = 1e-9 if wide else 1e-5

    def call() -> None:
        solver = JacobiSolver(matrix, 2, numbering=numbering, fuse=fuse_steps, threads=THREADS,
                              dtype="float64" if wide else "float32")

        def solve(seed: int) -> None:
            b = _drawn(np.random.default_rng(seed), matrix.pattern.rows, 2) * 2.0 ** (seed % 40 - 20)
            found = solver.solve(b, tolerance=tolerance)
            _check_solution(found, _dense(matrix), b, 1, tolerance)
            if not found.converged.all():
                raise Wrong(f"a dominant system did not converge: {found.residuals}")

        for name in names:
            seeds = [int(seed) for seed in rng.integers(2**31, size=3)]
            if name == "together":
                with ThreadPoolExecutor(2) as pool:
                    list(pool.map(solve, seeds))
            elif name == "in_child" and rng.random() < 0.3:
                in_child(lambda seeds=seeds: solve(seeds[0]))
            solve(seeds[-1])

    return Case(f"steps of solver, {matrix.pattern.rows}, {numbering}, {fuse_steps}: {', '.join(names)}", call)


def draw_threads(rng: np.random.Generator) -> Case:
    """Draw a call with a number of threads."""
    wrong = rng.random() < 0.6
    form = pick(rng, BAD_THREADS if wrong else GOOD_THREADS)
    threads = (BAD_THREADS if wrong else GOOD_THREADS)[form]
    name = pick(rng, ("spmm", "sddmm", "attention", "prepare", "jacobi", "pair", "executable"))
    matrix = _system(rng, 6)
    a = scipy.sparse.csr_array(_dense(matrix).astype(np.float32))
    x, heads = _drawn(rng, 6, 3, dtype=np.float32), np.ones((6, 2, 3), np.float32)
    calls: dict[str, Callable[[], Any]] = {
        "spmm": lambda: sparloom.spmm(a, x, threads=threads),
        "sddmm": lambda: sparloom.sddmm(a, x, x, threads=threads),
        "attention": lambda: sparloom.csr_attention(a, heads, heads, heads, threads=threads),
        "prepare": lambda: sparloom.prepare(a, threads=threads, policy=POLICY).spmm(x),
        "jacobi": lambda: jacobi(matrix, np.ones((6, 1)), threads=threads),
        "pair": lambda: plan_pair(GemmSpmm(), GemmSpmm().operands(matrix, 3, 0), threads=threads, fuse="never"),
        "executable": lambda: Executable(linear_product(), threads=threads)}
    return Case(f"threads {form}, {name}", calls[name], r"\bthreads\b" if wrong else None)
