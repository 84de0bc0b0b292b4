"""Decide and time one case of a bench of tile fusion: two steps, for two processes."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from sparloom.errors import Unsupported
from sparloom.experiments.fusion_cases import Case
from sparloom.experiments.fusion_methods import SERIAL, Method, Methods
from sparloom.experiments.pair_check import PairCheck
from sparloom.fusion import Pair, Reordered, access_cycles, machine_levels, mean_cycles, pinned, potential_gain
from sparloom.measure import Measurement, TimingProtocol
from sparloom.ops import Operands
from sparloom.platforms import count_reads, interleaved, reads_by_level, reallocated
from sparloom.sparse import SparseMatrix
from sparloom.tuning import PairPlan, PlanCache, plan_pair

__all__ = ["Bench", "decide", "score"]

DECIDED = {"unfused": "never", "auto": "auto"}  # method -> argument of `plan_pair`
GAIN_RUNS = 7
WATCHED = ("unfused", "fused", "auto")  # thread by thread; in simulated caches too where the steps are timed

Row = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """What all cases have in common.

    Args:
        ops: by name.
        cache: of decisions; another process finds them there.
        gemv_flops: see `Methods`.
    """

    ops: Mapping[str, Pair]
    timing: TimingProtocol
    cache: PlanCache
    gemv_flops: float
    seed: int


def decide(bench: Bench, case: Case, matrix: SparseMatrix) -> list[Row]:
    """Choose the best unfused program and the best of all; a row for each choice says what it took."""
    rows = []
    op = bench.ops[case.op]
    with pinned(case.threads):
        operands = op.operands(matrix, case.width, bench.seed)
        for method, fuse in DECIDED.items():
            plan = plan_pair(op, operands, fuse=fuse, threads=case.threads, cache=bench.cache)
            rows.append({"method": method, "choice": json.dumps(plan.choice.to_json()),
                         "reason": plan.decision.reason, "decision_seconds": plan.decision.seconds,
                         "decision_executions": plan.decision.executions})
    return rows


def score(bench: Bench, case: Case, matrix: SparseMatrix) -> list[Row]:
    """Check every method and time all of them side by side; a row for each.

    What was decided is looked up, not decided again.

    Raises:
        NotDecided: no other process has decided the case before.
    """
    op = bench.ops[case.op]
    with pinned(case.threads), _one_blas_thread():
        operands = reallocated(op.operands(matrix, case.width, bench.seed))
        plans = {method: plan_pair(op, operands, fuse=fuse, threads=case.threads, cache=bench.cache, replay_only=True)
                 for method, fuse in DECIDED.items()}
        methods, rows = _methods(bench, case, operands, plans)
        same = plans["auto"].choice == plans["unfused"].choice
        timed = {name: method.call for name, method in methods.items() if not (same and name == "auto")}
        taken = interleaved(timed, bench.timing, threads=case.threads, serial=SERIAL)
        if same and "auto" in methods:
            taken["auto"] = taken["unfused"]
        facts = {"same": same, "flops": op.work(matrix.pattern, case.width).flops}
        for name, method in methods.items():
            rows.append({"method": name, **_statistics(taken[name]), **method.facts, **facts})
            if name in WATCHED:
                rows[-1]["gain_seconds"] = _gain(method)
                if "coarse" in methods:
                    rows[-1] |= _access(method)
    return rows


def _methods(
    bench: Bench, case: Case, operands: Operands, plans: Mapping[str, PairPlan],
) -> tuple[dict[str, Method], list[Row]]:
    """Make and check the methods; those that cannot be made, or are wrong, become rows with a failure."""
    op = bench.ops[case.op]
    result = plans["unfused"].executor.result(operands)
    maker = Methods(op, operands, result, threads=case.threads, plans=dict(plans), gemv_flops=bench.gemv_flops)
    check = PairCheck(op, operands, seed=bench.seed)
    methods, failed = {}, []
    for name in case.methods:
        try:
            method = maker.make(name)
            result.fill(np.nan)
            method.call()
            check.check(method.in_place(result))
            methods[name] = method
        except (Unsupported, AssertionError) as error:
            failed.append({"method": name, "failure": f"{type(error).__name__}: {error}"})
    return methods, failed


def _statistics(measured: Measurement) -> Row:
    seconds = np.array(measured.seconds)
    low, middle, high = np.quantile(seconds, (0.1, 0.5, 0.9))
    return {"seconds": float(middle), "seconds_p10": float(low), "seconds_p90": float(high),
            "repetitions": seconds.size, "cpu_seconds": float(np.median(measured.cpu_seconds)),
            "stolen": measured.stolen}


def _gain(method: Method) -> float:
    """Median of what even shares of the threads' work would have saved in a few runs."""
    executor = replace(method.executor, timed=True)
    call = executor.bind(method.operands, executor.result(method.operands))
    gains = []
    for _ in range(GAIN_RUNS):
        call()
        gains.append(potential_gain(executor.seconds))
    return float(np.median(gains))


def _access(method: Method) -> Row:
    """Average time of a memory access: counted by the processor, else simulated."""
    executor, operands, pattern = method.executor, method.operands, method.operands.matrix.pattern
    levels = machine_levels(executor.threads)
    try:
        counts = count_reads(method.call)
    except Unsupported:
        if executor.order is not None:
            pattern = Reordered.of(pattern, executor.order).pattern
        inner = 0 if operands.right is not None else operands.dense["B"].shape[1]
        cycles = access_cycles(executor.op, pattern, executor.schedule, inner=inner, width=executor.op.width(operands),
                               threads=executor.threads, variant=executor.variant, levels=levels)
        return {"access_cycles": cycles, "access_source": "simulated"}
    return {"access_cycles": mean_cycles(reads_by_level(counts), levels), "access_source": "counted"}


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Keep the BLAS of SciPy, which our kernels call from many threads, and that of NumPy on one thread.

    Their threads are not those of OpenMP: both kinds would compete for the processors.
    """
    with ThreadpoolController().select(internal_api="openblas").limit(limits=1):
        yield
