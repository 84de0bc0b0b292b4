"""The SPADE paper's tables on what each option does, recomputed on generated stand-ins, beside the published values."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparloom.platforms.spade.machine import Machine
from sparloom.platforms.spade.simulate import simulate_ops
from sparloom.platforms.spade.standins import STANDINS, scaled
from sparloom.space import Config
from sparloom.sparse import Pattern

__all__ = ["BARRIER", "BYPASS", "GAIN", "TILES", "Sign", "sign_records"]

MATRICES = ("ASI", "DEL", "PAC", "ROA", "LIV", "PAP", "SER", "ORK", "KRO", "MYC")
ROW_PANELS = (1024, 256, 64)

BARRIER: Mapping[tuple[str, int], Sequence[float]] = {
    ("spmm", 32): (22.8, 41.1, 4.3, 31.7, 24.2, 0, 1, -29.6, -12.6, 0),
    ("sddmm", 32): (9, 6.5, 0.6, 5, -15, 0, 0.6, -48.3, -1.2, 0),
    ("spmm", 128): (80.5, 76.6, 12.8, 56.2, 34, 47.7, 9.4, -57.1, -37, 0),
    ("sddmm", 128): (19.6, 37.8, 8.2, 22.9, -16.9, 13.2, -3.8, -53.7, -36.9, 0),
}
"""ISCA'23 table 5: percent of time that barriers add at the middle tile sizes; by (operation, width), as MATRICES."""

BYPASS: Mapping[tuple[str, int], Sequence[float]] = {
    ("spmm", 32): (-7, -6.7, 4.2, -2.3, -0.8, 13.9, -1.8, -17.2, 169.2, 0.7),
    ("sddmm", 32): (-3.2, 0.1, -0.3, -1.2, -6.8, 0.2, -0.1, -7, 0.2, 0.1),
    ("spmm", 128): (-9.9, -10.4, -9, -12.2, -0.7, -7.1, -14.4, -32.9, -6.3, -1.9),
    ("sddmm", 128): (-4.5, -0.3, -1.1, -1.9, -13.2, -6.3, -12.8, -18.7, -8.4, -2.7),
}
"""ISCA'23 table 6: percent of time that bypassing the r matrix adds to the best of all other options."""

GAIN: Mapping[tuple[str, int], Sequence[float]] = {
    ("spmm", 32): (1.08, 1.08, 1.00, 1.02, 1.01, 1.15, 1.02, 1.44, 1.16, 3.55),
    ("sddmm", 32): (1.03, 1.00, 1.00, 1.01, 1.14, 1.00, 1.01, 2.01, 1.07, 2.56),
    ("spmm", 128): (1.18, 1.13, 1.12, 1.13, 1.07, 1.12, 1.21, 1.48, 1.34, 4.76),
    ("sddmm", 128): (1.05, 1.02, 1.01, 1.02, 1.31, 1.14, 1.21, 2.63, 1.57, 4.91),
}
"""Speedup of the best options over SPADE Base, ratios of the bars of ISCA'23 figure 9."""

TILES: Mapping[str, Sequence[Sequence[float]]] = {
    "KRO": ((0.80, 0.89, 0.93), (0.86, 0.91, 0.92), (1, 0.92, 0.93)),
    "DEL": ((0.92, 0.92, 0.92), (0.89, 0.89, 0.84), (1, 1, 0.93)),
    "MYC": ((0.99, 1, 1), (0.45, 0.45, 0.45), (0.21, 0.23, 0.23)),
}
"""ISCA'23 figure 11, SpMM of width 32: time over the worst; rows as ROW_PANELS, columns small, middle and all."""


@dataclass(frozen=True)
class Sign:
    """One published number and ours.

    Args:
        table: "barrier", "bypass", "gain" or "tiles".
        setting: the tile for "tiles", such as "1024 x small"; else empty.
    """

    table: str
    matrix: str
    op: str
    width: int
    setting: str
    paper: float
    ours: float


def sign_records(
    machine: Machine, *, factor: int, matrices: Sequence[str] = MATRICES, widths: Sequence[int] = (32, 128),
) -> list[Sign]:
    """Search the options of ISCA'23 table 3 on stand-ins at 1/factor of the size.

    Args:
        machine: the full machine, preset isca224; it is scaled here.
        factor: a divisor of its elements into whole clusters.
    """
    small = scaled(machine, factor)
    records: list[Sign] = []
    for name in matrices:
        pattern = STANDINS[name](factor)
        for width in widths:
            times = _searched(pattern, (*ROW_PANELS, 16) if name == "MYC" else ROW_PANELS, width, small, factor)
            for op, found in times.items():
                records.extend(_records(name, op, width, found))
    return records


Times = Mapping[tuple[int, str, int, int], float]
"""(row panel, column panel name, barrier, bypass) -> seconds."""


def _searched(
    pattern: Pattern, row_panels: Sequence[int], width: int, machine: Machine, factor: int,
) -> dict[str, Times]:
    """Column panels shrink with the matrix, so that a row panel meets as many of them, with as many nonzeros."""
    panels = {"small": 262_144 // width // factor, "middle": 16_777_216 // width // factor, "all": "all"}
    points, configs = [], []
    for rows in row_panels:
        for panel, cols in panels.items():
            for barrier in (0, 1) if panel == "middle" else (0,):
                for bypass in (0, 1):
                    points.append((rows, panel, barrier, bypass))
                    configs.append(_config(rows, cols, width, barrier, bypass))
    times = simulate_ops(pattern, {op: configs for op in ("spmm", "sddmm")}, width=width, machines=[machine])
    return {op: dict(zip(points, (float(value) for value in found[0]), strict=True)) for op, found in times.items()}


def _config(rows: int, cols: int | str, width: int, barrier: int, bypass: int) -> Config:
    names = ("row_panel", "column_panel", "split", "barrier", "bypass", "reorder")
    return Config("spade", tuple(zip(names, (rows, cols, width, barrier, bypass, 0), strict=True)))


def _records(name: str, op: str, width: int, times: Times) -> Iterator[Sign]:
    place = MATRICES.index(name)
    barrier = 100 * (times[256, "middle", 1, 0] / times[256, "middle", 0, 0] - 1)
    yield Sign("barrier", name, op, width, "", BARRIER[op, width][place], barrier)
    best = min((point for point in times if point[3] == 0), key=times.__getitem__)
    bypass = 100 * (times[(*best[:3], 1)] / times[best] - 1)
    yield Sign("bypass", name, op, width, "", BYPASS[op, width][place], bypass)
    gain = times[256, "all", 0, 0] / min(times.values())
    yield Sign("gain", name, op, width, "", GAIN[op, width][place], gain)
    if op == "spmm" and width == 32 and name in TILES:
        grid = np.array([[times[rows, panel, 0, 0] for panel in ("small", "middle", "all")] for rows in ROW_PANELS])
        for (i, j), value in np.ndenumerate(grid / grid.max()):
            setting = f"{ROW_PANELS[i]} x {('small', 'middle', 'all')[j]}"
            yield Sign("tiles", name, op, width, setting, TILES[name][i][j], float(value))
