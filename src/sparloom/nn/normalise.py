"""The matrix by which a graph convolution multiplies: self-loops and symmetric normalisation."""

from dataclasses import dataclass, replace

import torch

from sparloom.nn.edges import Edges

__all__ = ["Normalisation", "normalised"]


@dataclass(frozen=True)
class Normalisation:
    """What becomes of an adjacency matrix A.

    Args:
        self_loop: c, weight of the self-loop that nodes get; 0: none is added.
        symmetric: rows and columns are divided by the square root of the sum of their node's row.
    """

    self_loop: float
    symmetric: bool


def normalised(edges: Edges, normalisation: Normalisation, dtype: torch.dtype) -> Edges:
    """Compute D^-1/2 (A + c I) D^-1/2, D being the row sums of A + c I.

    Weights keep their gradient. A node whose row sums to 0 gets zeros.

    Source: Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks, equation 2. As in
    PyTorch Geometric, a self-loop in a list of edges keeps its weight and is the only one of its node (the last, where
    there are several), while one in a sparse matrix is added to.
    """
    weights = torch.ones(edges.rows.numel(), dtype=dtype) if edges.weights is None else edges.weights.to(dtype)
    edges = replace(edges, weights=weights)
    if normalisation.self_loop:
        edges = _looped(edges, normalisation.self_loop)
    if not normalisation.symmetric:
        return edges
    degrees = torch.zeros(edges.nodes, dtype=dtype).index_add(0, edges.rows, edges.weights)
    scale = degrees.pow(-0.5)
    scale = scale.masked_fill(scale == torch.inf, 0)
    return replace(edges, weights=scale.index_select(0, edges.rows) * edges.weights * scale.index_select(0, edges.cols))


def _looped(edges: Edges, self_loop: float) -> Edges:
    """Give every node its self-loop, after all other edges."""
    nodes = torch.arange(edges.nodes)
    loops = edges.weights.new_full((edges.nodes,), self_loop)
    if edges.compressed:
        rows, cols, weights = edges.rows, edges.cols, edges.weights
    else:
        other = edges.rows != edges.cols
        loops = loops.index_put((edges.rows[~other],), edges.weights[~other])
        rows, cols, weights = edges.rows[other], edges.cols[other], edges.weights[other]
    return replace(edges, rows=torch.cat([rows, nodes]), cols=torch.cat([cols, nodes]),
                   weights=torch.cat([weights, loops]))
