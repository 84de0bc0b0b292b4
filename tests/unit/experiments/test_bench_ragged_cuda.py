"""Ragged programs beside their peers on a GPU: on an emulated one, with PyTorch on the processor."""

import json

import pandas as pd
import pytest
import torch
from emulated_gpu import EmulatedGpu, WallClock

from sparloom.baselines import (
    DEVICE_BASELINES,
    PackedInputs,
    attention_module,
    encoder_layer,
    padded,
    reference,
    sdpa,
)
from sparloom.experiments import BenchRaggedCuda
from sparloom.experiments.cora import bench_ragged as bench_ragged_cuda
from sparloom.experiments.cora import device_module
from sparloom.measure import TimingProtocol
from sparloom.ragged import LengthCorpus

pytestmark = pytest.mark.cc
TIMING = TimingProtocol(rounds=1, repetitions=2, short_seconds=0, most_repetitions=2, slow_factor=1e9, steal_ratio=100,
                        retakes=0, seed=0)


class TimedGpu(WallClock, EmulatedGpu):
    """Seconds of the host."""


@pytest.fixture
def few(monkeypatch):
    """Set up a small module and peers that need no compilation."""
    monkeypatch.setattr(bench_ragged_cuda, "attention_module", lambda *, seed: attention_module(16, 2, seed=seed))
    monkeypatch.setattr(bench_ragged_cuda, "device_module", lambda part, inputs, gpu, device: sdpa(inputs))  # see below
    monkeypatch.setattr(bench_ragged_cuda, "PADDED_BASELINES", {"padded": padded})
    monkeypatch.setattr(bench_ragged_cuda, "DEVICE_BASELINES",
                        {name: DEVICE_BASELINES[name] for name in ("sdpa", "varlen")})


def test_every_part_is_checked_timed_and_reduced(tmp_path, few, monkeypatch):
    monkeypatch.setattr(bench_ragged_cuda.ProductSizes, "drawn", classmethod(lambda cls, count, *, seed: cls(
        *(torch.arange(1, 1 + count).numpy() * each for each in (3, 4, 5)))))
    bench = BenchRaggedCuda(
        lengths=LengthCorpus(None, ["cola"], 0), parts=["mha", "vgemm", "trmm"], batches=[4], count=1,
        products=[2], triangles=[9], timing=TIMING, device="cpu", journals=str(tmp_path / "journals"), seed=0,
        gpu=TimedGpu(tmp_path / "kernels"))
    out = tmp_path / "out"
    out.mkdir()
    metrics = bench.run(out)
    frame = pd.read_parquet(out / "per_case.parquet")
    timed = frame[frame["median"].notna()].groupby("part")["method"].agg(set).to_dict()
    assert {"sparloom", "padded", "micro_batches"} <= {name.split()[0] for name in timed["mha"]}
    assert timed["vgemm"] == {"sparloom", "loop", "padded"}
    assert timed["trmm"] == {"sparloom", "dense"}  # cuBLAS is not here
    assert metrics["mha/over_padded"] > 0
    assert json.loads((out / "device.json").read_text())["name"]
    assert not list((tmp_path / "journals").glob("*"))


@pytest.mark.slow
def test_an_encoder_layer_is_bound(tmp_path):
    inputs = PackedInputs.drawn(encoder_layer(8, 2, 6, seed=0), (2, 1), seed=1)
    peer = device_module("encoder", inputs, EmulatedGpu(tmp_path), torch.device("cpu"))
    torch.testing.assert_close(peer.packed(), reference(inputs), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(3, 1, 5), (4, 4)])
def test_attention_padded_by_itself_is_right(lengths, causal):
    inputs = PackedInputs.drawn(attention_module(16, 2, seed=0), lengths, seed=1, causal=causal)
    found = sdpa(inputs)
    for _ in range(2):
        torch.testing.assert_close(found.packed(), reference(inputs), atol=1e-5, rtol=1e-5)
