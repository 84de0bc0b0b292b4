"""Check scanpy's principal component analysis on a SparseArray, in an environment of its own.

    python tests/scanpy_pca.py [FOLDER]

Downloads scanpy; FOLDER keeps the environment.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHECK = """
from importlib.metadata import version

import anndata, numpy as np, scanpy, scipy.sparse, sparloom

rng = np.random.default_rng(0)
rates = rng.gamma(0.3, size=(400, 5)) @ rng.gamma(0.3, size=(5, 150))
counts = scipy.sparse.csr_array(np.log1p(rng.poisson(rates)).astype(np.float32))  # scanpy's log1p takes no csr_array
made = {}
for name, array in (("scipy", counts.copy()), ("sparloom", sparloom.SparseArray(counts))):
    data = anndata.AnnData(array)
    assert isinstance(data.X, sparloom.SparseArray) == (name == "sparloom"), type(data.X)
    scanpy.pp.pca(data, n_comps=5, random_state=0)
    made[name] = data
variances = [each.uns["pca"]["variance"] for each in made.values()]
np.testing.assert_allclose(*variances, rtol=1e-4)
np.testing.assert_allclose(*(np.abs(each.obsm["X_pca"]) for each in made.values()), atol=1e-3)
print("scanpy", version("scanpy"), "computes the same components:", variances[1])
"""


def main(folder: Path) -> int:
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", str(ROOT), "scanpy"], check=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([str(python), "-c", CHECK], env=environment, check=False).returncode


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main(Path(sys.argv[1])))
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(main(Path(temporary)))
