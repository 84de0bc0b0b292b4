"""Measure missing configurations, record exceptions as failures, and report them; locate the data of a corpus."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparloom import log
from sparloom.data import SampleTable
from sparloom.errors import SparloomError
from sparloom.measure import REPEATS, Measurement, TimingProtocol
from sparloom.ops import Op, Operands
from sparloom.space import Config
from sparloom.sparse import Corpus, SparseMatrix

if TYPE_CHECKING:
    from sparloom.platforms import Platform

FAILURES = (SparloomError, ValueError, ArithmeticError, MemoryError, RuntimeError, AssertionError, OSError)
"""Errors of a platform with which one measurement fails, and not the run."""

logger = logging.getLogger(__name__)
TOP_K = 5  # reasons that are printed


def operands_for(platform: "Platform", op: Op, matrix: SparseMatrix, width: int, seed: int) -> Operands:
    """Draw dense operands for a platform; simulators need none."""
    return Operands.unfilled(matrix, width) if platform.kind == "simulated" else op.operands(matrix, width, seed)


def measure_presets(
    platforms: Sequence["Platform"], op: Op, operands: Operands, *, missing: Sequence[Sequence[Sequence[Config]]],
    timing: TimingProtocol, vendors: Mapping[Config, Any] | None = None,
) -> Iterator[tuple[str, Config, int, Measurement]]:
    """Measure the missing configurations of several presets: yields (preset, configuration, round, measurement).

    Presets that lack the same configurations are measured together if the platform supports it (`measure_together`).

    Args:
        missing: for every preset, configurations per round.
        vendors: see `measure_missing`.
    """
    first = platforms[0]
    if len(platforms) > 1 and hasattr(first, "measure_together") and all(lacks == missing[0] for lacks in missing):
        try:
            for config, turn, measurements in first.measure_together(platforms, op, operands, missing[0][0]):
                for platform, measurement in zip(platforms, measurements, strict=True):
                    yield platform.preset, config, turn, measurement
            return
        except FAILURES as error:
            logger.warning("%s on presets of %s together: %s; one by one", op.name, first.name, error)
    for platform, lacks in zip(platforms, missing, strict=True):
        for config, turn, measurement in measure_missing(platform, op, operands, missing=lacks, timing=timing,
                                                         vendors=vendors):
            yield platform.preset, config, turn, measurement


def measure_missing(
    platform: "Platform", op: Op, operands: Operands, *, missing: Sequence[Sequence[Config]], timing: TimingProtocol,
    vendors: Mapping[Config, Any] | None = None,
) -> Iterator[tuple[Config, int, Measurement]]:
    """Measure the missing configurations of each round.

    A platform may add repetitions of its baseline as rounds from `timing.rounds` on (A/A). If the platform raises, the
    configurations that it has not reported are measured one by one, so that only the faulty one is recorded as failed.

    Args:
        missing: configurations per round.
        vendors: vendor kernels by the configuration that stands for them in `missing`; the platform binds them.
    """
    if all(configs == missing[0] for configs in missing):
        yield from _guarded(platform, op, operands, missing[0], timing, vendors or {})
        return
    for turn, configs in enumerate(missing):
        once = replace(timing, rounds=1, seed=timing.seed + turn)
        for config, number, measurement in _guarded(platform, op, operands, configs, once, vendors or {}):
            yield config, turn if number == 0 else timing.rounds + REPEATS * turn + number - 1, measurement


def _guarded(
    platform: "Platform", op: Op, operands: Operands, configs: Sequence[Config], timing: TimingProtocol,
    vendors: Mapping[Config, Any],
) -> Iterator[tuple[Config, int, Measurement]]:
    if not configs:
        return
    waiting = {(config, turn) for config in configs for turn in range(timing.rounds)}
    own = [config for config in configs if config not in vendors]
    theirs = {config: vendors[config] for config in configs if config in vendors}
    extra = (theirs,) if theirs else ()  # see `Platform.measure_many`
    try:
        for config, turn, measurement in platform.measure_many(op, operands, own, timing, *extra):
            waiting.discard((config, turn))
            yield config, turn, measurement
    except FAILURES as error:
        logger.warning("%s on %s: %s: %s", op.name, platform.name, type(error).__name__, error)
        if len(configs) > 1:
            for config in dict.fromkeys(config for config in configs if any(config == left for left, _ in waiting)):
                yield from _guarded(platform, op, operands, [config], timing, vendors)
            return
        for config, turn in sorted(waiting, key=lambda pair: pair[1]):
            yield config, turn, Measurement.failed(f"{type(error).__name__}: {error}", platform.kind)


def print_failures(table: SampleTable) -> None:
    """Print how many samples failed, and the most frequent reasons; those that differ only in numbers are merged."""
    reasons = table.failures()["failure"].str.replace(r"\d+(\.\d+)?", "#", regex=True).value_counts()
    if reasons.empty:
        return
    log.console.print(f"{reasons.sum():,} of {len(table):,} samples failed ({reasons.sum() / len(table):.1%}):")
    for reason, count in reasons.head(TOP_K).items():
        log.console.print(f"{count:>9,}  {reason}", markup=False)
    if len(reasons) > TOP_K:
        log.console.print(f"{reasons[TOP_K:].sum():>9,}  for {len(reasons) - TOP_K} other reasons")


def corpus_name(corpus: Corpus) -> str:
    """Return the option of `corpus` that makes a corpus, such as "suitesparse", or "final" for that part of it."""
    if getattr(corpus, "part", None) == "final":
        return "final"
    return type(corpus).__name__.removesuffix("Corpus").lower()


def data_folder(data: str, corpus: Corpus) -> Path:
    """Return the folder of samples, inputs and statistics: `data` for SuiteSparse, a subfolder for other corpora."""
    name = corpus_name(corpus)
    return Path(data) if name == "suitesparse" else Path(data) / name
