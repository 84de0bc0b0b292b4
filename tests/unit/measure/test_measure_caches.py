"""Fast memory per thread, as the system describes it."""

from pathlib import Path

import pytest

from sparloom.measure import cache_bytes_per_core, cache_capacities


def _describe(folder: Path, *caches: tuple[str, str, str], siblings: str) -> Path:
    (folder / "topology").mkdir()
    (folder / "topology" / "thread_siblings_list").write_text(f"{siblings}\n")
    for number, values in enumerate(caches):
        place = folder / "cache" / f"index{number}"
        place.mkdir(parents=True)
        for name, value in zip(("type", "size", "shared_cpu_list"), values, strict=True):
            (place / name).write_text(f"{value}\n")
    return folder


@pytest.mark.parametrize(("siblings", "shared"), [("0", "0-3"), ("0,4", "0-7"), ("0-1", "0-7")])
def test_a_cache_is_divided_among_the_cores_that_share_it(tmp_path, siblings, shared):
    caches = [("Data", "32K", siblings), ("Instruction", "64K", siblings), ("Unified", "1M", siblings),
              ("Unified", "32768K", shared)]
    assert cache_bytes_per_core(_describe(tmp_path, *caches, siblings=siblings)) == (32 << 10) + (1 << 20) + (8 << 20)


def test_unknown_caches_have_a_default_size(tmp_path):
    assert cache_bytes_per_core(tmp_path) == 2 << 20


def test_a_thread_finds_whole_caches_and_many_threads_find_several_of_the_last(tmp_path):
    caches = [("Data", "32K", "0"), ("Unified", "1M", "0"), ("Unified", "8M", "0-3")]
    described = _describe(tmp_path, *caches, siblings="0")
    for number, level in enumerate("123"):
        (described / "cache" / f"index{number}" / "level").write_text(level)
    assert cache_capacities(1, described) == {1: 32 << 10, 2: 1 << 20, 3: 8 << 20}
    assert cache_capacities(4, described)[3] == 8 << 20
    assert cache_capacities(16, described)[3] == 32 << 20
