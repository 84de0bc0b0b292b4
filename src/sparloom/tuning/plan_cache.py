"""Decisions on disk: made in one process, found by all others."""

import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from time import monotonic as clock
from typing import Any, Literal, TypeVar

import numpy as np

from sparloom.errors import SchemaError
from sparloom.jit import cache_folder
from sparloom.tuning.choice import PairChoice
from sparloom.tuning.decision import Decision
from sparloom.tuning.disk_cache import DiskCache
from sparloom.tuning.load import AGAIN, LATEST, tell_busy, watch_load
from sparloom.tuning.old_plans import remove_some
from sparloom.tuning.plan_key import PlanKey, kernels_digest, machine_digest
from sparloom.tuning.rates import Rates, measure_rates

__all__ = ["VERSION", "OtherVersion", "PlanCache", "PlanKind", "disk_caches", "entry_key", "parsed_entry"]

log = logging.getLogger(__name__)

PlanKind = Literal["pair", "schedule", "rates", "order"]
Read = TypeVar("Read")

VERSION = 1  # of what stands in an entry
ENTRIES, MEGABYTES = "SPARLOOM_PLANS_ENTRIES", "SPARLOOM_PLANS_MB"
MOST_ENTRIES, MOST_MEGABYTES = 10_240, 128
REMOVING = "048c"  # last digits of the names of entries with which files of earlier versions are removed: a fourth
REMEMBERED = 256  # decisions of a busy machine, by one process
REPAID = 20.0  # times what such a decision took: so long it is used before it is made again
ORDERS = 64  # kept at most: each has 4 bytes for every row of a matrix

DAMAGE = (ValueError, KeyError, TypeError, EOFError, RecursionError, MemoryError, SchemaError)
"""What reading an entry with any content may raise."""


class OtherVersion(SchemaError):
    """An entry was written by an earlier or a later version."""


class PlanCache:
    """A folder of decisions, of the orders that they need, and of the rates of machine and GPU.

    Any number of processes may use it: an entry is whole or absent, and who writes last wins. A damaged entry, or one
    of another version, counts as absent, with a warning. A folder that cannot be written to is read all the same, and
    one warning says what helps. The cache is bounded: `SPARLOOM_PLANS_ENTRIES` decisions (10,240 unless set), and
    `SPARLOOM_PLANS_MB` megabytes (128), half of them for orders; what was not used for longest goes first.

    Args:
        folder: made when the first decision is kept; None: nothing is kept, and rates are measured once per process.
        keep_busy: of who uses this cache: decisions that were made on a busy machine are kept, too.
    """

    def __init__(self, folder: Path | None, *, keep_busy: bool = False) -> None:
        self.folder = None if folder is None else Path(folder)
        self.keep_busy = keep_busy
        self._decisions, self._orders = (None, None) if folder is None else disk_caches(self.folder)

    @classmethod
    def of_this_user(cls) -> "PlanCache":
        """Take the folder plans/ of SPARLOOM_CACHE, else of ~/.cache/sparloom."""
        return cls(cache_folder() / "plans")

    def find(self, key: PlanKey) -> tuple[PairChoice, Decision] | None:
        """Find what was decided; None if nothing was."""
        return self._read("pair", asdict(key), lambda value: (
            PairChoice.from_json(value["choice"]), Decision.from_json(value["decision"])))

    def keep(self, key: PlanKey, choice: PairChoice, decision: Decision, *, busy: str = "") -> None:
        """Keep a decision in place of the one there was.

        Args:
            busy: why the machine was busy: this process alone finds it, and only for as long as 20 times what it took,
                or a second; after that twice as long, and so on.
        """
        self._write("pair", asdict(key), {"choice": choice.to_json(), "decision": decision.to_json()},
                    meanwhile=_seconds_of(decision.seconds) if busy else 0.0)

    def find_schedule(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """Find the choice of a schedule; None if there is none.

        Args:
            key: all that it depends on, as JSON has it.
        """
        return self._read("schedule", dict(key), lambda value: dict(value["choice"]))

    def keep_schedule(
        self, key: Mapping[str, Any], choice: Mapping[str, Any], *, busy: str = "", seconds: float = 0.0,
    ) -> None:
        """Keep a choice in place of the one there was.

        Args:
            busy: as of `keep`.
            seconds: that the choice took.
        """
        self._write("schedule", dict(key), {"choice": dict(choice)}, meanwhile=_seconds_of(seconds) if busy else 0.0)

    def rates(self, threads: int) -> Rates:
        """Find the rates of this machine, or measure them, once in a process, and keep them if it was not busy."""
        found = self.find_rates(threads)
        if found is not None:
            return found
        measured, busy = _rates_in_process(threads)
        if not busy or self.keep_busy:
            self.keep_rates(threads, measured)
        return measured

    def find_rates(self, threads: int) -> Rates | None:
        """Find the rates of this machine; None if they were not measured."""
        return self.find_device_rates(_rates_key(threads), Rates.from_json)

    def keep_rates(self, threads: int, rates: Rates) -> None:
        """Keep the rates of this machine."""
        self.keep_device_rates(_rates_key(threads), asdict(rates))

    def find_device_rates(self, key: Mapping[str, Any], parse: Callable[[dict[str, Any]], Read]) -> Read | None:
        """Find the rates of a GPU; None if they were not measured.

        Args:
            key: what they depend on: machine, kernels, threads, which are 0, and the device in words.
            parse: reads them.
        """
        return self._read("rates", dict(key), lambda value: parse(value["rates"]))

    def keep_device_rates(self, key: Mapping[str, Any], rates: Mapping[str, float]) -> None:
        """Keep the rates of a GPU."""
        self._write("rates", dict(key), {"rates": dict(rates)})

    def find_order(self, pattern: str, name: str, rows: int) -> np.ndarray | None:
        """Find an order of the rows of a pattern, by its digest; None if none was kept."""
        def parse(value: dict[str, Any]) -> np.ndarray:
            order = value["numbers"]
            if order.shape != (rows,) or not np.array_equal(np.sort(order), np.arange(rows)):
                raise ValueError(f"{order.size} numbers are no order of {rows} rows")
            return order

        return self._read("order", _order_key(pattern, name), parse)

    def keep_order(self, pattern: str, name: str, order: np.ndarray) -> None:
        """Keep an order: making it may take longer than many executions.

        Raises:
            ValueError: it is not one axis of int32.
        """
        if order.dtype != np.int32 or order.ndim != 1:
            raise ValueError(f"an order of {order.dtype} and {order.ndim} axes: give one axis of int32")
        self._write("order", _order_key(pattern, name), {"rows": order.size}, order.astype("<i4").tobytes())

    def _read(self, kind: PlanKind, key: dict[str, Any], parse: Callable[[dict[str, Any]], Read]) -> Read | None:
        place = self._place(kind)
        if place is None:
            return None
        name = entry_key(kind, key)
        try:
            content = place.get(name)
        except OSError as error:
            _warn_once(self.folder, f"cannot be read: {error.strerror}: what is kept there is decided anew")
            return None
        except DAMAGE as error:
            log.warning("%s: it is decided anew", error)
            return None
        if content is None:
            content = _MEANWHILE.find(str(place.path(name)))
        if content is None:
            return None
        try:
            value = parsed_entry(content)
            if value.get("key") != key:
                raise SchemaError("written for something else")
            return parse(value)
        except DAMAGE as error:
            log.warning("%s: %s: it is decided anew", place.path(name), error)
            return None

    def _write(
        self, kind: PlanKind, key: dict[str, Any], content: dict[str, Any], blob: bytes = b"", *,
        meanwhile: float = 0.0,
    ) -> None:
        """Keep an entry, or, for so many seconds, only remember it; what was decided is worth more than a full disk."""
        place = self._place(kind)
        if place is None:
            return
        head = json.dumps({"version": VERSION, "kind": kind, "key": key, **content}, allow_nan=False)
        if meanwhile:
            tell_busy()
            _MEANWHILE.remember(str(place.path(entry_key(kind, key))), head.encode() + b"\n" + blob, meanwhile)
            return
        try:
            place.put(entry_key(kind, key), head.encode() + b"\n" + blob)
        except OSError as error:
            _warn_once(self.folder, f"cannot be written to: {error.strerror}: decisions are not kept for later "
                                    "processes; set SPARLOOM_CACHE, or AUTOSAGE_CACHE_DIR, to a folder that can be")
            return
        if place.path(entry_key(kind, key)).name[-1] in REMOVING:
            try:
                remove_some(self.folder)
            except OSError as error:
                log.debug("%s: %s", self.folder, error)

    def _place(self, kind: PlanKind) -> DiskCache | None:
        return self._orders if kind == "order" else self._decisions


class _Meanwhile:
    """What this process decided while the machine was busy, by file, each for some seconds; 256 at most."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[bytes, float, float]] = {}  # content, until when, for how long

    def remember(self, path: str, content: bytes, seconds: float) -> None:
        """Take a decision for so many seconds, or, where it was made again, for twice as long as before."""
        _, _, before = self._known.pop(path, (b"", 0.0, 0.0))
        seconds = min(max(seconds, 2 * before), LATEST)
        self._known[path] = content, clock() + seconds, seconds
        if len(self._known) > REMEMBERED:
            with suppress(StopIteration, KeyError):  # another thread was faster
                self._known.pop(next(iter(self._known)))

    def find(self, path: str) -> bytes | None:
        """Find a decision that is not too old."""
        content, until, _ = self._known.get(path, (None, 0.0, 0.0))
        return content if clock() < until else None


_MEANWHILE = _Meanwhile()


def disk_caches(folder: Path) -> tuple[DiskCache, DiskCache]:
    """Open what a folder of decisions consists of: decisions with rates, and orders, which are fewer and larger."""
    entries, size_bytes = _limit(ENTRIES, MOST_ENTRIES), _limit(MEGABYTES, MOST_MEGABYTES) * 1_000_000 // 2
    return (DiskCache(folder / "decisions", entries=entries, size_bytes=size_bytes),
            DiskCache(folder / "orders", entries=ORDERS, size_bytes=size_bytes, buckets=1))


def entry_key(kind: PlanKind, key: Mapping[str, Any]) -> str:
    """Name an entry by all that it depends on, as JSON has it."""
    return f"{kind} {json.dumps(key, sort_keys=True)}"


def parsed_entry(content: bytes) -> dict[str, Any]:
    """Read what stands in an entry: JSON, and the numbers of an order after it.

    Raises:
        ValueError, RecursionError: it is no JSON, or does not have as many numbers as it says.
        SchemaError: it is of another version (OtherVersion), or something else.
    """
    head, _, blob = content.partition(b"\n")
    value = json.loads(head.decode())
    if not isinstance(value, dict):
        raise SchemaError(f"not of version {VERSION}")
    if value.get("version") != VERSION:
        raise OtherVersion(f"of version {value.get('version')!r}, not {VERSION}")
    if value.get("kind") == "order":
        value["numbers"] = np.frombuffer(blob, "<i4").astype(np.int32)
    return value


def _rates_key(threads: int) -> dict[str, Any]:
    return {"machine": machine_digest(), "kernels": kernels_digest(), "threads": threads}


def _order_key(pattern: str, name: str) -> dict[str, Any]:
    return {"pattern": pattern, "order": name, "kernels": kernels_digest()}


def _seconds_of(decision: float) -> float:
    """Say for how long a decision that took so many seconds is to be used before it is made again."""
    return max(AGAIN, REPAID * decision)


def _limit(variable: str, default: int) -> int:
    given = os.environ.get(variable)
    if not given:
        return default
    if not (given.isascii() and given.isdigit() and len(given) <= 12 and int(given) >= 1):
        raise ValueError(f"{variable}={given!r}: give a whole number, at least 1, or unset it")
    return int(given)


@cache
def _rates_in_process(threads: int) -> tuple[Rates, str]:
    watch = watch_load()
    with watch.over():
        measured = measure_rates(threads=threads)
    return measured, watch.close()


@cache
def _warn_once(folder: Path, text: str) -> None:
    log.warning("%s %s", folder, text)
