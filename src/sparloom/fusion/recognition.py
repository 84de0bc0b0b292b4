"""Recognition of matrix products in the bodies of marked loops, and their execution by hand-written kernels.

    for k: for c: D[i, c] += B[i, k] * C[k, c]                      a row of a dense product, also with C[c, k]
    for e in A.p[i] .. A.p[i + 1]: for c:
        D[i, c] += A.x[e] * X[A.i[e], c]                            a row of a sparse product

The inner loops may be interchanged where their bounds allow it, and the factors may be swapped. Two such products, the
second of which reads the result of the first, form an operation of `Executor`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Literal

import numpy as np

from sparloom.forks import forkable
from sparloom.fusion.executor import Executor, Pair, Workspace
from sparloom.fusion.program import Access, Array, Csr, FusedProgram, Iterator, MarkedLoop, identity_key
from sparloom.fusion.schedule import TileSchedule, unfused_schedule
from sparloom.ir import F32, F64, I64, Accumulate, Binary, Cast, Const, Expr, For, Let, Load, Ref
from sparloom.jit import IdentityCache
from sparloom.ops import GemmSpmm, Operands, SpmmGemm, SpmmSpmm
from sparloom.sparse import Pattern, SparseMatrix

CACHED_MATRICES = 8  # their index arrays are kept alive
Arguments = Mapping[str, Any]
Bodies = Literal["recognised", "generated"]


@dataclass(frozen=True)
class RecognisedProduct:
    """D = A (B C) or D = (A B) C.

    Args:
        operands: "A", "B", "C" -> name of the argument.
        transposed: C has shape (width, inner).
        whole: pairs of expressions that are equal in a call if the loops cover whole matrices.
    """

    op: Literal["gemm_spmm", "spmm_spmm", "spmm_gemm"]
    operands: Mapping[str, str]
    transposed: bool
    whole: tuple[tuple[Expr, Expr], ...]


@dataclass(frozen=True)
class _RowProduct:
    """`out` += `left` times `right`, row by row; `left` is dense, or the values of a sparse argument."""

    out: Array
    left: Array
    right: Array
    sparse: bool
    transposed: bool
    whole: tuple[tuple[Expr, Expr], ...]


def recognise(program: FusedProgram) -> RecognisedProduct | None:
    """Find the operation that a program computes; None if it is none that has kernels."""
    first, second = _product(program, program.first), _product(program, program.second)
    if first is None or second is None or not (first.sparse or second.sparse):
        return None
    made, result = first.out, second.out
    plain = all(array.origin == "zeros" for array in (made, result)) and program.results == (result.name,)
    if not plain or not program.single:
        return None
    if second.sparse and second.right == made:
        op = "spmm_spmm" if first.sparse else "gemm_spmm"
        operands, transposed = {"A": second.left, "B": first.left, "C": first.right}, first.transposed
    elif first.sparse and not second.sparse and second.left == made and not second.transposed:
        op, operands, transposed = "spmm_gemm", {"A": first.left, "B": first.right, "C": second.right}, False
    else:
        return None
    if any(array.origin != "argument" for array in operands.values()):
        return None
    names = {role: array.source[0] for role, array in operands.items()}
    return RecognisedProduct(op, names, transposed, (*first.whole, *second.whole))


def _product(program: FusedProgram, nest: MarkedLoop) -> _RowProduct | None:
    addition = _innermost(nest)
    if addition is None or nest.iterator.lo != Const(0) or nest.iterator.step != 1:
        return None
    arrays = [addition.buffer, addition.value.a.buffer, addition.value.b.buffer]
    types = {program.array(name).type for name in arrays}
    if len({*arrays}) != 3 or len(types) != 1 or not types < {F32, F64}:
        return None
    accesses = {access.array: access for access in nest.accesses if access.array in arrays}
    out, a, b = (accesses[name] for name in arrays)
    loops = out.loops[1:]
    for left, right in ((a, b), (b, a)):
        for inner, across in (loops, loops[::-1]):
            found = _match(program, nest.iterator, (inner, across), (out, left, right))
            if found is not None:
                return found
    return None


def _match(
    program: FusedProgram, row: Iterator, loops: tuple[Iterator, Iterator], accesses: tuple[Access, Access, Access],
) -> _RowProduct | None:
    """Match with `loops` as (inner dimension, columns) and `accesses` as (result, left operand, right operand)."""
    (inner, across), (out, left, right) = loops, accesses
    made, factor, dense = (program.array(access.array) for access in accesses)
    i, k, c = Ref(row.name), Ref(inner.name), Ref(across.name)
    if out.subscripts != (i, c) or across.lo != Const(0) or {inner.step, across.step} != {1}:
        return None
    whole = [(row.hi, made.extents[0]), (across.hi, made.extents[1])]
    if left.subscripts == (i, k) and inner.lo == Const(0) and right.subscripts in ((k, c), (c, k)):
        transposed = right.subscripts == (c, k)
        extents = dense.extents[::-1] if transposed else dense.extents
        whole += [(row.hi, factor.extents[0]), (inner.hi, factor.extents[1]), (inner.hi, extents[0]),
                  (across.hi, extents[1])]
        return _RowProduct(made, factor, dense, False, transposed, tuple(whole))
    owner, *attribute = factor.source or ("",)
    columns = _attribute(program, owner, "i")
    if attribute != ["x"] or left.subscripts != (k,) or columns is None or len(right.subscripts) != 2:
        return None
    if right.subscripts != (_index(columns, k), c) or not _rows(program, owner, inner, i):
        return None
    sizes = {scalar.source: Ref(scalar.name) for scalar in program.scalars}
    whole += [(row.hi, sizes[owner, "shape", 0]), (sizes[owner, "shape", 1], dense.extents[0]),
              (across.hi, dense.extents[1])]
    return _RowProduct(made, factor, dense, True, False, tuple(whole))


def _innermost(nest: MarkedLoop) -> Accumulate | None:
    """Find the statement `buffer[..] += load * load` if it is all that two nested loops contain."""
    body, depth = nest.body, 0
    while True:
        rest = [statement for statement in body if not isinstance(statement, Let)]
        match rest:
            case [For(body=inner)] if depth < 2:
                body, depth = inner, depth + 1
            case [Accumulate(_, _, Binary("*", Load(), Load())) as statement] if depth == 2:
                return statement
            case _:
                return None


def _rows(program: FusedProgram, owner: str, loop: Iterator, row: Ref) -> bool:
    """Tell whether a loop runs over the nonzeros of a row."""
    pointers = _attribute(program, owner, "p")
    return pointers is not None and (loop.lo, loop.hi) == (_index(pointers, row), _index(pointers, row + 1))


def _attribute(program: FusedProgram, owner: str, attribute: str) -> Array | None:
    return next((array for array in program.arrays if array.source == (owner, attribute)), None)


def _index(array: Array, at: Expr) -> Expr:
    load = Load(array.name, at)
    return load if array.type == I64 else Cast(I64, load)


@dataclass(frozen=True)
class _Matrices:
    """Patterns of the sparse operands, "A" and "B", with the unfused schedule for each number of threads."""

    patterns: Mapping[str, Pattern]
    schedules: dict[int, TileSchedule] = field(default_factory=dict)

    def unfused(self, op: Pair, threads: int) -> TileSchedule:
        """Return the schedule that runs one loop after the other."""
        if threads not in self.schedules:
            pattern = self.patterns["A"]
            if op.name == "spmm_gemm":  # row j of loop two reads row j of loop one
                pattern = Pattern.identity(pattern.rows)
            self.schedules[threads] = unfused_schedule(pattern, threads=threads)
        return self.schedules[threads]


class ProductRunner:
    """Runs one recognised product if the loops of a call cover whole matrices; calls run one at a time."""

    def __init__(self, product: RecognisedProduct, whole: Callable[[Arguments], bool]) -> None:
        self._product = product
        self._whole = whole
        self._matrices: IdentityCache[_Matrices | None] = IdentityCache(CACHED_MATRICES)
        self._workspace = Workspace()
        self._lock = forkable(RLock())

    def run(self, arguments: Arguments, schedule: TileSchedule | None, *, threads: int) -> np.ndarray | None:
        """Run a call by a schedule, or unfused without one; return None, with nothing run, if the kernels do not apply.

        They need loops over whole matrices, sparse rows with increasing columns, and operands that are not empty.
        """
        matrices = self._matrices.get(*identity_key(arguments), lambda: self._find(arguments))
        if matrices is None:
            return None
        operands = self._operands(arguments, matrices.patterns)
        op = self._op(str(operands.matrix.dtype))
        chosen = matrices.unfused(op, threads) if schedule is None else schedule
        reentrant = self._lock._is_owned()  # a finaliser called this during another call of this thread
        with self._lock:
            executor = Executor(op, chosen, threads, workspace=Workspace() if reentrant else self._workspace)
            result = executor.result(operands)
            executor.bind(operands, result)()
        return result

    def _find(self, arguments: Arguments) -> _Matrices | None:
        operands = {role: arguments[name] for role, name in self._product.operands.items()}
        empty = any(isinstance(operand, np.ndarray) and operand.size == 0 for operand in operands.values())
        if empty or not self._whole(arguments):
            return None
        try:
            return _Matrices({role: Pattern(operand.shape, operand.p, operand.i)
                              for role, operand in operands.items() if isinstance(operand, Csr)})
        except ValueError:  # columns do not increase; all else has been checked
            return None

    def _operands(self, arguments: Arguments, patterns: Mapping[str, Pattern]) -> Operands:
        sparse, dense = {}, {}
        for role, name in self._product.operands.items():
            operand = arguments[name]
            if role in patterns:
                sparse[role] = SparseMatrix(patterns[role], operand.x, operand.x.dtype)
            else:
                dense[role] = np.ascontiguousarray(operand)
        return Operands(sparse["A"], dense, sparse.get("B"))

    def _op(self, dtype: str) -> Pair:
        match self._product.op:
            case "gemm_spmm":
                return GemmSpmm(dtype=dtype, c_transposed=self._product.transposed)
            case "spmm_spmm":
                return SpmmSpmm(dtype=dtype)
            case "spmm_gemm":
                return SpmmGemm(dtype=dtype)
