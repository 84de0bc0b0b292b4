"""Facts about this machine on which decisions depend: its rates, and digests of its processors and its GPU."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np

from sparloom.errors import SchemaError, Unsupported
from sparloom.jit import kernels_digest
from sparloom.measure import VALUE_BYTES, Caches, machine_digest, processor_digests
from sparloom.ops import GemmSpmm, SpmmSpmm
from sparloom.platforms import CupyGpu
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning.cache import PlanCache, Summary

FUSED_SOURCES = ("cpu/*.hpp", "cpu/fused_f32.cpp", "cpu/fused_f64.cpp", "cpu/tile_schedule.cpp")
"""Sources of the fused kernels, under kernels/; their content is in the cache key."""
RAGGED_SOURCES = ("cpu/multiply.cpp", "cpu/tall_gemm.hpp", "cpu/gemm.hpp", "cpu/vector.hpp")
"""Sources of the ragged kernels, under kernels/; their content is in the cache key."""

WIDTH, READS = 64, 32
DENSE_ROWS, NEAR_ROWS, FAR_ROWS, STREAMED_ROWS = 1 << 10, 1 << 13, 1 << 15, 1 << 18  # a dense row of 64 is 256 bytes
RUNS = 5


def machine_digests() -> frozenset[str]:
    """Hash this machine as seen by processes with one of its processors, two, ... or all; and its GPU."""
    try:
        return processor_digests() | {device_digest(CupyGpu.current().signature())}
    except Unsupported:
        return processor_digests()


def device_digest(device: Mapping[str, Any]) -> str:
    """Hash a GPU with its software, as `Gpu.signature` names them."""
    return hashlib.sha256(json.dumps(dict(device), sort_keys=True).encode()).hexdigest()


class StoredRates:
    """Base of dataclasses of rates, which are stored as JSON.

    Raises:
        ValueError: a field is not finite, or not above 0.
    """

    owner: ClassVar[str]

    def __post_init__(self) -> None:
        if not all(math.isfinite(number) and number > 0 for number in asdict(self).values()):
            raise ValueError(f"rates {asdict(self)} must be above 0")

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read the values of `dataclasses.asdict`.

        Raises:
            SchemaError: the fields differ, or are no numbers above 0.
        """
        try:
            return cls(**{name: float(number) for name, number in value.items()})
        except (TypeError, ValueError, AttributeError) as error:
            raise SchemaError(f"rates of {cls.owner}: {error}") from error


@dataclass(frozen=True)
class Rates(StoredRates):
    """Rates of all threads together, and sizes of their caches.

    Args:
        flops: per second, with dense operands in cache; of a dense product, or of SpMM with a full matrix.
        near: bytes per second of rows gathered from the private cache of a core.
        far: of rows gathered from the shared cache.
        memory: of streams through memory.
        near_bytes: private cache of one core.
        far_bytes: shared cache, of all threads together.
    """

    flops: float
    near: float
    far: float
    memory: float
    near_bytes: float
    far_bytes: float

    owner = "a machine"


def machine_rates(cache: PlanCache, *, threads: int) -> Rates:
    """Look up the rates of this machine, or measure them once and store them."""
    found = get_rates(cache, threads=threads)
    if found is not None:
        return found
    measured = _rates_in_process(threads)
    put_rates(cache, measured, threads=threads)
    return measured


def get_rates(cache: PlanCache, *, threads: int) -> Rates | None:
    """Look up the rates of this machine; None if they were not measured."""
    return cache.get("rates", _rates_key(threads), Rates.from_json)


def put_rates(cache: PlanCache, rates: Rates, *, threads: int) -> None:
    """Store the rates of this machine."""
    cache.put("rates", _rates_key(threads), asdict(rates), summary=rates_summary(rates, FUSED_SOURCES))


def rates_summary(rates: Any, sources: tuple[str, ...]) -> Summary:
    """Describe rates of a processor or a GPU."""
    return Summary(choice=f"{rates.flops / 1e9:.0f} GFLOP/s, {rates.memory / 1e9:.0f} GB/s from memory",
                   sources=sources)


def measure_rates(*, threads: int, clock: Callable[[], float] = time.perf_counter) -> Rates:
    """Measure with the kernels of products of three matrices, in some tenths of a second.

    Args:
        clock: wall seconds.
    """
    nothing = Pattern((DENSE_ROWS, DENSE_ROWS), np.zeros(DENSE_ROWS + 1, np.int64), np.empty(0, np.int32))
    dense = _pair_seconds(GemmSpmm(inner=128), nothing, 128, threads, clock)
    near, far, memory = (_pair_seconds(SpmmSpmm(), pattern, WIDTH, threads, clock) for pattern in _all_gathers())
    return _rates(threads, 2 * DENSE_ROWS * 128 * 128 / dense, near / 2, far / 2, memory / 6)  # C, D1 thrice, D twice


def _rates(threads: int, flops: float, near: float, far: float, memory: float) -> Rates:
    """Convert the seconds of gathering rows once, near and far, and of streaming rows once to rates."""
    row, caches = VALUE_BYTES * WIDTH, Caches.here(threads)
    return Rates(
        flops=flops, near=NEAR_ROWS * READS * row / near, far=FAR_ROWS * READS * row / far,
        memory=STREAMED_ROWS * row / memory,
        near_bytes=caches.near_bytes, far_bytes=caches.far_bytes)


def _all_gathers() -> tuple[Pattern, Pattern, Pattern]:
    """Patterns whose rows read rows near, far, and each only once."""
    return _gathers(NEAR_ROWS, 128, READS), _gathers(FAR_ROWS, FAR_ROWS, READS), _gathers(STREAMED_ROWS, 1, 1)


def _gathers(rows: int, reach: int, reads: int) -> Pattern:
    """Pattern whose rows read a column from each of `reads` equal parts of the `reach` columns around them."""
    part = reach // reads
    within = np.random.default_rng(0).integers(0, part, (rows, reads)) + part * np.arange(reads)
    columns = np.arange(rows)[:, None] // reach * reach + within
    return Pattern((rows, rows), reads * np.arange(rows + 1), columns.ravel())


def _pair_seconds(
    op: GemmSpmm | SpmmSpmm, pattern: Pattern, width: int, threads: int, clock: Callable[[], float],
) -> float:
    from sparloom.fusion import Executor, Variant, unfused_schedule  # takes long to import

    operands = op.operands(SparseMatrix(pattern, np.ones(pattern.nnz)), width, seed=0)
    executor = Executor(op, unfused_schedule(pattern, threads=threads), threads=threads, variant=Variant())
    return _least_seconds(executor.bind(operands, executor.result(operands)), clock)


def _least_seconds(call: Callable[[], None], clock: Callable[[], float]) -> float:
    call()
    spent = []
    for _ in range(RUNS):
        start = clock()
        call()
        spent.append(clock() - start)
    return min(spent)


def _rates_key(threads: int) -> dict[str, Any]:
    return {"machine": machine_digest(), "kernels": kernels_digest(FUSED_SOURCES), "threads": threads}


@cache
def _rates_in_process(threads: int) -> Rates:
    return measure_rates(threads=threads)
