"""GPU kernels in the manner of SparseTIR as data (288 for SpMM, 324 for SDDMM) and their map pi (COGNATE §3.2)."""

from functools import partial

from sparloom.space.coding import Code, flag, logarithm, one_hot
from sparloom.space.config import Config, Shape, Value
from sparloom.space.grid import GridSpace, Parameter
from sparloom.space.readings import Readings
from sparloom.space.shared import I1, I2, J1, J2, K1, K2, K3, SharedSchedule, insert_after

__all__ = ["CudaSpace"]

SPMM = (
    Parameter("rows_per_block", (1, 2, 4, 8, 16, 32)),
    Parameter("lanes", (8, 16, 32)),  # threads along the dense operand
    Parameter("coarsening", (1, 2, 4, 8)),  # dense columns per thread
    Parameter("reduction", ("outside", "inside")),  # loop j outside or inside the coarsening loop
    Parameter("unroll", (0, 1)),
)
SPMM_DEFAULTS: tuple[Value, ...] = (8, 32, 2, "outside", 1)
SDDMM = (
    Parameter("groups_per_block", (1, 2, 4, 8)),  # thread rows
    Parameter("lanes", (8, 16, 32)),
    Parameter("vector", (1, 2, 4)),  # values per load
    Parameter("group", (1, 2, 4)),  # nonzeros per thread row
    Parameter("unroll", ("none", "explicit", "implicit")),
)
SDDMM_DEFAULTS: tuple[Value, ...] = (8, 32, 1, 1, "none")

SPMM_ORDERS = {"outside": (I2, I1, K2, K3, J2, K1), "inside": (I2, I1, K2, K3, K1, J2)}
SDDMM_ORDER = (I2, I1, J2, K2, K3, K1)


def CudaSpace(op: str, *, width: int = 256, readings: Readings | None = None) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of CUDA GPUs for one operation.

    The reduction loop j is not split, so J = 1; k has three levels: tiles k2, columns of one thread k1 (extent K),
    threads k3 (extent K_inner).

    Args:
        op: "spmm" or "sddmm".
        width: columns of the dense operand; threads times columns per thread must not exceed it.

    Raises:
        ValueError: the reading sddmm="letter", which would need three levels of sparse columns.
    """
    readings = readings or Readings()
    if op == "sddmm" and readings.sddmm == "letter":
        raise ValueError("reading sddmm='letter' needs split sparse columns, which GPU kernels lack; use sddmm='role'")
    parameters, defaults = (SDDMM, SDDMM_DEFAULTS) if op == "sddmm" else (SPMM, SPMM_DEFAULTS)
    per_thread = "vector" if op == "sddmm" else "coarsening"
    return GridSpace(
        name="cuda",
        op=op,
        parameters=parameters,
        defaults=defaults,
        mapping=_sddmm_shared if op == "sddmm" else _spmm_shared,
        latent=_latent(parameters, op, readings),
        refuse=partial(_refuse, per_thread=per_thread, width=width),
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


def _refuse(config: Config, *, per_thread: str, width: int) -> str | None:
    covered = int(config["lanes"]) * int(config[per_thread])
    if covered > width:
        return f"lanes times {per_thread} is {covered}, above the dense width {width}; lower one of them"
    return None
