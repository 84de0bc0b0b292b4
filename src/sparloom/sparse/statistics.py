"""Statistics of a pattern: what a schedule could react to, in time linear in the nonzeros."""

import numpy as np

from sparloom.sparse.order import locality_order, reorder
from sparloom.sparse.pattern import Pattern

__all__ = ["STATISTICS", "signed_logarithm", "statistics"]

PANELS = (4, 32, 256, 2048)  # rows per panel: the row panels of SPADE
BLOCKS = (4, 16, 64)
TILE = (256, 1024)  # rows and columns of the tiles that are counted

STATISTICS = (
    "rows", "cols", "nnz", "density", "aspect",
    *(f"{axis}_{name}" for axis in ("row", "col") for name in ("mean", "cv", "max", "p99", "gini", "top1", "empty")),
    "bandwidth_max", "bandwidth_mean", "profile", "span_mean", "runs",
    *(f"fill_{block}" for block in BLOCKS),
    *(f"reuse_{panel}" for panel in PANELS),
    *(f"imbalance_{panel}" for panel in PANELS),
    "tiles", "tile_cv", "diagonal", "symmetry", "ordered_bandwidth", "ordered_reuse_32", "ordered_reuse_256",
)  # fmt: skip


def signed_logarithm(values: np.ndarray) -> np.ndarray:
    """Bring numbers of any sign and size to one scale: the logarithm of 1 + |x| with the sign of x."""
    return np.sign(values) * np.log1p(np.abs(values))


def statistics(pattern: Pattern) -> dict[str, float]:
    """Describe a pattern by the numbers named in `STATISTICS`, in that order; all are finite, also without nonzeros.

    Returns:
        rows, cols, nnz; density = nnz / (rows cols); aspect = log2(rows / cols), each at least 1;
        row_* and col_*: nonzeros per row and column: mean, coefficient of variation, max, 99th percentile, Gini
        coefficient, share of the nonzeros in the fullest 1 %, share of empty ones;
        bandwidth_max, bandwidth_mean: distance of a nonzero from the (stretched) diagonal over the columns;
        profile: mean over rows of the distance from the first nonzero back to the diagonal, over the columns;
        span_mean: mean over filled rows of last - first + 1 column, over the columns;
        runs: nonzeros per run of neighbouring columns; fill_b: share of nonzeros in the touched b x b blocks;
        reuse_p: nonzeros per distinct (panel of p rows, column), the hits of a cache that holds one panel's columns;
        imbalance_p: nonzeros of the fullest panel of p rows over the mean;
        tiles: share of the 256 x 1024 tiles that hold a nonzero; tile_cv: variation of nonzeros over those;
        diagonal: share of the diagonal that is stored; symmetry: share of nonzeros whose mirror image exists;
        ordered_*: bandwidth_mean, reuse_32 and reuse_256 after `locality_order`.
    """
    rows, cols, nnz = pattern.rows, pattern.cols, pattern.nnz
    row_lengths = pattern.row_lengths()
    by_column = pattern.transpose()
    values = [rows, cols, nnz, nnz / max(1, rows * cols), np.log2(max(1, rows) / max(1, cols))]
    values += _lengths(row_lengths)
    values += _lengths(by_column.row_lengths())
    values += _shape(pattern)
    values += _fills(pattern)
    column_of = by_column.row_ids()
    values += [_reuse(by_column, column_of, panel) for panel in PANELS]
    values += [_imbalance(row_lengths, panel) for panel in PANELS]
    values += _tiles(pattern)
    values += _mirror(pattern, by_column)
    values += _ordered(pattern)
    return dict(zip(STATISTICS, (float(value) for value in values), strict=True))


def _lengths(lengths: np.ndarray) -> list[float]:
    if lengths.size == 0 or lengths.sum() == 0:
        return [0.0] * 6 + [float(lengths.size > 0)]
    mean = lengths.mean()
    ordered = np.sort(lengths)
    weights = 2 * np.arange(1, lengths.size + 1) - lengths.size - 1
    gini = (weights * ordered).sum() / (lengths.size * ordered.sum())
    top = ordered[-max(1, lengths.size // 100):].sum() / ordered.sum()
    heavy = [float(ordered[-1]), np.percentile(ordered, 99), gini, top]
    return [mean, lengths.std() / mean, *heavy, (lengths == 0).mean()]


def _shape(pattern: Pattern) -> list[float]:
    if pattern.nnz == 0:
        return [0.0] * 5
    slope = pattern.cols / pattern.rows
    filled = np.flatnonzero(pattern.row_lengths())
    distance = np.abs(pattern.indices - pattern.row_ids() * slope)
    first, last = pattern.indices[pattern.indptr[filled]], pattern.indices[pattern.indptr[filled + 1] - 1]
    profile = np.maximum(0.0, filled * slope - first).sum() / pattern.rows
    span = (last - first + 1).mean()
    joined = np.diff(pattern.indices) == 1
    starts = pattern.indptr[filled[1:]] - 1
    joined[starts] = False
    bands = [distance.max(), distance.mean(), profile, span]
    return [band / pattern.cols for band in bands] + [pattern.nnz / (pattern.nnz - joined.sum())]


def _fills(pattern: Pattern) -> list[float]:
    """Coarsen four by four, three times: the blocks of 16 are the blocks of 4 of the pattern of blocks of 4."""
    fills, coarse = [], pattern
    for block in BLOCKS:
        coarse = _coarsen(coarse, 4)
        fills.append(pattern.nnz / max(1, coarse.nnz * block * block))
    return fills


def _coarsen(pattern: Pattern, factor: int) -> Pattern:
    """Make the pattern of the factor x factor blocks that hold a nonzero."""
    flipped = _merge_columns(pattern, factor).transpose()
    return _merge_columns(flipped, factor).transpose()


def _merge_columns(pattern: Pattern, factor: int) -> Pattern:
    """Replace columns by column // factor, repeated ones dropped."""
    merged = pattern.indices // factor
    kept = np.ones(pattern.nnz, dtype=bool)
    kept[1:] = merged[1:] != merged[:-1]
    starts = pattern.indptr[:-1][pattern.row_lengths() > 0]
    kept[starts] = True
    indptr = np.concatenate(([0], np.cumsum(kept, dtype=np.int64)))[pattern.indptr]
    return Pattern((pattern.rows, -(-pattern.cols // factor)), indptr, merged[kept])


def _reuse(by_column: Pattern, column_of: np.ndarray, panel: int) -> float:
    return by_column.nnz / max(1, _distinct(by_column.indices // panel, column_of))


def _distinct(minor: np.ndarray, major: np.ndarray) -> int:
    """Count the distinct pairs in a list that is sorted by (major, minor)."""
    if minor.size == 0:
        return 0
    return 1 + int(((minor[1:] != minor[:-1]) | (major[1:] != major[:-1])).sum())


def _imbalance(row_lengths: np.ndarray, panel: int) -> float:
    if row_lengths.sum() == 0:
        return 1.0
    totals = np.add.reduceat(row_lengths, np.arange(0, row_lengths.size, panel))
    return totals.max() / totals.mean()


def _tiles(pattern: Pattern) -> list[float]:
    if pattern.nnz == 0:
        return [0.0, 0.0]
    across = -(-pattern.cols // TILE[1])
    down = -(-pattern.rows // TILE[0])
    tile = (pattern.row_ids() // TILE[0]).astype(np.int64) * across + pattern.indices // TILE[1]
    counts = np.bincount(tile, minlength=down * across) if down * across <= 4 * pattern.nnz + 2**20 else np.unique(
        tile, return_counts=True)[1]
    filled = counts[counts > 0]
    return [filled.size / (down * across), filled.std() / filled.mean()]


def _mirror(pattern: Pattern, flipped: Pattern) -> list[float]:
    if pattern.nnz == 0:
        return [0.0, 0.0]
    diagonal = (pattern.indices == pattern.row_ids()).sum() / min(pattern.shape)
    if pattern.rows != pattern.cols:
        return [diagonal, 0.0]
    shared = pattern.to_scipy().multiply(flipped.to_scipy()).nnz
    return [diagonal, shared / pattern.nnz]


def _ordered(pattern: Pattern) -> list[float]:
    moved = reorder(pattern, *locality_order(pattern))
    by_column = moved.transpose()
    column_of = by_column.row_ids()
    return [_shape(moved)[1], *(_reuse(by_column, column_of, panel) for panel in (32, 256))]
