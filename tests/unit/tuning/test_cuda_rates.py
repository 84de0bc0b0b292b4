"""Rates of an emulated GPU: timing, caching, and their use in estimates."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from emulated_gpu import EmulatedGpu
from gpu_here import on_a_gpu
from kept_files import kept_files, rewrite, text_of

from sparloom.errors import Unsupported
from sparloom.jit import cuda_text
from sparloom.ops import Operands
from sparloom.platforms import CudaDevice, Repetition
from sparloom.platforms.cuda import LaunchShape
from sparloom.space import CudaKernelSpace
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import PlanCache
from sparloom.tuning.sparse import CudaBackend, CudaEstimate, CudaRates, cuda_estimate, measure_cuda_rates
from sparloom.tuning.sparse.cuda import FAVOURED, PORTFOLIO
from sparloom.tuning.sparse.cuda_estimate import NOT_FAVOURED

pytestmark = pytest.mark.cc

TINY = replace(CudaDevice.named("h200"), name="tiny", multiprocessors=1)
SECONDS = 0.5


class TimedGpu(EmulatedGpu):
    """A device on which the first run of a call takes 2 seconds and further ones half a second."""

    repeats = 0

    def repeat(self, call):
        self.repeats += 1
        seconds = iter([2.0, *[SECONDS] * 100])

        def timed(_: float) -> Repetition:
            call()
            return Repetition(*[next(seconds)] * 2)

        return timed


@pytest.fixture(scope="module")
def gpu(tmp_path_factory) -> TimedGpu:
    return TimedGpu(tmp_path_factory.mktemp("gpu"), TINY)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(cuda_estimate, "COPIED", 1 << 12)
    monkeypatch.setattr(cuda_estimate, "STEPS", 3)


def test_timed_kernels_copy_and_multiply(gpu):
    text = cuda_text("cuda/rates.cu", {"THREADS": cuda_estimate.THREADS, "CHAINS": cuda_estimate.CHAINS})
    shape, count = LaunchShape((3, 1), cuda_estimate.THREADS), 4 * 3 * cuda_estimate.THREADS + 400
    source = gpu.upload(np.random.default_rng(0).random(count + 4, np.float32))
    result = gpu.upload(np.full(count + 4, 7, np.float32))
    gpu.kernel(text, "rates_copy")(shape, (source, result, np.int64(count)))
    np.testing.assert_array_equal(result[:count], source[:count])
    assert (result[count:] == 7).all()
    a, b, steps, chains = np.float32(0.5), np.float32(1), 5, np.arange(cuda_estimate.CHAINS, dtype=np.float32)
    gpu.kernel(text, "rates_multiply")(shape, (result, np.int32(steps), a, b))
    for _ in range(steps):
        chains = a * chains + b
    threads = 3 * cuda_estimate.THREADS
    np.testing.assert_array_equal(result[:threads], np.full(threads, chains.sum(), np.float32))
    np.testing.assert_array_equal(result[threads:count], source[threads:count])


def test_rates_are_those_of_the_fastest_runs(gpu):
    found = measure_cuda_rates(gpu)
    assert found.memory == 8 * (1 << 12) / SECONDS
    assert found.flops == 2 * cuda_estimate.CHAINS * 3 * 2048 / SECONDS


def test_rates_are_measured_once_for_a_device(gpu, tmp_path):
    place, repeats = CudaBackend(gpu), gpu.repeats
    first = place.model(PlanCache(tmp_path)).rates
    assert first == place.model(PlanCache(tmp_path)).rates == measure_cuda_rates(gpu)
    assert gpu.repeats == repeats + 4  # two when they are kept, two without asking
    other = TimedGpu(tmp_path / "other", TINY, driver=13000)
    CudaBackend(other).model(PlanCache(tmp_path))
    assert other.repeats == 2


@pytest.mark.parametrize("spoil", [lambda text: "", lambda text: text.replace("memory", "speed"),
                                   lambda text: text.replace("\"memory\": ", "\"memory\": -")])
def test_damaged_rates_are_measured_again(gpu, tmp_path, spoil, caplog):
    place, cache = CudaBackend(gpu), PlanCache(tmp_path)
    right = place.model(cache)
    (path,) = kept_files(tmp_path)
    rewrite(path, spoil(text_of(path)))
    assert place.model(cache) == right
    assert "it is decided anew" in caplog.text
    assert cache.get("rates", place.signature(), CudaRates.from_json) == right.rates


@pytest.mark.parametrize("error", [MemoryError("2 GiB"), Unsupported("no kernels")])
def test_without_a_measurement_those_of_data_sheets_are_taken(gpu, tmp_path, monkeypatch, error, caplog):
    def fail(_):
        raise error

    monkeypatch.setattr(cuda_estimate, "measure_cuda_rates", fail)
    assert CudaBackend(gpu).model(PlanCache(tmp_path)) == CudaEstimate(CudaRates.of_data_sheet(TINY), FAVOURED)
    assert not list(tmp_path.iterdir())
    assert f"rates of tiny are not measured: {error}: those of data sheets are used" in caplog.text


def operands(dtype) -> Operands:
    pattern = Pattern.from_coo(*np.nonzero(np.random.default_rng(0).random((200, 100)) < 0.2), (200, 100))
    return Operands(SparseMatrix(pattern, np.ones(pattern.nnz)), {"B": np.ones((100, 128), dtype)})


def test_estimates_follow_the_rates():
    space = CudaKernelSpace("spmm", width=128)
    one, four = (space.config(lanes=8, vector=vector) for vector in (1, 4))
    moving, computing = CudaEstimate(CudaRates(1e6, 1e20)), CudaEstimate(CudaRates(1e20, 1e6))
    loads = computing.score("spmm", operands(np.float32), [one, four])
    assert loads[1] < loads[0]  # fewer instructions
    bytes_ = {dtype: moving.score("spmm", operands(dtype), [four])[0] for dtype in (np.float32, np.float16)}
    assert bytes_[np.float16] == pytest.approx(bytes_[np.float32] * (2 * 128 + 6 * 4) / (4 * 128 + 8 * 4))
    twice = CudaEstimate(CudaRates(2e6, 1e20)).score("spmm", operands(np.float32), [four])[0]
    assert twice == pytest.approx(bytes_[np.float32] / 2)


@pytest.mark.parametrize("op", ["spmm", "spmm_mean", "sddmm", "attention"])
def test_the_estimate_prefers_kernels_that_were_fast_on_a_gpu(op):
    rates, configs = CudaRates(4e12, 6e13), list(CudaKernelSpace(op, width=64 if op == "attention" else 256))
    assert set(FAVOURED[op]) <= {config.key for config in configs}
    ratios = (CudaEstimate(rates, FAVOURED).score(op, operands(np.float32), configs)
              / CudaEstimate(rates).score(op, operands(np.float32), configs))
    assert ratios == pytest.approx([1.0 if config.key in FAVOURED[op] else NOT_FAVOURED for config in configs])


def test_the_preferred_kernels_are_those_of_the_committed_run():
    chosen = Path(__file__).parents[3] / "results" / "choose_kernels_cuda" / "portfolios.json"
    assert json.loads(chosen.read_text()) == {op: list(keys) for op, keys in PORTFOLIO.items()}


@pytest.mark.gpu
@on_a_gpu
def test_a_gpu_is_about_as_fast_as_its_data_sheet(monkeypatch):
    monkeypatch.undo()
    place = CudaBackend.here()
    found, sheet = measure_cuda_rates(place.gpu), CudaRates.of_data_sheet(place.gpu.device)
    assert 0.2 < found.memory / sheet.memory < 5
    assert 0.2 < found.flops / sheet.flops < 5
