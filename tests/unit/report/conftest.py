"""A small evaluation: two matrices, two seeds, times that are easy to check by hand."""

import numpy as np
import pandas as pd
import pytest

from sparloom.report import RuntimeTable, judge, optimum, per_matrix, random_choice
from sparloom.space import SpadeSpace

SHAPES = {"a/small": (500, 500), "b/large": (90_000, 90_000)}


@pytest.fixture
def truth() -> RuntimeTable:
    space = SpadeSpace("spmm")
    rng = np.random.default_rng(0)
    rows = [{"matrix": name, "config": config.key, "seconds": float(value)}
            for name in SHAPES for config, value in zip(space, rng.uniform(1, 4, len(space)), strict=True)]
    return RuntimeTable.of(pd.DataFrame(rows), space, SHAPES)


@pytest.fixture
def frame(truth) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    choices = [random_choice(truth)]
    for seed in (0, 1):
        noisy = truth.seconds * rng.uniform(0.8, 1.2, truth.seconds.shape)
        choices += [judge("cognate", seed, truth, noisy), judge("static", seed, truth, -truth.seconds)]
    about = pd.DataFrame({"family": ["a", "b"]}, index=list(SHAPES))
    return per_matrix(truth, [*choices, optimum(truth)], about)
