"""Define the cases of the dispatch benchmarks, the columns of their tables, and the check against float64."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sparloom.ops import SDDMM, CsrAttention, Op, Operands, SpMM, assert_few_close, few_rows
from sparloom.sparse import MatrixEntry
from sparloom.tuning.sparse import Backend, CsrPlan, Prepared

LAYERS = {"gcn_steps": "GCNConv", "sage_steps": "SAGEConv", "gin_steps": "GINConv", "gat_steps": "GATConv",
          "gatv2_steps": "GATv2Conv"}
"""Training steps -> layer of the network."""
TRAINING = ("sage_training", *LAYERS)  # operations with gradients, on square patterns
TYPED = {"spmm_float64": "float64", "spmm_bfloat16": "bfloat16"}
"""Products of other numbers than float32 -> their type."""
CHOSEN = ("spmm", "sddmm", "attention")
"""Operations whose choices are compared with all candidates."""
GRADIENTS = (*TRAINING, "spmm_gradient")
"""Operations that run with gradients."""

OPERATIONS: Mapping[str, Callable[[int], Op]] = {
    **dict.fromkeys(("spmm", *TYPED, "spmm_fresh", "spmm_torch", "spmm_gradient"), lambda heads: SpMM()),
    "sddmm": lambda heads: SDDMM(), "attention": lambda heads: CsrAttention(heads)}
"""Operation -> constructor with the number of heads."""

CASE = {"op": "str", "matrix": "str", "width": "int64", "rows": "int64", "nnz": "int64", "kind": "str"}
TIMED = {"method": "str", "median": "float64", "p10": "float64", "p90": "float64", "stolen": "object",
         "seconds": "object"}
PER_CASE = {**CASE, **TIMED, "flops": "float64", "bytes": "float64", "bound_seconds": "float64",
            "compulsory_seconds": "float64", "bound_by": "str", "peak_bytes": "float64", "failure": "str"}
DECISIONS = {**CASE, "way": "str", "choice": "str", "origin": "str", "reason": "str", "decision_seconds": "float64",
             "decision_executions": "float64"}
CANDIDATES = {**CASE, **TIMED}


def check_environment(*allowed: str) -> None:
    """Refuse environment variables AUTOSAGE_* that change decisions, other than those allowed.

    Raises:
        ValueError: some are set; names them.
    """
    variables = sorted(name for name, value in os.environ.items()
                       if name.startswith("AUTOSAGE_") and value and name not in allowed)
    if variables:
        raise ValueError(f"{', '.join(variables)}: this bench has settings of its own, unset them")


@dataclass(frozen=True)
class DispatchCase:
    """One operation on one matrix.

    Args:
        width: width of the dense operands, all heads together.
    """

    op: str
    matrix: str
    width: int

    @property
    def key(self) -> str:
        return f"{self.op} {self.matrix} {self.width}"


def dispatch_cases(
    entries: Sequence[MatrixEntry], ops: Mapping[str, Sequence[int]], *, memory_bytes: float,
) -> dict[str, dict[str, DispatchCase]]:
    """List cases by matrix and key; cases whose dense operands and result exceed the memory are left out.

    Args:
        ops: operation -> widths.
    """
    found = {}
    for entry in entries:
        cases = [DispatchCase(op, entry.name, width) for op, widths in ops.items() for width in widths
                 if (op not in TRAINING or entry.rows == entry.cols)
                 and 8 * width * (entry.rows + entry.cols) + 24 * entry.nnz <= memory_bytes]
        if cases:
            found[entry.name] = {case.key: case for case in cases}
    return found


def decision_columns(plan: CsrPlan) -> dict[str, Any]:
    decision = plan.decision
    return {"choice": plan.choice.config or plan.choice.library, "origin": decision.origin, "reason": decision.reason,
            "decision_seconds": decision.seconds, "decision_executions": decision.executions}


def frame_of(rows: Iterable[Mapping[str, object]], columns: Mapping[str, str]) -> pd.DataFrame:
    """Make a table with fixed columns, whatever rows there are; missing values stay missing.

    Args:
        columns: name -> type.
    """
    return pd.DataFrame(list(rows), columns=list(columns)).astype(dict(columns))


class ReferenceRows:
    """Check results in a few rows, spread over the matrix, against the float64 oracle.

    Args:
        where: backend of operands and results.
    """

    def __init__(self, op: Op, operands: Operands, where: Backend) -> None:
        pattern = operands.matrix.pattern
        rows = few_rows(pattern)
        self._op, self._where, self._few = op, where, where.arrays.gather_operands(operands, rows, op.name)
        self._indices, count = (pattern.nonzeros_of(rows), pattern.nnz) if op.name == "sddmm" else (rows, pattern.rows)
        dtype = np.promote_types(np.float32, next(iter(self._few.dense.values())).dtype)
        with np.errstate(over="ignore"):  # values above float32 are infinite in the results, too
            self._expected = op.oracle(self._few).astype(dtype)
        self._shape = count, *self._expected.shape[1:]

    def check(self, result: Any, *, eps: float | None = None) -> None:
        """Compare a result, float32 or float64 as the operands, in these rows.

        Args:
            eps: of rounding, if numbers had another type before.

        Raises:
            AssertionError: the result is wrong; names the worst element. Also if only one side is infinite or NaN.
        """
        found = self._where.arrays.array(result, "the result")
        if found.shape != self._shape:
            raise AssertionError(f"shape {found.shape}: it must be {self._shape}")
        assert_few_close(self._where.arrays.gather_rows(found, self._indices), self._expected, self._op, self._few,
                         eps=eps)


class BoundMethod(NamedTuple):
    """A call, and the array that it writes to; None: it returns a new array."""

    run: Callable[[], Any]
    out: np.ndarray | None = None


def user_call(ready: Prepared, op: str, dense: Mapping[str, Any]) -> Callable[..., Any]:
    """Bind an operation to its dense operands, without `out`."""
    method = {"spmm": ready.spmm, "sddmm": ready.sddmm, "attention": ready.attention}[op]
    return partial(method, *dense.values())


def check_own(calls: Mapping[str, BoundMethod], known: ReferenceRows) -> None:
    """Run each method once, with output arrays full of NaN, and check the result."""
    for name, (run, out) in calls.items():
        if out is not None:
            out.fill(np.nan)
        returned = run()
        try:
            known.check(returned if out is None else out)
        except AssertionError as error:
            raise AssertionError(f"{name} is wrong: {error}") from error
