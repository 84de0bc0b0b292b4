"""Threads are pinned to processors and released afterwards."""

import os
import sys

import pytest

from sparloom.fusion import pinned

elsewhere = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are bound on Linux only")
pytestmark = [pytest.mark.cc, elsewhere]


def test_the_calling_thread_is_pinned_and_released():
    before = os.sched_getaffinity(0)
    with pinned(1):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before


def test_threads_are_released_after_an_error():
    before = os.sched_getaffinity(0)
    with pytest.raises(KeyError), pinned(len(before)):
        raise KeyError
    assert os.sched_getaffinity(0) == before


def test_too_many_threads_are_rejected():
    with pytest.raises(ValueError, match="threads on"), pinned(10**6):
        pass
