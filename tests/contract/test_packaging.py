"""Wheel, sdist and checkout, built and installed as users do.

A wheel runs products, a layer and a ragged program without the checkout; an installed checkout has compiled what the
first product needs.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import sparloom

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import numpy as np, scipy.sparse, sys
import sparloom

A = scipy.sparse.random(300, 200, 0.05, format="csr", dtype=np.float32, random_state=0)
x = np.random.default_rng(0).standard_normal((200, 16), np.float32)
q = np.random.default_rng(1).standard_normal((300, 16), np.float32)
assert np.allclose(sparloom.spmm(A, x), A @ x, atol=1e-4)
expected = A.data * np.einsum("nw,nw->n", q[np.repeat(np.arange(300), np.diff(A.indptr))], x[A.indices])
assert np.allclose(sparloom.sddmm(A, q, x), expected, atol=1e-4)
assert not {"torch", "hydra", "rich", "pandas", "yaml"} & sys.modules.keys()

from sparloom.ragged import Executable, Length, Structure, Tensor, compute, dims, parallel, fuse, program, sum_over
batch, row, inner, out = dims("batch row inner out")
batches = Length("batches")
lengths = Length("lengths", {batch: batches()})
a = Tensor("a", {batch: batches(), row: lengths(batch), inner: 8})
w = Tensor("w", {inner: 8, out: 4})
y = compute("y", {batch: batches(), row: lengths(batch), out: 4},
            sum_over({inner: 8}, a[batch, row, inner] * w[inner, out]))
run = Executable(parallel(fuse(program("linear", [y]), "y", "batch", "row"), "y", "batch_row"))
rows, weights = np.ones((15, 8), np.float32), np.ones((8, 4), np.float32)
assert np.allclose(run(Structure({lengths: [7, 3, 5]}), a=rows, w=weights), 8)

import torch
from sparloom.nn import SAGEConv
edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
layer = SAGEConv(16, 8)
layer(torch.ones(4, 16), edges).sum().backward()
assert all(p.grad is not None for p in layer.parameters())
assert not {"hydra", "rich", "pandas", "lightning", "sklearn", "lightgbm"} & sys.modules.keys()
print(sparloom.__version__, sparloom.__file__)
"""

FIRST = """
import numpy as np, scipy.sparse, sys, time
import sparloom
A = scipy.sparse.random(1000, 1000, 0.01, format="csr", dtype=np.float32, random_state=0)
x = np.ones((1000, 32), np.float32)
began = time.perf_counter()
y = sparloom.spmm(A, x)
print(f"the first spmm takes {time.perf_counter() - began:.2f} s")
assert np.allclose(y, A @ x, atol=1e-4) and np.allclose(sparloom.spmm(A, x), y)
from sparloom.platforms.cpu_kernels import native_core
core = native_core()
assert core.counts()["fresh"] == 2 if sys.argv[1:] == ["core"] else core is None
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """sdist of this checkout, and the wheel that it makes, without kernels."""
    folder = tmp_path_factory.mktemp("dist")
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "SPARLOOM_PREBUILD": "0"}
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """Python of an environment with the wheel."""
    return install(tmp_path_factory.mktemp("installed"), built[1])


@pytest.fixture
def checkout(tmp_path):
    """A copy of the checkout in which nothing is compiled."""
    folder = tmp_path / "checkout"
    compiled = shutil.ignore_patterns("__pycache__", "local", "*.egg-info", "_native*", "_prebuilt")
    for name in ("src", "kernels", "conf"):
        shutil.copytree(ROOT / name, folder / name, ignore=compiled)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CITATION.cff", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    return folder


def install(home, *what, **environment):
    """Install something in a new environment, whose libraries are those of this one; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    packages = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (packages / "libraries.pth").write_text(f"{Path(np.__file__).parents[1]}\n", encoding="utf-8")
    done = run_away(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps",
                    "--no-build-isolation", "--disable-pip-version-check", *what, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return python


def run_away(*arguments, folder="/", **environment):
    """Run a command of the environment in a folder that is no checkout."""
    without = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPARLOOM_ROOT")}
    return subprocess.run([str(word) for word in arguments], cwd=folder, env={**without, **environment},
                          capture_output=True, text=True, check=False)


def test_the_wheel_has_kernels_configurations_and_one_version(built):
    names = zipfile.ZipFile(built[1]).namelist()
    for folder, pattern in (("kernels", "*.*"), ("conf", "*.yaml")):
        files = [path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob(pattern) if path.is_file()]
        assert {f"sparloom/_{folder}/{path}" for path in files if path.parts[0] != "local"} <= {*names}
    assert not [name for name in names if "/_conf/local/" in name or name.startswith(("tests/", "kernels/", "conf/"))]
    tag = "cp311-abi3-manylinux_" if "sparloom/_native.abi3.so" in names else "py3-none-any."
    assert built[1].name.startswith(f"sparloom-{sparloom.__version__}-{tag}")
    assert not [name for name in names if name.startswith("sparloom/_prebuilt/")]


def test_the_sdist_has_what_the_wheel_is_built_from(built):
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"setup.py", "pyproject.toml", "LICENSE", "README.md", "kernels/cpu/spmm.cpp", "kernels/native/calls.hpp",
            "conf/config.yaml"} <= names
    assert not [name for name in names if name.endswith(".so")]


@pytest.mark.cc
def test_products_a_layer_and_a_ragged_program_run_from_the_root_folder(installed):
    done = run_away(installed, "-W", "error", "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    assert str(installed.parents[1]) in done.stdout


def test_the_command_lists_experiments_and_says_what_needs_a_checkout(installed, tmp_path):
    listed = run_away(installed.with_name("sparloom"), folder=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "finetune_spade" in listed.stdout
    done = run_away(installed, "-m", "sparloom", "experiment=finetune_spade", "logger=none", folder=tmp_path)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert "SPARLOOM_ROOT" in errors[0]
    assert (tmp_path / "outputs" / "finetune_spade").is_dir()


def test_the_command_names_the_extra_that_it_needs(installed, tmp_path):
    block = "import sys; sys.modules['hydra'] = None; import runpy; runpy.run_module('sparloom', run_name='__main__')"
    done = run_away(installed, "-c", block, folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr == ("error: hydra is not installed, which experiments need: pip install "
                           "'sparloom[experiments]' (in a checkout: pip install -e \".[experiments]\")\n")


@pytest.mark.cc
def test_an_installed_checkout_has_compiled_what_the_first_product_needs(checkout, tmp_path):
    package = checkout / "src" / "sparloom"
    with suppress(FileNotFoundError):  # what is there is not compiled again
        shutil.copytree(ROOT / "src" / "sparloom" / "_prebuilt", package / "_prebuilt",
                        ignore=shutil.ignore_patterns("cpu_watch*"))
    python = install(tmp_path / "home", "-e", checkout)
    assert list(package.glob("_prebuilt/*/cpu_watch*"))
    done = run_away(python, "-W", "error", "-c", FIRST, "core", PATH="/nowhere", SPARLOOM_CACHE=str(tmp_path / "cache"))
    assert (done.returncode, done.stderr) == (0, "")
    sys.stdout.write(done.stdout)
    assert not list(tmp_path.glob("cache/**/*.so"))


def test_a_checkout_is_installed_without_a_compiler_and_computes(checkout, tmp_path):
    bare = {"PATH": "/nowhere", "CXX": "", "SPARLOOM_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    python = install(tmp_path / "home", "-e", checkout, **bare)
    assert not list(checkout.rglob("*.so"))
    done = run_away(python, "-W", "error", "-c", FIRST, **bare)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("run in SciPy") == done.stderr.count("apt-get install g++") == 1
