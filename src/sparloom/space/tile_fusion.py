"""Tile fusion on a processor: whether two loops are fused, in which tiles and order, and how rows are computed."""

from collections.abc import Sequence

from sparloom.space.config import Config
from sparloom.space.grid import GridSpace, Parameter

__all__ = ["TileFusionSpace"]

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
