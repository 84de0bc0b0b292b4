"""Tile fusion on a processor: whether two loops are fused, in which tiles and order, and how rows are computed.

Schedules of ragged operators on a processor: tiles of rows, panels of columns, what a thread takes at a time.
"""

from collections.abc import Sequence

from sparloom.space.config import Config
from sparloom.space.grid import GridSpace, Parameter

__all__ = ["EncoderSpace", "NormSpace", "RaggedProductSpace", "SoftmaxSpace", "TileFusionSpace"]

CT_SIZES = (0, 1024, 2048, 4096, 8192, 16384)  # most iterations of a coarse tile; 0: nothing is fused
CACHES = (0, 1024, 2048, 4096, 8192, 16384, 32768)  # KiB of one thread; 0: nothing is fused
VARIANT = (
    Parameter("local", (0, 1)),  # threads keep the rows of D1 of their tile
    Parameter("stream", (0, 1)),  # D is written past the caches
    Parameter("stream_first", (0, 1)),  # D1 is
    Parameter("prefetch", (0, 4)),  # KiB of a gathered operand that are requested ahead
)
COUPLED = ("ct_size", "cache", "order", "local", "stream_first")


def TileFusionSpace(op: str, orders: Sequence[str]) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of pairs of loops: 8 points that fuse nothing, and 360 for every order of iterations.

    Args:
        orders: those that may be tried, "natural" first.
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


ROWS = Parameter("rows", (24, 48, 96, 192))  # of a tile
PANEL = Parameter("panel", (16, 32, 64))  # columns that lie side by side
DEPTH = Parameter("depth", (256, 512, 1024, 2048))  # of the reduction, that a tile of rows meets all panels with
QUERIES = Parameter("queries", (32, 64, 128))  # rows of a tile of attention
COLS = Parameter("cols", (128, 256, 512))  # of a task
STRIP = Parameter("cols", (8, 16, 32, 64, 128))  # of a task of one sequence
LANES = Parameter("lanes", ("columns", "tokens"))  # in a vector
POWERS = Parameter("powers", ("stored", "twice"))  # exponentials, in the cache or computed again
TASKS = Parameter("chunk", (1, 4, 16))  # that a thread takes at a time
TOGETHER = Parameter("rows", (1, 4, 16, 64))  # tokens whose means are computed before they are normalised
TILES = Parameter("chunk", (1, 4, 16, 64, 256))  # of tokens, that a thread takes at a time


def EncoderSpace(op: str, *, panel: int = 16) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of the encoder layer and of its attention: 144 points, all legal.

    Args:
        panel: of the default.
    """
    return GridSpace(name="ragged", op=op, parameters=(ROWS, PANEL, DEPTH, QUERIES), defaults=(48, panel, 512, 64),
                     meaning="ragged 1")


def RaggedProductSpace(op: str, *, panel: int = 16) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of vgemm and trmm: 144 points, all legal.

    Args:
        panel: of the default.
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
