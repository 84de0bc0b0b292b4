"""A few rows of a matrix on which kernels behave as on all: what a probe runs on.

Rows are taken as blocks of neighbours, so what they share in the caches stays; all their columns are kept, and the
dense operands they read are whole. Blocks are drawn from strata of equal number by nonzeros; the block with most is
always among them, so hubs are in the sample, and blocks without any never are.

Departure from AutoSAGE, whose probe is an induced subgraph: that thins every row by the sampling fraction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparloom.sparse import Pattern

__all__ = ["Sample", "sample_rows"]

BLOCK = 64  # rows
STRATA = 8


@dataclass(frozen=True)
class Sample:
    """Rows, and a division of them into parts that are samples themselves.

    Args:
        rows: (sampled,) int64, rising.
        part: (sampled,) int64, of each of them; all 0 where there is one part.
    """

    rows: np.ndarray
    part: np.ndarray

    @property
    def parts(self) -> list[np.ndarray]:
        """Rows of each part, rising."""
        return [self.rows[self.part == number] for number in range(int(self.part.max(initial=0)) + 1)]


def sample_rows(pattern: Pattern, *, nonzeros: int, parts: int, seed: int) -> Sample:
    """Draw rows with about so many nonzeros; all rows, as one part, if the pattern has no more.

    Args:
        parts: at most; every stratum deals its blocks to them in turn.
    """
    if pattern.nnz <= nonzeros:
        return Sample(np.arange(pattern.rows), np.zeros(pattern.rows, np.int64))
    begins = np.arange(0, pattern.rows, BLOCK)
    held = np.diff(pattern.indptr[np.append(begins, pattern.rows)])
    begins, held = begins[held > 0], held[held > 0]
    rng, chosen = np.random.default_rng(seed), []
    *lighter, heavy = np.array_split(np.argsort(held, kind="stable"), min(STRATA, begins.size))
    drawn = [*map(rng.permutation, lighter), np.append(heavy[-1:], rng.permutation(heavy[:-1]))]
    for stratum in drawn:
        wanted, got = nonzeros * held[stratum].sum() / pattern.nnz, 0
        for block in stratum:
            if got + held[block] / 2 > wanted and block != heavy[-1]:
                break
            chosen.append(int(block))
            got += int(held[block])
    dealt = np.arange(len(chosen)) % min(parts, len(chosen))
    order = np.argsort(chosen)
    blocks = [np.arange(begins[block], min(begins[block] + BLOCK, pattern.rows)) for block in np.array(chosen)[order]]
    return Sample(np.concatenate(blocks), np.repeat(dealt[order], [rows.size for rows in blocks]))
