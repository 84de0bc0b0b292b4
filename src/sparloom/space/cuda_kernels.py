"""SpMM and SDDMM on a GPU by hand: who works on a row, loads of several elements, blocks of several warps."""

from functools import partial

from sparloom.space.config import Config
from sparloom.space.cuda import most_lanes, refuse_tile
from sparloom.space.grid import GridSpace, Parameter

__all__ = ["CudaKernelSpace"]

LANES = Parameter("lanes", (8, 16, 32))  # threads of a group; less than a warp for short rows
VECTOR = Parameter("vector", (1, 2, 4))  # elements per load
WARPS = Parameter("warps", (2, 4, 8))  # of a block
HUBS = ("q90", "q95", "q99")  # rows longer than this quantile get a block each, the others a group each

SPMM = (
    Parameter("balance", ("rows", *HUBS, "nonzeros")),  # nonzeros: equal shares of nonzeros and row ends
    LANES,
    VECTOR,
    Parameter("loads", (1, 2)),  # of a thread; lanes * vector * loads columns are a tile
    WARPS,
)
SDDMM = (
    Parameter("balance", ("nonzeros", "rows", *HUBS)),
    LANES,
    VECTOR,
    Parameter("group", (1, 2, 4)),  # nonzeros side by side
    WARPS,
)


def CudaKernelSpace(op: str, *, width: int = 256) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space for dense operands of `width` columns: at most 270 points for SpMM, 405 for SDDMM.

    Source: the mappings of AutoSAGE §3 (warp per row, block per hub, vec4, feature tiles, warps per block). Departures:
    groups of less than a warp, equal shares of nonzeros (merge path), thresholds from the whole matrix.

    Args:
        op: "spmm" or "sddmm".
    """
    parameters = SDDMM if op == "sddmm" else SPMM
    return GridSpace(
        name="cuda_kernels",
        op=op,
        parameters=parameters,
        defaults=_default(op, width),
        refuse=partial(_refuse, width=width),
        coupled=("lanes", "vector", "loads") if op == "spmm" else ("lanes", "vector"),
        meaning=f"cuda_kernels 1, width {width}",
    )


def _default(op: str, width: int) -> tuple[str | int, ...]:
    """As many lanes as there are columns for, one element per load."""
    return ("nonzeros" if op == "sddmm" else "rows", most_lanes(width), 1, 1, 4)


def _refuse(config: Config, *, width: int) -> str | None:
    return refuse_tile(config, [name for name in ("lanes", "vector", "loads") if name in config.names], width)
