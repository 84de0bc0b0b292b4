"""16-bit elements: conversions, and results of the CUDA kernels with them, on the host."""

from dataclasses import dataclass

import numpy as np
import pytest
from cuda_emulator import Emulator

from sparloom.errors import Unsupported
from sparloom.jit import cuda_text
from sparloom.ops import SDDMM, CsrAttention, Op, Operands, SpMM, SpmmMax, SpmmMean
from sparloom.platforms import CudaPlatform
from sparloom.platforms.cuda import COMBINE, AttentionProgram, DeviceOperands, LaunchShape, SddmmProgram, SpmmProgram
from sparloom.space import Config, CudaKernelSpace
from sparloom.sparse import Pattern, SparseMatrix

pytestmark = pytest.mark.cc

WIDTH = 36
OPS = {op.name: op for op in (SpMM(), SpmmMean(), SpmmMax(), SDDMM(), CsrAttention(2))}
CONVERT = """
extern "C" __global__ void __launch_bounds__(THREADS)
convert(int count, const Element* given, float* wide, const float* numbers, Element* narrow) {
    for (int n = 0; n < count; ++n) {
        wide[n] = given[n];
        narrow[n] = numbers[n];
    }
}
"""
EVERY = np.arange(2**16, dtype=np.uint16)


@dataclass(frozen=True)
class Format:
    """A type of 16 bits, `digits` of them significant; below `tiny` it has fewer."""

    digits: int
    tiny: float

    def widen(self, bits: np.ndarray) -> np.ndarray:
        if self.digits == 11:
            return bits.view(np.float16).astype(np.float32)
        return (bits.astype(np.uint32) << 16).view(np.float32)

    def narrow(self, numbers: np.ndarray) -> np.ndarray:
        """Round to the nearest, halfway to even, by distances."""
        finite = EVERY[np.isfinite(self.widen(EVERY))]
        sorted_bits = finite[np.argsort(self.widen(finite), kind="stable")]
        listed = self.widen(sorted_bits).astype(np.float64)
        above = np.clip(np.searchsorted(listed, numbers), 1, listed.size - 1)
        low, high = numbers - listed[above - 1], listed[above] - numbers
        upper = (high < low) | ((high == low) & (sorted_bits[above] % 2 == 0))
        return np.where(upper, sorted_bits[above], sorted_bits[above - 1])


FORMATS = {"Half": Format(11, 2.0**-14), "Bfloat": Format(8, 2.0**-126)}
formats = pytest.mark.parametrize("element", FORMATS)


def chosen(name: str) -> list[Config]:
    """All ways of sharing rows, all loads."""
    space = CudaKernelSpace(name, width=WIDTH)
    balances = ("rows", "q90", "rows") if name == "attention" else ("rows", "q90", "nonzeros")
    return [space.config(balance=balance, lanes=8, vector=vector)
            for balance, vector in zip(balances, (1, 2, 4), strict=True)]


def program(name: str, config: Config, element: str) -> SpmmProgram | SddmmProgram | AttentionProgram:
    if name == "attention":
        return AttentionProgram.of(config, WIDTH, element)
    if name == "sddmm":
        return SddmmProgram.of(config, element)
    return SpmmProgram.of(config, element, COMBINE[name])


def converter(element: str) -> str:
    return cuda_text("cuda/lanes.cuh", {"THREADS": 1, "ELEMENT": element}) + CONVERT


@pytest.fixture(scope="module")
def emulated(tmp_path_factory) -> Emulator:
    texts = [program(name, config, element).text for element in FORMATS for name in OPS for config in chosen(name)]
    return Emulator([*texts, *map(converter, FORMATS)], tmp_path_factory.mktemp("short"))


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr("sparloom.platforms.cuda.operands.MIN_HUB", 9)
    monkeypatch.setattr("sparloom.platforms.cuda.sparse_kernels.MIN_SHARE", 6)


def operands_of(op: Op, element: str) -> Operands:
    """Draw numbers of the type for a hub row, short rows and an empty one."""
    lengths, rng = np.array([3, 17, 0, 1, 5]), np.random.default_rng(0)
    cols = np.concatenate([rng.choice(20, length, replace=False) for length in lengths])
    pattern = Pattern.from_coo(np.repeat(np.arange(5), lengths), cols, (5, 20))
    drawn = op.operands(SparseMatrix(pattern, rng.integers(-8, 9, pattern.nnz) / 8),
                        WIDTH * getattr(op, "heads", 1), seed=1)
    kind = FORMATS[element]
    dense = {name: kind.widen(kind.narrow(array.astype(np.float64))) for name, array in drawn.dense.items()}
    return Operands(drawn.matrix, dense)


def check(op: Op, operands: Operands, found: np.ndarray, kind: Format) -> None:
    """Allow what sums in float32 differ by, and the rounding of the result once."""
    oracle, terms = op.oracle(operands), op.terms(operands.matrix.pattern, operands.width)
    summed = 4 * np.finfo(np.float32).eps * op.scale(operands) * (terms + 1)
    rounded = 2.0**-kind.digits * np.maximum(np.abs(oracle) + summed, kind.tiny)
    assert (np.abs(found - oracle) <= summed + rounded).all()


@formats
def test_conversions_are_exact_or_the_nearest(emulated, element):
    kind, rng = FORMATS[element], np.random.default_rng(0)
    known = kind.widen(EVERY)
    scales = 2.0 ** rng.integers(-30 if element == "Half" else -140, 15, EVERY.size)
    numbers = (rng.standard_normal(EVERY.size) * scales).astype(np.float32)
    finite = np.sort(known[np.isfinite(known) & (known >= 0)])
    numbers[: finite.size - 1] = (finite[1:].astype(np.float64) + finite[:-1]) / 2  # halfway between neighbours
    wide, narrow = np.empty(EVERY.size, np.float32), np.empty(EVERY.size, np.uint16)
    kernel = emulated.kernel(converter(element), "convert")
    kernel(LaunchShape((1, 1), 1), (np.int32(EVERY.size), EVERY, wide, numbers, narrow))
    np.testing.assert_array_equal(wide, known)
    expected = kind.narrow(numbers.astype(np.float64))
    expected[numbers == 0] = np.where(np.signbit(numbers[numbers == 0]), 0x8000, 0)
    np.testing.assert_array_equal(kind.widen(narrow), kind.widen(expected))


@formats
def test_numbers_that_are_nan_or_too_large(emulated, element):
    numbers = np.array([np.nan, -np.nan, np.inf, -np.inf, 3.4e38, -3.4e38], np.float32)
    numbers[:2].view(np.uint32)[:] |= 1  # no digit of it is left when the lower half is cut off
    wide, narrow = np.empty(6, np.float32), np.empty(6, np.uint16)
    emulated.kernel(converter(element), "convert")(LaunchShape((1, 1), 1),
                                                   (np.int32(6), EVERY[:6].copy(), wide, numbers, narrow))
    found = FORMATS[element].widen(narrow)
    np.testing.assert_array_equal(found[:4], numbers[:4])
    assert found[4] > 3e38
    assert found[5] < -3e38


@pytest.mark.parametrize("name", OPS)
def test_float16_gives_float16(emulated, name):
    op, operands = OPS[name], operands_of(OPS[name], "Half")
    platform = CudaPlatform("cuda_kernels", "h200", operands.width)
    platform.gpu = emulated
    halves = Operands(operands.matrix, {key: array.astype(np.float16) for key, array in operands.dense.items()})
    for config in chosen(name):
        found = platform.run(op, halves, config)
        assert found.dtype == np.float16
        check(op, operands, found.astype(np.float64), FORMATS["Half"])
        platform.family(op).check(op, halves, seed=0)(found)


def test_means_of_long_rows_neither_overflow_nor_vanish(emulated):
    """One over the nonzeros, and the sum, are beyond what float16 holds."""
    nonzeros = 70_000
    row = SparseMatrix(Pattern.from_coo(np.zeros(nonzeros, int), np.arange(nonzeros), (1, nonzeros)), np.ones(nonzeros))
    operands = Operands(row, {"B": np.full((nonzeros, WIDTH), 3, np.float16)})
    platform = CudaPlatform("cuda_kernels", "h200", WIDTH)
    platform.gpu = emulated
    for config in chosen("spmm_mean"):
        assert (platform.run(SpmmMean(), operands, config) == 3).all()


@pytest.mark.parametrize("name", OPS)
def test_bfloat16_gives_bfloat16(emulated, name):
    """NumPy has no bfloat16, so the kernels receive its bits."""
    op, operands, kind = OPS[name], operands_of(OPS[name], "Bfloat"), FORMATS["Bfloat"]
    family = CudaPlatform("cuda_kernels", "h200", operands.width).family(op)
    bits = {key: kind.narrow(array.astype(np.float64)) for key, array in operands.dense.items()}
    placed = DeviceOperands(operands, bits, kind.narrow(operands.matrix.values.astype(np.float64)),
                    element="Bfloat")
    for config in chosen(name):
        result = np.full(op.oracle(operands).shape, 0x7FFF, np.uint16)
        family.bind(emulated, placed, config, result)()
        check(op, operands, kind.widen(result).astype(np.float64), kind)


def test_operands_of_several_types_are_refused(emulated):
    operands = operands_of(CsrAttention(2), "Half")
    dense = {**operands.dense, "V": operands.dense["V"].astype(np.float16)}
    with pytest.raises(Unsupported, match="V is float16 and Q float32: the kernels take one type, convert it"):
        DeviceOperands.on(emulated, Operands(operands.matrix, dense))
    with pytest.raises(Unsupported, match="the values are float64: the kernels take float32, convert them"):
        DeviceOperands.on(emulated, Operands(operands.matrix.astype(np.float64), operands.dense))
