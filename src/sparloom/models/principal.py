"""A linear latent encoder: principal components of the codes (COGNATE figure 9)."""

import numpy as np
import torch
from jaxtyping import Float

from sparloom.models.encoder import FrozenEncoder, standard

__all__ = ["PrincipalComponents"]


class PrincipalComponents:
    """Turn standardised codes onto their principal axes, largest variance first; zeros fill the rest of the vector.

    A platform has fewer codes than a latent vector has places, so nothing is lost and this is a rotation. Each axis
    points to where its largest entry is positive. Axes of equal variance are any basis of their plane.

    Args:
        width: of the latent vector; axes beyond it are dropped.
    """

    def __init__(self, *, width: int) -> None:
        self.width = width

    def fit(self, codes: Float[np.ndarray, "n h"], *, platform: str, seed: int) -> FrozenEncoder:
        """Decompose every distinct code of the platform; nothing depends on the seed."""
        mean, deviation = standard(codes)
        x = (np.asarray(codes, np.float64) - mean.numpy()) / deviation.numpy()
        _, _, axes = np.linalg.svd(x, full_matrices=False)
        axes = axes[:self.width]
        largest = np.take_along_axis(axes, np.abs(axes).argmax(1, keepdims=True), axis=1)
        weight = torch.zeros(self.width, codes.shape[1])
        weight[:len(axes)] = torch.from_numpy(axes * np.sign(largest)).float()
        return FrozenEncoder(mean, deviation, ((weight, torch.zeros(self.width)),))
