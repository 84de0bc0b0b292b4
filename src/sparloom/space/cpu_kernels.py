"""Spaces of the hand-written CPU kernels.

Sparse operations: the order of rows, how threads share them, what stays in registers, what is prefetched. GEMM: blocks
of three loops, the tile in registers, what is packed.
"""

from functools import partial

from sparloom.space.grid import Config, GridSpace, Parameter
from sparloom.space.shared import (
    I1,
    I2,
    J1,
    J2,
    K1,
    K2,
    K3,
    Shape,
    SharedSchedule,
    flag,
    insert_after,
    logarithm,
    one_hot,
)

__all__ = ["AttentionSpace", "GemmSpace", "SddmmSpace", "SpmmMaxSpace", "SpmmSpace", "register_tile"]

ORDER = Parameter("order", ("natural", "column"))  # of rows: as stored, or by their middle column
BALANCE = Parameter("balance", ("rows", "nonzeros", "dynamic"))  # equal shares of either, or small pieces on demand
PREFETCH = Parameter("prefetch", (0, 4, 8))  # KiB of dense rows to prefetch ahead

SPMM = (
    ORDER,
    BALANCE,
    PREFETCH,
    Parameter("strip", (64, "all")),  # columns of the result in registers; "all": up to half of the registers
    Parameter("together", (1, 4)),  # most rows with equal columns that share a load
    Parameter("stream", (0, 1)),  # 1: non-temporal stores of the result
)
SDDMM = (
    ORDER,
    BALANCE,
    PREFETCH,  # twice as many KiB
    Parameter("group", (1, 4, 16)),  # nonzeros of a row whose lanes are reduced together; 1: of several rows
)

LATENT = (  # codes of the parameters of both that are no loops
    flag("order", ORDER.values), one_hot("balance", BALANCE.values), one_hot("prefetch", PREFETCH.values))
SPMM_LATENT = (*LATENT, flag("together", (1, 4)), flag("stream"))
SDDMM_LATENT = (*LATENT, logarithm("group", (1, 4, 16), 16))

BLOCK = 64  # rows whose strips are computed in turn, kBlock of kernels/cpu/spmm.cpp
BY_STRIP = (I2, K2, I1, J2, J1, K1)
BY_NONZERO = (I2, I1, J2, J1, K2, K1)

GEMM = (
    Parameter("tile_m", (48, 240)),  # rows of A per block
    Parameter("tile_n", (192, 3072)),  # columns of B per block
    Parameter("tile_k", (16, 256, 1024)),
    Parameter("micro", ("1x64", "1x256", "4x16", "6x64", "8x16", "8x32", "8x48", "12x32")),  # rows x columns of C
    Parameter("pack", ("none", "b", "ab")),
    Parameter("unroll", (1, 4)),  # of k inside the register tile
)
GEMM_DEFAULTS = (240, 3072, 256, "8x32", "none", 1)


def AttentionSpace(width: int) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of attention for dense operands of `width` columns, all heads together: 18 points, all legal."""
    return GridSpace(
        name="cpu_kernels",
        op="attention",
        parameters=(ORDER, BALANCE, PREFETCH),
        defaults=("natural", "dynamic", 0),
        meaning=f"attention 1, width {width}",
    )


def SpmmSpace(width: int) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of SpMM for dense operands of `width` columns.

    90 of 144 points are legal, 72 where the operand has at most 64 columns. A strip as wide as the operand is written
    "all". Narrower strips reread the indices and cost up to half of the rate on 128 and 256 columns, so they are only
    combined with plain rows.
    """
    return GridSpace(
        name="cpu_kernels",
        op="spmm",
        parameters=SPMM,
        defaults=("natural", "dynamic", 0, "all", 1, 0),
        refuse=partial(_refuse_spmm, width=width),
        coupled=("order", "strip", "together"),
        mapping=partial(_by_strip, width=width),
        latent=SPMM_LATENT,
        meaning=f"spmm 1, width {width}",
    )


def SpmmMaxSpace(width: int) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of the maximum of products for dense operands of `width` columns: 18 points, all legal.

    Strips are as wide as possible, because narrower ones cost SpMM up to half of its rate.
    """
    return GridSpace(
        name="cpu_kernels",
        op="spmm_max",
        parameters=(ORDER, BALANCE, PREFETCH),
        defaults=("natural", "dynamic", 0),
        meaning=f"spmm_max 1, width {width}",
    )


def SddmmSpace(width: int) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of SDDMM for dense operands of `width` columns: 54 points, all legal."""
    return GridSpace(
        name="cpu_kernels",
        op="sddmm",
        parameters=SDDMM,
        defaults=("natural", "dynamic", 0, 16),
        mapping=partial(_by_nonzero, width=width),
        latent=SDDMM_LATENT,
        meaning=f"sddmm 1, width {width}",
    )


def GemmSpace() -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of GEMM: 504 of 576 points are legal.

    Blocks larger than the operands are legal and mean one block. A block is a multiple of the register tile, and rows
    of A are interleaved only if a register tile has several.
    """
    return GridSpace(
        name="cpu_kernels",
        op="gemm",
        parameters=GEMM,
        defaults=GEMM_DEFAULTS,
        refuse=_refuse_gemm,
        coupled=("tile_m", "tile_n", "micro", "pack"),
        meaning="gemm 1",
    )


def register_tile(config: Config) -> tuple[int, int]:
    """Parse rows and columns of the register tile: "8x32" -> (8, 32)."""
    rows, columns = str(config["micro"]).split("x")
    return int(rows), int(columns)


def _refuse_spmm(config: Config, *, width: int) -> str | None:
    strip = config["strip"]
    if strip == "all":
        return None
    if int(strip) >= width:
        return f"strip={strip} covers all {width} columns: write strip=all"
    if config["order"] != "natural" or int(config["together"]) > 1:
        return f"strip={strip} requires order=natural and together=1"
    return None


def _by_strip(config: Config, shape: Shape | None, *, width: int) -> SharedSchedule:
    """Map to blocks of rows, in them strips of columns, in these whole rows."""
    rows, cols = _bound(shape)
    strip = width if config["strip"] == "all" else min(int(config["strip"]), width)
    return SharedSchedule(I=min(BLOCK, rows), J=cols, K=strip, K_inner=1, order=insert_after(BY_STRIP, K2, K3))


def _by_nonzero(config: Config, shape: Shape | None, *, width: int) -> SharedSchedule:
    """Map to rows, in them nonzeros, for each of them all columns of both operands."""
    _, cols = _bound(shape)
    return SharedSchedule(I=1, J=cols, K=width, K_inner=1, order=insert_after(BY_NONZERO, K2, K3))


def _bound(shape: Shape | None) -> Shape:
    if shape is None:
        raise ValueError("rows have no extent before the space is bound to a matrix: call bind(shape)")
    return max(1, shape[0]), max(1, shape[1])


def _refuse_gemm(config: Config) -> str | None:
    rows, columns = register_tile(config)
    if int(config["tile_m"]) % rows:
        return f"tile_m={config['tile_m']} is not a multiple of the {rows} rows of micro={config['micro']}"
    if int(config["tile_n"]) % columns:
        return f"tile_n={config['tile_n']} is not a multiple of the {columns} columns of micro={config['micro']}"
    if config["pack"] == "ab" and rows == 1:
        return f"pack=ab interleaves rows of A, of which micro={config['micro']} has one: use pack=b"
    return None
