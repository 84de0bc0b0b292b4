"""Statistics of a pattern on which a schedule may depend, in time linear in the nonzeros, and locality orders."""

import numpy as np
import scipy.sparse
from jaxtyping import Int64
from scipy.sparse.csgraph import breadth_first_order, connected_components

from sparloom.sparse.pattern import Pattern

PANELS = (4, 32, 256, 2048)  # rows per panel: the row panels of SPADE
BLOCKS = (4, 16, 64)
TILE_SHAPE = (256, 1024)  # rows and columns
STATISTICS = (
    "rows", "cols", "nnz", "density", "aspect",
    *(f"{axis}_{name}" for axis in ("row", "col") for name in ("mean", "cv", "max", "p99", "gini", "top1", "empty")),
    "bandwidth_max", "bandwidth_mean", "profile", "span_mean", "runs",
    *(f"fill_{block}" for block in BLOCKS),
    *(f"reuse_{panel}" for panel in PANELS),
    *(f"imbalance_{panel}" for panel in PANELS),
    "tiles", "tile_cv", "diagonal", "symmetry", "ordered_bandwidth", "ordered_reuse_32", "ordered_reuse_256",
)  # fmt: skip
"""Names of the statistics of a pattern, in their order."""


def reorder(pattern: Pattern, rows_perm: np.ndarray, cols_perm: np.ndarray) -> Pattern:
    """Permute a pattern: old row rows_perm[r] becomes row r, old column cols_perm[c] becomes column c."""
    new_column = np.empty(pattern.cols, dtype=np.int32)
    new_column[_checked(cols_perm, pattern.cols, "cols_perm")] = np.arange(pattern.cols, dtype=np.int32)
    moved = pattern.to_scipy()[_checked(rows_perm, pattern.rows, "rows_perm")]
    result = scipy.sparse.csr_array((moved.data, new_column[moved.indices], moved.indptr), shape=pattern.shape)
    result.sort_indices()
    return Pattern(pattern.shape, result.indptr, result.indices)


def locality_order(pattern: Pattern) -> tuple[np.ndarray, np.ndarray]:
    """Compute the order of SPADE's reorder option: permutations (rows_perm, cols_perm) for `reorder`.

    Square: reverse Cuthill-McKee on the pattern of A + A^T, the same permutation for rows and columns.
    Rectangular: columns by descending degree bucket (power of two), then rows by descending degree bucket and, within a
    bucket, by the new position of their first column. Ties keep the old order.

    Source: the papers name no algorithm; docs/readings.md records this reading.
    """
    if pattern.rows == pattern.cols:
        perm = _cuthill_mckee(pattern)
        return perm, perm.copy()
    cols_perm = np.argsort(-_bucket(np.bincount(pattern.indices, minlength=pattern.cols)), kind="stable")
    new_column = np.empty(pattern.cols, dtype=np.int64)
    new_column[cols_perm] = np.arange(pattern.cols)
    lengths = pattern.row_lengths()
    first = np.full(pattern.rows, pattern.cols, dtype=np.int64)
    filled = lengths > 0
    if pattern.nnz:
        first[filled] = np.minimum.reduceat(new_column[pattern.indices], pattern.indptr[:-1][filled])
    rows_perm = np.lexsort((first, -_bucket(lengths)))
    return rows_perm, cols_perm


def _cuthill_mckee(pattern: Pattern) -> Int64[np.ndarray, " rows"]:
    """Order a square pattern by reverse Cuthill-McKee, each component from its vertex of minimum degree.

    Vertices are first numbered by degree, so that a breadth-first search, which visits neighbours by number, visits
    them by degree; a diagonal entry counts twice, as in SciPy. SciPy's own `reverse_cuthill_mckee` starts where NumPy's
    unstable sort puts the minimum degree, which depends on the processor.
    """
    if pattern.nnz == 0:
        return np.arange(pattern.rows)
    matrix = pattern.to_scipy()
    both = scipy.sparse.csr_array(matrix + matrix.T)
    stored = np.diff(both.indptr)
    degree = stored + (both.diagonal() != 0)
    by_degree = np.lexsort((stored, degree))
    numbered = both[by_degree][:, by_degree]
    numbered.sort_indices()
    component = connected_components(numbered, directed=False)[1]
    least, start = np.unique(component, return_index=True)
    root = pattern.rows
    indptr = np.append(numbered.indptr, numbered.nnz + len(least))
    indices = np.append(numbered.indices, np.sort(start))
    rooted = scipy.sparse.csr_array((np.ones(len(indices), np.int8), indices, indptr), shape=(root + 1, root + 1))
    walk = breadth_first_order(rooted, root, return_predecessors=False)[1:]
    walk = walk[np.argsort(start[component[walk]], kind="stable")]
    return by_degree[walk[::-1]]


def _bucket(degrees: np.ndarray) -> np.ndarray:
    """Map degrees to buckets by powers of two: 0 for no nonzeros, 1 for one, 2 for two and three, 3 for 4 to 7."""
    return np.frexp(degrees.astype(np.float64))[1]


def _checked(perm: np.ndarray, extent: int, name: str) -> np.ndarray:
    perm = np.asarray(perm)
    if perm.shape != (extent,) or not np.array_equal(np.sort(perm), np.arange(extent)):
        raise ValueError(f"{name} of shape {perm.shape} is not a permutation of 0 to {extent - 1}")
    return perm


def signed_logarithm(values: np.ndarray) -> np.ndarray:
    """Compute sign(x) log(1 + |x|), which brings numbers of any sign and magnitude to one scale."""
    return np.sign(values) * np.log1p(np.abs(values))


def statistics(pattern: Pattern) -> dict[str, float]:
    """Compute the statistics named in `STATISTICS`, in that order; all are finite, also without nonzeros.

    Returns:
        rows, cols, nnz; density = nnz / (rows cols); aspect = log2(rows / cols), each at least 1;
        row_* and col_*: nonzeros per row and column: mean, coefficient of variation, max, 99th percentile, Gini
        coefficient, share of the nonzeros in the fullest 1 %, share of empty rows or columns;
        bandwidth_max, bandwidth_mean: distance of a nonzero from the (stretched) diagonal over the columns;
        profile: mean over rows of the distance from the first nonzero back to the diagonal, over the columns;
        span_mean: mean over nonempty rows of last - first + 1 column, over the columns;
        runs: nonzeros per run of adjacent columns; fill_b: share of nonzeros in the nonempty b x b blocks;
        reuse_p: nonzeros per distinct (panel of p rows, column), the hits of a cache that holds one panel's columns;
        imbalance_p: nonzeros of the fullest panel of p rows over the mean;
        tiles: share of the 256 x 1024 tiles that are nonempty; tile_cv: variation of the nonzeros per nonempty tile;
        diagonal: share of the diagonal that is stored; symmetry: share of nonzeros whose mirror image is stored;
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
    """Compute fill_b by coarsening three times by 4: blocks of 16 are blocks of 4 in the pattern of blocks of 4."""
    fills, coarse = [], pattern
    for block in BLOCKS:
        coarse = _coarsen(coarse, 4)
        fills.append(pattern.nnz / max(1, coarse.nnz * block * block))
    return fills


def _coarsen(pattern: Pattern, factor: int) -> Pattern:
    """Make the pattern of the nonempty blocks of factor x factor."""
    flipped = _merge_columns(pattern, factor).transpose()
    return _merge_columns(flipped, factor).transpose()


def _merge_columns(pattern: Pattern, factor: int) -> Pattern:
    """Replace columns by column // factor, without repetitions."""
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
    """Count the distinct pairs of lists that are sorted by (major, minor)."""
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
    across = -(-pattern.cols // TILE_SHAPE[1])
    down = -(-pattern.rows // TILE_SHAPE[0])
    tile = (pattern.row_ids() // TILE_SHAPE[0]).astype(np.int64) * across + pattern.indices // TILE_SHAPE[1]
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
