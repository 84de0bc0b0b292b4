"""CPU schedules as in WACO and COGNATE: strip-mining, loop order, level formats, parallel loop, chunk."""

import itertools
from functools import partial
from typing import Literal

import numpy as np

from sparloom.space.grid import Config, GridSpace, Parameter
from sparloom.space.shared import (
    I1,
    I2,
    J1,
    J2,
    K1,
    K2,
    K3,
    SPLIT_LOOPS,
    Code,
    Readings,
    Shape,
    SharedSchedule,
    Value,
    flag,
    insert_after,
    letters,
    logarithm,
    one_hot,
)

ROWS_TILES = (4, 8, 32, 128, 256, 1024, 2048)
COLS_TILES = (256, 1024, 4096, 16384, 65536, "all")
DENSE_TILES = (16, 32, 64, 128, "all")
CHUNKS = (1, 4, 16, 64, 256)
LEVELS = ("io", "ii", "jo", "ji")
FORMATS = tuple("".join(word) for word in itertools.product("UC", repeat=len(LEVELS)) if set(word) != {"U"})
DEFAULT_ORDER = "io.ii.jo.ji.ko.ki"
NEAR_FORMATS = ("UUUC", "UUCC", "CUUC", "CUCC")
"""Formats that are drawn near the default order: rows of a tile dense, columns of a tile compressed."""

BY_LETTER = {"io": I2, "ii": I1, "jo": K2, "ji": K1, "ko": J2, "ki": J1}


def legal_orders(op: str, orders: Literal["all", "waco"] = "all") -> tuple[str, ...]:
    """List the 30 loop orders that have every outer loop before its inner one, and ki last.

    "waco" also requires io before ko for SpMM, which leaves 20.
    """
    found = []
    for loops in itertools.permutations(("io", "ii", "jo", "ji", "ko")):
        order = ".".join((*loops, "ki"))
        beyond_waco = op == "spmm" and loops.index("ko") < loops.index("io")
        if _order_fault(order) is None and not (orders == "waco" and beyond_waco):
            found.append(order)
    return tuple(sorted(found, key=lambda order: (order != DEFAULT_ORDER, order)))


def CpuSpace(  # noqa: N802 (a constructor)
    op: str, *, width: int = 256, orders: Literal["all", "waco"] = "all", readings: Readings | None = None
) -> GridSpace:
    """Build the space of the CPU for one operation.

    Loops: i over sparse rows, j over sparse columns, k over the dense operand's columns; o is the outer part of a split
    loop, i the inner part. Formats are one letter per storage level io, ii, jo, ji: U dense, C compressed; the levels
    are stored in the order of the loops. A tile larger than the matrix is legal and means one tile.

    Args:
        op: "spmm" or "sddmm".
        width: columns of the dense operand.
        orders: all 30 legal orders, or the fewer that WACO draws for SpMM.
    """
    readings = readings or Readings()
    parameters = (
        Parameter("rows_tile", ROWS_TILES),
        Parameter("cols_tile", COLS_TILES),
        Parameter("dense_tile", DENSE_TILES),
        Parameter("order", legal_orders(op, orders), fault=_order_fault),
        Parameter("formats", FORMATS, fault=_formats_fault),
        Parameter("parallel", ("io", "jo") if op == "sddmm" else ("io",)),
        Parameter("chunk", CHUNKS),
    )
    by_letter = op == "sddmm" and readings.sddmm == "letter"
    return GridSpace(
        name="cpu",
        op=op,
        parameters=parameters,
        defaults=(32, "all", "all", DEFAULT_ORDER, "UUUC", "io", 4),
        mapping=partial(_shared, width=width, by_letter=by_letter),
        latent=_latent(parameters, readings),
        refuse=_refuse,
        coupled=("order", "parallel"),
        draw=_draw,
        numbers=readings.numbers,
        meaning=f"cpu 1, width {width}, {readings}",
    )


def _shared(config: Config, shape: Shape | None, *, width: int, by_letter: bool) -> SharedSchedule:
    if shape is None and config["cols_tile"] == "all":
        raise ValueError("cols_tile=all has no extent before the space is bound to a matrix: call bind(shape)")
    rows, cols = shape if shape is not None else (None, None)
    numbers = BY_LETTER if by_letter else SPLIT_LOOPS
    columns, dense = _extent(config["cols_tile"], cols), _extent(config["dense_tile"], width)
    return SharedSchedule(
        I=_extent(config["rows_tile"], rows),
        J=dense if by_letter else columns,
        K=columns if by_letter else dense,
        K_inner=1,
        order=insert_after([numbers[loop] for loop in str(config["order"]).split(".")], K2, K3),
    )


def _extent(tile: Value, whole: int | None) -> int:
    if whole is None:
        return int(tile)
    return max(1, whole if tile == "all" else min(int(tile), whole))


def _latent(parameters: tuple[Parameter, ...], readings: Readings) -> tuple[Code, ...]:
    values = {parameter.name: parameter.values for parameter in parameters}
    formats = letters("formats", FORMATS, LEVELS, "U")
    if readings.latent == "hardware" and readings.cpu_latent == "formats":
        return (formats,)
    hardware = (formats, logarithm("chunk", CHUNKS, 8), flag("parallel", values["parallel"]))
    if readings.latent == "hardware":
        return hardware
    tiles = tuple(logarithm(name, values[name], 16) for name in ("rows_tile", "cols_tile", "dense_tile"))
    return (*tiles, one_hot("order", values["order"]), *hardware)


def _refuse(config: Config) -> str | None:
    loops = str(config["order"]).split(".")
    if config["parallel"] == "jo" and loops.index("jo") > loops.index("io"):
        return "jo is parallel inside the serial io, one parallel region per row tile; use parallel=io or put jo first"
    return None


def _formats_fault(formats: Value) -> str | None:
    if formats == "UUUU":
        return "all four levels are dense, which stores every zero; make at least one level C"
    return None


def _order_fault(order: Value) -> str | None:
    loops = str(order).split(".")
    if sorted(loops) != sorted(SPLIT_LOOPS):
        return f"order {order} is not an arrangement of {'.'.join(SPLIT_LOOPS)}"
    for outer, inner in (("io", "ii"), ("jo", "ji"), ("ko", "ki")):
        if loops.index(outer) > loops.index(inner):
            return f"order {order} has {inner} outside {outer}"
    if loops[-1] != "ki":
        return f"order {order} does not end with ki, the vectorised loop"
    return None


def _draw(space: GridSpace, count: int, rng: np.random.Generator) -> list[Config]:
    """Draw the default, a third near the default order, the rest uniformly."""
    drawn = [space.default()][:count]
    fixed = {"order": (DEFAULT_ORDER,), "formats": NEAR_FORMATS}
    drawn += space.draw_distinct(min(count // 3, count - len(drawn)), rng, fixed=fixed, taken=drawn)
    return drawn + space.draw_distinct(count - len(drawn), rng, fixed={}, taken=drawn)
