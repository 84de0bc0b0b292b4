"""Space of the SPADE accelerator: 256 configurations (COGNATE §4.1), and the map phi onto shared loops (§3.2, E)."""

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
    Code,
    Readings,
    Shape,
    SharedSchedule,
    Value,
    Walk,
    flag,
    insert_after,
    logarithm,
)

PARAMETERS = (
    Parameter("row_panel", (4, 32, 256, 2048)),  # rows per tile
    Parameter("column_panel", (1024, 16384, 65536, "all")),  # columns per tile
    Parameter("split", (32, 256)),  # dense columns per pass
    Parameter("barrier", (0, 1)),
    Parameter("bypass", (0, 1)),  # of the row operand
    Parameter("reorder", (0, 1)),
)
DEFAULTS: tuple[Value, ...] = (256, "all", 256, 0, 0, 0)  # "SPADE Base" of ISCA'23 §7A

ORDER_FREE = (K2, I2, J2, I1, J1, K1)
ORDER_BARRIER = (K2, J2, I2, I1, J1, K1)


def SpadeSpace(op: str, *, width: int = 256, readings: Readings | None = None) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of SPADE for one operation.

    Args:
        op: "spmm" or "sddmm"; both have the same 256 points.
        width: columns of the dense operand; a split of at least `width` means a single pass. Walks are described if
            every pass has as many columns as a split, which are those with stored statistics.
    """
    readings = readings or Readings()
    splits = [int(value) for value in PARAMETERS[2].values]
    described = all(min(split, width) in splits for split in splits)
    return GridSpace(
        name="spade",
        op=op,
        parameters=PARAMETERS,
        defaults=DEFAULTS,
        mapping=partial(_phi, width=width, readings=readings),
        latent=_latent(readings),
        collapse=partial(_collapse, width=width),
        numbers=readings.numbers,
        walks=partial(_walk, width=width) if described else None,
        meaning=f"spade 1, width {width}, {readings}",
    )


def _phi(config: Config, shape: Shape | None, *, width: int, readings: Readings) -> SharedSchedule:
    if shape is None and config["column_panel"] == "all":
        raise ValueError("column_panel=all has no extent before the space is bound to a matrix: call bind(shape)")
    rows, cols = shape if shape is not None else (None, None)
    across = _panel(config["row_panel"], rows, readings)
    along = _panel(cols if config["column_panel"] == "all" else config["column_panel"], cols, readings)
    if readings.panels == "literal":
        across, along = along, across
    split = int(config["split"])
    order = ORDER_BARRIER if config["barrier"] and readings.barrier != "latent" else ORDER_FREE
    return SharedSchedule(
        I=across,
        J=along,
        K=min(split, width) if readings.split == "columns" else max(1, width // split),
        K_inner=1,
        order=insert_after(order, K2, K3),
    )


def _walk(config: Config, *, width: int) -> Walk:
    column_panel = config["column_panel"]
    return Walk(
        reordered=int(config["reorder"]), row_panel=int(config["row_panel"]),
        column_panel=0 if column_panel == "all" else int(column_panel), phased=int(config["barrier"]),
        slice=min(int(config["split"]), width),
    )


def _panel(value: Value | None, extent: int | None, readings: Readings) -> int:
    size = int(value)
    if extent is None:
        if readings.panel_values == "counts":
            raise ValueError("a number of panels has no extent before the space is bound to a matrix: call bind(shape)")
        return size
    if readings.panel_values == "counts":
        size = -(-extent // max(size, 1))
    return max(1, min(size, extent))


def _latent(readings: Readings) -> tuple[Code, ...]:
    if readings.latent == "config":
        numbers = tuple(logarithm(parameter.name, parameter.values, 16) for parameter in PARAMETERS[:3])
        return numbers + tuple(flag(parameter.name) for parameter in PARAMETERS[3:])
    flags = ("bypass", "reorder") if readings.barrier == "order" else ("barrier", "bypass", "reorder")
    return tuple(flag(name) for name in flags)


def _collapse(config: Config, shape: Shape, *, width: int) -> Config:
    rows, cols = shape
    enough = [value for value in PARAMETERS[0].values if int(value) >= rows]
    if int(config["row_panel"]) >= rows:
        config = config.replace(row_panel=enough[0])
    if config["column_panel"] == "all" or int(config["column_panel"]) >= cols:
        config = config.replace(column_panel="all", barrier=0)
    if int(config["split"]) >= width:
        config = config.replace(split=min(value for value in PARAMETERS[2].values if int(value) >= width))
    return config
