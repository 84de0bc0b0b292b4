"""How much an encoder layer computes on a batch: without padding, with a little of it, with all of it.

Counted as in the paper: a multiplication with its addition is one operation, an element of a softmax is 5, of a layer
norm 4; biases, residuals and ReLU are one each.

Source: CoRa §7.4, Figures 2 and 22; `intro_study/flops.py` of its benchmarks.
"""

from dataclasses import dataclass

import numpy as np

__all__ = [
    "EncoderSizes", "LoopPadding", "all_padded", "dense_flops", "partial_flops", "ragged_flops", "rounded_up",
    "with_bulk_sequence",
]


@dataclass(frozen=True)
class EncoderSizes:
    """Extents that are the same for all batches; defaults are the paper's.

    Args:
        head: width of a head.
    """

    heads: int = 8
    head: int = 64
    feedforward: int = 2048

    @property
    def width(self) -> int:
        """Features of a token."""
        return self.heads * self.head


@dataclass(frozen=True)
class LoopPadding:
    """Multiples to which loops are padded; defaults are the paper's on its GPU.

    Args:
        tokens: the loop over all tokens, in all kernels but the attention's.
        scores, softmax, values: rows and columns of a sequence's matrix; those of `values` are its reduction.
    """

    tokens: int = 64
    scores: tuple[int, int] = (64, 64)
    softmax: tuple[int, int] = (1, 32)
    values: tuple[int, int] = (64, 16)


UNPADDED = LoopPadding(1, (1, 1), (1, 1), (1, 1))


def dense_flops(lengths: np.ndarray, sizes: EncoderSizes, *, padded: int | None = None) -> dict[str, int]:
    """Count with all sequences padded to one length; keys as by `partial_flops`.

    Args:
        padded: that length; None: the longest of the batch.
    """
    return ragged_flops(all_padded(lengths, padded), sizes)


def ragged_flops(lengths: np.ndarray, sizes: EncoderSizes) -> dict[str, int]:
    """Count what has to be computed; keys as by `partial_flops`."""
    return partial_flops(lengths, sizes, UNPADDED)


def partial_flops(lengths: np.ndarray, sizes: EncoderSizes, padding: LoopPadding) -> dict[str, int]:
    """Count what loops with partial padding compute.

    The paper's own count takes `with_bulk_sequence(lengths, 64)`: what is added goes through the attention, too.

    Args:
        lengths: (sequences,) integers.

    Returns:
        By kernel: qkv, scores, softmax, values, projection, norm1, ff1, ff2, norm2.
    """
    tokens, width, forward = int(rounded_up(lengths.sum(), padding.tokens)), sizes.width, sizes.feedforward
    return {
        "qkv": 3 * tokens * width * (width + 1),
        "scores": sizes.width * _areas(lengths, padding.scores),
        "softmax": 5 * sizes.heads * _areas(lengths, padding.softmax),
        "values": sizes.width * _areas(lengths, padding.values),
        "projection": tokens * width * (width + 1),
        "norm1": 4 * tokens * width,
        "ff1": tokens * forward * (width + 2),
        "ff2": tokens * width * (forward + 1),
        "norm2": 4 * tokens * width,
    }


def with_bulk_sequence(lengths: np.ndarray, multiple: int) -> np.ndarray:
    """Append a sequence that makes the sum a multiple: of 1 to `multiple` tokens, as the paper's programs do.

    Source: CoRa §7.2 (bulk padding). Where the sum is a multiple already, they add a whole one.
    """
    return np.append(lengths, multiple - lengths.sum() % multiple)


def rounded_up(values: np.ndarray, multiple: int) -> np.ndarray:
    """Round to multiples from above."""
    return -(-np.asarray(values, dtype=np.int64) // multiple) * multiple


def all_padded(lengths: np.ndarray, padded: int | None) -> np.ndarray:
    """Give every sequence the same length, the longest unless another is given.

    Raises:
        ValueError: a sequence is longer.
    """
    longest = int(lengths.max())
    if padded is not None and padded < longest:
        raise ValueError(f"sequences padded to {padded}: the longest has {longest} tokens, take at least as many")
    return np.full_like(lengths, padded or longest)


def _areas(lengths: np.ndarray, multiples: tuple[int, int]) -> int:
    rows, cols = (rounded_up(lengths, multiple) for multiple in multiples)
    return int((rows * cols).sum())
