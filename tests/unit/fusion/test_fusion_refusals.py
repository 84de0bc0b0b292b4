"""Functions that cannot be fused are rejected with file, line and source text."""

import inspect

import numpy as np
import pytest
from interpreted import InterpretedLibrary

from sparloom.errors import Unfusable
from sparloom.fusion import Csr, fprange, fuse

N = 4
A = Csr(np.arange(N + 1), np.arange(N, dtype=np.int32), np.ones(N, np.float32), (N, N))
B = np.ones((N, 3), np.float32)
PERM = np.array([2, 0, 3, 1])


def carried_by_an_array(B, n):
    D1, D = np.zeros(n), np.zeros(n)
    for i in fprange(1, n):
        D1[i] = D1[i - 1] + B[i, 0]  # rejected
    for j in fprange(1, n):
        D[j] = D1[j]
    return D


def carried_by_a_scalar(B, n):
    D1, D, total = np.zeros(n), np.zeros(n), 0.0
    for i in fprange(n):  # rejected
        total += B[i, 0]
        D1[i] = total
    for j in fprange(n):
        D[j] = D1[j]
    return D


def scattered(B, perm, n):
    D1, D = np.zeros(n), np.zeros(n)
    for i in fprange(n):
        D1[perm[i]] = B[i, 0]  # rejected
    for j in fprange(n):
        D[j] = D1[j]
    return D


def unequal_trips(B, n, m):
    D1, D = np.zeros(n), np.zeros(m)
    for i in fprange(n):
        D1[i] = B[i, 0]
    for j in fprange(m):  # rejected
        D[j] = D1[j]
    return D


def dense(B, n):
    D1, D = np.zeros(n), np.zeros(n)
    for i in fprange(n):
        D1[i] = B[i, 0]
    for j in fprange(n):
        for k in range(n):
            D[j] += D1[k]  # rejected
    return D


def between(B, n):
    D1, D = np.zeros(n), np.zeros(n)
    for i in fprange(n):
        D1[i] = B[i, 0]
    pivot = D1[0]  # rejected
    for j in fprange(n):
        D[j] = D1[j] / pivot
    return D


def stored_between(B, n):
    D1, D = np.zeros(n), np.zeros(n)
    for i in fprange(n):
        D1[i] = B[i, 0]
    D[0] = 1.0  # rejected
    for j in fprange(n):
        D[j] = D1[j]
    return D


def unmarked(B, n):
    D1, D = np.zeros(n), np.zeros(n)
    for i in fprange(n):
        D1[i] = B[i, 0]
    for j in range(n):  # rejected
        D[j] = D1[j]
    return D


def one(B, n):  # rejected
    D1 = np.zeros(n)
    for i in fprange(n):
        D1[i] = B[i, 0]
    return D1


def open_ended(B, n):
    D1, D = np.zeros(n), np.zeros(n)
    for i in fprange(n):
        x = B[i, 0]
        while x > 1.0:  # rejected
            x = 0.5 * x
        D1[i] = x
    for j in fprange(n):
        D[j] = D1[j]
    return D


def called(B, n):
    D1, D = np.zeros(n), np.zeros(n)
    for i in fprange(n):
        D1[i] = np.cbrt(B[i, 0])  # rejected
    for j in fprange(n):
        D[j] = D1[j]
    return D


def computed_subscript(B, n):
    D1, D = np.zeros(n), np.zeros(n)
    for i in fprange(n):
        D1[i] = B[i, 0]
    for j in fprange(n):
        D[j] = D1[int(B[j, 0])]  # rejected
    return D


def changing_subscript(A, B, n):
    D1, D = np.zeros(n), np.zeros(n)
    for i in fprange(n):
        D1[i] = B[i, 0]
    for j in fprange(n):
        at = 0
        for e in range(A.p[j], A.p[j + 1]):
            at += A.i[e]
            D[j] += D1[at]  # rejected
    return D


def changing_bound(A, B, n):
    D1, D = np.zeros(n), np.zeros(n)
    for i in fprange(n):
        D1[i] = B[i, 0]
    for j in fprange(n):
        end = 0
        for e in range(A.p[j], A.p[j + 1]):
            end += A.i[e]
        for k in range(end):
            D[j] += D1[k]  # rejected
    return D


def written_index(A, B, n):
    D1, D = np.zeros(n), np.zeros(n)
    for i in fprange(n):
        D1[i] = B[i, 0]
        A.i[i] = 0
    for j in fprange(n):
        D[j] = D1[A.i[j]]  # rejected
    return D


def negative(B, n):
    D1, D = np.zeros(n), np.zeros(n)
    for i in fprange(n):
        D1[i] = B[i, -1]  # rejected
    for j in fprange(n):
        D[j] = D1[j]
    return D


def number_returned(B, n):  # rejected
    D1, D = np.zeros(n), np.zeros(n)
    for i in fprange(n):
        D1[i] = B[i, 0]
    for j in fprange(n):
        D[j] = D1[j]
    return n


REJECTED = [
    (carried_by_an_array, (B, N), r"D1\[i\] is written, and D1\[i - 1\] of another iteration"),
    (carried_by_a_scalar, (B, N), "total is carried from one iteration to the next"),
    (scattered, (B, PERM, N), r"D1\[perm\[i\]\] is written, and D1\[perm\[i\]\] of another iteration"),
    (unequal_trips, (B, N, N), r"different trip counts: the loop in line \d+ is `for i in fprange\(n\):`"),
    (dense, (B, N), r"D1\[k\] may be touched by every iteration of i, which writes D1\[i\]"),
    (between, (B, N), "pivot is computed from D1 after the first loop has begun"),
    (stored_between, (B, N), "a store outside the marked loops"),
    (unmarked, (B, N), "an outermost loop that is not marked"),
    (one, (B, N), "1 marked loops: mark two"),
    (open_ended, (B, N), "a loop that does not run over a range"),
    (called, (B, N), "the call of cbrt is not supported"),
    (computed_subscript, (B, N), r"the subscripts of D1\[\?\] depend on"),
    (changing_subscript, (A, B, N), r"the subscripts of D1\[\?\] depend on a variable that changes"),
    (changing_bound, (A, B, N), r"the bounds of the loops around D1\[k\] are not supported"),
    (written_index, (A, B, N), r"the subscripts of D1\[A.i\[j\]\] are read from A.i, which the loops write"),
    (negative, (B, N), "a negative subscript of B"),
    (number_returned, (B, N), "the function does not return an array"),
]


@pytest.mark.parametrize(("function", "arguments", "message"), REJECTED, ids=[each[0].__name__ for each in REJECTED])
def test_errors_name_the_location_and_the_reason(function, arguments, message):
    lines, start = inspect.getsourcelines(function)
    offset, text = next((offset, line) for offset, line in enumerate(lines) if "# rejected" in line)
    with pytest.raises(Unfusable, match=message) as caught:
        fuse(function)(*arguments)
    assert str(caught.value).startswith(f"{__file__}:{start + offset}: ")
    assert text.strip() in str(caught.value)


def test_unsupported_argument_types_are_rejected():
    with pytest.raises(Unfusable, match="a value of type int8"):
        fuse(unequal_trips)(B.astype(np.int8), N, N)
    with pytest.raises(TypeError, match="argument B is a list"):
        fuse(unequal_trips)([1.0], N, N)


def gathered(A, B, n):
    D1, D = np.zeros(n), np.zeros(n)
    for i in fprange(n):
        D1[i] = B[i, 0]
    for j in fprange(n):
        for e in range(A.p[j], A.p[j + 1]):
            D[j] += A.x[e] * D1[A.i[e]]
    return D


@pytest.mark.parametrize(("arguments", "message"), [
    ((A, B, N + 1), "subscript 0 of B runs from 0 to 4, but its extent is 4"),
    ((A, np.ones((N, 0)), N), "subscript 1 of B runs from 0 to 0, but its extent is 0"),
    ((A._replace(shape=(N, 9)), B, N), "subscript 0 of D1 runs from 0 to 8, but its extent is 4"),
    ((A._replace(x=A.x[1:]), B, N), "rise from 0 to 4, with one value per nonzero"),
    ((A._replace(i=A.i + 1), B, N), "columns of A run from 1 to 4: they must lie in 0 to 3"),
    ((A._replace(p=A.p[::-1].copy()), B, N), "row pointers of A, 4 rows and 4 nonzeros"),
])
def test_subscripts_out_of_bounds_are_rejected_before_the_run(arguments, message, monkeypatch):
    monkeypatch.setattr("sparloom.fusion.compiled.compile_c", InterpretedLibrary)
    with pytest.raises(ValueError, match=message):
        fuse(gathered)(*arguments)


def test_loops_without_iterations_access_nothing(monkeypatch):
    monkeypatch.setattr("sparloom.fusion.compiled.compile_c", InterpretedLibrary)
    empty = Csr(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), (0, 9))
    assert fuse(gathered)(empty, B[:0, :0], 0).shape == (0,)
