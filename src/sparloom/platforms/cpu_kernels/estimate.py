"""Estimate seconds of the sparse kernels by a formula: no measurement, no labels, microseconds for each configuration.

The formula reads the statistics of a pattern (`sparloom.sparse.STATISTICS`) and round numbers of a server core. On T
threads, with b bytes in a dense row and n nonzeros:

    seconds  = imbalance (longer + exposed * shorter of (compute, gather)) / T + streamed / rate
    compute  = 2 n width / flops, longer by a reduction over lanes for SDDMM
    gather   = n b (missed / memory + (1 - missed) / cache)
    missed   = distinct * (1 - shared cache / all dense rows), where that is above 0
    distinct = dense rows per nonzero of a panel of 256 rows; 1 / reuse_256
    streamed = bytes of the sparse operand, once per strip, and of the result, twice unless it bypasses the caches

Rows ordered by column have the reuse of that order, and half of their streamed bytes are charged again. Prefetching
takes off some of what memory costs and adds to what caches cost. With equal shares of rows the imbalance is that of
panels of 2,048 rows, or of the longest row.

Source: rooflines, Williams et al. 2009. Rates are orders of magnitude of a server core; the other constants follow mean
times of parameter values on the training matrices of data/samples/cpu_kernels_*. Departures: no latency; rows with
equal columns count by the fill of blocks of four.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from jaxtyping import Float

from sparloom.space import Config, Value

FLOPS = 1e11  # per second and thread
NEAR, FAR, MEMORY = 8e10, 3e10, 1e10  # bytes per second and thread of a private cache, of the shared one, of the memory
PRIVATE, SHARED = 2**20, 2**24  # bytes of the caches, per thread
EXPOSED = 0.3  # share of the shorter one of computing and gathering that does not overlap with the other
PREFETCHED, NEEDLESS = 0.7, 1.1  # factors of prefetching: of memory and of caches
ON_DEMAND = 1.05  # factor of small pieces on demand
SCATTERED = 0.5  # of the bytes that rows in another order than the stored one make the caches fetch in vain
STRIP = 1.05  # factor of computing if indices are read again for every strip
COMPARED = 1.02  # factor of gathering if rows are compared with the previous ones
REDUCTION = 40  # columns whose products take as long as the reduction over the lanes of a group
VALUE, ENTRY, ROW = 4, 8, 8  # bytes of a number, of a nonzero with its index, of a row pointer


class Described(Protocol):
    """What is known of a matrix."""

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def nnz(self) -> int: ...
    @property
    def statistics(self) -> Mapping[str, float]: ...


def estimate_sparse_seconds(
    op: str, matrix: Described, configs: Sequence[Config], *, width: int, threads: int
) -> Float[np.ndarray, " configs"]:
    """Estimate the seconds of configurations of "spmm" or "sddmm".

    Args:
        width: columns of the dense operands.
    """
    return np.array([_seconds(op, matrix, dict(config.values), width, threads) for config in configs])


def _seconds(op: str, matrix: Described, knobs: Mapping[str, Value], width: int, threads: int) -> float:
    stats, nonzeros, row_bytes = matrix.statistics, max(1, matrix.nnz), VALUE * width
    strips = -(-width // int(knobs["strip"])) if knobs.get("strip", "all") != "all" else 1
    compute = 2 * nonzeros * width / FLOPS * (STRIP if strips > 1 else 1.0)
    if op == "sddmm":
        compute *= 1 + REDUCTION / width / _reduced(int(knobs["group"]), stats["row_mean"])
    gather = nonzeros * row_bytes * _gathered(matrix, knobs, row_bytes, threads)
    seconds = (max(compute, gather) + EXPOSED * min(compute, gather)) / threads
    moved = _streamed(op, matrix, knobs, row_bytes, strips, threads)
    if knobs["order"] == "column":
        moved += SCATTERED * (ENTRY * nonzeros + row_bytes * matrix.shape[0])
    fetched = FAR if matrix.shape[0] * row_bytes + ENTRY * nonzeros <= SHARED * threads else MEMORY
    return seconds * _imbalance(stats, str(knobs["balance"]), nonzeros, threads) + moved / (fetched * threads)


def _gathered(matrix: Described, knobs: Mapping[str, Value], row_bytes: int, threads: int) -> float:
    """Seconds per byte of a dense row, for one thread."""
    dense = sum(matrix.shape) * row_bytes
    ordered = "ordered_" if knobs["order"] == "column" else ""
    distinct = 1 / max(1.0, matrix.statistics[f"{ordered}reuse_256"])
    missed = distinct * max(0.0, 1 - SHARED * threads / max(1, dense))
    cached = 1 / NEAR if dense <= PRIVATE * threads else distinct / FAR + (1 - distinct) / NEAR
    slow, fast = missed / MEMORY, (1 - missed) * cached
    if knobs["prefetch"]:
        slow, fast = PREFETCHED * slow, NEEDLESS * fast
    together = int(knobs.get("together", 1))
    loaded = 1 - (1 - 1 / together) * matrix.statistics["fill_4"]
    return (slow + fast) * loaded * (COMPARED if together > 1 else 1.0)


def _reduced(group: int, row_mean: float) -> float:
    """Nonzeros that are reduced together, in the mean; those of no full group are taken in pairs."""
    if group == 1:
        return 2.0
    full = max(0.0, 1 - (group - 1) / 2 / max(1.0, row_mean))
    return 1 / (full / group + (1 - full) / 2)


def _imbalance(stats: Mapping[str, float], balance: str, nonzeros: int, threads: int) -> float:
    """Work of the busiest thread over the mean."""
    longest = stats["row_max"] * threads / nonzeros
    if balance == "nonzeros":
        return 1.0
    if balance == "dynamic":
        return ON_DEMAND * max(1.0, longest)
    panels = max(1.0, stats["rows"] / 2048 / threads)  # of a thread: their excess averages out
    return max(1.0, longest, 1 + (stats["imbalance_2048"] - 1) / np.sqrt(panels))


def _streamed(
    op: str, matrix: Described, knobs: Mapping[str, Value], row_bytes: int, strips: int, threads: int
) -> float:
    """Bytes of the sparse operand and of the result."""
    sparse = strips * ENTRY * matrix.nnz + ROW * matrix.shape[0]
    if op == "sddmm":
        return sparse + VALUE * matrix.nnz
    result, streams = matrix.shape[0] * row_bytes, bool(knobs.get("stream", 0))
    if result <= SHARED * threads / 4:
        return sparse + (result if streams else 0)
    return sparse + (1 if streams else 2) * result
