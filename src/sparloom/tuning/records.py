"""Records of decisions: the list of a cache, and its pruning."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from sparloom.jit import kernels_digest
from sparloom.tuning.cache import DAMAGE, VERSION, PlanCache, Row, Summary, digest_of
from sparloom.tuning.machine import machine_digests

State = Literal["own", "foreign", "damaged"]
Prune = Literal["none", "foreign", "all"]

SHOWN_DIGITS = 12  # of a digest
DAY_SECONDS = 86400.0


@dataclass(frozen=True)
class CacheEntry:
    """One entry of a cache.

    Args:
        path: of the file that it is in.
        digest: of its key.
        written: seconds since the epoch.
        kind: "pair", "csr" (operations on one sparse matrix), "class" (on fresh matrices that are alike), "ragged",
            "rates", "order"; "" of a damaged one.
        state: "own": of this machine and these kernels; "foreign": of others, or of another version; "damaged".
        fault: why it is foreign or damaged.
        op: operation, or name of an order.
        pattern: first digits of the digest of A's pattern.
        shapes: widths of the dense operands, or what the batches of a ragged operator have in common.
        threads: 0 where they do not matter.
        choice: configuration, or library.
        speedup: seconds of the baseline over those of the choice, above 1 is better; None where it was not measured.
    """

    path: Path
    digest: str
    written: float
    age_seconds: float
    size_bytes: int
    kind: str = ""
    state: State = "own"
    fault: str = ""
    op: str = ""
    pattern: str = ""
    shapes: str = ""
    threads: int = 0
    choice: str = ""
    reason: str = ""
    speedup: float | None = None


@dataclass(frozen=True)
class Pruning:
    """Rules for deleting entries.

    Args:
        which: "foreign": those of other machines, kernels or versions, and damaged ones; "all"; "none".
        older_days: also those that were written so many days ago; None: age does not matter.

    Raises:
        ValueError: an unknown word, an age that is not above 0, or an age beside "all".
    """

    which: Prune
    older_days: float | None = None

    def __post_init__(self) -> None:
        if self.which not in get_args(Prune):
            raise ValueError(f"prune={self.which!r} is not one of {', '.join(get_args(Prune))}")
        days = self.older_days
        if days is None:
            return
        if isinstance(days, bool) or not isinstance(days, int | float) or not math.isfinite(days) or days <= 0:
            raise ValueError(f"older_days={days!r}: give a number above 0")
        if self.which == "all":
            raise ValueError(f"prune=all asks for no age and older_days={days} for one: leave out one of them")

    def selects(self, entry: CacheEntry) -> bool:
        """Tell whether to delete an entry."""
        old = self.older_days is not None and entry.age_seconds > DAY_SECONDS * self.older_days
        return old or self.which == "all" or (self.which == "foreign" and entry.state != "own")


def list_plans(folder: Path, *, now: float) -> list[CacheEntry]:
    """List the entries of a cache.

    Args:
        now: seconds since the epoch.
    """
    cache = PlanCache(folder)
    return [_described(cache.path, row, now) for row in cache.rows()]


def prune_plans(entries: Sequence[CacheEntry], pruning: Pruning) -> list[CacheEntry]:
    """Delete entries, except those that were replaced since they were listed.

    Args:
        entries: as `list_plans` returns them.

    Returns:
        Those that were deleted.
    """
    selected = [each for each in entries if pruning.selects(each)]
    removed = {(folder, digest.hex()) for folder in {each.path.parent for each in selected}
               for digest in PlanCache(folder).remove([(bytes.fromhex(each.digest), each.written) for each in selected
                                                       if each.path.parent == folder])}
    return [each for each in selected if (each.path.parent, each.digest) in removed]


def _described(path: Path, row: Row, now: float) -> CacheEntry:
    digest, written, text, size = row
    entry = CacheEntry(path, digest.hex(), written, max(0.0, now - written), size)
    try:
        content = json.loads(text)
        if content["version"] != VERSION:
            return replace(entry, state="foreign", fault=f"of version {content['version']!r}, not {VERSION}")
        if digest_of(content["kind"], content["key"]) != digest:
            return replace(entry, state="damaged", fault="written for something else")
        return _summarised(entry, content["kind"], content["key"], Summary(**content["summary"]))
    except (*DAMAGE, NotImplementedError, OSError) as error:
        return replace(entry, state="damaged", fault=f"{type(error).__name__}: {error}")


def _summarised(entry: CacheEntry, kind: str, key: Mapping[str, Any], summary: Summary) -> CacheEntry:
    entry = replace(entry, kind=kind, op=summary.op, pattern=str(key.get("pattern", ""))[:SHOWN_DIGITS],
                    shapes=summary.shapes, threads=int(key.get("threads", 0)))
    machine = key.get("machine", "")
    if machine and machine not in machine_digests():
        return replace(entry, state="foreign", fault="of another machine")
    if key["kernels"] != kernels_digest(tuple(summary.sources)):
        return replace(entry, state="foreign", fault="of other kernels")
    return replace(entry, choice=summary.choice, reason=summary.reason, speedup=summary.speedup)
