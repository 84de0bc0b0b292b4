"""Schedules of ragged operators on a processor: tiles of rows, panels of columns, blocks of the reduction."""

from sparloom.space.grid import GridSpace, Parameter

__all__ = ["EncoderSpace", "RaggedProductSpace"]

ROWS = Parameter("rows", (24, 48, 96, 192))  # of a tile
PANEL = Parameter("panel", (16, 32, 64))  # columns that lie side by side
DEPTH = Parameter("depth", (256, 512, 1024, 2048))  # of the reduction, that a tile of rows meets all panels with
QUERIES = Parameter("queries", (32, 64, 128))  # rows of a tile of attention
COLS = Parameter("cols", (128, 256, 512))  # of a task


def EncoderSpace(op: str) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of the encoder layer and of its attention: 144 points, all legal."""
    return GridSpace(name="ragged", op=op, parameters=(ROWS, PANEL, DEPTH, QUERIES), defaults=(48, 16, 512, 64),
                     meaning="ragged 1")


def RaggedProductSpace(op: str) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of vgemm and trmm: 144 points, all legal."""
    rows = 24 if op == "trmm" else 48
    return GridSpace(name="ragged", op=op, parameters=(ROWS, COLS, PANEL, DEPTH), defaults=(rows, 256, 16, 512),
                     meaning="ragged 1")
