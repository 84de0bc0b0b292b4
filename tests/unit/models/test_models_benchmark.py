"""The benchmark reports what it says; how fast the featurizer is, in processor time beside a matrix product."""

import pytest

from sparloom.models import TorchBackend, benchmark_featurizer, retain_memory

PAPER = (32, 32, 64, 64, 64, 128, 128, 128, 256, 256, 256, 256)


def test_benchmark_reports_every_pattern() -> None:
    found = benchmark_featurizer(channels=(4,) * 12, backend=TorchBackend(), sites=64, repetitions=1, threads=1)
    assert {name.split("/")[0] for name in found if "/" in name} == {"banded", "scattered", "power"}
    assert found["sgemm_share"] == min(found[f"{name}/sgemm_share"] for name in ("banded", "scattered", "power"))
    assert 0 < found["banded/sites"] <= 64


def test_advice_to_the_allocator_can_be_given_twice() -> None:
    assert retain_memory() == retain_memory()


@pytest.mark.slow
def test_featurizer_reaches_over_half_of_the_matrix_product() -> None:
    """One thread and processor time, so that other programs disturb little; the bar of 0.55 has its own experiment."""
    found = benchmark_featurizer(channels=PAPER, backend=TorchBackend(), sites=4096, repetitions=6, threads=1)
    assert min(found[f"{name}/sgemm_share_cpu"] for name in ("banded", "scattered", "power")) > 0.45
