"""Functions with two loops to fuse; in plain Python they are their own oracle."""

from collections.abc import Callable
from typing import Any

import numpy as np

from sparloom.fusion import Csr, fprange

__all__ = ["CASES", "operands"]


def gemm_spmm(A, B, C, n, bCol, cCol):
    """Compute Listing 1 of the paper."""
    D1 = np.zeros((n, cCol))
    D = np.zeros((n, cCol))
    for i1 in fprange(n): # GeMM
        for i2 in range(bCol):
            for i3 in range(cCol):
                D1[i1, i3] += B[i1, i2]*C[i2, i3]
    for j1 in fprange(n): # SpMM
        for j2 in range(A.p[j1], A.p[j1+1]):
            for j3 in range(cCol):
                D[j1, j3] += A.x[j2]*D1[A.i[j2], j3]
    return D


def gemm_spmm_transposed(A, B, C, n):
    """Read C transposed, (cCol, bCol); extents come from the arrays."""
    cCol, bCol = C.shape
    D1 = np.zeros((n, cCol))
    for i1 in fprange(n):
        for i3 in range(cCol):
            for i2 in range(bCol):
                D1[i1, i3] += B[i1, i2] * C[i3, i2]
    D = np.zeros((n, cCol))
    for j1 in fprange(n):
        for j2 in range(A.p[j1], A.p[j1 + 1]):
            for j3 in range(cCol):
                D[j1, j3] += A.x[j2] * D1[A.i[j2], j3]
    return D


def spmm_spmm(A, B, C, n, cCol):
    """Use the same names in both loops, as users do."""
    D1 = np.zeros((n, cCol))
    D = np.zeros((n, cCol))
    for i in fprange(n):
        for k in range(B.p[i], B.p[i + 1]):
            for c in range(cCol):
                D1[i, c] += B.x[k] * C[B.i[k], c]
    for i in fprange(n):
        for k in range(A.p[i], A.p[i + 1]):
            for c in range(cCol):
                D[i, c] += A.x[k] * D1[A.i[k], c]
    return D


def spmm_gemm(A, B, C, n, bCol, cCol):
    """Read one row in the second loop: one to one."""
    D1 = np.zeros((n, bCol))
    D = np.zeros((n, cCol))
    for i1 in fprange(n):
        for i2 in range(A.p[i1], A.p[i1 + 1]):
            for i3 in range(bCol):
                D1[i1, i3] += A.x[i2] * B[A.i[i2], i3]
    for j1 in fprange(n):
        for j2 in range(bCol):
            for j3 in range(cCol):
                D[j1, j3] += D1[j1, j2] * C[j2, j3]
    return D


def flattened(A, B, n, width):
    """Manually flattened rows: the stride must be divided out."""
    D1 = np.empty(n * width)
    D = np.zeros(n * width)
    for i in fprange(n):
        for k in range(width):
            D1[i * width + k] = 2.0 * B[i, k]
    for j in fprange(n):
        begin, end = A.p[j], A.p[j + 1]
        for e in range(begin, end):
            col = A.i[e]
            for k in range(width):
                D[j * width + k] += A.x[e] * D1[col * width + k]
    return D


def stencil(B, n):
    """Three constant offsets, bounds that do not begin at 0, a branch, a function."""
    mid = np.zeros(n)
    out = np.zeros(n)
    for i in fprange(1, n - 1):
        x = B[i, 0]
        if x < 0:
            x = 0.5 * x
        mid[i] = np.tanh(x)
    for j in fprange(1, n - 1):
        out[j] = max(mid[j - 1], mid[j]) - mid[j + 1]
    return out


def greatest_neighbour(A, B, n):
    """A maximum over neighbours in a variable, with `continue`."""
    score = np.zeros(n)
    best = np.zeros(n)
    for i in fprange(n):
        total = 0.0
        for k in range(B.shape[1]):
            total += B[i, k] * B[i, k]
        score[i] = np.sqrt(total)
    for j in fprange(n):
        top = -1.0
        for e in range(A.p[j], A.p[j + 1]):
            if A.x[e] < 0:
                continue
            top = max(top, score[A.i[e]])
        best[j] = top
    return best, score


def smoothed_in_place(A, X, n):
    """The second loop writes what the first read: anti dependences, solved for j."""
    Y = np.zeros(n)
    for i in fprange(n):
        for e in range(A.p[i], A.p[i + 1]):
            Y[i] += A.x[e] * X[A.i[e], 0]
    for j in fprange(n):
        X[j, 0] = X[j, 0] + 0.5 * Y[j]
    return Y


def named_like_keywords(default, tile, n):
    """Names that are reserved in C, CUDA or the compiler."""
    edges = np.zeros((n, tile))
    register = np.zeros((n, tile))
    for at_1 in fprange(n):
        for int_ in range(tile):
            edges[at_1, int_] = default[at_1, int_] * 2.0
    for at_2 in fprange(n):
        for f32 in range(tile):
            register[at_2, f32] = edges[n - 1 - at_2, f32]
    return register


CASES: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "gemm_spmm": (gemm_spmm, ("A", "B", "C", "n", "bCol", "cCol")),
    "gemm_spmm_transposed": (gemm_spmm_transposed, ("A", "B", "CT", "n")),
    "spmm_spmm": (spmm_spmm, ("A", "S", "X", "n", "cCol")),
    "spmm_gemm": (spmm_gemm, ("A", "B", "C", "n", "bCol", "cCol")),
    "flattened": (flattened, ("A", "B", "n", "bCol")),
    "stencil": (stencil, ("B", "n")),
    "greatest_neighbour": (greatest_neighbour, ("A", "B", "n")),
    "named_like_keywords": (named_like_keywords, ("B", "bCol", "n")),
    "smoothed_in_place": (smoothed_in_place, ("A", "B", "n")),
}
"""Name -> function and its operands."""


def operands(names: tuple[str, ...], *, n: int, real: type[np.generic], seed: int) -> list[Any]:
    """Draw operands of n rows, inner size 5 and width 3; A and S have an empty row and a full one if n allows."""
    rng = np.random.default_rng(seed)
    made = {
        "A": _sparse(n, real, rng), "S": _sparse(n, real, rng), "B": _dense((n, 5), real, rng),
        "C": _dense((5, 3), real, rng), "CT": _dense((3, 5), real, rng), "X": _dense((n, 3), real, rng),
        "n": n, "bCol": 5, "cCol": 3}
    return [made[name] for name in names]


def _dense(shape: tuple[int, int], real: type[np.generic], rng: np.random.Generator) -> np.ndarray:
    return (rng.random(shape) * 2 - 1).astype(real)


def _sparse(n: int, real: type[np.generic], rng: np.random.Generator) -> Csr:
    """A pattern near the diagonal, so that tiles fuse some iterations."""
    mask = (np.abs(np.arange(n)[:, None] - np.arange(n)) < 3) & (rng.random((n, n)) < 0.6)
    if n > 4:
        mask[1], mask[3] = False, True
    p = np.concatenate([[0], np.cumsum(mask.sum(axis=1))]).astype(np.int64)
    return Csr(p, np.nonzero(mask)[1].astype(np.int32), _dense((mask.sum(),), real, rng), (n, n))
