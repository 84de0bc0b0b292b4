"""Dense GEMM on a GPU by Triton: tiles, warps, stages of the pipeline, and what cannot run is left out beforehand."""

from functools import partial

from sparloom.space.config import Config
from sparloom.space.grid import GridSpace, Parameter

__all__ = ["TritonGemmSpace", "accumulators", "pipeline_bytes"]

PARAMETERS = (
    Parameter("block_m", (16, 64, 128)),
    Parameter("block_n", (32, 64, 128, 256)),
    Parameter("block_k", (16, 32, 64)),
    Parameter("warps", (4, 8)),
    Parameter("stages", (2, 4)),  # steps along k whose loads are under way
    Parameter("group_m", (1, 8)),  # tiles that walk down the rows before the next columns
    Parameter("split_k", (1, 4)),  # programs that share the sums of a tile
    Parameter("precision", ("ieee", "tf32x3")),  # products on the plain units, or three on the tensor cores
)
DEFAULTS = (64, 64, 32, 4, 2, 8, 1, "ieee")
MOST_ACCUMULATORS = 128  # of a thread, half of the registers it can have
LEAST_ACCUMULATORS = 4
MOST_PRODUCTS = 4096  # of a thread and step along k with ieee, which the compiler unrolls


def TritonGemmSpace(shared_bytes: int) -> GridSpace:  # noqa: N802 (a constructor)
    """Build the space for a device whose blocks can have `shared_bytes` of shared memory.

    A point is left out when the device cannot hold its tiles, when a thread has more sums than registers or next to
    none, or when its unrolled loop would take minutes to compile. What remains may still need more shared memory than
    the device has: that is known when it is compiled, which needs no device either.
    """
    return GridSpace(
        name="triton",
        op="gemm",
        parameters=PARAMETERS,
        defaults=DEFAULTS,
        refuse=partial(_refuse, shared_bytes=shared_bytes),
        coupled=("block_m", "block_n", "block_k", "warps", "stages", "precision"),
        meaning=f"triton gemm 1, {shared_bytes} bytes",
    )


def pipeline_bytes(config: Config) -> int:
    """Count the least shared memory: tiles of A and B for all steps under way but the one in registers."""
    elements = int(config["block_k"]) * (int(config["block_m"]) + int(config["block_n"]))
    return 4 * elements * (int(config["stages"]) - 1)


def accumulators(config: Config) -> int:
    """Count the sums that a thread holds."""
    return int(config["block_m"]) * int(config["block_n"]) // (32 * int(config["warps"]))


def _refuse(config: Config, *, shared_bytes: int) -> str | None:
    needed, sums = pipeline_bytes(config), accumulators(config)
    if needed > shared_bytes:
        return f"the pipeline needs {needed} bytes of shared memory, the device has {shared_bytes}: lower block_k"
    if sums > MOST_ACCUMULATORS:
        return f"a thread would hold {sums} sums, above {MOST_ACCUMULATORS}: lower block_m or block_n"
    if sums < LEAST_ACCUMULATORS:
        return f"a thread would hold {sums} sums, below {LEAST_ACCUMULATORS}: take fewer warps"
    products = sums * int(config["block_k"])
    if config["precision"] == "ieee" and products > MOST_PRODUCTS:
        return f"a thread would have {products} unrolled products, above {MOST_PRODUCTS}: lower block_k"
    return None
