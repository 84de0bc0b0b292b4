"""Spaces of ragged operators on a processor: tiles of rows, panels of columns, chunks of a thread."""

from sparloom.space.grid import GridSpace, Parameter

__all__ = ["EncoderSpace", "NormSpace", "RaggedProductSpace", "SoftmaxSpace"]

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
