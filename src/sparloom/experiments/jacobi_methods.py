"""Two steps of Jacobi's method by us and by other libraries, ready to be timed."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sparloom.errors import Unsupported
from sparloom.fusion import separated
from sparloom.solvers import JacobiSolver, Sweeps
from sparloom.sparse import SparseMatrix

__all__ = ["PEERS", "SERIAL", "TwoSteps", "ours", "peer", "same_tiles"]

PEERS = ("mkl", "torch", "scipy")
SERIAL = ("scipy",)


@dataclass(frozen=True)
class TwoSteps:
    """Goes on by two steps at every call.

    Args:
        reached: gives the iterate (n, columns) to which the calls have come.
    """

    call: Callable[[], object]
    reached: Callable[[], np.ndarray]


def ours(solver: JacobiSolver, sweeps: Sweeps) -> TwoSteps:
    """Our own, the change from one iterate to the next included."""
    return TwoSteps(sweeps.advance, lambda: solver.numbering.given_back(sweeps.reached))


def same_tiles(solver: JacobiSolver, constant: np.ndarray) -> TwoSteps:
    """The numbering and the tiles of a fused solver with nothing fused."""
    executor, matrix = solver.plan.executor, solver.numbering.matrix
    if executor.order is not None:
        raise Unsupported("tiles in another order than that in memory: separating them needs the pattern in that order")
    unfused = replace(executor, schedule=separated(executor.schedule, matrix.pattern))
    return ours(solver, Sweeps(unfused, matrix, solver.numbering.taken(constant)))


def peer(name: str, matrix: SparseMatrix, constant: np.ndarray, *, threads: int) -> TwoSteps:
    """Another library's x -> M x + g, twice; it checks no convergence, which is in its favour.

    Args:
        matrix: M (n, n).
        constant: g (n, columns).

    Raises:
        Unsupported: the library is not installed.
    """
    return {"scipy": _scipy, "torch": _torch, "mkl": _mkl}[name](matrix, constant, threads)


def _scipy(matrix: SparseMatrix, constant: np.ndarray, threads: int) -> TwoSteps:
    """SciPy allocates every product; one thread."""
    m, state = matrix.to_scipy(), [np.zeros_like(constant)]

    def call() -> None:
        for _ in range(2):
            product = m @ state[0]
            product += constant
            state[0] = product

    return TwoSteps(call, lambda: state[0])


def _torch(matrix: SparseMatrix, constant: np.ndarray, threads: int) -> TwoSteps:
    """The product with addition, into arrays that are there."""
    import torch

    from sparloom.nn import torch_csr

    torch.set_num_threads(threads)
    m, g = torch_csr(matrix), torch.from_numpy(constant)
    x, y = torch.zeros_like(g), torch.zeros_like(g)

    def call() -> None:
        with torch.inference_mode():
            torch.addmm(g, m, x, out=y)
            torch.addmm(g, m, y, out=x)

    return TwoSteps(call, x.numpy)


def _mkl(matrix: SparseMatrix, constant: np.ndarray, threads: int) -> TwoSteps:
    """The inspector-executor routines; g is copied first, which is how they add."""
    from sparloom.experiments.mkl import mkl_spmm

    x, y = np.zeros_like(constant), np.zeros_like(constant)
    first = mkl_spmm(matrix, x, y, threads=threads, add=True)
    second = mkl_spmm(matrix, y, x, threads=threads, add=True)

    def call() -> None:
        np.copyto(y, constant)
        first()
        np.copyto(x, constant)
        second()

    return TwoSteps(call, lambda: x)
