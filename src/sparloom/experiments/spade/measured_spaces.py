"""Rank tuners on complete spaces that others measured on devices, so that every configuration has its time.

<kernel>_T1.json describes the space of a kernel, <kernel>_<device>_T4.json.gz has its times on a device. A tuner gets
`TRIALS` trials in each; a configuration that is not among the times violates a constraint.
"""

import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sparloom.data import Tuner, TuningProblem, read_trials
from sparloom.experiments.harness import CaseJournal, finish, run_folder, run_jobs
from sparloom.files import sha256
from sparloom.report import draw_source_gains, draw_spaces, source_gains, space_metrics
from sparloom.space import read_space
from sparloom.tuning import (
    Source,
    botorch_search,
    kernel_tuner_search,
    optimizer_search,
    optuna_gp_search,
    random_search,
    smac_search,
    tpe_search,
)

TRIALS = 200
SEEDS = range(10)
STRATEGIES = ("adaptive_tabu_greywolf", "bayes_opt", "genetic_algorithm", "hybrid_vndx")
"""Of Kernel Tuner; its authors report the first and the last as the best, see arXiv:2510.17899."""
PEERS: Mapping[str, Tuner] = {
    "random": random_search, "tpe": tpe_search, "optuna_gp": optuna_gp_search, "smac": smac_search,
    "botorch": botorch_search,
    **{f"kernel_tuner_{name}": partial(kernel_tuner_search, strategy=name) for name in STRATEGIES},
}
OURS = ("sparloom", "sparloom_all", "sparloom_reversed")
FROM = "sparloom_from_"


@dataclass(frozen=True)
class Curve:
    """Name a search by one method of the fastest configuration of a kernel on a device."""

    folder: str
    kernel: str
    device: str
    method: str
    seed: int


@dataclass(frozen=True)
class RankOnSpaces:
    """Run every tuner on every measured space.

    Args:
        spaces: folder of T1 and T4 files.
        kernels, devices: names of some; None: all.
        methods: names of some tuners of PEERS and of ours: sparloom has no source, sparloom_from_<device> has the
            times of another device, sparloom_all has those of all others, and sparloom_reversed has times in the
            reverse of the true order; None: all.
        seeds: of tuners; None: 0 to 9.
        workers: processes.
        journals: folder of unfinished runs.
    """

    spaces: str
    kernels: Sequence[str] | None
    devices: Sequence[str] | None
    methods: Sequence[str] | None
    seeds: Sequence[int] | None
    workers: int
    journals: str

    def run(self, out: Path) -> Mapping[str, float]:
        """Write curves.parquet, correlations.parquet, a plot for each kernel and one of sources; print the metrics.

        Raises:
            ValueError: the folder has no such files, or a kernel, device or method is unknown.
        """
        planned = {f"{curve.kernel}/{curve.device}/{curve.method}/{curve.seed}": curve for curve in self.curves()}
        digests = {path.name: sha256(path) for path in sorted(Path(self.spaces).glob("*_T[14].json*"))}
        folder = run_folder(self, digests, without=("spaces", "workers"))
        journal = CaseJournal(folder / "curves.jsonl")
        finished = journal.rows().keys() & planned.keys()
        waiting = {key: curve for key, curve in planned.items() if key not in finished}
        for key, rows in run_jobs(measure_curve, waiting, weights=dict.fromkeys(planned, 1.0), processes=self.workers,
                                  description="tuning", unit="curves", finished=finished):
            journal.append(key, rows)
        done = journal.rows()
        curves = pd.DataFrame([row for key in planned for row in done[key]]).explode("share", ignore_index=True)
        curves = curves.astype({"share": float}).assign(trial=curves.groupby(
            ["kernel", "device", "method", "seed"]).cumcount() + 1)
        related = correlations(self.spaces)
        gains = source_gains(curves, related)

        def draw(out: Path) -> None:
            draw_spaces(curves, out)
            if len(gains):
                draw_source_gains(gains, out / "sources")

        return finish(out, folder, space_metrics(curves), draw, curves=curves, correlations=related)

    def curves(self) -> list[Curve]:
        """List the searches of the run, seed by seed."""
        found = measured_spaces(self.spaces)
        kernels = _chosen("kernels", self.kernels, found)
        everywhere = list(dict.fromkeys(device for devices in found.values() for device in devices))
        devices = _chosen("devices", self.devices, everywhere)
        methods = _chosen("methods", self.methods, [*PEERS, *OURS, *(FROM + device for device in everywhere)])
        return [Curve(self.spaces, kernel, device, method, seed)
                for seed in (SEEDS if self.seeds is None else self.seeds)
                for method in methods for kernel in kernels for device in found[kernel]
                if device in devices and (not method.startswith(FROM)
                                          or method.removeprefix(FROM) in set(found[kernel]) - {device})]


def measured_spaces(folder: str) -> dict[str, list[str]]:
    """List the devices of every kernel in a folder of T1 and T4 files.

    Raises:
        ValueError: there are none.
    """
    kernels = [path.name.removesuffix("_T1.json") for path in sorted(Path(folder).glob("*_T1.json"))]
    found = {kernel: [path.name.removeprefix(f"{kernel}_").partition("_T4.json")[0]
                      for path in sorted(Path(folder).glob(f"{kernel}_*_T4.json*"))] for kernel in kernels}
    if not any(found.values()):
        raise ValueError(f"spaces={folder} has no <kernel>_T1.json with <kernel>_<device>_T4.json.gz: give the folder "
                         "of such files")
    return {kernel: devices for kernel, devices in found.items() if devices}


def measure_curve(curve: Curve) -> list[dict[str, Any]]:
    """Search once; return one row with the share of the optimum after every trial, 0 until one has run."""
    table = _times(curve.folder, curve.kernel, curve.device)
    seconds = table["seconds"].to_numpy()
    problem = TuningProblem(
        configs=table.drop(columns="seconds"), default=0, statistics=pd.DataFrame(), labels={curve.device: seconds},
        train=(), judged=(curve.device,), budget=TRIALS, labels_on="judged")
    began = time.process_time()
    _tuner(curve)(problem, zlib.crc32(f"{curve.kernel}/{curve.device}/{curve.seed}".encode()))  # a draw of its own
    processor_seconds = time.process_time() - began
    tried = seconds[problem.evaluated[curve.device]]
    shares = np.nan_to_num(np.nanmin(seconds) / np.fmin.accumulate(tried))
    return [{"kernel": curve.kernel, "device": curve.device, "method": curve.method, "seed": curve.seed,
             "seconds_per_trial": processor_seconds / len(tried),
             "share": np.pad(shares, (0, TRIALS - len(tried)), "edge").tolist()}]


def correlations(folder: str) -> pd.DataFrame:
    """Correlate the times of every kernel on two devices by ranks: columns kernel, device, source, correlation."""
    rows = []
    for kernel, devices in measured_spaces(folder).items():
        for device, source in permutations(devices, 2):
            joined = _times(folder, kernel, device).merge(
                _times(folder, kernel, source), on=[*_times(folder, kernel, device).columns.drop("seconds")])
            rows.append({"kernel": kernel, "device": device, "source": source, "correlation": joined[
                "seconds_x"].corr(joined["seconds_y"], method="spearman")})
    return pd.DataFrame(rows, columns=["kernel", "device", "source", "correlation"])


def _tuner(curve: Curve) -> Tuner:
    """Return the tuner of a method; ours learns from the tables of its sources."""
    if curve.method in PEERS:
        return PEERS[curve.method]
    others = [name for name in measured_spaces(curve.folder)[curve.kernel] if name != curve.device]
    names = {"sparloom": [], "sparloom_reversed": [], "sparloom_all": others}.get(
        curve.method, [curve.method.removeprefix(FROM)])
    sources = [Source(name, _times(curve.folder, curve.kernel, name)) for name in names]
    if curve.method == "sparloom_reversed":
        times = _times(curve.folder, curve.kernel, curve.device)
        seconds = times["seconds"].min() * times["seconds"].max() / times["seconds"]
        sources = [Source("reversed", times.assign(seconds=seconds))]
    return partial(optimizer_search, space=read_space(Path(curve.folder) / f"{curve.kernel}_T1.json"), sources=sources)


@cache
def _times(folder: str, kernel: str, device: str) -> pd.DataFrame:
    """Read the times of a kernel on a device: its parameters, and seconds, NaN where it failed."""
    (path,) = Path(folder).glob(f"{kernel}_{device}_T4.json*")
    table = read_trials(path)
    return table[table["failure"] != "constraint"].drop(columns="failure").reset_index(drop=True)


def _chosen(option: str, names: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """Return the chosen names, of those that are known; None: all."""
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise ValueError(f"task.{option}={unknown[0]} is unknown: choose from {', '.join(known)}")
    return list(known if names is None else names)
