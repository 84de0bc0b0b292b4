"""Sparse tensors for tests of sparloom.nn, and float64 results of dense torch."""

import re

import numpy as np
import torch

EPS, TINY = torch.finfo(torch.float32).eps, torch.finfo(torch.float32).tiny
ROWS, COLS = 40, 30


def label(value: object) -> str:
    """Name a parameter of a test alike in every process: without the addresses of functions."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def sparse_tensor(rows: int = ROWS, cols: int = COLS, *, index=torch.int64, seed: int = 0) -> torch.Tensor:
    """Make a CSR tensor with empty rows, a full row, empty columns and values in [-1, 1); it shares no memory."""
    rng = np.random.default_rng(seed)
    there = rng.random((rows, cols)) < 0.15
    there[3 % rows] = True
    there[[0, rows // 2, rows - 1]] = False
    there[:, 5 % cols] = False
    crow = torch.tensor([0, *np.cumsum(there.sum(1))], dtype=index)
    col = torch.from_numpy(np.nonzero(there)[1]).to(index)
    values = torch.from_numpy(rng.uniform(-1, 1, there.sum()).astype(np.float32))
    return torch.sparse_csr_tensor(crow, col, values, size=(rows, cols))


def dense(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32))


def places(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return row and column of every nonzero."""
    lengths = matrix.crow_indices().diff()
    return torch.repeat_interleave(torch.arange(matrix.shape[0]), lengths), matrix.col_indices().long()


def dense_spmm(matrix: torch.Tensor, values: torch.Tensor, x: torch.Tensor, reduce: str) -> torch.Tensor:
    full = values.new_zeros(matrix.shape).index_put(places(matrix), values)
    lengths = matrix.crow_indices().diff().clamp(min=1)
    return full @ x / (lengths[:, None] if reduce == "mean" else 1)


def dense_largest(matrix: torch.Tensor, values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """All products in a full array (rows, cols, width); `max` of torch passes its gradient to one of them."""
    at = places(matrix)
    there = torch.zeros(matrix.shape, dtype=bool).index_put(at, torch.tensor(True))
    full = values.new_zeros(matrix.shape).index_put(at, values)
    products = (full[:, :, None] * x).masked_fill(~there[:, :, None], -torch.inf)
    return products.max(1).values.masked_fill(~there.any(1)[:, None], 0.0)


def dense_sddmm(matrix: torch.Tensor, values: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return values * (q @ k.T)[places(matrix)]


def dense_attention(matrix: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """(rows, heads, e); rows without nonzeros are 0."""
    there = torch.zeros(matrix.shape, dtype=bool).index_put(places(matrix), torch.tensor(True))
    filled = there.any(1)
    scores = torch.einsum("ihd,jhd->hij", q[filled], k) * q.shape[2] ** -0.5
    weights = scores.masked_fill(~there[filled], -torch.inf).softmax(2)
    attended = torch.einsum("hij,jhe->ihe", weights, v)
    return q.new_zeros(matrix.shape[0], *v.shape[1:]).index_put((filled,), attended)


def with_gradients(function, given: list[torch.Tensor], seen: torch.Tensor) -> list[torch.Tensor]:
    """Return the result of a function and the gradients of its arguments; `seen` is the gradient of the result."""
    given = [tensor.detach().clone().requires_grad_() for tensor in given]
    result = function(*given)
    return [result.detach(), *torch.autograd.grad(result, given, seen)]


def assert_within(actual: torch.Tensor, exact: torch.Tensor, magnitude: torch.Tensor, *, roundings: float) -> None:
    """Check a float32 result: |actual - exact| <= roundings * (eps * magnitude + tiny), element by element.

    For sums of products that is the bound of Higham, Accuracy and Stability of Numerical Algorithms, (3.5): magnitude
    is the sum of the products' magnitudes, roundings what each product goes through at most; tiny is for underflow.
    """
    assert actual.shape == exact.shape
    assert actual.dtype == torch.float32
    excess = (actual.double() - exact).abs() - roundings * (EPS * magnitude + TINY)
    assert not actual.numel() or bool((excess <= 0).all()), f"{excess.max().item():.3e} above the bound"
