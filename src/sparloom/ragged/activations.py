"""How much the forward pass of an encoder layer keeps for the backward one: padded against ragged.

Source: CoRa §7.2 (memory consumption). Its list of tensors is lost; we count what its kernels write. Sequences that are
shorter than the multiple of their storage take more than padded ones: CoLA with the paper's 64.
"""

from dataclasses import dataclass

import numpy as np

from sparloom.ragged.encoder_flops import EncoderSizes, all_padded, rounded_up

__all__ = ["StoragePadding", "dense_activations", "ragged_activations"]


@dataclass(frozen=True)
class StoragePadding:
    """Multiples to which ragged storage is padded; defaults are the paper's.

    Args:
        sequence: tokens of a sequence in queries, keys, values and what the heads found.
        scores: rows and columns of a sequence's scores and probabilities.
        tokens: of a batch, elsewhere.
    """

    sequence: int = 64
    scores: int = 64
    tokens: int = 1


def dense_activations(lengths: np.ndarray, sizes: EncoderSizes, *, padded: int | None = None) -> dict[str, int]:
    """Count elements with all sequences padded to one length; keys as by `ragged_activations`.

    Args:
        padded: that length; None: the longest of the batch.
    """
    return ragged_activations(all_padded(lengths, padded), sizes, StoragePadding(1, 1, 1))


def ragged_activations(lengths: np.ndarray, sizes: EncoderSizes, padding: StoragePadding) -> dict[str, int]:
    """Count elements of what the nine kernels write; the layer's input is what another layer wrote.

    Returns:
        By tensor: qkv (queries, keys and values), scores, probabilities (after the softmax), attention (what the heads
        found), projection (with the residual), norm1, ff1 (after ReLU), ff2 (with the residual), norm2.
    """
    tokens = int(rounded_up(lengths.sum(), padding.tokens)) * sizes.width
    padded = int(rounded_up(lengths, padding.sequence).sum()) * sizes.width
    scores = int((rounded_up(lengths, padding.scores) ** 2).sum()) * sizes.heads
    return {
        "qkv": 3 * padded, "scores": scores, "probabilities": scores, "attention": padded, "projection": tokens,
        "norm1": tokens, "ff1": tokens // sizes.width * sizes.feedforward, "ff2": tokens, "norm2": tokens,
    }
