"""Kernels for the tests of ir and jit, each with arguments and expected results."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sparloom.ir import (
    F32,
    F64,
    I32,
    I64,
    Accumulate,
    Alloc,
    Assign,
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Declare,
    For,
    If,
    Kernel,
    Let,
    Load,
    Param,
    Prefetch,
    Ref,
    Select,
    Store,
    Sum,
    Type,
)

ROW, NONZERO, VECTOR = Ref("i"), Ref("p"), Type("f32", 8)
CSR = (Param("indptr", I64, True), Param("indices", I32, True), Param("values", F32, True))


@dataclass(frozen=True)
class Case:
    """`arguments()` gives fresh ones; `expected` is what the output buffers hold afterwards."""

    kernel: Kernel
    arguments: Callable[[], dict[str, object]]
    expected: dict[str, np.ndarray]

    def check(self, run: Callable[[dict[str, object]], None]) -> None:
        """Run a kernel on fresh arguments and compare their contents with the expected ones."""
        arguments = self.arguments()
        run(arguments)
        for name, array in self.expected.items():
            np.testing.assert_array_equal(arguments[name], array, err_msg=name)


def spmm(width: int = 20, lanes: int = 8) -> Case:
    """Rows in parallel; whole vectors in accumulators, the tail of the width in a simd loop over a local array."""
    whole, vector = width // lanes, Type("f32", lanes)
    accumulators = [Declare(f"acc{v}", vector, Broadcast(Const(0.0, F32), lanes)) for v in range(whole)]
    tail = width - whole * lanes
    zero_tail = [Alloc("rest", "f32", max(tail, 1)), For("k", 0, tail, [Store("rest", Ref("k"), Const(0.0, F32))])]
    row = Ref("b")
    rest = Load("B", row + whole * lanes + Ref("k"))
    nonzero = [
        Prefetch("indices", NONZERO + 16),
        Let("b", I64, Cast(I64, Load("indices", NONZERO)) * width),
        Let("a", vector, Broadcast(Load("values", NONZERO), lanes)),
        *(Assign(f"acc{v}", Ref(f"acc{v}") + Ref("a") * Load("B", row + v * lanes, lanes)) for v in range(whole)),
        For("k", 0, tail, [Accumulate("rest", Ref("k"), Load("values", NONZERO) * rest)], "simd"),
    ]
    stores = [Store("D", ROW * width + v * lanes, Ref(f"acc{v}")) for v in range(whole)]
    stores += [For("k", 0, tail, [Store("D", ROW * width + whole * lanes + Ref("k"), Load("rest", Ref("k")))])]
    loop = For("p", Load("indptr", ROW), Load("indptr", ROW + 1), nonzero)
    rows = For("i", 0, Ref("rows"), [*accumulators, *zero_tail, loop, *stores], "parallel", chunk=4)
    params = (*CSR, Param("B", F32, True), Param("D", F32, True, False), Param("rows", I64))

    indptr, indices, values, dense = _csr(13, 9, width)
    expected = np.zeros((13, width), np.float32)
    np.add.at(expected, np.repeat(np.arange(13), np.diff(indptr)), values[:, None] * dense[indices])
    return Case(
        Kernel("spmm", params, (rows,)),
        lambda: {"indptr": indptr, "indices": indices, "values": values, "B": dense,
                 "D": np.full((13, width), np.nan, np.float32), "rows": 13},
        {"D": expected},
    )


def sddmm(width: int = 16) -> Case:
    """One dot product per nonzero, summed over lanes."""
    product = Load("B", ROW * width + Ref("k"), 8) * Load("C", Ref("c") + Ref("k"), 8)
    dot = [
        Declare("acc", VECTOR, Broadcast(Const(0.0, F32), 8)),
        Let("c", I64, Cast(I64, Load("indices", NONZERO)) * width),
        For("k", 0, width, [Assign("acc", Ref("acc") + product)], "unrolled", step=8),
        Store("D", NONZERO, Load("values", NONZERO) * Sum(Ref("acc"))),
    ]
    rows = For("i", 0, Ref("rows"), [For("p", Load("indptr", ROW), Load("indptr", ROW + 1), dot)], "parallel", chunk=1)
    dense = (Param("B", F32, True), Param("C", F32, True))
    params = (*CSR, *dense, Param("D", F32, True, False), Param("rows", I64))

    indptr, indices, values, c = _csr(13, 9, width)
    b = np.random.default_rng(1).integers(-4, 5, (13, width)).astype(np.float32)
    row_ids = np.repeat(np.arange(13), np.diff(indptr))
    return Case(
        Kernel("sddmm", params, (rows,)),
        lambda: {"indptr": indptr, "indices": indices, "values": values, "B": b, "C": c,
                 "D": np.full(values.size, np.nan, np.float32), "rows": 13},
        {"D": values * (b[row_ids] * c[indices]).sum(axis=1, dtype=np.float32)},
    )


def norms() -> Case:
    """Euclidean length of each row by a reduction in f64, and the count of its negative elements."""
    element = Load("X", ROW * Ref("n") + Ref("j"))
    body = [
        Declare("total", F64, Const(0.0, F64)),
        Declare("below", I32, Const(0, I32)),
        For("j", 0, Ref("n"), [
            Let("x", F64, Cast(F64, element)),
            Assign("total", Ref("total") + Ref("x") * Ref("x")),
            Assign("below", Ref("below") + Select(Binary("<", element, Const(0.0, F32)), Const(1, I32), Const(0, I32))),
        ], "simd", reduces=("total", "below")),
        If(Binary(">", Ref("below"), Ref("limit")),
           [Store("D", ROW, Const(-1.0, F64))],
           [Store("D", ROW, Call("sqrt", (Ref("total"),)))]),
        Store("counts", ROW, Ref("below")),
    ]
    params = (Param("X", F32, True), Param("D", F64, True, False), Param("counts", I32, True, False),
              Param("m", I64), Param("n", I64), Param("limit", I32))

    x = np.random.default_rng(2).integers(-3, 4, (6, 7)).astype(np.float32)
    below = (x < 0).sum(axis=1).astype(np.int32)
    lengths = np.sqrt((x.astype(np.float64) ** 2).sum(axis=1))
    return Case(
        Kernel("norms", params, (For("i", 0, Ref("m"), body, "parallel"),)),
        lambda: {"X": x, "D": np.zeros(6), "counts": np.zeros(6, np.int32), "m": 6, "n": 7, "limit": 3},
        {"D": np.where(below > 3, -1.0, lengths), "counts": below},
    )


CASES = {"spmm": spmm, "sddmm": sddmm, "norms": norms}


def _csr(rows: int, cols: int, width: int) -> tuple[np.ndarray, ...]:
    """Small integers; row 2 is empty, row 5 is full."""
    rng = np.random.default_rng(0)
    mask = rng.random((rows, cols)) < 0.3
    mask[2], mask[5] = False, True
    indptr = np.concatenate([[0], np.cumsum(mask.sum(axis=1))]).astype(np.int64)
    indices = np.nonzero(mask)[1].astype(np.int32)
    values = rng.integers(1, 5, indices.size).astype(np.float32)
    return indptr, indices, values, rng.integers(-4, 5, (cols, width)).astype(np.float32)
