"""Spaces of GPUs.

`CudaSpace` follows SparseTIR (288 points for SpMM, 324 for SDDMM) and has COGNATE's map pi onto shared loops (§3.2);
`CudaKernelSpace` lists hand-written kernels: who works on a row, vector loads, warps per block; `TritonGemmSpace` is
dense GEMM: tiles, warps, pipeline stages.
"""

import math
from collections.abc import Sequence
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
    flag,
    insert_after,
    logarithm,
    one_hot,
)

SPMM = (
    Parameter("rows_per_block", (1, 2, 4, 8, 16, 32)),
    Parameter("lanes", (8, 16, 32)),  # threads along the dense operand
    Parameter("coarsening", (1, 2, 4, 8)),  # dense columns per thread
    Parameter("reduction", ("outside", "inside")),  # loop j outside or inside the coarsening loop
    Parameter("unroll", (0, 1)),  # 1: the loads of four nonzeros are in flight together
)
SDDMM = (
    Parameter("groups_per_block", (1, 2, 4, 8)),  # thread rows
    Parameter("lanes", (8, 16, 32)),
    Parameter("vector", (1, 2, 4)),  # values per load
    Parameter("group", (1, 2, 4)),  # nonzeros per thread row
    Parameter("unroll", ("none", "explicit", "implicit")),  # of the nonzeros: by hand, side by side, or by the compiler
)

SPMM_ORDERS = {"outside": (I2, I1, K2, K3, J2, K1), "inside": (I2, I1, K2, K3, K1, J2)}
SDDMM_ORDER = (I2, I1, J2, K2, K3, K1)

CUDA_KERNELS = "cuda_kernels"
"""Name of the space."""
ATTENTION_COLUMNS = 32
"""Columns of the result of attention that a thread can keep in registers."""

LANES = Parameter("lanes", (8, 16, 32))  # threads of a group; less than a warp for short rows
VECTOR = Parameter("vector", (1, 2, 4))  # elements per load
WARPS = Parameter("warps", (2, 4, 8))  # of a block
HUBS = ("q90", "q95", "q99")
"""Rows longer than this quantile get a block each, others a group each."""

SPMM_KERNELS = (
    Parameter("balance", ("rows", *HUBS, "nonzeros")),  # nonzeros: equal shares of nonzeros and row ends
    LANES,
    VECTOR,
    Parameter("loads", (1, 2)),  # of a thread; a tile has lanes * vector * loads columns
    WARPS,
)
SDDMM_KERNELS = (
    Parameter("balance", ("nonzeros", "rows", *HUBS)),
    LANES,
    VECTOR,
    Parameter("group", (1, 2, 4)),  # nonzeros side by side
    WARPS,
)
ATTENTION_KERNELS = (
    Parameter("balance", ("rows", *HUBS)),  # a group, or a block, for each head
    LANES,
    VECTOR,
    Parameter("group", (1, 2, 4)),  # nonzeros side by side
    WARPS,
)
KERNEL_PARAMETERS = {"spmm": SPMM_KERNELS, "spmm_mean": SPMM_KERNELS, "spmm_max": SPMM_KERNELS,
                     "sddmm": SDDMM_KERNELS, "attention": ATTENTION_KERNELS}

TRITON = (
    Parameter("block_m", (16, 64, 128)),
    Parameter("block_n", (32, 64, 128, 256)),
    Parameter("block_k", (16, 32, 64)),
    Parameter("warps", (4, 8)),
    Parameter("stages", (2, 4)),  # steps along k whose loads are in flight
    Parameter("group_m", (1, 8)),  # tiles down the rows before the next columns
    Parameter("split_k", (1, 4)),  # programs that share the sums of a tile
    Parameter("precision", ("ieee", "tf32x3")),  # products on the plain units, or three on the tensor cores
)
TRITON_DEFAULTS = (64, 64, 32, 4, 2, 8, 1, "ieee")
MAX_ACCUMULATORS = 128  # of a thread, half of the registers it can have
MIN_ACCUMULATORS = 4
MAX_PRODUCTS = 4096  # of a thread and step along k with ieee; the compiler unrolls them


def CudaSpace(op: str, *, width: int = 256, readings: Readings | None = None) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space of CUDA GPUs for one operation.

    The reduction loop j is not split, so J = 1; k has three levels: tiles k2, columns of one thread k1 (extent K),
    threads k3 (extent K_inner).

    Args:
        op: "spmm" or "sddmm".
        width: columns of the dense operand; threads times columns per thread must not exceed it (or 8, if that is
            more), and vector loads must divide it.

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
        refuse=partial(_refuse_tile, factors=("lanes", per_thread), width=width),
        coupled=("lanes", per_thread),
        numbers=readings.numbers,
        meaning=f"cuda 1, width {width}, {readings}",
    )


def CudaKernelSpace(op: str, *, width: int = 256) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space for dense operands of `width` columns.

    At most 270 points for SpMM, its mean and its maximum, 405 for SDDMM, 324 for attention.

    Source: the mappings of AutoSAGE §3 (warp per row, block per hub, vec4, feature tiles, warps per block). Departures:
    groups of less than a warp, equal shares of nonzeros (merge path), thresholds from the whole matrix; attention is
    one kernel, so its feature tile is a whole head where `lanes` threads can keep one.

    Args:
        op: "spmm", "spmm_mean", "spmm_max", "sddmm" or "attention".
        width: of attention, columns of one head.
    """
    parameters = KERNEL_PARAMETERS[op]
    return GridSpace(
        name=CUDA_KERNELS,
        op=op,
        parameters=parameters,
        defaults=_kernel_defaults(op, width),
        refuse=partial(_refuse_attention if op == "attention" else _refuse_kernel, width=width),
        coupled=("lanes", "vector", "loads") if parameters is SPMM_KERNELS else ("lanes", "vector"),
        meaning=f"cuda_kernels 1, width {width}",
    )


def TritonGemmSpace(shared_bytes: int) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space for a device whose blocks can have `shared_bytes` of shared memory.

    A point is left out when the device cannot hold its tiles, when a thread has more sums than registers or next to
    none, or when its unrolled loop would take minutes to compile. The others may still need more shared memory than the
    device has, which is known once they are compiled; that needs no device either.
    """
    return GridSpace(
        name="triton",
        op="gemm",
        parameters=TRITON,
        defaults=TRITON_DEFAULTS,
        refuse=partial(_refuse_triton, shared_bytes=shared_bytes),
        coupled=("block_m", "block_n", "block_k", "warps", "stages", "precision"),
        meaning=f"triton gemm 1, {shared_bytes} bytes",
    )


def pipeline_bytes(config: Config) -> int:
    """Count the least bytes of shared memory: tiles of A and B for all steps in flight except the one in registers."""
    elements = int(config["block_k"]) * (int(config["block_m"]) + int(config["block_n"]))
    return 4 * elements * (int(config["stages"]) - 1)


def accumulators(config: Config) -> int:
    """Count the accumulators of a thread."""
    return int(config["block_m"]) * int(config["block_n"]) // (32 * int(config["warps"]))


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
    """SparseTIR's default for SpMM, two columns per thread from width 64 on; it has none for SDDMM."""
    lanes = _most_lanes(width)
    return (8, lanes, 1, 1, "none") if op == "sddmm" else (8, lanes, 2 if width >= 64 else 1, "outside", 1)


def _most_lanes(width: int) -> int:
    """Choose as many lanes as there are columns for: 8, 16 or 32."""
    return max(lanes for lanes in (8, 16, 32) if lanes <= max(width, 8))


def _refuse_tile(config: Config, factors: Sequence[str], width: int) -> str | None:
    """Explain why a tile of columns, the product of `factors`, does not fit the dense operand, or return None."""
    covered = math.prod(int(config[name]) for name in factors)
    if covered > max(width, 8):
        return f"{' times '.join(factors)} is {covered}, above the dense width {width}; lower one of them"
    if "vector" in factors and width % int(config["vector"]):
        return f"vector={config['vector']} does not divide the dense width {width}: use vector=1"
    return None


def _kernel_defaults(op: str, width: int) -> tuple[str | int, ...]:
    """Choose the widest loads, and lanes for all columns; SDDMM is fastest with 8 lanes and two nonzeros side by side.

    Source: samples of `CudaSpace` on an H200, data/samples/cuda_*.parquet; attention has none and takes two, too.
    """
    vector = next(wide for wide in (4, 2, 1) if width % wide == 0 and 8 * wide <= max(width, 8))
    if op == "sddmm":
        return "nonzeros", 8, vector, 2, 2
    return "rows", _most_lanes(width // vector), vector, 2 if op == "attention" else 1, 4


def _refuse_kernel(config: Config, *, width: int) -> str | None:
    return _refuse_tile(config, [name for name in ("lanes", "vector", "loads") if name in config.names], width)


def _refuse_attention(config: Config, *, width: int) -> str | None:
    kept = ATTENTION_COLUMNS * int(config["lanes"])
    if kept < width and config["lanes"] != LANES.values[-1]:
        return f"lanes={config['lanes']} keep {kept} columns of a head, below its width {width}: use lanes=32"
    return _refuse_kernel(config, width=width)


def _refuse_triton(config: Config, *, shared_bytes: int) -> str | None:
    needed, sums = pipeline_bytes(config), accumulators(config)
    if needed > shared_bytes:
        return f"the pipeline needs {needed} bytes of shared memory, the device has {shared_bytes}: lower block_k"
    if sums > MAX_ACCUMULATORS:
        return f"a thread would hold {sums} sums, above {MAX_ACCUMULATORS}: lower block_m or block_n"
    if sums < MIN_ACCUMULATORS:
        return f"a thread would hold {sums} sums, below {MIN_ACCUMULATORS}: take fewer warps"
    products = sums * int(config["block_k"])
    if config["precision"] == "ieee" and products > MAX_PRODUCTS:
        return f"a thread would have {products} unrolled products, above {MAX_PRODUCTS}: lower block_k"
    return None
