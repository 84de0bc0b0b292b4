"""Measure how fast the featurizer trains, relative to the peak of a dense matrix product in the same process."""

import copy
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from sparloom import log
from sparloom.data import MatrixInput, SampleSource, write_frame
from sparloom.models import Network, conv_flops, initialise, retain_memory
from sparloom.report import report_table

REAL, PRODUCT = "real", "sgemm"
MAX_RETAKES = 20


@dataclass(frozen=True)
class BenchFeaturizer:
    """Time forward and backward passes of the convolutions, without the head, on stored inputs and generated ones.

    Args:
        net: has an `InputFeaturizer`; its convolutions are initialised anew.
        matrices: number of stored inputs, those with the most sites.
        sites: approximate number of sites of each generated input.
        product: rows, inner extent and columns of the dense product.
        rounds: interleaved passes over the product and all inputs; their median counts.
        steal_ratio: a pass whose wall seconds exceed this many times its processor seconds per thread is retaken.
    """

    net: Network
    samples: SampleSource
    matrices: int
    sites: int
    product: Sequence[int]
    rounds: int
    steal_ratio: float
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write passes.parquet, one row per pass; return the metrics of `peak_shares`."""
        retain_memory()
        net = copy.deepcopy(self.net)
        initialise(net, self.seed)
        works = [_product(self.product), *(_pass(net.featurizer, kind, item) for kind, item in self._inputs())]
        for work in works:
            work.step()  # builds the kernel map
        frame = pd.DataFrame([self._timed(work, turn) for turn in range(self.rounds) for work in works])
        write_frame(out / "passes.parquet", frame)
        metrics = peak_shares(frame)
        _show(metrics, [kind for kind in frame["inputs"].unique() if kind != PRODUCT])
        return metrics | {"threads": torch.get_num_threads()}

    def _inputs(self) -> Iterator[tuple[str, MatrixInput]]:
        """Yield stored inputs, then one input of each generated pattern, each with its kind."""
        stored = sorted(self.samples.inputs(), key=lambda item: -len(item.counts))
        yield from ((REAL, item) for item in stored[:self.matrices])
        for kind, coords in draw_patterns(self.sites, seed=self.seed).items():
            shape = tuple(int(extent) + 1 for extent in coords.max(axis=0))
            ones = np.ones(len(coords), np.int32)
            yield kind, MatrixInput(kind, coords.astype(np.int32), ones, shape, len(coords), quantum=1, digest=kind)

    def _timed(self, work: "_Work", turn: int) -> dict[str, object]:
        """Time one pass: a row of passes.parquet; passes that other processes disturbed are repeated."""
        threads = min(torch.get_num_threads(), len(os.sched_getaffinity(0)))
        for _ in range(MAX_RETAKES):
            wall, processor = time.perf_counter(), time.process_time()
            work.step()
            wall, processor = time.perf_counter() - wall, time.process_time() - processor
            if wall * threads <= self.steal_ratio * processor:
                break
        return {"inputs": work.inputs, "name": work.name, "sites": work.sites, "gflop": work.gflop, "round": turn,
                "seconds": wall, "processor_seconds": processor}


def draw_patterns(sites: int, *, seed: int) -> dict[str, np.ndarray]:
    """Draw coordinates of about `sites` sites: a full band, a scattered band, power-law rows and columns."""
    rng = np.random.default_rng(seed)
    index = np.arange(sites)
    banded = np.column_stack([index // 11, index // 11 + index % 11])
    rows = rng.integers(0, max(1, sites // 8), sites)
    offsets = np.rint(rng.normal(0, 16, sites)).astype(np.int64)
    scattered = np.column_stack([rows, np.abs(rows + offsets)])
    side = max(1, sites)
    scale = rng.permutation(side)
    power = scale[np.minimum(side - 1, (rng.pareto(1.2, (2 * sites, 2)) * side / 16).astype(np.int64))]
    return {"banded": banded, "scattered": np.unique(scattered, axis=0), "power": np.unique(power, axis=0)[:sites]}


def peak_shares(frame: pd.DataFrame) -> dict[str, float]:
    """Reduce passes to rates by kind of inputs, and to shares of the rate of the dense product.

    Args:
        frame: columns inputs, name, sites, gflop, seconds and processor_seconds (of all threads); a row per pass.

    Returns:
        `sgemm_gflops`; per kind of inputs `/matrices`, `/sites`, `/gflop_per_pass`, `/gflops`, `/share_of_peak` and
        `/share_of_peak_processor`, that by processor time, medians over inputs of medians over rounds, and
        `/share_of_peak_least` of the inputs.
    """
    rates = frame.assign(wall=frame["gflop"] / frame["seconds"], busy=frame["gflop"] / frame["processor_seconds"])
    each = rates.groupby(["inputs", "name"], sort=False)[["sites", "gflop", "wall", "busy"]].median()
    peak = each.loc[PRODUCT].iloc[0]
    found = {"sgemm_gflops": float(peak["wall"])}
    for kind, rows in each.drop(PRODUCT).groupby("inputs", sort=False):
        wall, busy = rows["wall"] / peak["wall"], rows["busy"] / peak["busy"]
        values = {"matrices": len(rows), "sites": rows["sites"].median(), "gflop_per_pass": rows["gflop"].median(),
                  "gflops": rows["wall"].median(), "share_of_peak": wall.median(), "share_of_peak_least": wall.min(),
                  "share_of_peak_processor": busy.median()}
        found |= {f"{kind}/{name}": float(value) for name, value in values.items()}
    return found


@dataclass(frozen=True)
class _Work:
    """Timed work: the kind of its inputs, a name, the number of sites, and 10^9 operations of one step."""

    inputs: str
    name: str
    sites: int
    gflop: float
    step: Callable[[], object]


def _pass(featurizer: torch.nn.Module, kind: str, item: MatrixInput) -> _Work:
    gflop = conv_flops(item.coords, featurizer.channels) / 1e9
    return _Work(kind, item.name, len(item.coords), gflop, lambda: featurizer.pool([item]).sum().backward())


def _product(extents: Sequence[int]) -> _Work:
    (rows, inner, cols), generator = extents, torch.Generator().manual_seed(0)
    left, right = torch.rand(rows, inner, generator=generator), torch.rand(inner, cols, generator=generator)
    product = torch.empty(rows, cols)
    gflop = 2 * rows * inner * cols / 1e9
    return _Work(PRODUCT, f"{rows}x{inner}x{cols}", 0, gflop, lambda: torch.mm(left, right, out=product))


def _show(metrics: Mapping[str, float], kinds: Sequence[str]) -> None:
    columns = {"matrices": ".0f", "sites": ".0f", "gflops": ".0f", "share_of_peak": ".3f",
               "share_of_peak_least": ".3f", "share_of_peak_processor": ".3f"}
    table = report_table(("inputs", "matrices", "sites", "GFLOP/s", "share of peak", "least", "by processor time"),
                         title=f"sgemm peak {metrics['sgemm_gflops']:.0f} GFLOP/s", wrap=True)
    for kind in kinds:
        table.add_row(kind, *(format(metrics[f"{kind}/{name}"], digits) for name, digits in columns.items()))
    log.console.print(table)
