"""Dense GEMM on the CPU: blocks of three loops, the tile held in registers, what is packed."""

from sparloom.space.config import Config
from sparloom.space.grid import GridSpace, Parameter

__all__ = ["GemmSpace", "register_tile"]

PARAMETERS = (
    Parameter("tile_m", (48, 240)),  # rows of A per block
    Parameter("tile_n", (192, 3072)),  # columns of B per block
    Parameter("tile_k", (16, 256, 1024)),
    Parameter("micro", ("1x64", "1x256", "4x16", "6x64", "8x16", "8x32", "8x48", "12x32")),  # rows x columns of C
    Parameter("pack", ("none", "b", "ab")),
    Parameter("unroll", (1, 4)),  # of k inside the register tile
)
DEFAULTS = (240, 3072, 256, "8x32", "none", 1)


def GemmSpace() -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of GEMM: 504 of 576 points are legal.

    Blocks larger than the operands are legal and mean one block. A block is a multiple of the register tile, and rows
    of A are interleaved only where a register tile has several.
    """
    return GridSpace(
        name="cpu_kernels",
        op="gemm",
        parameters=PARAMETERS,
        defaults=DEFAULTS,
        refuse=_refuse,
        coupled=("tile_m", "tile_n", "micro", "pack"),
        meaning="gemm 1",
    )


def register_tile(config: Config) -> tuple[int, int]:
    """Read rows and columns of the register tile: "8x32" -> (8, 32)."""
    rows, columns = str(config["micro"]).split("x")
    return int(rows), int(columns)


def _refuse(config: Config) -> str | None:
    rows, columns = register_tile(config)
    if int(config["tile_m"]) % rows:
        return f"tile_m={config['tile_m']} is not a multiple of the {rows} rows of micro={config['micro']}"
    if int(config["tile_n"]) % columns:
        return f"tile_n={config['tile_n']} is not a multiple of the {columns} columns of micro={config['micro']}"
    if config["pack"] == "ab" and rows == 1:
        return f"pack=ab interleaves rows of A, of which micro={config['micro']} has one: use pack=b"
    return None
