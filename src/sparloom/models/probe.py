"""Does a network look at the matrix? Its accuracy with the embedding of each matrix, and with that of another."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sparloom.data import MatrixSamples
from sparloom.data.lightning import collate
from sparloom.models.network import Network
from sparloom.models.ranking import order_signs, ranking_quality

__all__ = ["swapped_accuracy"]


@torch.no_grad()
def swapped_accuracy(net: Network, items: Sequence[MatrixSamples]) -> dict[str, float]:
    """Order the configurations of each matrix twice: as themselves, and as if they were those of another matrix.

    The other one is half the list away. A network that learned one order for all matrices has the same accuracy twice.

    Returns:
        `opa` and `opa_swapped`, means over matrices with ordered pairs.
    """
    training = net.training
    net.eval()
    try:
        embeddings = [net.embed([item.input]) for item in items]
        shifted = [embeddings[(place + len(items) // 2) % len(items)] for place in range(len(items))]
        return {"opa": _accuracy(net, items, embeddings), "opa_swapped": _accuracy(net, items, shifted)}
    finally:
        net.train(training)


def _accuracy(net: Network, items: Sequence[MatrixSamples], embeddings: Sequence[Tensor]) -> float:
    found = []
    for item, embedding in zip(items, embeddings, strict=True):
        batch = collate((item,))
        scores = net.score(embedding.expand(len(item), -1), batch.shared, batch.heterogeneous)
        signs = order_signs(batch.seconds, batch.spread)
        found.append(ranking_quality(scores, batch.seconds, signs)["opa"])
    return float(np.nanmean(found))
