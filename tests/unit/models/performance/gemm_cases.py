"""Artificial GEMM machine: a space of a few kernels, and seconds from a formula with noise."""

import numpy as np

from sparloom.models.performance import BoostingConfig, Measured, Origin, Target, gemm_problems
from sparloom.ops import LAYOUTS, GemmShape
from sparloom.space import Config, GridSpace, Parameter

MACHINE = {"l1_bytes": 2.0**15, "l2_bytes": 2.0**20, "l3_bytes": 2.0**25}
LOG1P = Target("throughput", "log1p")
GROWTH = BoostingConfig(
    trees=60, patience=10, leaves=15, depth=-1, rows_per_leaf=5, learning_rate=0.15, lasso=0.0, ridge=1.0,
    row_share=0.8, column_share=0.8, bins=255, threads=1, seed=0)
PEAK, MEMORY, CALL = 5e10, 2e10, 4e-9  # flop/s, bytes/s, seconds


def space() -> GridSpace:
    """48 kernels; tiles are multiples of the register block."""
    return GridSpace(
        name="cpu_kernels", op="gemm",
        parameters=(
            Parameter("tile_m", (16, 96)), Parameter("tile_k", (64, 256)),
            Parameter("micro", ("1x32", "8x32", "4x16")), Parameter("pack", ("none", "b")), Parameter("unroll", (1,)),
            Parameter("split_k", (1, 2)), Parameter("prefetch", (0,)), Parameter("loop", ("blocked",)),
        ),
        defaults=(96, 256, "8x32", "b", 1, 1, 0, "blocked"),
    )


def origin() -> Origin:
    return Origin("cpu_kernels", "t1", space().digest(), MACHINE)


def shapes(count: int, seed: int = 0) -> list[GemmShape]:
    """Draw log-uniform shapes; every sixth has one row, and layouts take turns."""
    rng = np.random.default_rng(seed)
    drawn = np.exp2(rng.uniform(1, 9, (count, 3))).astype(int)
    drawn[::6, 0] = 1
    return [GemmShape(*map(int, sizes), LAYOUTS[number % 4]) for number, sizes in enumerate(drawn)]


def seconds_of(shape: GemmShape, config: Config) -> float:
    """Padded work at a rate that the register block allows, traffic of tiles, packing, and calls."""
    rows, cols = (int(part) for part in str(config["micro"]).split("x"))
    calls = -(-shape.m // rows) * -(-shape.n // cols) * -(-shape.k // int(config["tile_k"]))
    rate = PEAK * rows * cols / (rows + cols) / 6.4
    padded = 2 * -(-shape.m // rows) * rows * -(-shape.n // cols) * cols * shape.k
    again = -(-shape.m // int(config["tile_m"]))
    traffic = 4 * shape.k * shape.n * again * (1.0 if config["pack"] == "b" or shape.n < 64 else 1.8)
    packing = 8 * shape.k * shape.n if config["pack"] == "b" else 0
    return padded / rate + (traffic + packing) / MEMORY + calls * CALL


def measured(count: int = 40, *, noise: float = 0.02, seed: int = 0) -> Measured:
    """Measure every kernel on every shape, with lognormal noise."""
    drawn, configs = shapes(count, seed), tuple(space())
    seconds = np.array([[seconds_of(shape, config) for config in configs] for shape in drawn])
    seconds *= np.exp(noise * np.random.default_rng(seed + 1).standard_normal(seconds.shape))
    names = tuple(f"{shape.matrix} {shape.n}" for shape in drawn)
    columns = gemm_problems(drawn) | {name: np.full(count, value) for name, value in MACHINE.items()}
    return Measured(columns, names, configs, seconds)


def efficiency(data: Measured, scores: np.ndarray) -> np.ndarray:
    """Best over chosen seconds, of each problem; scores are low for fast."""
    chosen = scores.argmin(axis=1)
    return data.seconds.min(axis=1) / data.seconds[np.arange(len(data)), chosen]


