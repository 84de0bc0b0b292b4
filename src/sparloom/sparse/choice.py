"""Which matrices of a corpus: even over the row bins and, within a bin, over sparsity."""

from collections.abc import Iterable, Sequence

import numpy as np

from sparloom.sparse.corpus import ROW_BINS, MatrixEntry

__all__ = ["stratified_choice"]


def stratified_choice(entries: Iterable[MatrixEntry], count: int, *, seed: int) -> tuple[str, ...]:
    """Choose `count` names: as many from every row bin as its size allows, one from each stratum of density.

    A bin that must give k matrices is sorted by density and cut into k equal parts; one is drawn from each.

    Returns:
        Names, bin by bin, sparse to dense; the same for the same entries (in any order), count and seed.

    Raises:
        ValueError: there are fewer than `count` entries.
    """
    ordered = sorted(entries, key=lambda entry: (entry.density, entry.name))
    if not 0 <= count <= len(ordered):
        raise ValueError(f"{count} matrices asked for, the corpus has {len(ordered)}: ask for at most that many")
    rng = np.random.default_rng(seed)
    bins = [[entry for entry in ordered if entry.row_bin == name] for name in ROW_BINS]
    chosen: list[str] = []
    for members, share in zip(bins, _shares([len(members) for members in bins], count, rng), strict=True):
        for part in np.array_split(np.arange(len(members)), share) if share else ():
            chosen.append(members[int(part[int(rng.integers(part.size))])].name)
    return tuple(chosen)


def _shares(sizes: Sequence[int], count: int, rng: np.random.Generator) -> list[int]:
    """Deal `count` out to the bins one by one, in a drawn order, passing over those that are used up."""
    shares = [0] * len(sizes)
    order = rng.permutation(len(sizes))
    while sum(shares) < count:
        for place in order:
            if shares[place] < sizes[place] and sum(shares) < count:
                shares[place] += 1
    return shares
