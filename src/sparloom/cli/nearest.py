"""Names close to a mistyped one."""

import difflib
from collections.abc import Iterable, Iterator, Mapping

__all__ = ["flat", "nearest", "suggestion"]


def nearest(name: str, known: Iterable[str], *, count: int = 3) -> list[str]:
    """Find up to `count` known names that resemble `name`, best first.

    The last part of a dotted name counts as well: `lr` is near `model.optimizer.lr`.
    """
    names = list(dict.fromkeys(known))
    whole = difflib.get_close_matches(name, names, n=count, cutoff=0.6)
    leaf = name.rpartition(".")[2]
    ends = {key: key.rpartition(".")[2] for key in names}
    close = difflib.get_close_matches(leaf, set(ends.values()), n=count, cutoff=0.75)
    by_leaf = [key for end in close for key in names if ends[key] == end]
    return list(dict.fromkeys([*whole, *by_leaf]))[:count]


def suggestion(name: str, known: Iterable[str]) -> str:
    """Phrase the nearest names as a remedy, or list all of them when none is near."""
    names = sorted(dict.fromkeys(known))
    close = nearest(name, names)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"known are {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"


def flat(tree: object, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of nested mappings, inner nodes included."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            key = f"{prefix}{name}"
            yield key
            yield from flat(value, f"{key}.")
