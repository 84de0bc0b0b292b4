"""How near a matrix lies to those a model has learned from."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

__all__ = ["Familiarity", "how_familiar"]


@dataclass(frozen=True)
class Familiarity:
    """How near a matrix lies to those a model has learned from.

    Args:
        nearest: the nearest training matrix.
        percentile: share of the training matrices that have a nearer one of their own, in percent.
    """

    nearest: str
    percentile: float


def how_familiar(
    point: Float[np.ndarray, " width"], anchors: Mapping[str, Float[np.ndarray, " width"]]
) -> Familiarity:
    """Compare the place of a matrix with those of the training matrices, by Euclidean distance.

    Raises:
        ValueError: there are fewer than two anchors.
    """
    if len(anchors) < 2:
        raise ValueError(f"{len(anchors)} anchors: familiarity needs the places of two training matrices")
    names, points = list(anchors), np.stack(list(anchors.values()))
    between = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(between, np.inf)
    distances = np.linalg.norm(points - point, axis=1)
    percentile = (between.min(axis=1) < distances.min()).mean() * 100
    return Familiarity(names[int(distances.argmin())], float(percentile))
