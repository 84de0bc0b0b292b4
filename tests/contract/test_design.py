"""Budgets of the design: lines of code by package, lines in all, import cycles, and the files of one call."""

import pytest
from design_counts import (
    APPLICATIONS,
    BUDGETS,
    LIMITS,
    code_lines,
    count_files,
    cycles,
    import_graph,
    package_sizes,
    sizes,
)

MODULE = '''"""A docstring

of several lines."""

import os
from sys import (
    path,
)


# A comment.
@decorated  # another one
def function(first,
             second):
    """Also one."""
    text = """
# no comment, and then a blank line:

"""
    return text
'''


@pytest.fixture(scope="module")
def packages():
    return package_sizes()


@pytest.fixture(scope="module")
def counts():
    return sizes()


def test_lines_of_code_are_counted():
    assert code_lines(MODULE) == 8


def test_every_package_has_a_budget(packages):
    assert set(packages) == set(BUDGETS)
    assert set(APPLICATIONS) < set(BUDGETS)


@pytest.mark.parametrize("package", BUDGETS)
def test_packages_are_within_their_budgets(packages, package):
    assert packages[package] <= BUDGETS[package], "replace or remove code; CONTRIBUTING.md says when a budget may rise"


@pytest.mark.parametrize("name", ["lines in src", "lines in tests", "files in conf"])
def test_sizes_are_within_their_limits(counts, name):
    assert counts[name] <= LIMITS[name]


def test_files_of_the_package_import_each_other_in_one_direction():
    assert cycles(import_graph()) == []


def test_a_cycle_is_found():
    graph = {"p.a": {"p.b"}, "p.b": {"p.c"}, "p.c": {"p.a"}, "p.d": {"p.a", "p"}, "p": {"p.a", "p.d"}}
    assert cycles(graph) == [["p.a", "p.b", "p.c"]]


@pytest.mark.cc
@pytest.mark.parametrize("call", ["lowering", *(pytest.param(call, marks=pytest.mark.slow) for call in (
    "spmm", "accelerate", "pack", "pairs"))])
def test_calls_run_through_few_files(call):
    for name, count in count_files(call).items():
        assert count <= LIMITS[name]
