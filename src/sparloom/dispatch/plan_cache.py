"""Decisions on disk: made in one process, found by all others."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sparloom.dispatch.choice import PairChoice
from sparloom.dispatch.decision import Decision
from sparloom.dispatch.plan_files import (
    VERSION,
    clear_orphans,
    order_name,
    pair_name,
    rates_name,
    schedule_name,
)
from sparloom.dispatch.plan_key import PlanKey, kernels_digest, machine_digest
from sparloom.dispatch.rates import Rates, measure_rates
from sparloom.errors import SchemaError
from sparloom.files import atomic_path, write_text
from sparloom.jit import cache_folder

__all__ = ["PlanCache"]

log = logging.getLogger(__name__)

Read = TypeVar("Read")

DAMAGE = (OSError, ValueError, KeyError, TypeError, EOFError, RecursionError, MemoryError, SchemaError)
"""What reading a file with any content may raise."""


class PlanCache:
    """A folder with a file for each decision, for each order that one needs, and for the rates of machine and GPU.

    Any number of processes may use it: a file is whole or absent, and who writes last wins. What is damaged, of another
    version or for another key is left aside with a warning; so is a folder that cannot be written to. With the first
    file, what killed processes left is removed. Decisions do not wait for the disk, which takes longer than many runs.

    Args:
        folder: made when the first decision is kept; None: nothing is kept, and rates are measured once per process.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = None if folder is None else Path(folder)
        self._cleared = False

    @classmethod
    def of_this_user(cls) -> "PlanCache":
        """Take the folder plans/ of SPARLOOM_CACHE, else of ~/.cache/sparloom."""
        return cls(cache_folder() / "plans")

    def find(self, key: PlanKey) -> tuple[PairChoice, Decision] | None:
        """Find what was decided; None if nothing was."""
        return _read(self._plan(key), asdict(key), lambda value: (
            PairChoice.from_json(value["choice"]), Decision.from_json(value["decision"])))

    def keep(self, key: PlanKey, choice: PairChoice, decision: Decision) -> None:
        """Keep a decision in place of the one there was."""
        self._write(self._plan(key), asdict(key), {"choice": choice.to_json(), "decision": decision.to_json()})

    def find_schedule(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """Find the choice of a schedule; None if there is none.

        Args:
            key: all that it depends on, as JSON has it.
        """
        return _read(self._schedule(key), dict(key), lambda value: dict(value["choice"]))

    def keep_schedule(self, key: Mapping[str, Any], choice: Mapping[str, Any]) -> None:
        """Keep a choice in place of the one there was."""
        self._write(self._schedule(key), dict(key), {"choice": dict(choice)})

    def rates(self, threads: int) -> Rates:
        """Find the rates of this machine, or measure and keep them."""
        if self.folder is None:
            return _rates_in_process(threads)
        found = self.find_rates(threads)
        if found is None:
            found = measure_rates(threads=threads)
            self.keep_rates(threads, found)
        return found

    def find_rates(self, threads: int) -> Rates | None:
        """Find the rates of this machine; None if they were not measured."""
        key = _rates_key(threads)
        return _read(self._rates(threads), key, lambda value: Rates.from_json(value["rates"]))

    def keep_rates(self, threads: int, rates: Rates) -> None:
        """Keep the rates of this machine."""
        self._write(self._rates(threads), _rates_key(threads), {"rates": asdict(rates)})

    def find_device_rates(self, key: Mapping[str, Any], parse: Callable[[dict[str, Any]], Read]) -> Read | None:
        """Find the rates of a GPU; None if they were not measured.

        Args:
            key: what they depend on: machine, kernels, threads, which are 0, and the device in words.
            parse: reads them.
        """
        return _read(self._device_rates(key), dict(key), lambda value: parse(value["rates"]))

    def keep_device_rates(self, key: Mapping[str, Any], rates: Mapping[str, float]) -> None:
        """Keep the rates of a GPU."""
        self._write(self._device_rates(key), dict(key), {"rates": dict(rates)})

    def find_order(self, pattern: str, name: str, rows: int) -> np.ndarray | None:
        """Find an order of the rows of a pattern, by its digest; None if none was kept."""
        path = self._order(pattern, name)
        try:
            if path is None or not path.exists():
                return None
            with path.open("rb") as file:
                order = np.lib.format.read_array(file, allow_pickle=False)
            if order.dtype != np.int32 or order.shape != (rows,) or not np.array_equal(np.sort(order), np.arange(rows)):
                raise ValueError(f"{order.dtype} of shape {order.shape} is no order of {rows} rows")
        except DAMAGE as error:
            log.warning("%s: %s: it is made anew", path, error)
            return None
        return order

    def keep_order(self, pattern: str, name: str, order: np.ndarray) -> None:
        """Keep an order: making it may take longer than many executions."""
        def save(path: Path) -> None:
            with atomic_path(path) as partial, partial.open("wb") as file:
                np.save(file, order)

        self._keep(self._order(pattern, name), save)

    def _write(self, path: Path | None, key: dict[str, Any], content: dict[str, Any]) -> None:
        text = json.dumps({"version": VERSION, "key": key, **content}, allow_nan=False)  # indents take thrice as long
        self._keep(path, lambda place: write_text(place, text + "\n", wait=False))

    def _keep(self, path: Path | None, write: Callable[[Path], None]) -> None:
        """Write a file; what was decided is worth more than a disk that is full."""
        if path is None:
            return
        try:
            write(path)
            if not self._cleared:
                clear_orphans(path.parent, now=time.time())
                self._cleared = True
        except OSError as error:
            log.warning("%s: %s: the decision is not kept", path, error)

    def _plan(self, key: PlanKey) -> Path | None:
        return self._file(pair_name(key.digest()))

    def _schedule(self, key: Mapping[str, Any]) -> Path | None:
        return self._file(schedule_name(key))

    def _rates(self, threads: int) -> Path | None:
        return self._file(rates_name(machine_digest(), threads))

    def _device_rates(self, key: Mapping[str, Any]) -> Path | None:
        return self._file(rates_name(key["machine"], key["threads"]))

    def _order(self, pattern: str, name: str) -> Path | None:
        return self._file(order_name(pattern, name, kernels_digest()))

    def _file(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / name


def _rates_key(threads: int) -> dict[str, Any]:
    return {"machine": machine_digest(), "kernels": kernels_digest(), "threads": threads}


@cache
def _rates_in_process(threads: int) -> Rates:
    return measure_rates(threads=threads)


def _read(path: Path | None, key: dict[str, Any], parse: Callable[[dict[str, Any]], Read]) -> Read | None:
    try:
        if path is None or not path.exists():
            return None
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict) or value.get("version") != VERSION:
            raise SchemaError(f"not of version {VERSION}")
        if value.get("key") != key:
            raise SchemaError("written for something else")
        return parse(value)
    except DAMAGE as error:
        log.warning("%s: %s: it is decided anew", path, error)
        return None
