"""Hand-written GEMM: every configuration against the oracle, at borders of every kind, on any number of threads."""

import ctypes
import functools
import platform as this
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparloom.errors import IllegalSchedule
from sparloom.jit import compile_cpp
from sparloom.ops import GEMM, LAYOUTS, DenseOperands, GemmShape, OracleBounds
from sparloom.platforms import CpuKernels, GemmKernels
from sparloom.space import GemmSpace

pytestmark = pytest.mark.cc

OP, SPACE = GEMM(), GemmSpace()
CONFIGS = list(SPACE)
SHAPES = [
    GemmShape(1, 1, 1), GemmShape(1, 300, 5), GemmShape(300, 1, 5), GemmShape(9, 40, 1), GemmShape(29, 533, 270),
    GemmShape(53, 61, 1030), GemmShape(250, 65, 33), GemmShape(3, 3100, 18),
    *(replace(shape, layout=layout) for layout in LAYOUTS[1:]
      for shape in (GemmShape(1, 70, 300), GemmShape(29, 133, 270), GemmShape(250, 9, 33))),
]
small = st.integers(1, 70)


@functools.cache
def platform(threads: int) -> CpuKernels:
    return CpuKernels(threads, 32)


def right(shape: GemmShape, seed: int = 0):
    operands = OP.operands(shape, seed=seed)
    return operands, OracleBounds(OP.oracle(operands), terms=OP.terms(shape), scale=OP.scale(operands))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_configuration_is_right(shape):
    operands, bounds = right(shape)
    for config in CONFIGS:
        try:
            bounds.check(platform(1).run(OP, operands, config))
        except AssertionError as error:
            raise AssertionError(f"{config}: {error}") from error


@settings(max_examples=150, deadline=None)
@given(m=small, n=small, k=small, layout=st.sampled_from(LAYOUTS), threads=st.integers(1, 3),
       place=st.integers(0, len(CONFIGS) - 1))
def test_any_shape_is_right_in_any_layout_on_any_number_of_threads(m, n, k, layout, threads, place):
    operands, bounds = right(GemmShape(m, n, k, layout))
    bounds.check(platform(threads).run(OP, operands, CONFIGS[place]))


def test_nothing_beyond_the_result_is_written():
    room = np.full((12, 41), 7, np.float32)
    operands, bounds = right(GemmShape(10, 41, 37))
    for config in CONFIGS[::11]:
        GemmKernels(1, 0).bind(operands, config, room[1:11])()
        bounds.check(room[1:11])
        assert (room[[0, 11]] == 7).all()


def test_special_values_follow_ieee_arithmetic():
    a, b = np.ones((5, 20), np.float32), np.ones((20, 33), np.float32)
    a[2, 3], b[4, 30] = np.inf, np.nan
    for config in CONFIGS[::13]:
        result = platform(1).run(OP, DenseOperands({"A": a, "B": b}), config)
        assert np.isnan(result[:, 30]).all()
        assert np.isposinf(np.delete(result, 30, axis=1)[2]).all()
        assert (np.delete(np.delete(result, 30, axis=1), 2, axis=0) == 20).all()


def test_illegal_configurations_are_not_run():
    operands, _ = right(GemmShape(2, 2, 2))
    with pytest.raises(IllegalSchedule, match="tile_m=50 is not in space"):
        platform(1).run(OP, operands, SPACE.default().replace(tile_m=50))


@pytest.mark.parametrize(("spoil", "reason"), [
    (lambda b: b.astype(np.float64), "float64"), (lambda b: b[:, ::2], "is not a contiguous array"),
])
def test_arrays_that_a_kernel_would_misread_are_refused(spoil, reason):
    operands, _ = right(GemmShape(4, 6, 8))
    given = DenseOperands({**operands.dense, "B": spoil(operands.dense["B"])})
    with pytest.raises(ValueError, match=reason):
        platform(1).run(OP, given, SPACE.default())


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["haswell", "x86-64"])
def test_narrower_vectors_give_the_same(machine):
    info = Path("/proc/cpuinfo")
    if this.machine() != "x86_64" or (machine == "haswell" and "avx2" not in info.read_text(encoding="utf-8")):
        pytest.skip(f"this machine does not run code for {machine}")
    flags = ["-O1", f"-march={machine}", "-fno-loop-interchange", "-Wno-psabi", "-fopenmp"]
    library = compile_cpp(["cpu/gemm.cpp"], flags)
    library.sparloom_gemm_prepare.restype = ctypes.c_int64
    family = GemmKernels(1, 0)
    family.__dict__["_library"] = library
    for shape in SHAPES:
        operands, bounds = right(shape)
        result = family.result(operands)
        for config in CONFIGS[::5]:
            result.fill(np.nan)
            family.bind(operands, config, result)()
            bounds.check(result)
