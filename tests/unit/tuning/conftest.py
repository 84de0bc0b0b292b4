"""An emulated GPU, and decisions with a known outcome."""

import pytest
from device_operands import LIBRARIES, POLICY
from emulated_gpu import EmulatedGpu

from sparloom.tuning import Race
from sparloom.tuning.sparse import CudaBackend, CudaRates, tuner


@pytest.fixture
def second_wins(monkeypatch):
    """Fake seconds with which the second candidate wins races and duels."""
    monkeypatch.setattr(tuner, "race", lambda calls, **_: Race(
        tuple((1.0 if place == 1 else 2.0,) for place in range(len(calls))), 1))
    monkeypatch.setattr("sparloom.tuning.racing.duel", lambda rivals, **_: Race(((1.0,) * 6, (2.0,) * 6), 12))


@pytest.fixture
def sheet_rates(monkeypatch):
    """Rates as measured: the emulator is far too slow for that."""
    monkeypatch.setattr("sparloom.tuning.sparse.cuda_estimate.measure_cuda_rates",
                        lambda gpu: CudaRates.of_data_sheet(gpu.device))


@pytest.fixture(scope="module")
def gpu(tmp_path_factory) -> EmulatedGpu:
    return EmulatedGpu(tmp_path_factory.mktemp("gpu"))


@pytest.fixture(scope="module")
def where(gpu) -> CudaBackend:
    return CudaBackend(gpu, LIBRARIES)


@pytest.fixture
def here(where, monkeypatch, tmp_path) -> CudaBackend:
    """Set the device that calls use, with a separate cache."""
    monkeypatch.setattr(CudaBackend, "here", lambda: where)
    monkeypatch.setattr(CudaBackend, "policy", lambda self: POLICY)
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path))
    return where
