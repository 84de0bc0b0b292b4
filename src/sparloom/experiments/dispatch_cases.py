"""What is timed of operations on one sparse matrix: matrices x operations x widths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparloom.sparse import MatrixEntry

__all__ = ["TRAINING", "DispatchCase", "dispatch_cases", "large_cases", "spread_out"]

TRAINING = ("sage_training", "sage_steps")  # with gradients, on square patterns


@dataclass(frozen=True)
class DispatchCase:
    """One operation on one matrix.

    Args:
        width: of the dense operands, all heads together.
    """

    op: str
    matrix: str
    width: int

    @property
    def key(self) -> str:
        """Names the case in journals."""
        return f"{self.op} {self.matrix} {self.width}"


def dispatch_cases(
    entries: Sequence[MatrixEntry], ops: Mapping[str, Sequence[int]], *, memory_bytes: float,
) -> dict[str, list[DispatchCase]]:
    """List cases by matrix; those whose dense operands and result do not fit the memory are left out.

    Args:
        ops: with their widths.
    """
    found = {}
    for entry in entries:
        cases = [DispatchCase(op, entry.name, width) for op, widths in ops.items() for width in widths
                 if (op not in TRAINING or entry.rows == entry.cols)
                 and 8 * width * (entry.rows + entry.cols) + 24 * entry.nnz <= memory_bytes]
        if cases:
            found[entry.name] = cases
    return found


def large_cases(
    entries: Sequence[MatrixEntry], ops: Mapping[str, Sequence[int]], *, least_nonzeros: int, count: int,
    memory_bytes: float,
) -> tuple[dict[str, DispatchCase], dict[str, float]]:
    """List cases of matrices with more than so many nonzeros, by key, and what each may cost, in any unit.

    Args:
        count: of matrices, evenly over their nonzeros.
        ops, memory_bytes: as of `dispatch_cases`.
    """
    chosen = spread_out([entry for entry in entries if entry.nnz > least_nonzeros], count)
    cases = dispatch_cases(chosen, ops, memory_bytes=memory_bytes)
    weights = {case.key: float(entry.nnz * case.width) for entry in chosen for case in cases.get(entry.name, ())}
    return {case.key: case for each in cases.values() for case in each}, weights


def spread_out(entries: Sequence[MatrixEntry], count: int | None) -> Sequence[MatrixEntry]:
    """Choose at most so many, evenly over their nonzeros; all for None."""
    if count is None or count >= len(entries):
        return entries
    ordered = sorted(entries, key=lambda entry: (entry.nnz, entry.name))
    return [ordered[place] for place in np.linspace(0, len(ordered) - 1, count).round().astype(int)]
