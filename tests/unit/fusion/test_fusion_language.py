"""Statements and expressions in marked loops, compared with Python."""

import math

import numpy as np
import pytest
from interpreted import InterpretedLibrary

import sparloom.fusion as fusion
from sparloom.fusion import fprange, fuse

N = 7
X = np.random.default_rng(0).random((N, 4)) * 4 - 2
K = np.random.default_rng(1).integers(-9, 9, N)
SHIFT = 3


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    monkeypatch.setattr("sparloom.fusion.compiled.compile_c", InterpretedLibrary)


def branches(X, n):
    a, b = np.zeros(n), np.zeros(n)
    for i in fprange(n):
        if X[i, 0] > 0.5 and X[i, 1] > 0.0:
            y = X[i, 0]
        elif X[i, 2] < 0.0 or not X[i, 3] < 1.0:
            y = -X[i, 2]
            if y > 1.0:
                y = 1.0
        else:
            y = 0.0
        a[i] = y
    for j in fprange(n):
        b[j] = a[j] if a[j] > 0.25 else -1.0
    return a, b


def arithmetic(X, K, n):
    a, b = np.zeros(n), np.zeros(n)
    for i in fprange(n):
        a[i] = (K[i] // 4) + (K[i] % 4) - (K[i] // -3) * (K[i] % -3) + X[i, 0] ** 2 / 3
    for j in fprange(n):
        b[j] = abs(a[j]) + min(a[j], 1.5) + max(K[j], 2) + math.sqrt(np.abs(X[j, 1])) + np.maximum(a[j], X[j, 2])
    return b


def swapped(X, n):
    a, b = np.zeros(n), np.zeros((n, 2))
    for i in fprange(n):
        p, q = 1.0, 2.0
        for k in range(3):
            t = p
            p = q + X[i, k]
            q = t
        a[i] = p - q
    for j in fprange(n):
        b[j, 0] = a[j]
        b[j, 1] = X[j, 0]
        b[j, 0], b[j, 1] = b[j, 1], b[j, 0]
    return b


def deep(X, n):
    a = np.zeros((n, 2, 3))
    b = np.zeros(n)
    for i in fprange(n):
        for k in range(2):
            for m in range(3):
                a[i, k, m] = X[i, k] * m
    for j in fprange(n):
        s = 0.0
        for k in range(1, 2):
            for m in range(0, 3, 2):
                s += a[j, k, m]
        b[j] = s
    return b


def global_and_default(X, n, factor=2.0):
    a, b = np.zeros(n + SHIFT), np.zeros(n)
    for i in fusion.fprange(n):
        a[i + SHIFT] = X[i, 0] * factor + math.pi
    m = n
    for j in fprange(m):
        b[j] = a[j + SHIFT] * np.float64(2)
    return b


def mixed_integers(K, n):
    a, b = np.zeros(n, np.int64), np.zeros(n)
    for i in fprange(n):
        count = 0
        for k in range(K[i]):
            count += k
        a[i] = count
    for j in fprange(n):
        b[j] = a[j] * 0.5
    return a, b


def in_place(X, n):
    for i in fprange(n):
        X[i, 0] = X[i, 0] + 1.0
    for j in fprange(n):
        X[j, 1] += X[j, 0]


def strided(X, n):
    a, b = np.zeros(3 * n + 2), np.zeros(2 * n)
    for i in fprange(2, 3 * n + 2, 3):
        a[i] = X[(i - 2) // 3, 0]
    for j in fprange(0, 2 * n, 2):
        b[j] = a[3 * (j // 2) + 2]
    return b


FUNCTIONS = [
    (branches, (X, N)), (arithmetic, (X, K, N)), (swapped, (X, N)), (deep, (X, N)), (global_and_default, (X, N)),
    (mixed_integers, (K, N)), (in_place, (X, N)), (strided, (X, N)),
]


@pytest.mark.parametrize(("function", "arguments"), FUNCTIONS, ids=[each[0].__name__ for each in FUNCTIONS])
def test_compiled_functions_compute_what_python_computes(function, arguments):
    actual, expected = ([each.copy() if isinstance(each, np.ndarray) else each for each in arguments] for _ in "ab")
    results = fuse(function)(*actual), function(*expected)
    for a, b in zip((*_tuple(results[0]), *actual), (*_tuple(results[1]), *expected), strict=True):
        if b is not None:
            np.testing.assert_allclose(a, b, rtol=1e-14, atol=0)
            assert getattr(a, "dtype", None) == getattr(b, "dtype", None)


def _tuple(value):
    return value if isinstance(value, tuple) else (value,)
