"""GPU kernels in the manner of SparseTIR as data (288 for SpMM, 324 for SDDMM) and their map pi (COGNATE §3.2)."""

import math
from collections.abc import Sequence
from functools import partial

from sparloom.space.coding import Code, flag, logarithm, one_hot
from sparloom.space.config import Config, Shape, Value
from sparloom.space.grid import GridSpace, Parameter
from sparloom.space.readings import Readings
from sparloom.space.shared import I1, I2, J1, J2, K1, K2, K3, SharedSchedule, insert_after

__all__ = ["CudaSpace", "most_lanes", "refuse_tile"]

SPMM = (
    Parameter("rows_per_block", (1, 2, 4, 8, 16, 32)),
    Parameter("lanes", (8, 16, 32)),  # threads along the dense operand
    Parameter("coarsening", (1, 2, 4, 8)),  # dense columns per thread
    Parameter("reduction", ("outside", "inside")),  # loop j outside or inside the coarsening loop
    Parameter("unroll", (0, 1)),  # 1: the loads of four nonzeros are under way together
)
SDDMM = (
    Parameter("groups_per_block", (1, 2, 4, 8)),  # thread rows
    Parameter("lanes", (8, 16, 32)),
    Parameter("vector", (1, 2, 4)),  # values per load
    Parameter("group", (1, 2, 4)),  # nonzeros per thread row
    Parameter("unroll", ("none", "explicit", "implicit")),  # of the nonzeros: by hand side by side, or by the compiler
)

SPMM_ORDERS = {"outside": (I2, I1, K2, K3, J2, K1), "inside": (I2, I1, K2, K3, K1, J2)}
SDDMM_ORDER = (I2, I1, J2, K2, K3, K1)


def CudaSpace(op: str, *, width: int = 256, readings: Readings | None = None) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of CUDA GPUs for one operation.

    The reduction loop j is not split, so J = 1; k has three levels: tiles k2, columns of one thread k1 (extent K),
    threads k3 (extent K_inner).

    Args:
        op: "spmm" or "sddmm".
        width: columns of the dense operand; threads times columns per thread must not exceed it, but for the least of
            8, and loads of several values must divide it.

    Raises:
        ValueError: the reading sddmm="letter", which would need three levels of sparse columns.
    """
    readings = readings or Readings()
    if op == "sddmm" and readings.sddmm == "letter":
        raise ValueError("reading sddmm='letter' needs split sparse columns, which GPU kernels lack; use sddmm='role'")
    parameters, per_thread = (SDDMM, "vector") if op == "sddmm" else (SPMM, "coarsening")
    return GridSpace(
        name="cuda",
        op=op,
        parameters=parameters,
        defaults=_defaults(op, width),
        mapping=_sddmm_shared if op == "sddmm" else _spmm_shared,
        latent=_latent(parameters, op, readings),
        refuse=partial(refuse_tile, factors=("lanes", per_thread), width=width),
        coupled=("lanes", per_thread),
        numbers=readings.numbers,
        meaning=f"cuda 1, width {width}, {readings}",
    )


def _spmm_shared(config: Config, shape: Shape | None) -> SharedSchedule:
    order = insert_after(SPMM_ORDERS[str(config["reduction"])], J2, J1)
    rows = int(config["rows_per_block"])
    return SharedSchedule(
        I=rows if shape is None else max(1, min(rows, shape[0])),
        J=1,
        K=int(config["coarsening"]),
        K_inner=int(config["lanes"]),
        order=order,
    )


def _sddmm_shared(config: Config, shape: Shape | None) -> SharedSchedule:
    nonzeros = int(config["groups_per_block"]) * int(config["group"])
    order = insert_after(SDDMM_ORDER, J2, J1)
    return SharedSchedule(I=nonzeros, J=1, K=int(config["vector"]), K_inner=int(config["lanes"]), order=order)


def _latent(parameters: tuple[Parameter, ...], op: str, readings: Readings) -> tuple[Code, ...]:
    values = {parameter.name: parameter.values for parameter in parameters}
    if readings.latent == "config":
        binary = ("reduction", "unroll") if op == "spmm" else ()
        return tuple(
            flag(name, values[name]) if name in binary
            else one_hot(name, values[name]) if name == "unroll"
            else logarithm(name, values[name], 2)
            for name in values
        )
    if op == "spmm":
        return (flag("unroll"),)
    loads = tuple(logarithm(name, values[name], 2) for name in ("vector", "group"))
    return (*loads, one_hot("unroll", values["unroll"]))


def _defaults(op: str, width: int) -> tuple[Value, ...]:
    """SparseTIR's default for SpMM, two columns per thread from width 64 on; for SDDMM it names none."""
    lanes = most_lanes(width)
    return (8, lanes, 1, 1, "none") if op == "sddmm" else (8, lanes, 2 if width >= 64 else 1, "outside", 1)


def most_lanes(width: int) -> int:
    """Take as many lanes as there are columns for: 8, 16 or 32."""
    return max(lanes for lanes in (8, 16, 32) if lanes <= max(width, 8))


def refuse_tile(config: Config, factors: Sequence[str], width: int) -> str | None:
    """Say why a tile of columns, the product of `factors`, does not fit the dense operand, or None."""
    covered = math.prod(int(config[name]) for name in factors)
    if covered > max(width, 8):
        return f"{' times '.join(factors)} is {covered}, above the dense width {width}; lower one of them"
    if "vector" in factors and width % int(config["vector"]):
        return f"vector={config['vector']} does not divide the dense width {width}: use vector=1"
    return None
