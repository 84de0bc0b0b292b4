"""The pairwise ranking loss over all pairs of one matrix at once, and how well scores order times (COGNATE A.4)."""

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["order_signs", "ranking_loss", "ranking_quality"]


def order_signs(seconds: Float[Tensor, " n"], spread: Float[Tensor, " n"]) -> Float[Tensor, "n n"]:
    """Sign of t_i - t_j; 0 where they differ by no more than the larger spread, relative to the faster."""
    gap = seconds[:, None] - seconds[None, :]
    limit = torch.maximum(spread[:, None], spread[None, :]) * torch.minimum(seconds[:, None], seconds[None, :])
    return torch.where(gap.abs() > limit, gap.sign(), 0.0)


def ranking_loss(scores: Float[Tensor, " n"], signs: Float[Tensor, "n n"], *, margin: float) -> Tensor:
    """Average max(0, margin - sign(t_i - t_j) (r_i - r_j)) over ordered pairs; 0 where no pair is ordered.

    Both halves of the square are summed: they are equal, so the mean is that over i < j.
    """
    gap = (scores[:, None] - scores[None, :]) * signs
    weight = signs.abs()
    return ((margin - gap).clamp_min(0) * weight).sum() / weight.sum().clamp_min(1)


def ranking_quality(
    scores: Float[Tensor, " n"], seconds: Float[Tensor, " n"], signs: Float[Tensor, "n n"]
) -> dict[str, float]:
    """Ordered pair accuracy over the pairs in `signs`, and Kendall's tau-b over all pairs; NaN where undefined."""
    predicted = (scores[:, None] - scores[None, :]).sign()
    pairs = signs.abs().sum()
    accuracy = (1 + (predicted * signs).sum() / pairs) / 2
    truth = (seconds[:, None] - seconds[None, :]).sign()
    tau = (predicted * truth).sum() / (predicted.abs().sum() * truth.abs().sum()).sqrt()
    return {"opa": float(accuracy), "kendall_tau": float(tau)}
