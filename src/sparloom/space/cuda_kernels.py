"""Sparse kernels on a GPU by hand: who works on a row, loads of several elements, blocks of several warps."""

from functools import partial

from sparloom.space.config import Config
from sparloom.space.cuda import most_lanes, refuse_tile
from sparloom.space.grid import GridSpace, Parameter

__all__ = ["ATTENTION_COLUMNS", "CUDA_KERNELS", "HUBS", "CudaKernelSpace"]

CUDA_KERNELS = "cuda_kernels"  # name of the space
ATTENTION_COLUMNS = 32  # of the result that a thread keeps in registers

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
ATTENTION = (
    Parameter("balance", ("rows", *HUBS)),  # a group, or a block, for each head
    LANES,
    VECTOR,
    Parameter("group", (1, 2, 4)),  # nonzeros side by side
    WARPS,
)
PARAMETERS = {"spmm": SPMM, "spmm_mean": SPMM, "spmm_max": SPMM, "sddmm": SDDMM, "attention": ATTENTION}


def CudaKernelSpace(op: str, *, width: int = 256) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space for dense operands of `width` columns.

    At most 270 points for SpMM, its mean and its maximum, 405 for SDDMM, 324 for attention.

    Source: the mappings of AutoSAGE §3 (warp per row, block per hub, vec4, feature tiles, warps per block). Departures:
    groups of less than a warp, equal shares of nonzeros (merge path), thresholds from the whole matrix; attention is
    one kernel, so its feature tile is a whole head where `lanes` threads can keep one.

    Args:
        op: "spmm", "spmm_mean", "spmm_max", "sddmm" or "attention".
        width: of attention, columns of one head.
    """
    parameters = PARAMETERS[op]
    return GridSpace(
        name=CUDA_KERNELS,
        op=op,
        parameters=parameters,
        defaults=_default(op, width),
        refuse=partial(_refuse_attention if op == "attention" else _refuse, width=width),
        coupled=("lanes", "vector", "loads") if parameters is SPMM else ("lanes", "vector"),
        meaning=f"cuda_kernels 1, width {width}",
    )


def _default(op: str, width: int) -> tuple[str | int, ...]:
    """As many lanes as there are columns for, one element per load."""
    return ("nonzeros" if op == "sddmm" else "rows", most_lanes(width), 1, 1, 4)


def _refuse(config: Config, *, width: int) -> str | None:
    return refuse_tile(config, [name for name in ("lanes", "vector", "loads") if name in config.names], width)


def _refuse_attention(config: Config, *, width: int) -> str | None:
    kept = ATTENTION_COLUMNS * int(config["lanes"])
    if kept < width and config["lanes"] != LANES.values[-1]:
        return f"lanes={config['lanes']} keep {kept} columns of a head, below its width {width}: use lanes=32"
    return _refuse(config, width=width)
