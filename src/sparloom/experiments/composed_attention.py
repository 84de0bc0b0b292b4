"""Attention on a sparse pattern composed of operations of torch, on the device of the tensors.

Calls give (rows, heads, columns of V's heads) for Q (rows, heads, d), K (cols, heads, d) and V by these names.
"""

from collections.abc import Callable, Mapping

import torch

__all__ = ["gathered_attention", "sampled_attention"]

Call = Callable[[], torch.Tensor]


def sampled_attention(matrix: torch.Tensor, rows: torch.Tensor, dense: Mapping[str, torch.Tensor]) -> Call:
    """Per head: sampled_addmm, a softmax over the rows, torch.mm with a CSR tensor.

    Args:
        matrix: CSR tensor (rows, cols), its values are not read.
        rows: (nnz,) int64, of every nonzero.
    """
    queries, keys, values = (dense[name].unbind(1) for name in ("Q", "K", "V"))
    places, scale = (matrix.crow_indices(), matrix.col_indices()), queries[0].shape[1] ** -0.5

    def head(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        scores = torch.sparse.sampled_addmm(matrix, query, key.T, beta=0, alpha=scale).values()
        weights = _row_softmax(scores, rows, matrix.shape[0])
        return torch.sparse_csr_tensor(*places, weights, size=matrix.shape) @ value

    return lambda: torch.stack([head(*each) for each in zip(queries, keys, values, strict=True)], 1)


def gathered_attention(rows: torch.Tensor, columns: torch.Tensor, dense: Mapping[str, torch.Tensor]) -> Call:
    """All heads at once: rows of every nonzero gathered, a softmax over the rows, additions by index.

    Args:
        rows, columns: (nnz,) int64, of every nonzero.
    """
    queries, keys, values = (dense[name] for name in ("Q", "K", "V"))
    count = queries.shape[0]

    def call() -> torch.Tensor:
        scores = (queries.index_select(0, rows) * keys.index_select(0, columns)).sum(2) * queries.shape[2] ** -0.5
        weights = _row_softmax(scores, rows, count)
        sent = weights[:, :, None] * values.index_select(0, columns)
        return values.new_zeros(count, *values.shape[1:]).index_add_(0, rows, sent)

    return call


def _row_softmax(scores: torch.Tensor, rows: torch.Tensor, count: int) -> torch.Tensor:
    """Softmax of the scores of each row, as PyTorch Geometric has it."""
    index = rows if scores.dim() == 1 else rows[:, None].expand_as(scores)
    peaks = scores.new_full((count, *scores.shape[1:]), -torch.inf).scatter_reduce_(0, index, scores, "amax")
    weights = (scores - peaks.index_select(0, rows)).exp_()
    totals = scores.new_zeros((count, *scores.shape[1:])).index_add_(0, rows, weights)
    return weights / totals.index_select(0, rows)
