"""A damaged file is refused in one line and never read as other data."""

from collections import Counter

import numpy as np
import pytest
from damaged_files import checkpoints, tables, trials, without_checksums


@pytest.mark.parametrize(("make", "count"), [(tables, 100), (checkpoints, 60)], ids=["tables", "checkpoints"])
def test_damaged_files_are_refused_or_read_as_they_were(tmp_path, make, count):
    rng = np.random.default_rng(0)
    found = list(trials(make(tmp_path, rng), count, rng))
    assert [each for each in found if each[1] in ("other data", "raw error")] == []
    assert Counter(outcome for _, outcome, _ in found)["refused"] >= 0.9 * count


@pytest.mark.parametrize("make", [tables, checkpoints], ids=["tables", "checkpoints"])
def test_files_of_older_versions_are_read_and_damage_raises_no_error_of_a_library(tmp_path, make):
    rng = np.random.default_rng(0)
    kept = make(tmp_path, rng)
    expected = [repr(each.read()) for each in kept]
    without_checksums(kept)
    assert [repr(each.read()) for each in kept] == expected
    assert [each for each in trials(kept, 60, rng) if each[1] == "raw error"] == []


def test_the_checksum_itself_may_be_damaged(tmp_path):
    table = tables(tmp_path, np.random.default_rng(0))[0]
    whole = table.files[0].read_bytes()
    start = whole.rfind(b"sparloom-sha256-") - 70
    for place in range(start, start + 250, 3):
        table.files[0].write_bytes(whole[:place] + bytes(64) + whole[place + 64:])
        with pytest.raises(Exception, match=r"samples\.parquet is (damaged|not a Parquet file)"):
            table.read()
