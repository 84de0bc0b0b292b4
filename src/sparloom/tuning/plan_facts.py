"""What an entry of a cache of decisions says: what was decided about what, and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparloom.tuning.choice import PairChoice
from sparloom.tuning.decision import Decision
from sparloom.tuning.plan_cache import PlanKind
from sparloom.tuning.plan_key import PlanKey, kernels_digest, ragged_kernels_digest, sources_digest
from sparloom.tuning.rates import Rates
from sparloom.tuning.sparse.cpu_place import SOURCES
from sparloom.tuning.sparse.cuda_place import cuda_kernels_digest
from sparloom.tuning.sparse.cuda_rates import CudaRates
from sparloom.tuning.sparse.decide import CsrChoice

__all__ = ["Outcome", "Subject", "outcome_of", "subject_of"]

DIGITS = 12  # of a digest, shown


@dataclass(frozen=True)
class Subject:
    """What was decided about, from the key of an entry.

    Args:
        kind: pair, csr, ragged, rates or order.
        op: operation; ragged operators with their sizes.
        pattern: first digits of the digest of A's pattern.
        shapes: widths of the dense operands, or what batches have in common.
        machine: digest of its description; "" where it does not matter.
        made_with, kernels: digests of the sources when it was decided, and today.
    """

    kind: str
    op: str
    pattern: str
    shapes: str
    threads: int
    machine: str
    made_with: str
    kernels: str


@dataclass(frozen=True)
class Outcome:
    """What was decided.

    Args:
        speedup: seconds of the baseline over those of the choice; None where they were not compared.
    """

    choice: str
    reason: str
    speedup: float | None


def subject_of(entry: PlanKind, key: Mapping[str, Any]) -> Subject:
    """Read a key.

    Raises:
        KeyError, TypeError, ValueError: it is none of ours.
    """
    kind = ("ragged" if "operator" in key else "csr") if entry == "schedule" else entry
    op, pattern, shapes, kernels = _READ[kind](key)
    return Subject(kind, op, pattern[:DIGITS], shapes, int(key.get("threads", 0)), str(key.get("machine", "")),
                   str(key["kernels"]), kernels)


def outcome_of(kind: str, value: Mapping[str, Any]) -> Outcome:
    """Read what was decided.

    Raises:
        KeyError, TypeError, ValueError, SchemaError: it is damaged.
    """
    return _DECIDED[kind](value)


def _pair(key: Mapping[str, Any]) -> tuple[str, ...]:
    plan = PlanKey(**key)
    shapes = f"{plan.width}" + (f", inner {plan.inner}" if plan.inner else "") + f", {plan.dtype}"
    op = " ".join(filter(None, (plan.op, plan.form, f"fuse={plan.fuse}")))
    return op, plan.pattern, shapes, kernels_digest()


def _csr(key: Mapping[str, Any]) -> tuple[str, ...]:
    shapes = ", ".join("x".join(map(str, shape)) for shape in key["shapes"])
    kernels = cuda_kernels_digest() if "device" in key else sources_digest(SOURCES)
    source = str(key.get("shortlist", "")).split()
    op = ", shortlist=".join([str(key["op"]), *source[:1]])
    return op, str(key["pattern"]), shapes, kernels


def _ragged(key: Mapping[str, Any]) -> tuple[str, ...]:
    alike = ", ".join(f"{name}={number}" for name, number in key["alike"].items())
    return str(key["operator"]), "", alike, ragged_kernels_digest()


def _rates(key: Mapping[str, Any]) -> tuple[str, ...]:
    kernels = cuda_kernels_digest() if "device" in key else kernels_digest()
    return "", "", "", kernels


def _order(key: Mapping[str, Any]) -> tuple[str, ...]:
    return str(key["order"]), str(key["pattern"]), "", kernels_digest()


_READ: Mapping[str, Callable[[Mapping[str, Any]], tuple[str, ...]]] = {
    "pair": _pair, "csr": _csr, "ragged": _ragged, "rates": _rates, "order": _order}


def _pair_decided(value: Mapping[str, Any]) -> Outcome:
    choice, decision = PairChoice.from_json(value["choice"]), Decision.from_json(value["decision"])
    return Outcome(choice.key, decision.reason, _speedup(choice.key, decision))


def _csr_decided(value: Mapping[str, Any]) -> Outcome:
    choice, decision = CsrChoice(**value["choice"]["choice"]), Decision.from_json(value["choice"]["decision"])
    chosen = choice.name
    speedup = _speedup(chosen, decision)
    if speedup is None and decision.origin == "measured":
        speedup = 1.0  # nothing was faster than the best baseline, which runs
    return Outcome(chosen, decision.reason, speedup)


def _ragged_decided(value: Mapping[str, Any]) -> Outcome:
    choice = value["choice"]
    ratio, seconds = float(choice["ratio"]), float(choice["seconds"])
    if not (math.isfinite(ratio) and ratio > 0):
        raise ValueError(f"a ratio of {ratio}")
    return Outcome(str(choice["config"]), f"{int(choice['measured'])} measured in {seconds:.1f} s", 1 / ratio)


def _rates_measured(value: Mapping[str, Any]) -> Outcome:
    rates = (CudaRates if "device" in value["key"] else Rates).from_json(value["rates"])
    return Outcome(f"{rates.flops / 1e9:.0f} GFLOP/s, {rates.memory / 1e9:.0f} GB/s from memory", "", None)


def _ordered(value: Mapping[str, Any]) -> Outcome:
    if value["numbers"].size != value["rows"]:
        raise ValueError(f"{value['numbers'].size} numbers for {value['rows']} rows")
    return Outcome(f"{value['rows']} rows", "", None)


_DECIDED: Mapping[str, Callable[[Mapping[str, Any]], Outcome]] = {
    "pair": _pair_decided, "csr": _csr_decided, "ragged": _ragged_decided, "rates": _rates_measured,
    "order": _ordered}


def _speedup(chosen: str, decision: Decision) -> float | None:
    """Seconds of the baseline over those of the choice, in the duel that a measurement ends with; None without one."""
    if len(decision.trials) < 3:
        return None
    *before, challenger, reference = decision.trials
    if not {challenger.candidate, reference.candidate} <= {trial.candidate for trial in before}:
        return None
    if chosen == reference.candidate:
        return 1.0
    if not min(challenger.seconds, default=0.0) > 0:
        raise ValueError(f"seconds {challenger.seconds}")
    return float(np.median(np.divide(reference.seconds, challenger.seconds)))
