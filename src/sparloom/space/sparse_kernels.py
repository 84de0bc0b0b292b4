"""Sparse kernels written by hand: how rows are ordered and shared, what stays in registers, what is fetched."""

from functools import partial

from sparloom.space.config import Config
from sparloom.space.grid import GridSpace, Parameter

__all__ = ["AttentionSpace", "SddmmSpace", "SpmmMaxSpace", "SpmmSpace"]

ORDER = Parameter("order", ("natural", "column"))  # of the rows: as stored, or by their middle column
BALANCE = Parameter("balance", ("rows", "nonzeros", "dynamic"))  # equal shares of one, or small pieces on demand
PREFETCH = Parameter("prefetch", (0, 4, 8))  # KiB of dense rows between the one read and the one fetched

SPMM = (
    ORDER,
    BALANCE,
    PREFETCH,
    Parameter("strip", (64, "all")),  # columns of the result in registers, "all" up to half of the registers
    Parameter("together", (1, 4)),  # rows with equal columns that share a load, at most
    Parameter("stream", (0, 1)),  # write the result past the caches
)
SDDMM = (
    ORDER,
    BALANCE,
    PREFETCH,
    Parameter("group", (1, 4, 16)),  # nonzeros of a row whose lanes are added up together
)


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
    "all". Narrower strips read the indices again for each and cost up to half of the rate on 128 and 256 columns, so
    they are offered with plain rows only.
    """
    return GridSpace(
        name="cpu_kernels",
        op="spmm",
        parameters=SPMM,
        defaults=("natural", "dynamic", 0, "all", 1, 0),
        refuse=partial(_refuse, width=width),
        coupled=("order", "strip", "together"),
        meaning=f"spmm 1, width {width}",
    )


def SpmmMaxSpace(width: int) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of the maximum of products for dense operands of `width` columns: 18 points, all legal.

    Strips are as wide as they can be: narrower ones cost SpMM up to half of its rate.
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
        meaning=f"sddmm 1, width {width}",
    )


def _refuse(config: Config, *, width: int) -> str | None:
    strip = config["strip"]
    if strip == "all":
        return None
    if int(strip) >= width:
        return f"strip={strip} covers all {width} columns: write strip=all"
    if config["order"] != "natural" or int(config["together"]) > 1:
        return f"strip={strip} goes with order=natural and together=1"
    return None
