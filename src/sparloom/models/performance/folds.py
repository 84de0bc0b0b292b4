"""Folds by group, which stay what they are when problems are added."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

__all__ = ["assign_folds"]


def assign_folds(
    groups: Sequence[str], count: int, *, seed: int, known: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Give every group one fold, so that folds hold about equally many problems.

    Args:
        groups: group of each problem; a group with more problems counts more.
        count: folds.
        known: fold by group, from an earlier assignment; it is kept, so that what a model of a fold has never seen it
            does not see when it is grown further either.

    Returns:
        Fold by group; groups go in the order of a hash, each to the fold with the fewest problems.

    Raises:
        ValueError: fewer groups than folds.
    """
    sizes = Counter(groups)
    if count < 2 or len(sizes) < count:
        raise ValueError(f"{count} folds of {len(sizes)} groups: there must be at least 2 folds, and a group for each")
    folds = {group: fold for group, fold in (known or {}).items() if group in sizes}
    loads = Counter({fold: 0 for fold in range(count)})
    for group, fold in folds.items():
        loads[fold] += sizes[group]
    for group in sorted(set(sizes) - set(folds), key=lambda group: hashlib.sha256(f"{seed}:{group}".encode()).digest()):
        fold = min(range(count), key=lambda fold: (loads[fold], fold))
        folds[group] = fold
        loads[fold] += sizes[group]
    return folds
