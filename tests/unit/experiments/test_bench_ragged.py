"""Ragged programs beside their peers, on tiny cases: outputs, and resuming a killed run."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from kernel_cache import beside_kernels

from sparloom.baselines import (
    RAGGED_BASELINES,
    BoundModule,
    PackedInputs,
    attention_module,
    padded,
)
from sparloom.errors import Unsupported
from sparloom.experiments import BenchRagged
from sparloom.experiments.cora import bench_ragged, prepare_baselines, triangular_methods
from sparloom.measure import TimingProtocol
from sparloom.ragged import LengthCorpus

pytestmark = pytest.mark.cc
TIMING = TimingProtocol(rounds=1, repetitions=2, short_seconds=0, most_repetitions=2, slow_factor=1e9, steal_ratio=100,
                        retakes=0, seed=0)


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARLOOM_CACHE", str(beside_kernels(tmp_path_factory.mktemp("cache"))))
        yield
    torch.set_num_threads(before)


@pytest.fixture
def few_peers(monkeypatch):
    """Keep peers that need no compilation."""
    monkeypatch.setattr(bench_ragged, "PADDED_BASELINES", {"padded": padded})
    monkeypatch.setattr(bench_ragged, "RAGGED_BASELINES", {"packed_loop": RAGGED_BASELINES["packed_loop"]})


def bench(tmp_path, **changes) -> BenchRagged:
    settings = {
        "lengths": LengthCorpus(None, ["cola", "mnli"], 0), "batches": [4],
        "parts": ["encoder", "mha", "causal", "vgemm", "trmm", "compile"],
        "count": 1, "products": [1], "triangles": [50], "causal": ["cola"], "layers": 6,
        "schedule": None, "timing": TIMING, "product_timing": TIMING, "threads": 1,
        "journals": str(tmp_path / "journals"), "seed": 0}
    return BenchRagged(**settings | changes)


@pytest.mark.slow
def test_every_part_is_timed_and_reduced(tmp_path, few_peers):
    out = tmp_path / "out"
    out.mkdir()
    metrics = bench(tmp_path, timing=replace(TIMING, repetitions=1, most_repetitions=1)).run(out)
    frame = pd.read_parquet(out / "per_case.parquet")
    methods = frame[frame["median"].notna()].groupby("part")["method"].agg(lambda names: {
        name.split(" ")[0] for name in names}).to_dict()
    assert methods["vgemm"] - {"mkl_batch"} == {"sparloom", "loop", "padded"}  # MKL may be installed
    assert methods["trmm"] == {"sparloom", "balanced", "split", "unsplit", "blas", "dense"}
    assert methods["causal"] == {"sparloom", "whole", "unmasked"}
    assert methods["encoder"] >= {"sparloom", "padded", "micro_batches", "prelude"}
    assert {"encoder/over_padded", "encoder/over_best_peer", "encoder/over_best_peer_min", "mha/over_microbatch",
            "vgemm/over_loop", "vgemm/over_padded", "trmm/over_blas", "causal/cola/over_unmasked",
            "causal/cola/over_masked_after", "prelude_share", "compile/cold_seconds",
            "compile/cached_seconds"} <= metrics.keys()
    assert metrics["compile/cold_seconds"] > metrics["compile/cached_seconds"] > 0
    assert not {"causal/over_unmasked", "causal/over_masked_after"} & metrics.keys()
    assert all(np.isfinite(value) for value in metrics.values())
    for name in ("encoder", "mha", "vgemm", "trmm"):
        assert (out / f"{name}.png").stat().st_size > 0
    assert "torch" in json.loads((out / "peers.json").read_text(encoding="utf-8"))
    assert not list((tmp_path / "journals").glob("*"))


def test_peers_that_do_not_run_or_compute_something_else():
    inputs = PackedInputs.drawn(attention_module(16, 2, seed=0), [5, 2, 3], seed=0)

    def refuses(_):
        raise Unsupported("not here")

    found = prepare_baselines(inputs, {"padded": {"padded": padded}, "none": {"none": refuses}}, always=("padded",))
    assert list(found.chosen) == ["padded"]
    right = padded(inputs)
    wrong = BoundModule(right.run, lambda result: right.unpack(result) + 1)
    with pytest.raises(AssertionError, match=r"the result of wrong is wrong by 1\.0e"):
        found.check("wrong", wrong)


class Clock:
    """Clock that advances only while a peer runs."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_a_wrong_product_is_reported(monkeypatch):
    monkeypatch.setattr("sparloom.experiments.cora.products.TOLERANCE", 0.0)
    with pytest.raises(AssertionError, match="the result of sparloom is wrong"):
        triangular_methods(20, threads=1, seed=0)
