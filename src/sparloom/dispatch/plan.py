"""Plans: a choice, why it was made, and the executor of it."""

import os
from dataclasses import dataclass
from typing import Literal

from sparloom.dispatch.choice import PairChoice
from sparloom.dispatch.decision import Decision
from sparloom.dispatch.plan_cache import PlanCache
from sparloom.dispatch.problem import Problem
from sparloom.dispatch.workshop import Workshop
from sparloom.fusion import Executor, Pair, Variant
from sparloom.ops import Operands

__all__ = ["Fuse", "PairPlan", "plan_pair"]

Fuse = Literal["auto", "never", "always"]

FUSED = {"ct_size": 8192, "cache_bytes": 16 << 20}


@dataclass(frozen=True)
class PairPlan:
    """How a product of three matrices is computed from now on.

    Args:
        executor: for operands on the patterns that were planned for: `executor.bind(operands, result)` gives the call.
    """

    choice: PairChoice
    decision: Decision
    executor: Executor


def plan_pair(
    op: Pair, operands: Operands, *, fuse: Fuse = "auto", threads: int | None = None, cache: PlanCache | None = None,
) -> PairPlan:
    """Choose how to compute a product of three matrices, and prepare it.

    Args:
        fuse: "auto": the better of fused and unfused; "never" and "always": the best of one kind.
        threads: of every call; all processors that this process may use unless given.
        cache: where decisions are kept; the folder of this user unless given.

    Raises:
        ValueError: `fuse` is none of the three.
        Unsupported: fuse="always" for loops of different length.
    """
    if fuse not in ("auto", "never", "always"):
        raise ValueError(f"fuse={fuse!r}: give \"auto\", \"never\" or \"always\"")
    problem = Problem.of(op, operands)
    threads = len(os.sched_getaffinity(0)) if threads is None else threads
    variant = Variant(stream=True)
    if fuse == "never" or (fuse == "auto" and not problem.fusible):
        choice = PairChoice.unfused(variant, threads=threads)
    else:
        choice = PairChoice(True, **FUSED, order="natural", variant=Variant(local=True, stream=True), threads=threads)
    return PairPlan(choice, Decision("rule", "fixed"), Workshop(problem).executor(choice))
