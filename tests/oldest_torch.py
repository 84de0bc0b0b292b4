"""Run the tests of layers with the oldest supported PyTorch, in an environment of its own.

    python tests/oldest_torch.py [FOLDER] [PYTEST ARGUMENT ...]

Downloads some gigabytes, because PyPI has PyTorch for Linux with CUDA only; FOLDER keeps the environment.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = "2.6.0"
PACKAGES = ("numpy", "scipy", "jaxtyping", "filelock", "sympy", "pytest", "pytest-timeout", "hypothesis",
            "torch-geometric")
TESTS = ("test_aggregating_layers.py", "test_gcn_conv.py", "test_gcn_conv_pyg.py", "test_nn_sparse.py",
         "test_nn_max.py", "test_transformer.py", "test_token_layers.py", "test_compiled.py", "test_transforms.py")


def main(folder: Path, arguments: list[str]) -> int:
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", f"torch=={VERSION}", *PACKAGES], check=True)
    tests = [str(ROOT / "tests" / "unit" / "nn" / name) for name in TESTS]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}"}
    return subprocess.run([str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, *arguments], cwd=ROOT,
                          env=environment, check=False).returncode


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(main(Path(temporary), []))
