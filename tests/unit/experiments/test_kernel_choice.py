"""Portfolios of a GPU's kernels, from stored samples of tiny matrices; subgraphs of a pattern."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest

from sparloom.data import Sample, SampleTable
from sparloom.errors import SchemaError
from sparloom.experiments import ChooseStoredKernels
from sparloom.experiments.autosage import SUBGRAPH_ROWS, induced_subgraph
from sparloom.ops import SpMM
from sparloom.platforms import CudaPlatform
from sparloom.space import CudaKernelSpace
from sparloom.sparse import Pattern, SyntheticCorpus


@dataclass(frozen=True)
class FixedSamples:
    rows: SampleTable
    roles: dict[str, str]

    def table(self, platform, preset, op):
        return self.rows.filter(platform=platform, preset=preset, op=op)

    def split(self):
        return self.roles


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


def test_a_subgraph_has_some_rows_and_the_same_columns():
    rng = np.random.default_rng(0)
    rows, cols = rng.integers(0, 2000, (2, 20_000))
    pattern = Pattern.from_coo(rows, cols, (2000, 2000))
    found = induced_subgraph(pattern, 0.25, rng)
    assert found.shape == (500, 500)
    assert found.nnz == pytest.approx(pattern.nnz / 16, rel=0.2)  # every row is thinned, too
    assert induced_subgraph(pattern, 0.01, rng).rows == SUBGRAPH_ROWS
    assert induced_subgraph(Pattern.from_coo(rows, cols, (2000, 2001)), 0.25, rng) is None
