"""Bind DGL's kernels, which need another version of PyTorch than ours, in a process of their own environment.

    python3.11 -m venv dgl
    dgl/bin/pip install torch==2.2.1 dgl==2.1.0 "numpy<2" torchdata==0.7.1 pandas pydantic pyyaml
    SPARLOOM_DGL_PYTHON=dgl/bin/python python run.py experiment=bench_dispatch

This file is also the program of that process, so it imports nothing but NumPy and the standard library. Operands and
results lie in files that both processes map. A call is a byte to the process and one back, which takes some tens of
microseconds; so products that take less than `LEAST_SECONDS` are left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from sparloom.ops import Operands

VARIABLE = "SPARLOOM_DGL_PYTHON"
LEAST_SECONDS = 0.5e-3
RUN, DONE = b"r", b"d"
WARM_UPS = 3
SHOWN_BYTES = 1 << 16  # at the end of what a process that failed has printed, in which its error is looked for


def dgl_spmm(operands: Operands, threads: int) -> Callable[[], np.ndarray]:
    """Bind dgl.ops.u_mul_e_sum on a block with A's columns as sources and its rows as destinations.

    Raises:
        Unsupported: SPARLOOM_DGL_PYTHON does not name a Python with DGL, or the product is too short.
    """
    return _bind("spmm", operands, {"x": operands.dense["B"]},
                 (operands.matrix.pattern.rows, operands.dense["B"].shape[1]), threads)


def dgl_sddmm(operands: Operands, threads: int) -> Callable[[], np.ndarray]:
    """Bind dgl.ops.u_dot_v; A's values must be 1.

    Raises:
        Unsupported: as by `dgl_spmm`.
    """
    return _bind("sddmm", operands, {"q": operands.dense["B"], "k": operands.dense["C"]},
                 (operands.matrix.pattern.nnz,), threads)


def _bind(
    op: str, operands: Operands, dense: Mapping[str, np.ndarray], shape: tuple[int, ...], threads: int,
) -> Callable[[], np.ndarray]:
    from sparloom.errors import Unsupported

    python = os.environ.get(VARIABLE)
    if not python:
        raise Unsupported(f"{VARIABLE} names no Python with DGL, see sparloom/baselines/dgl_process.py")
    pattern = operands.matrix.pattern
    arrays = {"indptr": pattern.indptr, "indices": pattern.indices, "values": operands.matrix.values, **dense}
    problem = {"op": op, "rows": pattern.rows, "cols": pattern.cols, "threads": threads}
    process = _Process(python, problem, arrays, shape)
    process.run()
    if process.seconds < LEAST_SECONDS:
        process.close()
        raise Unsupported(f"a product by DGL takes {1e3 * process.seconds:.2f} ms, too little beside a call of its "
                          "process")
    return process.run


class _Process:
    """A process that computes one product again and again.

    Args:
        problem: what it computes.
        shape: of the result, which has the type of the values.
    """

    def __init__(
        self, python: str, problem: Mapping[str, Any], arrays: Mapping[str, np.ndarray], shape: tuple[int, ...],
    ) -> None:
        from sparloom.errors import Unsupported

        self._folder = tempfile.TemporaryDirectory(prefix="sparloom_dgl_")
        folder = Path(self._folder.name)
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)
        np.save(folder / "result.npy", np.zeros(shape, arrays["values"].dtype))
        (folder / "problem.json").write_text(json.dumps(problem))
        with (folder / "errors.txt").open("wb") as errors:  # a pipe would hold it up once 64 KB are in it
            self._child = subprocess.Popen([python, str(Path(__file__).resolve()), str(folder)], stdin=subprocess.PIPE,
                                           stdout=subprocess.PIPE, stderr=errors, bufsize=0, cwd=folder)
        self.close = weakref.finalize(self, _end, self._child, self._folder)
        self._result = np.load(folder / "result.npy", mmap_mode="r")
        found = self._child.stdout.readline()
        if not found:
            self._child.wait()
            printed = (folder / "errors.txt").read_bytes()[-SHOWN_BYTES:].decode(errors="replace")
            lines = printed.strip().splitlines() or ["it ended"]
            self.close()
            error = next((line for line in reversed(lines) if "Error" in line), lines[-1])
            raise Unsupported(f"{python} does not compute with DGL: {error}")
        self.seconds = float(found)

    def run(self) -> np.ndarray:
        """Compute; the result lies in memory that the next call overwrites.

        Raises:
            RuntimeError: the process has ended.
        """
        self._child.stdin.write(RUN)
        if self._child.stdout.read(1) != DONE:
            raise RuntimeError(f"the process with DGL has ended with code {self._child.wait()}")
        return self._result


def _end(child: subprocess.Popen, folder: tempfile.TemporaryDirectory) -> None:
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        stream.close()
    folder.cleanup()


def serve(folder: Path) -> None:
    """Load a problem, print the seconds of a product, then compute it once for every byte of standard input."""
    import dgl
    import torch

    problem = json.loads((folder / "problem.json").read_text())
    torch.set_num_threads(problem["threads"])
    arrays = {path.stem: np.load(path, mmap_mode="r+" if path.stem == "result" else None)
              for path in folder.glob("*.npy")}
    indptr, indices = (torch.from_numpy(arrays[name].astype(np.int32)) for name in ("indptr", "indices"))
    block = dgl.create_block(("csc", (indptr, indices, [])), problem["cols"], problem["rows"])
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items() if name not in ("indptr", "indices")}
    if problem["op"] == "spmm":
        weights = tensors["values"][:, None]

        def product() -> torch.Tensor:
            return dgl.ops.u_mul_e_sum(block, tensors["x"], weights)
    else:

        def product() -> torch.Tensor:
            return dgl.ops.u_dot_v(block, tensors["k"], tensors["q"])[:, 0]

    with torch.inference_mode():
        seconds = []
        for _ in range(WARM_UPS):
            start = time.perf_counter()
            made = product()
            seconds.append(time.perf_counter() - start)
        tensors["result"].copy_(made)
        sys.stdout.write(f"{min(seconds)}\n")
        sys.stdout.flush()
        while os.read(0, 1) == RUN:
            product()
            os.write(1, DONE)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
