"""Counts of reads by cache level."""

from sparloom.errors import Unsupported
from sparloom.platforms import EVENTS, count_reads, reads_by_level


def test_reads_are_split_by_the_level_that_served_them():
    assert reads_by_level({"first": 100, "first_missed": 30, "last": 12, "last_missed": 5}) == (70, 18, 7, 5)


def test_counts_that_contradict_each_other_give_no_negative_reads():
    assert reads_by_level({"first": 10, "first_missed": 30, "last": 40, "last_missed": 50}) == (0, 0, 0, 10)


def test_a_run_is_counted_or_the_reason_is_named():
    ran = []
    try:
        counts = count_reads(lambda: ran.append(sum(range(100_000))))
    except Unsupported:
        assert not ran
        return
    assert set(counts) == set(EVENTS)
    assert counts["first"] > 0
