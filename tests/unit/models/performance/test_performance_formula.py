"""Formulas: results, refusals, and equal results in C."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

from sparloom.models.performance import Formula

COLUMNS = {"m": np.array([[1.0], [7.0]]), "tile": np.array([4.0, 8.0, 7.0])}
TEXTS = {"micro": np.array(["8x32", "1x16"]), "strip": np.array(["all", "16"]), "pack": np.array(["none", "b"])}


@pytest.mark.parametrize(("text", "expected"), [
    ("ceil(m / tile)", [[1, 1, 1], [2, 1, 1]]),
    ("-m + 2 * tile - 1", [[6, 14, 12], [0, 8, 6]]),
    ("min(m, tile) * (m >= tile)", [[0, 0, 0], [4, 0, 7]]),
    ("max(m, 3) == floor(tile / 2)", [[0, 0, 1], [0, 0, 0]]),
])
def test_columns_broadcast(text, expected):
    np.testing.assert_array_equal(Formula(text).evaluate(COLUMNS), expected)


@pytest.mark.parametrize(("text", "expected"), [
    ("first(micro) * 100 + second(micro)", [832, 116]), ("number(strip, 0)", [0, 16]), ("pack != 'none'", [0, 1]),
])
def test_texts_are_read(text, expected):
    np.testing.assert_array_equal(Formula(text).evaluate(TEXTS), expected)


@pytest.mark.parametrize("text", [
    "__import__('os')", "m ** 2", "m.real", "m if tile else 0", "[m]", "lambda: m", "1 < m < 3", "min(m, key=m)",
    "True", "m and tile", "open('f')",
])
def test_unsupported_syntax_is_refused(text):
    with pytest.raises(ValueError, match="is not allowed: use numbers, names"):
        Formula(text)


@pytest.mark.cc
def test_c_computes_what_numpy_computes(tmp_path: Path):
    texts = ["ceil(m / tile) * 3", "-m + 2 * tile - 1", "min(m, tile) * (m >= tile)", "max(m, 3) / floor(tile / 2.5)"]
    functions = "".join(f"double f{place}(double m, double tile) {{ return {Formula(text).c()}; }}\n"
                        for place, text in enumerate(texts))
    (tmp_path / "formulas.c").write_text(f"#include <math.h>\n{functions}")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", tmp_path / "formulas.so", tmp_path / "formulas.c", "-lm"],
                   check=True)
    library = ctypes.CDLL(str(tmp_path / "formulas.so"))
    for place, text in enumerate(texts):
        entry = library[f"f{place}"]
        entry.restype, entry.argtypes = ctypes.c_double, [ctypes.c_double] * 2
        for m, tile in [(1, 4), (7, 8), (7, 7), (1000, 96)]:
            assert entry(m, tile) == Formula(text).evaluate({"m": np.float64(m), "tile": np.float64(tile)})
