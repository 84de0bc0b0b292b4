"""Fixtures shared by all tests."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Workers share the cores. Threads of one that wait, spinning, for those that another keeps from running take three
# times as long; processes that tests start inherit this. Those of libgomp, which reads it when
# torch or a kernel is loaded, do not spin at all.
os.environ.setdefault("GOMP_SPINCOUNT", "0")
# Numba counts processors when it is loaded, which may be while a test pins this process to one.
os.environ.setdefault("NUMBA_NUM_THREADS", str(len(os.sched_getaffinity(0))))
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    share = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, share)))

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every process that tests start compiles all modules again

settings.register_profile("sparloom", deadline=None)  # how long an example takes is up to the machine
settings.load_profile("sparloom")

pytest_plugins = ["compiler_plugin", "file_order", "golden_plugin", "kernel_cache", "parsed_once"]


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while modules are loaded, and later seldom, and never what was loaded: most of it stays."""
    gc.disable()
    yield
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


@pytest.fixture(scope="session")
def run_command() -> list[str]:
    return [sys.executable, str(Path(__file__).parents[1] / "run.py")]


@pytest.fixture(scope="module")
def processes_loaded() -> Iterator[None]:
    """Processes that a module's tests spawn have loaded their modules."""
    from warm_pool import warm_processes

    with warm_processes():
        yield


@pytest.fixture(scope="session")
def mirror() -> str:
    """Return the address of a mirror of real matrices; skip, naming the option, if there is none."""
    given = os.environ.get("SPARLOOM_MIRROR")
    if given:
        return given
    beside = Path(__file__).resolve().parents[2] / "shared" / "matrices"
    if beside.is_dir():
        return str(beside)
    pytest.skip("no real matrices: set SPARLOOM_MIRROR to a folder or URL in SuiteSparse layout")


@pytest.fixture(scope="session")
def seqlens() -> Path:
    """Return the folder of the real sequence lengths of eight data sets; skip, naming the option, if there is none."""
    given = os.environ.get("SPARLOOM_SEQLENS")
    folder = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data" / "seqlens"
    if folder.is_dir():
        return folder
    pytest.skip("no real sequence lengths: set SPARLOOM_SEQLENS to a folder of NAME.txt.gz")
