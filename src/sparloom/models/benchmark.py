"""How much of the processor's matrix-multiplication speed the featurizer reaches."""

import time
from collections.abc import Callable

import numpy as np
import torch

from sparloom.models.input_featurizer import InputFeaturizer
from sparloom.models.sparseconv import SparseBackend, map_flops, retain_memory

__all__ = ["benchmark_featurizer", "benchmark_patterns"]

GEMM = (4096, 256, 256)  # the widest layers' shape


def benchmark_patterns(sites: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Draw patterns of about `sites` sites: a full band, a scattered band, and power-law rows and columns."""
    rng = np.random.default_rng(seed)
    places = np.arange(sites)
    banded = np.column_stack([places // 11, places // 11 + places % 11])
    rows = rng.integers(0, max(1, sites // 8), sites)
    offsets = np.rint(rng.normal(0, 16, sites)).astype(np.int64)
    scattered = np.column_stack([rows, np.abs(rows + offsets)])
    side = max(1, sites)
    scale = rng.permutation(side)
    power = scale[np.minimum(side - 1, (rng.pareto(1.2, (2 * sites, 2)) * side / 16).astype(np.int64))]
    return {"banded": banded, "scattered": np.unique(scattered, axis=0), "power": np.unique(power, axis=0)[:sites]}


def benchmark_featurizer(
    *, channels: tuple[int, ...], backend: SparseBackend, sites: int, repetitions: int, threads: int | None = None
) -> dict[str, float]:
    """Time forward and backward passes and a matrix product in turns, and compare their best rates.

    Maps are built before. Convolutions only, no head. Rates come from processor seconds over all threads, and beside
    that from the wall clock, which means something on a machine that nobody else uses.

    Args:
        sites: about how many each pattern has.
        repetitions: turns; the best of each counts.
        threads: of PyTorch during the benchmark; None leaves them.

    Returns:
        Per pattern: `<pattern>/sites`, `/gflop`, `/milliseconds`, `/gflop_per_second`, `/sgemm_share` (wall),
        `/sgemm_share_cpu`; over all: `sgemm_gflop_per_second`, `sgemm_share` (least of the patterns), `threads`.
    """
    retain_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        found: dict[str, float] = {"threads": float(torch.get_num_threads()), "sgemm_gflop_per_second": 0.0}
        for name, coords in benchmark_patterns(sites).items():
            found |= _one(name, coords, channels, backend, repetitions, found)
        found["sgemm_share"] = min(found[key] for key in found if key.endswith("/sgemm_share"))
        return found
    finally:
        torch.set_num_threads(before)


def _one(
    name: str, coords: np.ndarray, channels: tuple[int, ...], backend: SparseBackend, repetitions: int,
    found: dict[str, float],
) -> dict[str, float]:
    net = InputFeaturizer(channels=channels, pooling="last", cells="ones", bias=False, hidden=8, width=8, side_width=0,
                          norm="none", gain=1.0, backend=backend)
    net.reset(torch.Generator().manual_seed(0))
    sites = backend.build_map([coords], channels=net.level_channels)
    left, right = torch.randn(GEMM[0], GEMM[1]), torch.randn(GEMM[1], GEMM[2])
    out = torch.empty(GEMM[0], GEMM[2])
    passes, products = _interleaved(
        lambda: net.pool_map(sites).sum().backward(), lambda: torch.mm(left, right, out=out), repetitions)
    gflop = map_flops(sites, channels) / 1e9
    product = 2 * np.prod(GEMM, dtype=np.float64) / 1e9
    peak = product / products[0]
    return {
        f"{name}/sites": float(len(coords)), f"{name}/gflop": gflop, f"{name}/milliseconds": passes[0] * 1e3,
        f"{name}/gflop_per_second": gflop / passes[0], f"{name}/sgemm_share": gflop / passes[0] / peak,
        f"{name}/sgemm_share_cpu": (gflop / passes[1]) / (product / products[1]),
        "sgemm_gflop_per_second": max(peak, found["sgemm_gflop_per_second"]),
    }


def _interleaved(
    first: Callable[[], object], second: Callable[[], object], repetitions: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Best wall and processor seconds of two functions called in turns, after one call of each."""
    best = [[np.inf, np.inf], [np.inf, np.inf]]
    for turn in range(repetitions + 1):
        for place, function in enumerate((first, second)):
            wall, processor = time.perf_counter(), time.process_time()
            function()
            taken = time.perf_counter() - wall, time.process_time() - processor
            if turn:
                best[place] = [min(old, new) for old, new in zip(best[place], taken, strict=True)]
    return tuple(best[0]), tuple(best[1])
