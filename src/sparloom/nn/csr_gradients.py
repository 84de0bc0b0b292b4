"""Gradients of attention on a sparse pattern, head by head: of the scores, one value per edge is in memory at once.

All of it is float32, whatever the type of operands and gradients.
"""

import torch

from sparloom.nn.directions import Directions

__all__ = ["attention_gradients"]

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def attention_gradients(
    edges: Directions, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, result: torch.Tensor,
    grad: torch.Tensor,
) -> Three:
    """Compute the gradients of Q (rows, heads, d), K (cols, heads, d) and V (cols, heads, e).

    Args:
        result: O (rows, heads, e), what attention gave.
        grad: dO, likewise.
    """
    given = (queries, keys, values)
    gradients = tuple(tensor.new_zeros(tensor.shape) for tensor in given)
    for head in range(queries.shape[1] if edges.pattern.nnz else 0):
        parts = _head(edges, *(tensor[:, head].float() for tensor in (*given, result, grad)))
        for gradient, part in zip(gradients, parts, strict=True):
            gradient[:, head] = part
    return gradients


def _head(edges: Directions, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, do: torch.Tensor
          ) -> Three:
    """Compute dQ, dK, dV of one head.

        P = softmax(Q KT / sqrt(d));  dV = PT dO;  dP = dO VT;  dS = P * (dP - rowsum(dO * O)) / sqrt(d)
        dQ = dS K;  dK = dST Q
    """
    scale = q.shape[1] ** -0.5
    weights = _softmax(edges, edges.sddmm(None, q, k).mul_(scale))
    slopes = edges.sddmm(None, do, v).sub_(_spread(edges, (do * o).sum(1))).mul_(weights).mul_(scale)
    return edges.spmm(slopes, k), edges.spmm_transposed(slopes, q), edges.spmm_transposed(weights, do)


def _softmax(edges: Directions, scores: torch.Tensor) -> torch.Tensor:
    """Make scores (nnz,) weights that add up to 1 in every row, in place."""
    scores.sub_(_spread(edges, torch.segment_reduce(scores, "max", offsets=edges.offsets))).exp_()
    return scores.div_(_spread(edges, torch.segment_reduce(scores, "sum", offsets=edges.offsets)))


def _spread(edges: Directions, of_rows: torch.Tensor) -> torch.Tensor:
    """Give every nonzero what its row has, (nnz,)."""
    return of_rows.index_select(0, edges.rows)
