"""Verdicts on learnings: contrasts over equal problems, slices, and bounds."""

import numpy as np
import pandas as pd
import pytest

from sparloom.report import PaperClaim, slice_lead, verdict

PROBLEMS = pd.DataFrame({"matrix": [f"m{place}" for place in range(40)], "width": 1})
PROBLEMS["slice"] = ["m1"] * 10 + ["tall"] * 30
PROBLEMS["group"] = PROBLEMS["matrix"]


def rows(method: str, efficiency: np.ndarray) -> pd.DataFrame:
    return PROBLEMS.assign(method=method, efficiency=efficiency)


def test_a_slice_is_compared_with_the_rest():
    value, low, high = slice_lead(rows("a", np.array([0.5] * 10 + [0.9] * 30)), "a", "m1", seed=0)
    assert (value, low, high) == (pytest.approx(0.4),) * 3


@pytest.mark.parametrize(("low", "high", "said"), [
    (0.1, 0.2, "holds"), (-0.2, -0.1, "does not hold"), (-0.1, 0.1, "cannot say"), (0.0, 0.1, "cannot say"),
    (-0.1, 0.0, "does not hold"),
])
def test_bounds_decide(low, high, said):
    assert verdict(low, high) == said
    assert PaperClaim(1, "key", "claim", "measure", (low + high) / 2, low, high).verdict == said
