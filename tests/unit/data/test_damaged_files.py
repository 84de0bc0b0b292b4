"""A damaged file is refused in one line and never read as other data."""

from collections import Counter

import numpy as np
import pytest
from damaged_files import checkpoints, tables, trials


@pytest.mark.parametrize(("make", "count"), [(tables, 100), (checkpoints, 60)], ids=["tables", "checkpoints"])
def test_damaged_files_are_refused_or_read_as_they_were(tmp_path, make, count):
    rng = np.random.default_rng(0)
    found = list(trials(make(tmp_path, rng), count, rng))
    assert [each for each in found if each[1] in ("other data", "raw error")] == []
    assert Counter(outcome for _, outcome, _ in found)["refused"] >= 0.75 * count
