"""Results of the CUDA kernels of attention, emulated thread by thread on the host, against the oracle."""

import numpy as np
import pytest
from cuda_emulator import Emulator, skip_kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import patterns

from sparloom.errors import IllegalSchedule, Unsupported
from sparloom.ops import CsrAttention, Operands, assert_close
from sparloom.platforms import CudaPlatform
from sparloom.platforms.cuda import AttentionProgram, DeviceOperands
from sparloom.space import Config, CudaKernelSpace
from sparloom.sparse import Pattern, SparseMatrix

pytestmark = pytest.mark.cc

HEADS, FEW = 2, 5
WIDTH, VALUE_WIDTH = 128, 36  # of a head; the first lets every configuration be legal, the second leaves lanes idle
WIDTHS = [(1, 1), (7, 5), (30, 42), (12, 300)]


def listed(width: int = WIDTH, value_width: int = VALUE_WIDTH) -> list[Config]:
    space = CudaKernelSpace("attention", width=width)
    return [config for config in space if value_width % int(config["vector"]) == 0]


def few(width: int = WIDTH, value_width: int = VALUE_WIDTH) -> list[Config]:
    """Select configurations with a block per hub row and with a group per row."""
    configs = [config for config in listed(width, value_width) if config["balance"] in ("rows", "q90")]
    return [configs[place] for place in np.random.default_rng(4).choice(len(configs), FEW, replace=False)]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory) -> Emulator:
    wanted = {AttentionProgram.of(config, VALUE_WIDTH) for config in listed()}
    wanted |= {AttentionProgram.of(config, widths[1]) for widths in WIDTHS for config in few(*widths)}
    return Emulator(sorted({program.text for program in wanted}), tmp_path_factory.mktemp("attention"))


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Let short rows be hubs, so that small matrices meet every path."""
    monkeypatch.setattr("sparloom.platforms.cuda.operands.MIN_HUB", 9)


def hubs() -> Pattern:
    """A row that is a hub, empty rows, rows of 1 to 5 nonzeros."""
    lengths, rng = np.array([0, 3, 13, 1, 5, 2, 0]), np.random.default_rng(0)
    cols = np.concatenate([rng.choice(20, length, replace=False) for length in lengths])
    return Pattern.from_coo(np.repeat(np.arange(7), lengths), cols, (7, 20))


def operands_of(pattern: Pattern, width: int = WIDTH, value_width: int = VALUE_WIDTH, factor: float = 1) -> Operands:
    """Draw from [-1, 1), queries from `factor` times that."""
    rng = np.random.default_rng(2)
    shapes = {"Q": (pattern.rows, HEADS, width), "K": (pattern.cols, HEADS, width),
              "V": (pattern.cols, HEADS, value_width)}
    dense = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    dense["Q"] *= np.float32(factor)
    return Operands(SparseMatrix(pattern, np.zeros(pattern.nnz)), dense)


def attend(device: Emulator, operands: Operands, config: Config) -> np.ndarray:
    platform = CudaPlatform("cuda_kernels", "h200", operands.width)
    platform.gpu = device
    return platform.run(CsrAttention(HEADS), operands, config)


def check(device: Emulator, operands: Operands, configs: list[Config]) -> None:
    op, pattern = CsrAttention(HEADS), operands.matrix.pattern
    oracle, terms = op.oracle(operands), op.terms(pattern, operands.width)
    for config in configs:
        try:
            assert_close(attend(device, operands, config), oracle, terms=terms, scale=op.scale(operands))
        except AssertionError as error:
            raise AssertionError(f"{config}: {error}") from error


def test_a_row_that_just_reaches_the_threshold_is_computed_once(emulated, monkeypatch):
    """Without the kernel of the hub rows these rows stay unwritten, so no other kernel computes them."""
    lengths = np.array([2, 9, 3, 0, 3, 8, 3])
    cols = np.concatenate([np.arange(length) for length in lengths])
    operands = operands_of(Pattern.from_coo(np.repeat(np.arange(7), lengths), cols, (7, 20)))
    config = next(config for config in listed() if config["balance"] == "q90")
    whole = attend(emulated, operands, config)
    skip_kernels(monkeypatch, "_hubs")
    parts = attend(emulated, operands, config)
    assert np.isfinite(whole).all()
    assert np.isnan(parts[1]).all()
    np.testing.assert_array_equal(np.delete(parts, 1, axis=0), np.delete(whole, 1, axis=0))


def test_every_configuration_is_right(emulated):
    configs = listed()
    assert len(configs) == len(CudaKernelSpace("attention")) == 324
    check(emulated, operands_of(hubs()), configs)


@pytest.mark.parametrize(("width", "value_width"), WIDTHS)
def test_any_width_is_right(emulated, width, value_width):
    check(emulated, operands_of(hubs(), width, value_width), few(width, value_width))


@pytest.mark.parametrize("factor", [1e3, 1e6])
def test_scores_beyond_the_range_of_an_exponential(emulated, factor):
    operands = operands_of(hubs(), factor=factor)
    with np.errstate(over="ignore"):
        assert np.isinf(np.exp(np.einsum("ihd,jhd->ijh", operands.dense["Q"], operands.dense["K"]) / WIDTH**0.5)).any()
    check(emulated, operands, few())


def test_scores_of_minus_infinity_weigh_nothing(emulated):
    pattern, operands = Pattern.from_coo(np.zeros(7, int), np.arange(7), (1, 7)), operands_of(hubs())
    dense = {name: operands.dense[name][:7] for name in ("K", "V")} | {"Q": np.ones((1, HEADS, WIDTH), np.float32)}
    hidden = {**dense, "K": np.where(np.arange(7)[:, None, None] < 4, np.float32(-np.inf), dense["K"])}
    rest = Operands(SparseMatrix(Pattern.from_coo(np.zeros(3, int), np.arange(4, 7), (1, 7)), np.zeros(3)), dense)
    oracle, scale = CsrAttention(HEADS).oracle(rest), CsrAttention(HEADS).scale(rest)
    for config in few():
        found = attend(emulated, Operands(SparseMatrix(pattern, np.zeros(7)), hidden), config)
        assert_close(found, oracle, terms=7 + WIDTH, scale=scale)


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (1, 1), (6, 4)])
def test_patterns_without_nonzeros(emulated, shape):
    empty = Pattern.from_coo(np.empty(0, int), np.empty(0, int), shape)
    check(emulated, operands_of(empty), few())


@settings(max_examples=10, deadline=None)
@given(pattern=patterns(), place=st.integers(0, FEW - 1))
def test_any_pattern_is_right(emulated, pattern, place):
    check(emulated, operands_of(pattern), [few()[place]])


def test_nothing_beyond_the_result_is_written(emulated):
    operands = operands_of(hubs())
    family = CudaPlatform("cuda_kernels", "h200", HEADS * WIDTH).family(CsrAttention(HEADS))
    placed, shape = DeviceOperands.on(emulated, operands), family.result(emulated, operands).shape
    for config in few():
        room = np.full((shape[0] + 2, *shape[1:]), 7, np.float32)
        family.bind(emulated, placed, config, room[1:-1])()
        assert (room[[0, -1]] == 7).all()
        assert (room[1:-1] != 7).all()


BROKEN = {  # what is taken out -> what is put in, and the size of the queries at which that shows
    "__syncthreads();": (";", 1),
    "rise(highest);": ("peak = highest;", 1),
    "sum += kept * sums": ("sum += sums", 1),
    "highest = fmaxf(highest, scores[c]);": ("highest = 0;", 1e6),
    "if (n + c < end) weigh": ("weigh", 1),
}
BREAKABLE = CudaKernelSpace("attention", width=WIDTH).config(balance="q90", lanes=32, group=2, warps=2)


@pytest.fixture(scope="module")
def broken_ones(tmp_path_factory) -> Emulator:
    text = AttentionProgram.of(BREAKABLE, VALUE_WIDTH).text
    return Emulator([text.replace(right, wrong) for right, (wrong, _) in BROKEN.items()],
                    tmp_path_factory.mktemp("broken"))


@pytest.mark.parametrize("right", BROKEN)
def test_a_broken_kernel_is_reported(broken_ones, monkeypatch, right):
    wrong, factor = BROKEN[right]
    text = AttentionProgram.of(BREAKABLE, VALUE_WIDTH).text
    assert right in text
    monkeypatch.setattr(AttentionProgram, "text", property(lambda _: text.replace(right, wrong)))
    with pytest.raises(AssertionError, match="oracle"):
        check(broken_ones, operands_of(hubs(), factor=factor), [BREAKABLE])


def test_blocks_hold_what_hub_rows_need():
    for config in CudaKernelSpace("attention", width=2048):
        program = AttentionProgram.of(config, 2048)
        assert program.threads == 32 * config["warps"]
        assert program.columns <= 1024
        assert program.shared_bytes <= 48 * 1024


def test_loads_that_do_not_fit_a_head_are_refused(emulated):
    operands = operands_of(hubs(), 12, 6)
    config = CudaKernelSpace("attention", width=12).config(lanes=8, vector=1)
    with pytest.raises(IllegalSchedule, match="is 32, above the dense width 12"):
        attend(emulated, operands, config.replace(vector=4))
    with pytest.raises(IllegalSchedule, match="lanes=8 keep 256 columns of a head, below its width 300: use lanes=32"):
        CudaKernelSpace("attention", width=300).config(lanes=8, vector=1)
    placed = DeviceOperands.on(emulated, operands_of(hubs(), WIDTH, 6))
    family = CudaPlatform("cuda_kernels", "h200", HEADS * WIDTH).family(CsrAttention(HEADS))
    with pytest.raises(Unsupported, match="vector=4 does not divide the 6 columns of a head of V: use vector=1"):
        family.bind(emulated, placed, family.space().config(lanes=8, vector=4), family.result(emulated, placed.host))
