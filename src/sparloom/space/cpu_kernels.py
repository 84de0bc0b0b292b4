"""Spaces of the CPU's kernels.

Sparse operations: the order of rows, how threads share them, what stays in registers, what is prefetched. GEMM: blocks
of three loops, the tile in registers, what is packed. Ragged operators: tiles of rows, panels of columns, chunks of a
thread.
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
    Parameter("tile_k", (16, 256, 1024)),
    Parameter("micro", ("1x64", "1x256", "4x16", "6x64", "8x16", "8x32", "8x48", "12x32")),  # rows x columns of C
    Parameter("pack", ("none", "b", "ab")),
    Parameter("unroll", (1, 4)),  # of k inside the register tile
    Parameter("split_k", (1, 2, 4)),  # sums of a register tile; parts of k, if there are more threads than tiles
    Parameter("prefetch", (0, 8, 32)),  # rows of B to prefetch ahead
    Parameter("loop", ("blocked", "persistent")),  # persistent: threads loop over all register tiles, without blocks
)
GEMM_DEFAULTS = (240, 256, "8x32", "none", 1, 1, 0, "blocked")
GEMM_BLOCK_COLUMNS = 3072
"""Columns of B per block; blocks of 192 made the fastest kernel 0.2 % faster on 259 shapes."""
GEMM_SPLIT = 256  # most floats of the sums of a register tile in several parts, kSplitFloats of kernels/cpu/gemm.cpp

TILE_ROWS = Parameter("rows", (24, 48, 96, 192))  # of a tile
PANEL = Parameter("panel", (16, 32, 64))  # columns that are stored side by side
DEPTH = Parameter("depth", (256, 512, 1024, 2048))  # of the reduction, before the next panel
TASK_COLS = Parameter("cols", (128, 256, 512))  # of a task
SEQUENCE_COLS = Parameter("cols", (8, 16, 32, 64, 128))  # of a task of one sequence
LANES = Parameter("lanes", ("columns", "tokens"))  # in a vector
POWERS = Parameter("powers", ("stored", "twice"))  # exponentials: kept in the cache, or computed again
TASKS = Parameter("chunk", (1, 4, 16))  # tasks that a thread takes at a time
TOKENS = Parameter("rows", (1, 4, 16, 64))  # tokens whose means are computed before they are normalised
TOKEN_TILES = Parameter("chunk", (1, 4, 16, 64, 256))  # tiles of tokens that a thread takes at a time


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
    """Build the space of GEMM: 493 of 5,184 points are legal, with operands in any layout.

    Blocks larger than the operands are legal and mean one block. A block is a multiple of the register tile, and rows
    of A are interleaved only if a register tile has several. Sums in parts and prefetching need an unrolled loop;
    only deep blocks of unpacked operands are prefetched. Persistent loops have no blocks and pack nothing; they
    are written with the blocks of the default. In some layouts several configurations are one program, see
    `gemm_program`.
    """
    return GridSpace(
        name="cpu_kernels",
        op="gemm",
        parameters=GEMM,
        defaults=GEMM_DEFAULTS,
        refuse=_refuse_gemm,
        coupled=("tile_m", "tile_k", "micro", "pack", "unroll", "split_k", "prefetch", "loop"),
        meaning="gemm 2",
    )


def gemm_program(config: Config, layout: str) -> Config:
    """Return the configuration that stands for all that are the same program in a layout.

    A transposed B that is not packed is read along k, with neither unrolling nor prefetching.

    Args:
        layout: of `LAYOUTS`.
    """
    if layout[1] == "n" or config["pack"] != "none":
        return config
    return config.replace(prefetch=0, unroll=1 if config["split_k"] == 1 else config["unroll"])


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
    if config["pack"] == "ab" and rows == 1:
        return f"pack=ab interleaves rows of A, of which micro={config['micro']} has one: use pack=b"
    if config["split_k"] > 1 and (config["unroll"] == 1 or config["split_k"] * rows * columns > GEMM_SPLIT):
        return (f"split_k={config['split_k']} requires unroll=4, and at most {GEMM_SPLIT} floats in all sums of "
                f"micro={config['micro']}")
    if config["prefetch"] and (config["unroll"] == 1 or config["pack"] != "none" or config["tile_k"] == 16):
        return f"prefetch={config['prefetch']} requires unroll=4, pack=none and tile_k of 256 or 1024"
    blocks = (config["tile_m"], config["tile_k"])
    if config["loop"] == "persistent" and (config["pack"] != "none" or blocks != GEMM_DEFAULTS[:2]):
        return "loop=persistent packs nothing and has no blocks: write pack=none, tile_m=240 and tile_k=256"
    return None


def RaggedProductSpace(op: str, *, panel: int = 16) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of vgemm and trmm: 144 points, all legal.

    Args:
        panel: value of `panel` in the default.
    """
    rows = 24 if op == "trmm" else 48
    return GridSpace(name="ragged", op=op, parameters=(TILE_ROWS, TASK_COLS, PANEL, DEPTH),
                     defaults=(rows, 256, panel, 512), meaning="ragged 1")


def SoftmaxSpace(op: str) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of softmax along tokens: 60 points, all legal."""
    return GridSpace(name="ragged", op=op, parameters=(SEQUENCE_COLS, LANES, POWERS, TASKS),
                     defaults=(64, "columns", "stored", 1), meaning="ragged 1")


def NormSpace(op: str) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of layer norms: 20 points, all legal."""
    return GridSpace(name="ragged", op=op, parameters=(TOKENS, TOKEN_TILES), defaults=(1, 16), meaning="ragged 1")
