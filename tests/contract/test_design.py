"""Limits of the design: number, length and cycles of files, and the files that one call runs through."""

import pytest
from design_counts import LIMITS, SMALLEST, count_files, cycles, import_graph, sizes


@pytest.fixture(scope="module")
def counts():
    return sizes()


@pytest.mark.parametrize("name", ["files in src", "mean lines", "longest file", "files in conf"])
def test_sizes_are_within_their_limits(counts, name):
    assert counts[name] >= LIMITS[name] if name in SMALLEST else counts[name] <= LIMITS[name]


def test_files_of_the_package_import_each_other_in_one_direction():
    assert cycles(import_graph()) == []


def test_a_cycle_is_found():
    graph = {"p.a": {"p.b"}, "p.b": {"p.c"}, "p.c": {"p.a"}, "p.d": {"p.a", "p"}, "p": {"p.a", "p.d"}}
    assert cycles(graph) == [["p.a", "p.b", "p.c"]]


@pytest.mark.cc
def test_lowering_runs_through_few_files():
    assert count_files("lowering")["lowering vgemm"] <= LIMITS["lowering vgemm"]
