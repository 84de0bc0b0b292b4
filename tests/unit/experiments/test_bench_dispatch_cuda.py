"""The choice of sparse kernels on an emulated GPU beside its peers, with PyTorch on the CPU."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from emulated_gpu import SharedMemory, WallClock

from sparloom.errors import Unsupported
from sparloom.experiments import BenchDispatchCuda
from sparloom.experiments.autosage import CUDA_BASELINES
from sparloom.experiments.autosage import bench_dispatch as bench_dispatch_cuda
from sparloom.experiments.autosage import cuda_cases as dispatch_device
from sparloom.measure import TimingProtocol
from sparloom.nn import CUDA_SPARSE_LIBRARIES
from sparloom.nn import tensor_backend as tensor_backends
from sparloom.nn.tensor_backend import CudaTensorBackend
from sparloom.sparse import AutosageCorpus
from sparloom.tuning import MeasurementBudget, Race
from sparloom.tuning.sparse import CsrPolicy, CudaBackend, CudaRates, cuda_estimate, tuner

pytestmark = [pytest.mark.cc, pytest.mark.filterwarnings("ignore:Sparse")]
TIMING = TimingProtocol(rounds=1, repetitions=2, short_seconds=0, most_repetitions=2, slow_factor=1e9, steal_ratio=100,
                        retakes=0, seed=0)
POLICY = CsrPolicy(least_nonzeros=100, effort=MeasurementBudget(
    candidates=3, repetitions=1, pairs=(2, 2), executions=30, seconds=60.0, short_seconds=0.0))
THERE = {"spmm": ("torch_mm",), "sddmm": ("torch_sampled_addmm", "torch_gather"), "attention": ("composed", "gathered")}


class TimedGpu(WallClock, SharedMemory):
    """Seconds of the host."""


@pytest.fixture(scope="module")
def gpu(tmp_path_factory) -> TimedGpu:
    return TimedGpu(tmp_path_factory.mktemp("gpu"))


@pytest.fixture(scope="module", autouse=True)
def _without_cupy(tmp_path_factory):
    """Run without CuPy's libraries; the second candidate wins, because the emulator is slower than any library."""
    there = {op: {name: library for name, library in libraries.items() if not name.startswith("cusparse")}
             for op, libraries in CUDA_SPARSE_LIBRARIES.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuner, "race", lambda calls, **_: Race(
            tuple((1.0 if place == 1 else 2.0,) for place in range(len(calls))), 1))
        patch.setattr("sparloom.tuning.racing.duel", lambda rivals, **_: Race(((1.0,) * 6, (2.0,) * 6), 12))
        patch.setenv("SPARLOOM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(cuda_estimate, "measure_cuda_rates", lambda gpu: CudaRates.of_data_sheet(gpu.device))  # slow here
        patch.setattr(dispatch_device, "SHORT", np.inf)
        patch.setattr(dispatch_device, "CALLS", 2)
        for module in (bench_dispatch_cuda, tensor_backends):
            patch.setattr(module, "CUDA_SPARSE_LIBRARIES", there)
        patch.setattr(dispatch_device, "CUDA_BASELINES", {
            op: {name: CUDA_BASELINES[op][name] for name in names} for op, names in THERE.items()})
        yield


def bench(folder: Path, gpu: TimedGpu | None, **changes) -> BenchDispatchCuda:
    settings = {
        "corpus": AutosageCorpus(2e-4, ["hub_skew"]), "count": None, "ops": {op: [8] for op in THERE}, "heads": 2,
        "policy": POLICY, "timing": TIMING, "memory_bytes": 1e9, "device": "cpu", "journals": str(folder / "journals"),
        "seed": 0, "gpu": gpu}
    return BenchDispatchCuda(**settings | changes)


@pytest.fixture(scope="module")
def done(gpu, tmp_path_factory) -> tuple[Path, dict[str, float]]:
    """Run the task; return its folder and its metrics."""
    out = tmp_path_factory.mktemp("out")
    return out, bench(out, gpu).run(out)


def test_every_method_is_timed_and_every_decision_reported(done):
    out, _ = done
    scored, decided = (pd.read_parquet(out / f"{name}.parquet") for name in ("per_case", "decisions"))
    for op, peers in THERE.items():
        timed = scored[(scored["op"] == op) & (scored["median"] > 0)]
        assert set(timed["method"]) >= {"sparloom", "sparloom_new", "kernel", "vec1", *peers}
    assert "failure" not in scored, scored["failure"].dropna().to_list()
    assert decided.groupby("op")["way"].agg(list).to_dict() == {op: ["first", ""] for op in THERE}
    assert (decided["origin"] == "measured").all()
    assert json.loads((out / "device.json").read_text())["name"]
    assert not list((out / "journals").glob("*"))


def test_peers_that_are_too_large_or_wrong_are_reported(gpu, tmp_path, monkeypatch):
    corpus = AutosageCorpus(2e-4, ["erdos_renyi"])
    (entry,) = corpus.entries()
    needed = 8 * 8 * 2 * entry.rows + 24 * entry.nnz  # by the case, less than two arrays (nnz, width)
    gather = CUDA_BASELINES["sddmm"]["torch_gather"]
    monkeypatch.setattr(dispatch_device, "CUDA_BASELINES", {"sddmm": {
        "torch_gather": gather, "wrong": lambda operands: lambda: gather(operands)() + 1,
        "short": lambda operands: lambda: operands.dense["B"][:, 0]}})
    bench(tmp_path, gpu, corpus=corpus, ops={"sddmm": [8]}, memory_bytes=needed).run(tmp_path)
    failures = pd.read_parquet(tmp_path / "per_case.parquet").set_index("method")["failure"].dropna()
    assert failures["torch_gather"] == "Unsupported: it makes 0.0 GiB"
    assert failures["wrong"].startswith("AssertionError: element (")
    assert failures["short"].startswith("AssertionError: shape (40,): it must be (")
    assert len(failures) == 3


def test_a_wrong_result_of_ours_leaves_the_case_out(gpu, tmp_path, monkeypatch, caplog):
    own = dispatch_device._own_calls

    def wrong(op, *given):
        calls = own(op, *given)
        return calls | {"sparloom": lambda: calls["sparloom"]() + 1} if op == "sddmm" else calls

    monkeypatch.setattr(dispatch_device, "_own_calls", wrong)
    assert bench(tmp_path, gpu, ops={"spmm": [8], "sddmm": [8]}).run(tmp_path)["left_out"] == 1
    assert "sddmm hub_skew 8 is left out: AssertionError: element (" in caplog.text
    with pytest.raises(Unsupported, match="none of 1 cases could be timed, sddmm hub_skew 8: AssertionError: element"):
        bench(tmp_path, gpu, ops={"sddmm": [8]}).run(tmp_path)
    assert not list((tmp_path / "journals").glob("*"))


@pytest.mark.parametrize("op", ["sage_training", "sage_steps"])
def test_training_of_graphsage_is_timed_beside_pytorch_geometric(gpu, tmp_path, monkeypatch, op):
    pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
    where, launched = CudaBackend(gpu), gpu.launched
    monkeypatch.setattr("sparloom.nn.pattern_cache.tensor_backend",
                        lambda device: CudaTensorBackend(device, where, lambda: 0))
    monkeypatch.setattr("sparloom.nn.core_calls._core", lambda: None)  # it would take the tensors for the processor's
    metrics = bench(tmp_path, gpu, ops={op: [8]}, policy=None).run(tmp_path)
    assert metrics[f"{op}/over_best"] > 0
    assert metrics.get("sage_training/over_pyg", 1) > 0
    assert gpu.launched > launched


def test_without_a_gpu_nothing_is_made(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(AutosageCorpus, "entries", None)
    with pytest.raises(Unsupported, match=r"no CuPy .*: pip install .*\[gpu\]\"\), on a machine with an NVIDIA GPU"):
        bench(tmp_path, None).run(tmp_path)
