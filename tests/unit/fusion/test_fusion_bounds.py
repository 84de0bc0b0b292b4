"""Subscripts under an `if` are checked before the run, within what its comparisons allow."""

import numpy as np
import pytest
from interpreted import InterpretedLibrary

from sparloom.fusion import Csr, fprange, fuse

N = 6
B = np.linspace(-1, 1, 3 * N).reshape(N, 3)
A = Csr(np.array([0, 2, 2, 3, 5, 6, 6]), np.array([0, 1, 2, 2, 3, 4], np.int32), np.ones(6), (N, N))


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    monkeypatch.setattr("sparloom.fusion.compiled.compile_c", InterpretedLibrary)


def _pair(*lines):
    """Make a function with `lines` as its second loop; D1 and D have n rows, B has 3 columns, A is sparse."""
    body = "\n".join(f"        {line}" for line in lines)
    text = f"""
def written(A, B, n, flag, offset):
    D1, D = np.zeros(n), np.zeros(n)
    for i in fprange(n):
        D1[i] = B[i, 0]
    for j in fprange(n):
{body}
    return D
"""
    scope = {"np": np, "fprange": fprange}
    path = f"<{hash(lines)}>"
    exec(compile(text, path, "exec"), scope)
    return scope["written"]


INSIDE = {
    "above": ("if j > 0:", "    D[j] = D1[j - 1]"),
    "at least": ("if 1 <= j:", "    D[j] = D1[j - 1]"),
    "below": ("if j + 1 < n:", "    D[j] = D1[j + 1]"),
    "at most": ("if j <= n - 2:", "    D[j] = D1[j + 1]"),
    "not the first": ("if j != 0:", "    D[j] = D1[j - 1]"),
    "not the last": ("if j != n - 1:", "    D[j] = D1[j + 1]"),
    "true": ("if j:", "    D[j] = D1[j - 1]"),
    "otherwise": ("if j == 0:", "    D[j] = 1.0", "else:", "    D[j] = D1[j - 1]"),
    "chosen": ("D[j] = D1[j - 1] if j > 0 else 0.0",),
    "left out": ("D[j] = 1.0", "for e in range(1):", "    if j < 2:", "        continue", "    D[j] = D1[j - 2]"),
    "both": ("if j > 0 and j < n - 1:", "    D[j] = D1[j - 1] + D1[j + 1]"),
    "chained": ("if 0 < j < n - 1:", "    D[j] = D1[j - 1] + D1[j + 1]"),
    "neither": ("if not (j < 1 or j >= n - 1):", "    D[j] = D1[j - 1] + D1[j + 1]"),
    "one inside the other": ("if j > 0:", "    if B[j, 0] > 0.0:", "        D[j] = D1[j - 1]"),
    "named": ("at = j - 1", "if at >= 0:", "    D[j] = D1[at]"),
    "two iterators": ("for k in range(3):", "    if j >= k:", "        D[j] += D1[j - k]"),
    "twice the iterator": ("if 2 * j < n:", "    D[j] = D1[2 * j]"),
    "a multiple of what is compared": ("if j > 0:", "    if j < 3:", "        D[j] = D1[2 * j - 2]"),
    "an equation": ("if j == 2:", "    D[j] = D1[2 * j]"),
    "a column": ("for e in range(A.p[j], A.p[j + 1]):", "    if A.i[e] > 0:", "        D[j] += D1[A.i[e] - 1]"),
    "a bound inside": ("if j > 0:", "    for k in range(j - 1, j):", "        D[j] += D1[k]"),
    "a nonempty row": ("if A.p[j] < A.p[j + 1]:", "    D[j] = D1[A.i[A.p[j]]]"),
    "a scalar that forbids it": ("if flag > 0:", "    D[j] = D1[j + offset]"),
    "never": ("if j > n:", "    D[j] = D1[j + 1]"),
}
"""Second loops whose subscripts stay in bounds."""


@pytest.mark.parametrize("name", INSIDE)
def test_subscripts_that_a_condition_keeps_in_bounds_run(name):
    function = _pair(*INSIDE[name])
    for n in (0, 1, N):
        part = A if n == N else Csr(np.zeros(n + 1, np.int64), A.i[:0], A.x[:0], (n, n))
        arguments = part, B, n, 0, 2
        np.testing.assert_array_equal(fuse(function)(*arguments), function(*arguments))


@pytest.mark.parametrize(("lines", "message"), [
    (("if j > 0:", "    D[j] = D1[j - 2]"), "subscript 0 of D1 runs from -1 to 3, but its extent is 6"),
    (("if j >= 0:", "    D[j] = D1[j - 1]"), "subscript 0 of D1 runs from -1 to 4, but its extent is 6"),
    (("if j < n:", "    D[j] = D1[j + 1]"), "subscript 0 of D1 runs from 1 to 6, but its extent is 6"),
    (("if j != 1:", "    D[j] = D1[j - 1]"), "subscript 0 of D1 runs from -1 to 4"),
    (("if j > 0:", "    D[j] = 1.0", "else:", "    D[j] = D1[j - 1]"), "subscript 0 of D1 runs from -1 to -1"),
    (("if B[j, 0] > 0.0:", "    D[j] = D1[j + 1]"), "subscript 0 of D1 runs from 1 to 6"),
    (("if j > 0 or B[j, 0] > 0.0:", "    D[j] = D1[j - 1]"), "subscript 0 of D1 runs from -1 to"),
    (("if B[j, 1] > 0.0:", "    D[j] = B[j, 3]"), "subscript 1 of B runs from 3 to 3, but its extent is 3"),
    (("if flag >= 0:", "    D[j] = D1[j + offset]"), "subscript 0 of D1 runs from 2 to 7, but its extent is 6"),
    (("if flag > offset:", "    D[j] = 1.0", "else:", "    D[j] = D1[j + n]"), "subscript 0 of D1 runs from 6 to 11"),
    (("for e in range(A.p[j], A.p[j + 1]):", "    if A.x[e] > 0.0:", "        D[j] += D1[A.i[e] + 2]"),
     "subscript 0 of D1 runs from 2 to 7"),
])
def test_subscripts_that_a_condition_lets_out_of_bounds_are_rejected(lines, message):
    with pytest.raises(ValueError, match=f"{message}.*: let the `if` around it compare it with its limits"):
        fuse(_pair(*lines))(A, B, N, 0, 2)


def lower_triangle(A, B, n):
    D1, D = np.zeros(n), np.zeros(n)
    for i in fprange(n):
        D1[i] = B[i, 0]
    for j in fprange(n):
        for e in range(A.p[j], A.p[j + 1]):
            if A.i[e] < j:
                D[j] += A.x[e] * D1[A.i[e]]
    return D


def test_conditions_remove_edges_from_the_graph():
    graph = fuse(lower_triangle).graph(A, B, N)
    assert [(r, c) for r, c in zip(graph.row_ids().tolist(), graph.indices.tolist(), strict=True)] == [
        (r, c) for r in range(N) for c in A.i[A.p[r] : A.p[r + 1]].tolist() if c < r]
