"""The block mask of sequences that stand one after the other, made in the time of its size.

`create_block_mask` of PyTorch looks at every pair of tokens: 2 billion at a batch of 128 long sequences.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask

__all__ = ["document_mask"]


def document_mask(
    lengths: Sequence[int], *, block: int, causal: bool, device: torch.device | str = "cpu",
) -> BlockMask:
    """Let tokens attend to their own sequence, and if `causal` not to what comes after them.

    Args:
        block: rows and columns of a block; those without a pair that attends are left out, full ones not masked.
    """
    counts = np.array(lengths, dtype=np.int64)
    ends, total = np.cumsum(counts), int(counts.sum())
    starts, sequence = ends - counts, np.repeat(np.arange(counts.size), counts)
    blocks = np.arange(-(-total // block))
    first, last = sequence[blocks * block], np.minimum((blocks + 1) * block, total) - 1
    least, most = starts[first] // block, (last if causal else ends[sequence[last]] - 1) // block
    whole = first == sequence[last]
    full_least, full_end = -(-starts[first] // block), np.where(whole, ends[first] // block, 0)
    if causal:
        full_end = np.minimum(full_end, blocks)
    some = (blocks >= least[:, None]) & (blocks <= most[:, None])
    full = (blocks >= full_least[:, None]) & (blocks < full_end[:, None])
    number = torch.from_numpy(sequence).to(device)

    def attends(_batch: torch.Tensor, _head: torch.Tensor, row: torch.Tensor, col: torch.Tensor) -> torch.Tensor:
        return number[row] == number[col]

    def attends_before(
        _batch: torch.Tensor, _head: torch.Tensor, row: torch.Tensor, col: torch.Tensor,
    ) -> torch.Tensor:
        return (number[row] == number[col]) & (row >= col)

    return BlockMask.from_kv_blocks(
        *_listed(some & ~full, device), *_listed(full, device), BLOCK_SIZE=block,
        mask_mod=attends_before if causal else attends, seq_lengths=(total, total))


def _listed(chosen: np.ndarray, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    """How many blocks of each row are chosen, and all of them, chosen ones first."""
    counts, order = chosen.sum(axis=1), np.argsort(~chosen, axis=1, kind="stable")
    found, listed = (torch.from_numpy(each.astype(np.int32)).to(device)[None, None] for each in (counts, order))
    return found, listed
