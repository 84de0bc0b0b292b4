"""The C header: it compiles alone, computes what Python computes, and is scored beside the full model."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
from gemm_cases import GROWTH, LOG1P, efficiency, measured, origin, shapes, space

from sparloom.models.performance import (
    GEMM_FEATURES,
    PerformanceModel,
    Target,
    c_header,
    distil,
    gemm_problems,
    train_performance,
)
from sparloom.ops import GemmShape

USER = """\
#include "sparloom_gemm.h"
double predict(double m, double n, double k, double a_transposed, double b_transposed, int place)
{ return sparloom_gemm_predict(m, n, k, a_transposed, b_transposed, place); }
int best(double m, double n, double k, double a_transposed, double b_transposed)
{ return sparloom_gemm_best(m, n, k, a_transposed, b_transposed); }
int tile_m(int place) { return sparloom_gemm_configs[place].tile_m; }
const char *micro(int place) { return sparloom_gemm_configs[place].micro; }
"""
CONFIGS = tuple(space())


@pytest.fixture(scope="module")
def full() -> PerformanceModel:
    return train_performance(measured(45), spec=GEMM_FEATURES, target=LOG1P, origin=origin(), growth=GROWTH, folds=3)


@pytest.fixture(scope="module")
def small(full) -> PerformanceModel:
    return distil(full, gemm_problems(shapes(400, seed=9)), CONFIGS, growth=GROWTH.with_trees(40), focus=2.0, share=0.5)


def compiled(model: PerformanceModel, folder: Path) -> ctypes.CDLL:
    text = c_header(model, CONFIGS, fallback=space().default())
    (folder / "sparloom_gemm.h").write_text(text)
    (folder / "user.c").write_text(USER)
    flags = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "-o", folder / "user.so", folder / "user.c", "-lm"], check=True)
    library = ctypes.CDLL(str(folder / "user.so"))
    library.predict.restype, library.micro.restype = ctypes.c_double, ctypes.c_char_p
    library.predict.argtypes = [ctypes.c_double] * 5 + [ctypes.c_int]
    library.best.argtypes = [ctypes.c_double] * 5
    return library


def sizes(shape: GemmShape) -> tuple[int, ...]:
    return shape.m, shape.n, shape.k, shape.a_transposed, shape.b_transposed


@pytest.mark.cc
@pytest.mark.parametrize("target", [LOG1P, Target("latency", "log"), Target("bandwidth", "raw")], ids=str)
def test_c_predicts_what_python_predicts(target, tmp_path):
    model = train_performance(measured(30), spec=GEMM_FEATURES, target=target, origin=origin(),
                              growth=GROWTH.with_trees(20), folds=3).member(0)
    library = compiled(model, tmp_path)
    asked = shapes(20, seed=5)
    expected = model.predict(gemm_problems(asked), CONFIGS)
    found = [[library.predict(*sizes(shape), place) for place in range(len(CONFIGS))] for shape in asked]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.cc
def test_c_chooses_what_python_chooses(small, tmp_path):
    library = compiled(small, tmp_path)
    asked = [shape for shape in shapes(40, seed=6) if min(shape.n, shape.k) > 1]
    chosen = small.over(CONFIGS).best(gemm_problems(asked), fallback=space().default())
    found = [library.best(*sizes(shape)) for shape in asked]
    assert [CONFIGS[place] for place in found] == chosen
    assert [library.tile_m(place) for place in found] == [config["tile_m"] for config in chosen]
    assert [library.micro(place).decode() for place in found] == [config["micro"] for config in chosen]


@pytest.mark.cc
def test_c_gives_degenerate_shapes_the_fallback(small, tmp_path):
    library = compiled(small, tmp_path)
    place = CONFIGS.index(space().default())
    assert [library.best(64, 1, 64, 0, 0), library.best(64, 64, 1, 0, 1)] == [place, place]


def test_the_small_model_chooses_as_well_as_the_full_one(full, small):
    data = measured(60, noise=0.0, seed=3)
    chosen = [efficiency(data, model.over(CONFIGS).score(data.problems)).mean() for model in (full, small)]
    assert small.trees == 40
    assert chosen[1] > chosen[0] - 0.01
    assert small.lineage[-1]["problems"] == 400
