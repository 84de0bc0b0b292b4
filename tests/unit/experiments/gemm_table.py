"""Generated sample table of GEMM: all kernels of the real space on a few shapes, seconds from a formula with noise."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sparloom.data import Sample, SampleTable
from sparloom.ops import GemmShape
from sparloom.platforms import CudaDevice
from sparloom.space import Config, GemmSpace, TritonGemmSpace, gemm_program, register_tile

PEAK, MEMORY, CALL = 1e11, 2e10, 4e-9  # flop/s, bytes/s, seconds
VENDOR = "vendor=mkl"


def drawn_shapes(count: int, seed: int = 0) -> list[GemmShape]:
    """Draw log-uniform shapes; every fifth has one row, the last two are degenerate."""
    rng = np.random.default_rng(seed)
    sizes = np.exp2(rng.uniform(1, 9, (count, 3))).astype(int)
    sizes[::5, 0] = 1
    sizes[-2:] = [[64, 1, 64], [64, 64, 1]]
    return [GemmShape(*map(int, row)) for row in sizes]


def formula(shape: GemmShape, config: Config, memory: float = MEMORY) -> float:
    """Return seconds: padded work at the rate of the register tile, traffic of blocks, packing, calls.

    Args:
        memory: bytes per second.
    """
    rows, columns = register_tile(config)
    padded = 2 * -(-shape.m // rows) * rows * -(-shape.n // columns) * columns * shape.k
    calls = -(-shape.m // rows) * -(-shape.n // columns) * -(-shape.k // int(config["tile_k"]))
    intensity = min(1.0, rows * columns / (rows + columns) / 8)
    traffic = 4 * shape.k * shape.n * -(-shape.m // int(config["tile_m"]))
    packing = 8 * shape.k * shape.n * (config["pack"] != "none") + 8 * shape.m * shape.k * (config["pack"] == "ab")
    work = padded / PEAK / intensity / (1.1 if config["unroll"] == 4 else 1.0)
    return work + (traffic + packing) / memory + calls * CALL


def write_gemm_table(
    data: Path, shapes: Sequence[GemmShape], *, noise: float = 0.02, step: int = 1, memory: float = MEMORY,
    machine: Mapping[str, str] | None = None,
) -> None:
    """Write two sweeps of every `step`-th kernel, of the default and of a vendor, for `StoredSamples`.

    Args:
        memory: bytes per second of the processor.
        machine: its description, in the provenance.
    """
    rng = np.random.default_rng(0)
    conditions = {"op": "gemm", "platform": "cpu_kernels", "cpu_seconds": (), "kind": "wall", "failure": None,
                  "stolen": False, "machine": "formula", "commit": "", "started": "2000-01-01T00:00:00Z"}
    samples, space = [], GemmSpace()
    sampled = [space.default(), *list(space)[::step]]
    for shape in shapes:
        chosen = dict.fromkeys(gemm_program(config, shape.layout) for config in sampled)
        kernels = {config.key: ("t1", formula(shape, config, memory)) for config in chosen}
        vendor = {VENDOR: ("vendor", 1.3 * min(seconds for _, seconds in kernels.values()))}
        for sweep in range(2):
            for key, (preset, seconds) in (kernels | vendor).items():
                samples.append(Sample(
                    preset=preset, matrix=shape.matrix, width=shape.width, config=key, round=sweep,
                    seconds=(float(seconds * np.exp(noise * rng.standard_normal())),), **conditions))
    provenance = {"origin": "formula"} | ({} if machine is None else {"machine": dict(machine)})
    SampleTable.of(samples, [provenance]).write(data / "samples" / "cpu_kernels_gemm.parquet")


def triton_formula(shape: GemmShape, config: Config) -> float:
    """Return seconds: waves of eight tiles, each as long as its sums, and partial sums in memory."""
    rows, columns, parts = (int(config[name]) for name in ("block_m", "block_n", "split_k"))
    programs = -(-shape.m // rows) * -(-shape.n // columns) * parts
    rate = 1e12 * rows * columns / (rows + columns) / 64
    work = -(-programs // 8) * 2 * rows * columns * shape.k / parts / rate
    return 2e-6 + work + parts * 4e-12 * shape.m * shape.n


def write_triton_table(data: Path, shapes: Sequence[GemmShape], *, step: int) -> None:
    """Write one sweep of every `step`-th Triton kernel and of cuBLAS, for `StoredSamples`."""
    device = CudaDevice.named("h200")
    space = TritonGemmSpace(device.shared_per_block_bytes)
    conditions = {"op": "gemm", "platform": "triton", "cpu_seconds": (), "kind": "device", "failure": None, "round": 0,
                  "stolen": False, "machine": "formula", "commit": "", "started": "2000-01-01T00:00:00Z"}
    samples = []
    for shape in shapes:
        kernels = {config.key: ("h200", triton_formula(shape, config)) for config in [*list(space)[::step],
                                                                                    space.default()]}
        vendor = {"vendor=cublas": ("vendor", 1.1 * min(seconds for _, seconds in kernels.values()))}
        samples += [Sample(preset=preset, matrix=shape.matrix, width=shape.width, config=key, seconds=(seconds,),
                           **conditions) for key, (preset, seconds) in (kernels | vendor).items()]
    SampleTable.of(samples, [{"origin": "formula"}]).write(data / "samples" / "triton_gemm.parquet")
