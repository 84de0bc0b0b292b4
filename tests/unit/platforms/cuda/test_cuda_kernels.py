"""Results of the CUDA kernels, emulated thread by thread on the host, against the oracle."""

import numpy as np
import pytest
from cuda_emulator import Emulator, skip_kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import patterns

from sparloom.jit import cuda_text
from sparloom.ops import SDDMM, Op, Operands, SpMM, SpmmMax, SpmmMean, assert_close
from sparloom.platforms import CudaPlatform
from sparloom.platforms.cuda import ARGMAX_THREADS, COMBINE, DeviceOperands, PatternCache, SddmmProgram, SpmmProgram
from sparloom.space import Config
from sparloom.sparse import Pattern, SparseMatrix

pytestmark = pytest.mark.cc

CASES = [*((space, op) for space in ("cuda", "cuda_kernels") for op in (SpMM(), SDDMM())),
         ("cuda_kernels", SpmmMean()), ("cuda_kernels", SpmmMax())]
ARGMAX = cuda_text("cuda/spmm_places.cu", {"THREADS": ARGMAX_THREADS})
cases = pytest.mark.parametrize(("space", "op"), CASES, ids=lambda value: getattr(value, "name", value))
WIDEST = 256  # at which no configuration is refused


def listed(space: str, op: Op) -> list[Config]:
    return list(CudaPlatform(space, "h200", WIDEST).space(op))


def few(space: str, op: Op) -> list[Config]:
    """Select configurations with every parameter value at least once and every way of sharing rows several times."""
    configs = listed(space, op)
    return [configs[place] for place in np.random.default_rng(5).choice(len(configs), 14, replace=False)]


def text_of(op: Op, config: Config) -> str:
    if op.name == "sddmm":
        return SddmmProgram.of(config).text
    return SpmmProgram.of(config, combine=COMBINE[op.name]).text


def emulator(choose, folder) -> Emulator:
    return Emulator(sorted({ARGMAX, *(text_of(op, config) for space, op in CASES for config in choose(space, op))}),
                    folder)


@pytest.fixture(scope="module")
def emulated(tmp_path_factory) -> Emulator:
    return emulator(few, tmp_path_factory.mktemp("few"))


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Let short rows be hubs and shares be small, so that small matrices meet every path."""
    monkeypatch.setattr("sparloom.platforms.cuda.operands.MIN_HUB", 9)
    monkeypatch.setattr("sparloom.platforms.cuda.sparse_kernels.MIN_SHARE", 6)


def hubs() -> Pattern:
    """Two rows that are hubs at any threshold, empty rows, rows of 1 to 7 nonzeros."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 8, 13)
    lengths[[4, 9]], lengths[[0, 6, 7, 12]] = (29, 20), 0
    cols = np.concatenate([rng.choice(40, length, replace=False) for length in lengths])
    return Pattern.from_coo(np.repeat(np.arange(13), lengths), cols, (13, 40))


def operands_of(op: Op, pattern: Pattern, width: int) -> Operands:
    values = np.random.default_rng(1).uniform(-1, 1, pattern.nnz).astype(np.float32)
    return op.operands(SparseMatrix(pattern, values), width, seed=0)


def check(device: Emulator, space: str, op: Op, operands: Operands, configs: list[Config]) -> int:
    """Compare all legal configurations and return their number."""
    platform, pattern = CudaPlatform(space, "h200", operands.width), operands.matrix.pattern
    platform.gpu = device
    bounds = {"terms": op.terms(pattern, operands.width), "scale": op.scale(operands)}
    oracle, legal = op.oracle(operands), [config for config in configs if platform.space(op).refuse(config) is None]
    for config in legal:
        try:
            assert_close(platform.run(op, operands, config), oracle, **bounds)
        except AssertionError as error:
            raise AssertionError(f"width {operands.width}, {config}: {error}") from error
    return len(legal)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_every_configuration_is_right(tmp_path):
    every = emulator(listed, tmp_path)
    counts = [check(every, space, op, operands_of(op, hubs(), WIDEST), listed(space, op)) for space, op in CASES]
    assert counts == [288, 324, 270, 405, 270, 270]


@cases
@pytest.mark.parametrize("width", [1, 7, 32, 70, 100, 256])
def test_any_width_is_right(emulated, space, op, width):
    legal = check(emulated, space, op, operands_of(op, hubs(), width), few(space, op))
    assert legal or width < 70


@pytest.mark.parametrize(("resident", "most"), [(1, 64), (5, 16), (40, 4)])
def test_groups_of_sddmm_take_several_nonzeros(emulated, monkeypatch, resident, most):
    """The 90 or so nonzeros of the pattern are shared by few groups, as millions of them are on a GPU."""
    monkeypatch.setattr("sparloom.platforms.cuda.sparse_kernels._resident_groups", lambda device, lanes: resident)
    configs = [config for config in few("cuda_kernels", SDDMM()) if config["balance"] == "nonzeros"]
    shares = [SddmmProgram.of(config).share(hubs().nnz, emulated.device) for config in configs]
    assert max(shares) == most
    assert check(emulated, "cuda_kernels", SDDMM(), operands_of(SDDMM(), hubs(), WIDEST), configs) == len(configs) > 1
    check(emulated, "cuda_kernels", SDDMM(), operands_of(SDDMM(), hubs(), 70), configs)


@cases
@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (1, 1), (6, 4)])
def test_patterns_without_nonzeros(emulated, space, op, shape):
    empty = Pattern.from_coo(np.empty(0, int), np.empty(0, int), shape)
    check(emulated, space, op, operands_of(op, empty, 128), few(space, op))


@cases
@settings(max_examples=15, deadline=None)
@given(pattern=patterns(), place=st.integers(0, 13))
def test_any_pattern_is_right(emulated, space, op, pattern, place):
    check(emulated, space, op, operands_of(op, pattern, 128), [few(space, op)[place]])


@cases
def test_nothing_beyond_the_result_is_written(emulated, space, op):
    operands = operands_of(op, hubs(), WIDEST)
    platform = CudaPlatform(space, "h200", WIDEST)
    family, placed = platform.family(op), DeviceOperands.on(emulated, operands)
    shape = family.result(emulated, operands).shape
    for config in few(space, op):
        room = np.full((shape[0] + 2, *shape[1:]), 7, np.float32)
        family.bind(emulated, placed, config, room[1:-1])()
        assert (room[[0, -1]] == 7).all()
        assert_close(room[1:-1], op.oracle(operands), terms=op.terms(hubs(), WIDEST), scale=op.scale(operands))


def largest(device: Emulator, operands: Operands, config: Config) -> tuple[np.ndarray, np.ndarray]:
    """Compute the maxima of products and their argmax."""
    family = CudaPlatform("cuda_kernels", "h200", operands.width).family(SpmmMax())
    result, argmax = family.result(device, operands), family.argmax(device, operands)
    family.bind(device, DeviceOperands.on(device, operands), config, result, argmax)()
    return result, argmax


def argmax_of(operands: Operands) -> np.ndarray:
    """The first of the largest products of each row, NaN being larger than all numbers; -1 without any."""
    pattern, values, dense = operands.matrix.pattern, operands.matrix.values, operands.dense["B"]
    argmax = np.full((pattern.rows, operands.width), -1)
    for row in np.flatnonzero(pattern.row_lengths()):
        begin, end = pattern.indptr[row : row + 2]
        argmax[row] = begin + (values[begin:end, None] * dense[pattern.indices[begin:end]]).argmax(axis=0)
    return argmax


def test_nan_and_infinities_are_products_like_others(emulated):
    operands = operands_of(SpmmMax(), hubs(), WIDEST)
    operands.dense["B"][3::7, 5::3] = np.nan
    operands.dense["B"][1::5, 4] = -np.inf
    operands.dense["B"][:, 9] = np.where(np.arange(40) % 2, np.inf, -np.inf)
    expected = SpmmMax().oracle(operands).astype(np.float32)
    assert np.isnan(expected).any()
    assert np.isinf(expected).any()
    for config in few("cuda_kernels", SpmmMax()):
        np.testing.assert_array_equal(largest(emulated, operands, config)[0], expected)


def test_the_argmax_is_the_first_maximum(emulated):
    operands, rng = operands_of(SpmmMax(), hubs(), 70), np.random.default_rng(2)
    values = rng.integers(-1, 2, hubs().nnz).astype(np.float32)
    dense = rng.integers(-2, 3, (40, 70)).astype(np.float32)
    dense[5, 10:20], dense[6, 15:25], dense[:, 30] = np.nan, np.nan, -np.inf
    tied = Operands(operands.matrix.with_values(np.where(values == 0, np.float32(2), values)), {"B": dense})
    expected = argmax_of(tied)
    for config in few("cuda_kernels", SpmmMax()):
        if CudaPlatform("cuda_kernels", "h200", 70).space(SpmmMax()).refuse(config) is None:
            found, argmax = largest(emulated, tied, config)
            np.testing.assert_array_equal(argmax, expected)
            taken = np.where(argmax < 0, 0, tied.matrix.values[argmax] * np.take_along_axis(
                dense, hubs().indices[argmax], axis=0))
            np.testing.assert_array_equal(found, taken)


def test_more_nonzeros_than_the_argmax_can_index_are_refused(emulated, monkeypatch):
    monkeypatch.setattr("sparloom.platforms.cuda.sparse_kernels.MAX_ARGMAX", 10)
    operands = operands_of(SpmmMax(), hubs(), WIDEST)
    with pytest.raises(ValueError, match=r"A has \d+ nonzeros, above the 10 that the argmax can index"):
        largest(emulated, operands, few("cuda_kernels", SpmmMax())[0])


@pytest.mark.parametrize(("broken", "changed", "fault"), [
    ("__syncthreads();", ";", "oracle"),
    ("for (; n < nonzeros.end; ++n)", "for (; n < nonzeros.end - 1; ++n)", "oracle"),
])
def test_a_broken_kernel_is_reported(tmp_path, monkeypatch, broken, changed, fault):
    space = CudaPlatform("cuda_kernels", "h200", 64).space(SpMM())
    config = space.config(balance="q90", lanes=8)
    text = SpmmProgram.of(config).text
    assert broken in text
    monkeypatch.setattr(SpmmProgram, "text", property(lambda _: text.replace(broken, changed)))
    with pytest.raises(AssertionError, match=fault):
        check(Emulator([SpmmProgram.of(config).text], tmp_path), "cuda_kernels", SpMM(),
              operands_of(SpMM(), hubs(), 64), [config])


def test_a_shuffle_that_not_all_lanes_reach_is_reported(tmp_path, monkeypatch):
    space = CudaPlatform("cuda", "h200", 64).space(SDDMM())
    text = SddmmProgram.of(space.default()).text.replace("const Sum sum = Dot::Lanes::total(sums[0]);", """
        if (Dot::Lanes::lane() == 3) return;
        const Sum sum = Dot::Lanes::total(sums[0]);""")
    monkeypatch.setattr(SddmmProgram, "text", property(lambda _: text))
    with pytest.raises(AssertionError, match="a shuffle with a lane that has ended"):
        check(Emulator([text], tmp_path), "cuda", SDDMM(), operands_of(SDDMM(), hubs(), 64), [space.default()])


def test_hub_rows_are_those_beyond_the_quantile(emulated):
    pattern = PatternCache().on(emulated, hubs())
    found = pattern.hubs(emulated, "q90")
    assert found.rows.tolist() == [4]
    assert (hubs().row_lengths()[found.rows] >= found.degree).all()
    assert (np.delete(hubs().row_lengths(), found.rows) < found.degree).all()


@cases
def test_a_row_that_just_reaches_the_threshold_is_computed_once(emulated, monkeypatch, space, op):
    """Without the kernel of the hub rows these rows stay unwritten, so no other kernel computes them."""
    lengths = np.array([2, 9, 3, 0, 3, 8, 3])
    cols = np.concatenate([np.arange(length) for length in lengths])
    operands = operands_of(op, Pattern.from_coo(np.repeat(np.arange(7), lengths), cols, (7, 40)), WIDEST)
    configs = [config for config in few(space, op) if "balance" in config.names and str(config["balance"])[0] == "q"]
    assert configs or space == "cuda"
    platform = CudaPlatform(space, "h200", WIDEST)
    platform.gpu = emulated
    for config in configs:
        whole = platform.run(op, operands, config)
        with monkeypatch.context() as patch:
            skip_kernels(patch, "_hubs")
            parts = platform.run(op, operands, config)
        hub = np.repeat(np.arange(7), lengths) == 1 if op.name == "sddmm" else np.arange(7) == 1
        assert np.isfinite(whole).all()
        assert np.isnan(parts[hub]).all()
        np.testing.assert_array_equal(parts[~hub], whole[~hub])
