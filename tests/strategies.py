"""Hypothesis strategies for patterns and matrices: also without rows, without nonzeros, with a hub row."""

import numpy as np
from hypothesis import strategies as st

from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["matrices", "patterns"]


@st.composite
def patterns(
    draw: st.DrawFn, max_rows: int = 20, max_cols: int = 20, square: bool = False, min_rows: int = 0,
) -> Pattern:
    """Draw any pattern up to the given size."""
    rows = draw(st.integers(min_rows, max_rows))
    cols = rows if square else draw(st.integers(0, max_cols))
    places = draw(st.sets(st.integers(0, rows * cols - 1), max_size=60)) if rows * cols else set()
    if rows * cols and draw(st.booleans()):
        hub = draw(st.integers(0, rows - 1))
        places |= set(range(hub * cols, (hub + 1) * cols))
    flat = np.array(sorted(places), dtype=np.int64)
    return Pattern.from_coo(flat // max(1, cols), flat % max(1, cols), (rows, cols))


@st.composite
def matrices(draw: st.DrawFn, max_rows: int = 20, max_cols: int = 20) -> SparseMatrix:
    """Draw a pattern and any finite float32 values, zeros included."""
    pattern = draw(patterns(max_rows, max_cols))
    value = st.floats(width=32, allow_nan=False, allow_infinity=False)
    values = draw(st.lists(value, min_size=pattern.nnz, max_size=pattern.nnz))
    return SparseMatrix(pattern, np.array(values, dtype=np.float32))
