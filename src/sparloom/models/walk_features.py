"""What a model reads of a configuration on a pattern: its walk, in logarithms, beside sizes and statistics."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from sparloom.errors import Unsupported
from sparloom.models.view import MatrixView
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import WALK_STATISTICS, WALKS, signed_logarithm

__all__ = ["GENERAL", "SPECIFIC", "walk_features"]

ELEMENT = 4  # bytes of a dense element
LEAST = 1e-3  # of a ratio, before its logarithm is taken
RATIOS = tuple(name for name in WALK_STATISTICS if name.startswith(("private_", "shared_")))
GENERAL = ("rows", "cols", "nnz", "row_mean", "row_cv", "col_cv", "bandwidth_mean", "runs")
"""Of the matrix, whatever the configuration."""
SPECIFIC = (
    "row_panel", "column_panel", "slice", "phased", "reordered", "row_panels", "column_panels", "panel_nonzeros",
    "panels_per_lane", "tile_cv", "tile_columns", "tile_rows", "tile_nonzeros", "wave_columns", "imbalance",
    "phase_imbalance", "set", "phase_set", "tile_set", "column_set", "waits", *RATIOS, "own",
)  # fmt: skip
"""Of the configuration on the matrix; "own" stands for the platform's own parameters, however many."""


def walk_features(
    view: MatrixView, configs: Sequence[Config], space: ConfigSpace
) -> Float[np.ndarray, "configs features"]:
    """Describe configurations on a matrix.

    Nothing is said of the target but how many lanes it has: sets are in bytes, not in shares of a cache.

    Returns:
        Columns named by SPECIFIC (logarithms to base 2, but for flags and the platform's own codes): tile sizes;
        how many row and column panels the matrix has, nonzeros of a row panel, row panels per lane; statistics of tiles
        (see `tile_statistics`): variation of nonzeros, distinct columns and rows per nonzero, nonzeros; imbalance of
        lanes, with waiting if the walk is phased, and what waiting would add; bytes of dense rows that are in use at a
        time, in a phase, in a tile, in all; how often lanes wait, per nonzero; miss ratios. Then columns named by
        GENERAL, equal in all rows: statistics of the matrix, signed logarithms.

    Raises:
        Unsupported: the space describes no walks, or a walk that is not among WALKS.
    """
    bound = space.bind(view.shape)
    walks = [bound.walk(config) for config in configs]
    missing = [walk for walk in walks if walk not in view.walks]
    if missing:
        raise Unsupported(f"{missing[0]} of space {space.name} is not among the walks that are described of a pattern: "
                          f"{WALKS}; choose model=cognate or model=trees")
    table = np.array([view.walks[walk] for walk in walks], np.float64).reshape(len(walks), len(WALK_STATISTICS))
    met = dict(zip(WALK_STATISTICS, table.T, strict=True))
    reordered, row_panel, column_panel, phased, dense = np.array(walks, np.float64).reshape(-1, 5).T
    own = np.array([bound.heterogeneous(config) for config in configs], np.float64)
    numbers = np.array([view.statistics[name] for name in GENERAL])
    columns = _specific(view, met, row_panel, column_panel, phased, dense, op=space.op)
    columns |= {"reordered": reordered, "own": own}
    general = np.broadcast_to(signed_logarithm(numbers), (len(configs), numbers.size))
    return np.column_stack([*(columns[name] for name in SPECIFIC), general])


def _specific(
    view: MatrixView, met: Mapping[str, np.ndarray], row_panel: np.ndarray, column_panel: np.ndarray,
    phased: np.ndarray, dense: np.ndarray, *, op: str,
) -> dict[str, np.ndarray]:
    rows, cols, nnz = max(1, view.shape[0]), max(1, view.shape[1]), max(1, view.nnz)
    whole = (column_panel == 0) | (column_panel >= cols)
    height, breadth = np.minimum(row_panel, rows), np.where(whole, cols, column_panel)
    waits = (phased == 1) & ~whole
    dealt = "tile" if op == "sddmm" else "panel"
    free, stepped = met[f"{dealt}_imbalance"], met[f"{dealt}_phase_imbalance"]
    size = dense * ELEMENT
    found = {
        "row_panel": height, "column_panel": breadth, "slice": dense, "row_panels": rows / height,
        "column_panels": cols / breadth, "panel_nonzeros": nnz * height / rows,
        "panels_per_lane": np.maximum(rows / height / WALKS.lanes, 1 / WALKS.lanes), "tile_cv": 1 + met["tile_cv"],
        "tile_columns": np.maximum(met["tile_columns"], 1 / nnz), "tile_rows": np.maximum(met["tile_rows"], 1 / nnz),
        "tile_nonzeros": nnz / np.maximum(1, met["tiles"]), "wave_columns": np.maximum(met["wave_columns"], 1 / nnz),
        "imbalance": np.where(waits, stepped, free), "phase_imbalance": stepped / free,
        "set": 1 + np.where(waits, met["wave_tile_set"], met["wave_set"]) * size,
        "phase_set": 1 + np.where(waits, met["phase_set"], cols) * size, "tile_set": 1 + met["tile_set"] * size,
        "column_set": cols * size, "waits": 1 + np.where(waits, met["phases"], 0) / nnz * 1e4,
        **{name: met[name] + LEAST for name in RATIOS},
    }
    return {name: np.log2(values) for name, values in found.items()} | {"phased": waits.astype(float)}
