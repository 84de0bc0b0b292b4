"""Portfolios of kernels, on tiny matrices: timing, choice and outputs."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest

from sparloom.data import Sample, SampleTable
from sparloom.errors import SchemaError
from sparloom.experiments import ChooseKernels, ChooseStoredKernels
from sparloom.experiments.autosage import OPERATIONS
from sparloom.measure import TimingProtocol
from sparloom.ops import SpMM
from sparloom.platforms import CpuKernels, CudaPlatform
from sparloom.report import portfolio_metrics
from sparloom.space import CudaKernelSpace
from sparloom.sparse import SyntheticCorpus


@dataclass(frozen=True)
class FixedSamples:
    rows: SampleTable
    roles: dict[str, str]

    def table(self, platform, preset, op):
        return self.rows.filter(platform=platform, preset=preset, op=op)

    def split(self):
        return self.roles


TIMING = TimingProtocol(rounds=1, repetitions=2, short_seconds=0, most_repetitions=2, slow_factor=1e9, steal_ratio=100,
                        retakes=0, seed=0)


@pytest.mark.cc
def test_every_kernel_is_timed_and_some_are_chosen(tmp_path):
    task = ChooseKernels(
        SyntheticCorpus([4000], 1, 0, ["uniform", "hub_rows", "nearest"]), count=2, least_nonzeros=100,
        ops={"spmm": [8], "sddmm": [8], "attention": [8]}, heads=2, most=3, timing=TIMING, threads=1, memory_bytes=1e9,
        journals=str(tmp_path / "journals"), seed=0)
    metrics = task.run(tmp_path)
    frame = pd.read_parquet(tmp_path / "per_case.parquet")
    chosen = json.loads((tmp_path / "portfolios.json").read_text())
    assert set(chosen) == {"any", "stored"}
    assert all(name.startswith("order=natural,") for names in chosen["stored"].values() for name in names)
    for op, rows in frame.groupby("op"):
        expected = {config.key for config in CpuKernels(1, 8).space(OPERATIONS[op](2))}
        assert (rows.groupby("matrix")["config"].agg(set) == expected).all()
        assert (rows.groupby("matrix")["safe"].sum() == 1).all()
        for lists in chosen.values():
            assert 1 <= len(lists[op]) <= 3
            assert set(lists[op]) <= expected
        assert metrics[f"{op}/kernels"] == len(chosen["any"][op])
    assert all(np.isfinite(value) for value in metrics.values())
    assert not list((tmp_path / "journals").glob("*"))


def test_kernels_of_a_gpu_are_chosen_from_stored_samples(tmp_path):
    corpus = SyntheticCorpus([3000], 2, 0, ["uniform", "hub_rows", "nearest"])
    names, space = [entry.name for entry in corpus.entries()], list(CudaKernelSpace("spmm", width=256))
    rng, fast = np.random.default_rng(0), {space[5].key, space[50].key}
    seconds = {(name, config.key): float(rng.uniform(2, 3) if config.key not in fast else rng.uniform(1, 1.2))
               for name in names for config in space}
    conditions = {"op": "spmm", "platform": "cuda_kernels", "cpu_seconds": (), "kind": "device", "failure": None,
                  "round": 0, "width": 256, "stolen": False, "machine": "m", "commit": "",
                  "started": "2000-01-01T00:00:00Z"}
    rows = [Sample(preset="h200", matrix=name, config=key, seconds=(taken,), **conditions)
            for (name, key), taken in seconds.items()]
    rows += [Sample(preset="vendor", matrix=name, config="vendor=cusparse", seconds=(4.0,), **conditions)
             for name in names]
    roles = dict.fromkeys(names[:4], "train") | dict.fromkeys(names[4:], "test")
    samples = FixedSamples(SampleTable.of(rows, [{}]), roles)
    task = ChooseStoredKernels(CudaPlatform("cuda_kernels", "h200", 256), [SpMM()], samples, corpus, counts=[1, 2],
                               draws=20, seed=0)
    metrics = task.run(tmp_path)
    chosen = json.loads((tmp_path / "portfolios.json").read_text())["spmm"]
    assert set(chosen) == fast
    assert metrics["spmm/portfolio_2"] == 1.0
    assert metrics["spmm/portfolio_1"] > 1 / 1.2
    assert metrics["spmm/random_1"] < 0.6
    assert 1 / 4 <= metrics["spmm/vendor"] <= 1.2 / 4
    assert len(pd.read_parquet(tmp_path / "per_matrix.parquet")) == 2 * (2 + 4 * 2)
    everything = replace(task, samples=FixedSamples(samples.rows, dict.fromkeys(names, "train")))
    with pytest.raises(SchemaError, match="0 of 6 matrices are for tests"):
        everything.run(tmp_path)


def test_a_portfolio_is_judged_on_matrices_that_it_was_not_chosen_on():
    safe, other = "order=natural,x", "order=column,y"
    seconds = {"a": {safe: 1.0, other: 3.0}, "b": {safe: 2.0, other: 1.0}}  # of the first and the second part
    frame = pd.DataFrame([
        {"op": "spmm", "matrix": matrix, "width": 32, "config": config, "safe": config == safe, "seconds": [taken] * 4}
        for matrix, row in seconds.items() for config, taken in row.items()])

    def fastest(rows):
        return [rows.loc[rows["seconds"].str[0].idxmin(), "config"]]

    found = portfolio_metrics(frame, fastest, seed=0)
    assert found["spmm/regret_max"] == pytest.approx(3)
    assert found["spmm/regret_min"] == pytest.approx(2)
    assert found["spmm/safe_max"] == pytest.approx(2)
    assert found["spmm/safe_min"] == pytest.approx(1)
    assert found["spmm/stored/regret_max"] == pytest.approx(2)
    assert found["spmm/stored/regret_min"] == pytest.approx(1)
