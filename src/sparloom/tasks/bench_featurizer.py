"""How fast the featurizer learns, against the peak of a dense matrix product in the same process."""

import copy
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sparloom import log
from sparloom.data import MatrixInput, SampleSource
from sparloom.models import Network, build_map, initialise, map_flops

__all__ = ["BenchFeaturizer"]

SGEMM = 2048


@dataclass(frozen=True)
class BenchFeaturizer:
    """Time forward and backward passes of the convolutions on the stored inputs with the most sites.

    Args:
        matrices: how many inputs.
        rounds: interleaved passes over all of them; the median counts.
        steal_ratio: a pass whose wall seconds exceed this many times its processor seconds per thread is retaken.
    """

    net: Network
    samples: SampleSource
    matrices: int
    rounds: int
    steal_ratio: float
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Time; returns GFLOP/s, the peak, and their ratio, medians over inputs."""
        net = copy.deepcopy(self.net)
        initialise(net, self.seed)
        featurizer = net.featurizer
        inputs = sorted(self.samples.inputs(), key=lambda item: -len(item.counts))[:self.matrices]
        flops = [map_flops(build_map([item.coords], channels=featurizer.level_channels), featurizer.channels)
                 for item in inputs]
        square = torch.rand(SGEMM, SGEMM)
        product = torch.empty_like(square)
        steps = [_step(featurizer, item) for item in inputs]
        for step in steps:
            step()
        rates, peaks = [], []
        for _ in range(self.rounds):
            peaks.append(2 * SGEMM**3 / self._seconds(lambda: torch.mm(square, square, out=product)))
            rates.append([work / self._seconds(step) for work, step in zip(flops, steps, strict=True)])
        peak = float(np.median(peaks))
        shares = np.median(np.array(rates), axis=0) / peak
        share, sites = float(np.median(shares)), [len(item.counts) for item in inputs]
        log.console.print(f"featurizer: {share * peak / 1e9:.0f} GFLOP/s, sgemm peak {peak / 1e9:.0f} GFLOP/s, share "
                          f"{share:.3f} (least {shares.min():.3f}) at {min(sites)}-{max(sites)} sites")
        return {"share_of_peak": share, "share_of_peak_least": float(shares.min()), "gflops": share * peak / 1e9,
                "sgemm_gflops": peak / 1e9, "sites": float(np.median(sites)),
                "gflop_per_pass": float(np.median(flops)) / 1e9, "threads": torch.get_num_threads()}

    def _seconds(self, work: Callable[[], object]) -> float:
        """Wall seconds of one run, retaken while the machine was taken from us."""
        threads = min(torch.get_num_threads(), len(os.sched_getaffinity(0)))
        for _ in range(20):
            wall, processor = time.perf_counter(), time.process_time()
            work()
            wall, processor = time.perf_counter() - wall, time.process_time() - processor
            if wall * threads <= self.steal_ratio * processor:
                break
        return wall


def _step(featurizer: torch.nn.Module, item: MatrixInput) -> Callable[[], None]:
    def step() -> None:
        featurizer.pool([item]).sum().backward()

    return step
