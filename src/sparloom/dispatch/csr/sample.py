"""A few rows of a matrix on which kernels behave as on all: what a probe runs on.

Rows are taken as blocks of neighbours, so what they share in the caches stays; all their columns are kept, and the
dense operands they read are whole. Blocks are drawn from strata of equal number by nonzeros, so hubs are in it.

Departure from AutoSAGE, whose probe is an induced subgraph: that thins every row by the sampling fraction.
"""

import numpy as np

from sparloom.sparse import Pattern

__all__ = ["sample_rows"]

BLOCK = 64  # rows
STRATA = 8


def sample_rows(pattern: Pattern, *, nonzeros: int, seed: int) -> np.ndarray:
    """Draw rows with about so many nonzeros, rising: (sampled,) int64; all rows if the pattern has no more."""
    if pattern.nnz <= nonzeros:
        return np.arange(pattern.rows)
    begins = np.arange(0, pattern.rows, BLOCK)
    held = np.diff(pattern.indptr[np.append(begins, pattern.rows)])
    rng = np.random.default_rng(seed)
    chosen: list[int] = []
    for stratum in np.array_split(np.argsort(held, kind="stable"), min(STRATA, begins.size)):
        wanted, got = nonzeros * held[stratum].sum() / pattern.nnz, 0
        for block in rng.permutation(stratum):
            if chosen and got + held[block] / 2 > wanted:
                break
            chosen.append(int(block))
            got += int(held[block])
    blocks = [np.arange(begins[block], min(begins[block] + BLOCK, pattern.rows)) for block in sorted(chosen)]
    return np.concatenate(blocks)
