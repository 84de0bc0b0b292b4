"""A small model of a large one: distilled, judged beside it, written as a C header, timed in Python and in C."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from sparloom.experiments.tree_subject import TreeSubject
from sparloom.files import write_text
from sparloom.ir import F64, I64, Param
from sparloom.jit import Source, compile_c
from sparloom.models.performance import (
    Growth,
    PerformanceModel,
    c_header,
    distil,
    fold_of,
    gemm_problems,
    nearby_shapes,
)
from sparloom.ops import GemmShape

__all__ = ["Distillation", "prediction_seconds", "write_header"]

REPEATS = 30  # predictions, the fastest of which is reported: other processes only slow them down
TIMED = 200  # of the C header
TIMER = """
#include <time.h>

void sparloom_time(double m, double n, double k, long repeats, double *seconds, double *rates)
{
    struct timespec before, after;
    seconds[0] = 1e9;
    for (long turn = 0; turn < repeats; turn++) {
        clock_gettime(CLOCK_MONOTONIC, &before);
        volatile int place = sparloom_gemm_best(m, n, k);
        clock_gettime(CLOCK_MONOTONIC, &after);
        (void)place;
        const double taken = (after.tv_sec - before.tv_sec) + 1e-9 * (after.tv_nsec - before.tv_nsec);
        if (taken < seconds[0])
            seconds[0] = taken;
    }
    for (int place = 0; place < SPARLOOM_GEMM_CONFIGS; place++)
        rates[place] = sparloom_gemm_predict(m, n, k, place);
}
"""


@dataclass(frozen=True)
class Distillation:
    """How the small model of GEMM learns from the large one.

    Args:
        growth: of the small model.
        shapes: on which it asks the large one; drawn near the measured ones.
        focus: how much more the fast configurations of a shape weigh, see `distil`.
        share: of the configurations that are asked about.
    """

    growth: Growth
    shapes: int
    focus: float
    share: float

    def small(self, subject: TreeSubject, model: PerformanceModel) -> PerformanceModel:
        """Distil a model of GEMM."""
        columns = subject.measured.problems
        measured = [GemmShape(int(m), int(n), int(k)) for m, n, k in zip(columns["m"], columns["n"], columns["k"],
                                                                         strict=True)]
        problems = gemm_problems(nearby_shapes(measured, self.shapes, seed=self.growth.seed))
        return distil(model, problems, subject.measured.configs, growth=self.growth, focus=self.focus, share=self.share)

    def scores(self, subject: TreeSubject, model: PerformanceModel) -> Float[np.ndarray, "problems configs"]:
        """Score every fold by the small model of the member that has not seen it."""
        fold = fold_of(subject.measured, model.folds).ravel()
        found = np.zeros(subject.measured.seconds.shape)
        for number in range(len(model.members)):
            asked = fold == number
            small = self.small(subject, model.member(number))
            problems = {name: column[asked] for name, column in subject.measured.problems.items()}
            found[asked] = small.over(subject.measured.configs).score(problems)
        return found


def prediction_seconds(model: PerformanceModel, subject: TreeSubject, *, threads: int) -> float:
    """Least time of predicting all configurations on one problem, features included."""
    candidates = replace(model, threads=threads).over(subject.measured.configs)
    problem = {name: column[:1] for name, column in subject.measured.problems.items()}
    candidates.predict(problem)
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        candidates.predict(problem)
        taken.append(time.perf_counter() - began)
    return min(taken)


def write_header(path: Path, model: PerformanceModel, subject: TreeSubject) -> Mapping[str, float]:
    """Write the C header, compile it, compare it with Python and take its time.

    Returns:
        `c_milliseconds` of choosing for one problem, and `c_error`, the largest relative difference of a prediction.
    """
    configs = subject.measured.configs
    text = c_header(model, configs, fallback=subject.fallback)
    write_text(path, text)
    sizes = [Param(name, F64) for name in ("m", "n", "k")]
    results = [Param(name, F64, buffer=True, const=False) for name in ("seconds", "rates")]
    source = Source("sparloom_time", (*sizes, Param("repeats", I64), *results), text + TIMER)
    function = compile_c([source]).function("sparloom_time")
    problems = {name: subject.measured.problems[name] for name in ("m", "n", "k")}
    expected = model.over(configs).predict(problems)
    taken, worst = [], 0.0
    for place in range(len(subject)):
        seconds, rates = np.zeros(1), np.zeros(len(configs))
        sizes = (float(problems[name][place]) for name in ("m", "n", "k"))
        function(*sizes, TIMED if place == 0 else 1, seconds, rates)
        taken.append(seconds[0])
        worst = max(worst, float(np.abs(rates / expected[place] - 1).max()))
    return {"c_milliseconds": taken[0] * 1e3, "c_error": worst}
