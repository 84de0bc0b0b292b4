"""Spaces of the two compilers on a processor.

Tile fusion: whether two loops are fused, in which tiles and order, and how rows are computed. Ragged operators: tiles
of rows, panels of columns, chunks of a thread.
"""

from collections.abc import Sequence

from sparloom.space.grid import Config, GridSpace, Parameter

__all__ = ["EncoderSpace", "NormSpace", "RaggedProductSpace", "SoftmaxSpace", "TileFusionSpace"]

CT_SIZES = (0, 1024, 2048, 4096, 8192, 16384)  # most iterations of a coarse tile; 0: nothing is fused
CACHES = (0, 1024, 2048, 4096, 8192, 16384, 32768)  # KiB of one thread; 0: nothing is fused
VARIANT = (
    Parameter("local", (0, 1)),  # 1: threads keep the rows of D1 of their tile
    Parameter("stream", (0, 1)),  # 1: non-temporal stores of D
    Parameter("stream_first", (0, 1)),  # 1: non-temporal stores of D1
    Parameter("prefetch", (0, 4)),  # KiB of a gathered operand to prefetch ahead
)
COUPLED = ("ct_size", "cache", "order", "local", "stream_first")

ROWS = Parameter("rows", (24, 48, 96, 192))  # of a tile
PANEL = Parameter("panel", (16, 32, 64))  # columns that are stored side by side
DEPTH = Parameter("depth", (256, 512, 1024, 2048))  # of the reduction, before the next panel
QUERIES = Parameter("queries", (32, 64, 128))  # rows of a tile of attention
COLS = Parameter("cols", (128, 256, 512))  # of a task
STRIP = Parameter("cols", (8, 16, 32, 64, 128))  # of a task of one sequence
LANES = Parameter("lanes", ("columns", "tokens"))  # in a vector
POWERS = Parameter("powers", ("stored", "twice"))  # exponentials: kept in the cache, or computed again
TASKS = Parameter("chunk", (1, 4, 16))  # tasks that a thread takes at a time
TOGETHER = Parameter("rows", (1, 4, 16, 64))  # tokens whose means are computed before they are normalised
TILES = Parameter("chunk", (1, 4, 16, 64, 256))  # tiles of tokens that a thread takes at a time


def TileFusionSpace(op: str, orders: Sequence[str]) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of a pair of loops: 8 points without fusion, and 360 for every order of iterations.

    Args:
        orders: orders of iterations to try, "natural" first.
    """
    return GridSpace(
        name="tile_fusion",
        op=op,
        parameters=(Parameter("ct_size", CT_SIZES), Parameter("cache", CACHES), Parameter("order", tuple(orders)),
                    *VARIANT),
        defaults=(0, 0, "natural", 0, 0, 0, 0),
        refuse=_refuse,
        coupled=COUPLED,
        meaning="tile_fusion 1",
    )


def EncoderSpace(op: str, *, panel: int = 16) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of the encoder layer and of its attention: 144 points, all legal.

    Args:
        panel: value of `panel` in the default.
    """
    return GridSpace(name="ragged", op=op, parameters=(ROWS, PANEL, DEPTH, QUERIES), defaults=(48, panel, 512, 64),
                     meaning="ragged 1")


def RaggedProductSpace(op: str, *, panel: int = 16) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of vgemm and trmm: 144 points, all legal.

    Args:
        panel: value of `panel` in the default.
    """
    rows = 24 if op == "trmm" else 48
    return GridSpace(name="ragged", op=op, parameters=(ROWS, COLS, PANEL, DEPTH), defaults=(rows, 256, panel, 512),
                     meaning="ragged 1")


def SoftmaxSpace(op: str) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of softmax along tokens: 60 points, all legal."""
    return GridSpace(name="ragged", op=op, parameters=(STRIP, LANES, POWERS, TASKS),
                     defaults=(64, "columns", "stored", 1), meaning="ragged 1")


def NormSpace(op: str) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of layer norms: 20 points, all legal."""
    return GridSpace(name="ragged", op=op, parameters=(TOGETHER, TILES), defaults=(1, 16), meaning="ragged 1")


def _refuse(config: Config) -> str | None:
    ct_size, cache = config["ct_size"], config["cache"]
    if (ct_size == 0) != (cache == 0):
        return f"ct_size={ct_size} and cache={cache}: both are 0 where nothing is fused, else above"
    if ct_size == 0 and config["order"] != "natural":
        return f"order={config['order']} of loops that are not fused"
    if config["local"] and ct_size == 0:
        return "local=1 keeps rows of D1 from one loop to the next, and nothing is fused"
    if config["local"] and config["stream_first"]:
        return "stream_first=1 of rows that stay with their thread (local=1)"
    return None
