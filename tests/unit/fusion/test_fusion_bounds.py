"""Subscripts under an `if` are checked before the run as if its branch always ran."""

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


@pytest.mark.parametrize("lines", [
    ("if B[j, 0] > 0.0:", "    D[j] = D1[j]"), ("if j > 2:", "    D[j] = B[j, 2]", "else:", "    D[j] = D1[j]"),
    ("for e in range(A.p[j], A.p[j + 1]):", "    if A.i[e] < j:", "        D[j] += D1[A.i[e]]"),
    ("for e in range(A.p[j], A.p[j + 1]):", "    if A.x[e] < 0:", "        continue", "    D[j] += D1[A.i[e]]")])
def test_branches_run(lines):
    function = _pair(*lines)
    np.testing.assert_array_equal(fuse(function)(A, B, N, 0, 2), function(A, B, N, 0, 2))


@pytest.mark.parametrize(("lines", "message"), [
    (("if j > 0:", "    D[j] = D1[j - 1]"), "subscript 0 of D1 runs from -1 to 4, but its extent is 6"),
    (("if j + 1 < n:", "    D[j] = D1[j + 1]"), "subscript 0 of D1 runs from 1 to 6, but its extent is 6"),
    (("if B[j, 1] > 0.0:", "    D[j] = B[j, 3]"), "subscript 1 of B runs from 3 to 3, but its extent is 3"),
    (("D[j] = D1[j + offset]",), "subscript 0 of D1 runs from 2 to 7, but its extent is 6"),
    (("for e in range(A.p[j], A.p[j + 1]):", "    if A.x[e] > 0.0:", "        D[j] += D1[A.i[e] + 2]"),
     "subscript 0 of D1 runs from 2 to 7"),
])
def test_subscripts_out_of_bounds_are_rejected_whatever_the_condition(lines, message):
    with pytest.raises(ValueError, match=f"{message}.*: change the bounds of the loops"):
        fuse(_pair(*lines))(A, B, N, 0, 2)
