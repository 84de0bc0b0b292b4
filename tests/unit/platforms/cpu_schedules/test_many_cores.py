"""Simulated cores: pieces of parallel loops, who gets them, what they fetch, and the seconds that follow."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparloom.errors import IllegalSchedule, Unsupported
from sparloom.measure import TimingProtocol
from sparloom.ops import SDDMM, SpMM, assert_close
from sparloom.platforms import CpuPlatform, ManyCorePlatform
from sparloom.platforms.cpu_schedules import (
    DenseTraffic,
    Layout,
    Packer,
    Pieces,
    Program,
    deal,
    pieces,
    pieces_of,
    simulate,
)
from sparloom.platforms.cpu_schedules.storage import LEVELS
from sparloom.space import CpuSpace, legal_orders
from sparloom.sparse import Pattern, SparseMatrix

pytestmark = pytest.mark.cc

OPS = {"spmm": SpMM(), "sddmm": SDDMM()}
WIDTH = 64
FORMATS = ["".join(word) for word in itertools.product("UC", repeat=4) if set(word) != {"U"}]
MACHINE = {"workers": 32, "dealing": "dynamic", "chunk": None, "llc_mib": 4, "workers_per_llc": 1,
           "measured_llc_mib": 32, "dram_gb_per_s": 400, "dram_efficiency": 0.8, "fetch_gb_per_s": 25,
           "dispatch_ns": 10, "barrier_ns": 1000}


def platform(**changes) -> ManyCorePlatform:
    measured = CpuPlatform(threads=2, width=WIDTH, orders="all", preset="two_threads", readings=None)
    return ManyCorePlatform(measured=measured, preset="p", option="cpu_many", **MACHINE | changes)


def as_measured(**changes) -> ManyCorePlatform:
    """The machine that measured: two workers, which share its cache."""
    return platform(workers=2, llc_mib=MACHINE["measured_llc_mib"], workers_per_llc=2, **changes)


def program_of(op: str, shape, *, rows_tile=8, cols_tile: int | str = 16, **changes) -> tuple[Program, Layout]:
    config = CpuSpace(op, width=WIDTH).default().replace(**changes)
    order = [loop for loop in str(config["order"]).split(".") if loop in LEVELS]
    layout = Layout.of(shape, rows_tile=rows_tile, cols_tile=cols_tile, order=order, formats=config["formats"])
    return Program.of(op, config, layout, width=WIDTH, register_columns=WIDTH), layout


def counted(op: str, matrix: SparseMatrix, *, chunk: int, **changes) -> Pieces:
    program, layout = program_of(op, matrix.pattern.shape, **changes)
    return pieces_of(program, layout, Packer(matrix).pack(layout, locate=False), chunk=chunk)


@pytest.fixture
def values_only(monkeypatch):
    """Count stored values and nothing else: a unit for every vector of one."""
    for name in ("POSITION", "ENTRY", "REDUCTION", "ZERO"):
        monkeypatch.setattr(pieces, name, 0.0)
    monkeypatch.setattr(pieces, "VALUE", {"row": 1.0, "column": 1.0, "nothing": 1.0})


def ends_by_hand(work, region, workers: int, dealing: str) -> list[float]:
    ends = []
    for begin, end in itertools.pairwise(region):
        load = [0.0] * workers
        for number, piece in enumerate(work[begin:end]):
            load[number % workers if dealing == "static" else load.index(min(load))] += piece
        ends.append(max(load))
    return ends


REGIONS = st.lists(st.lists(st.floats(0.0, 100.0), max_size=12), min_size=1, max_size=4)


def flat(regions) -> tuple[np.ndarray, np.ndarray]:
    return (np.array(list(itertools.chain(*regions)), np.float64),
            np.cumsum([0, *map(len, regions)], dtype=np.int64))


@settings(deadline=None)
@given(regions=REGIONS, workers=st.integers(1, 6), dealing=st.sampled_from(["dynamic", "static"]))
def test_dealing_is_as_by_hand(regions, workers, dealing):
    work, region = flat(regions)
    assert deal(work, region, workers=workers, dealing=dealing) == pytest.approx(
        ends_by_hand(work, region, workers, dealing))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("order", legal_orders("sddmm"))
def test_pieces_hold_every_stored_value_once(values_only, hub_matrix, op, order):
    """Whatever order, formats and chunk: in every execution of the loops, and the tiles of dense columns add up."""
    formats = FORMATS[legal_orders("sddmm").index(order) % len(FORMATS)]
    program, layout = program_of(op, hub_matrix.pattern.shape, order=order, formats=formats, dense_tile=16)
    packed = Packer(hub_matrix).pack(layout, locate=False)
    for chunk in (1, 3, 100):
        found = pieces_of(program, layout, packed, chunk=chunk)
        assert found.total == pytest.approx(packed.arrays["values"].size * WIDTH / 16)
        assert found.region[-1] == len(found.work)


def test_pieces_are_the_rows_of_a_chunk(values_only, hub_matrix):
    pattern = hub_matrix.pattern
    found = counted("spmm", hub_matrix, rows_tile=4, cols_tile="all", chunk=2)
    wanted = [np.diff(pattern.indptr)[start:start + 8].sum() for start in range(0, pattern.rows, 8)]
    assert found.work == pytest.approx(np.array(wanted) * WIDTH / 16)
    assert (found.repeats, found.shared, list(found.region)) == (1, True, [0, len(wanted)])


def test_a_loop_around_the_parallel_one_makes_regions(hub_matrix):
    shape = hub_matrix.pattern.shape
    inside = counted("spmm", hub_matrix, order="jo.io.ii.ji.ko.ki", formats="UUUC", chunk=1)
    assert len(inside.region) - 1 == -(-shape[1] // 16)
    outside = counted("spmm", hub_matrix, order="ko.io.ii.jo.ji.ki", dense_tile=16, chunk=1)
    assert (len(outside.region) - 1, outside.repeats) == (1, WIDTH // 16)
    serial = counted("sddmm", hub_matrix, parallel="jo", order="jo.io.ii.ji.ko.ki", cols_tile="all", chunk=1)
    assert not serial.shared
    assert serial.seconds(1.0, workers=32, dealing="dynamic", barrier=1.0) == pytest.approx(serial.total)


def test_one_heavy_row_holds_up_many_workers():
    rows = np.concatenate([np.arange(640), np.zeros(4000, np.int64)])
    matrix = SparseMatrix(Pattern.from_coo(rows, np.concatenate([np.arange(640), np.arange(4000)]), (640, 4000)),
                          np.ones(len(set(zip(rows.tolist(), [*range(640), *range(4000)], strict=True))), np.float32))
    found = counted("spmm", matrix, rows_tile=4, cols_tile="all", chunk=1)
    two, many = (found.seconds(1.0, workers=workers, dealing="dynamic") for workers in (2, 32))
    assert many == pytest.approx(found.work.max() + found.even / 32)
    assert many > 0.8 * two
    even = counted("spmm", SparseMatrix(Pattern.from_coo(np.arange(640), np.arange(640), (640, 640)),
                                        np.ones(640, np.float32)), rows_tile=4, cols_tile="all", chunk=1)
    assert even.seconds(1.0, workers=32, dealing="dynamic") == pytest.approx(even.total / 32)


@pytest.mark.parametrize("op", OPS)
def test_the_measured_machine_needs_the_measured_seconds(hub_matrix, op):
    machine = as_measured()
    dealer = machine.dealt(OPS[op], hub_matrix)
    space = machine.measured.space(OPS[op]).bind(hub_matrix.pattern.shape)
    measured = [0.5, 0.75]
    for config in space.sample(20, np.random.default_rng(0)):
        try:
            found = dealer.seconds(config.key, measured, [machine, machine])
        except IllegalSchedule:
            continue
        assert found == pytest.approx(np.array([measured, measured]))


def fetched_by_hand(pattern: Pattern, loops, layout: Layout, *, moves: int, limit: float) -> int:
    """Count fetched rows by the rule, scope by scope."""
    where = {"io": lambda i, j: i >> layout.row_shift, "ii": lambda i, j: i, "jo": lambda i, j: j >> layout.col_shift,
             "ji": lambda i, j: j}

    def count(cells, depth: int) -> int:
        columns, rows = len({j for _, j in cells}), len({i for i, _ in cells})
        if depth == len(loops) - 1 or columns + rows <= limit:
            return columns + moves * rows
        parts = {}
        for i, j in cells:
            parts.setdefault(where[loops[depth]](i, j), []).append((i, j))
        return sum(count(part, depth + 1) for part in parts.values())

    return count(list(zip(pattern.row_ids().tolist(), pattern.indices.tolist(), strict=True)), 0)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("order", [order for order in legal_orders("sddmm") if order.endswith("ko.ki")])
@pytest.mark.parametrize("limit", [1, 12, 30, 80])
def test_fetched_rows_are_as_by_hand(hub_matrix, op, order, limit):
    program, layout = program_of(op, hub_matrix.pattern.shape, order=order, dense_tile=WIDTH)
    row_bytes = WIDTH * 4
    traffic = DenseTraffic(hub_matrix.pattern)
    found = traffic.fetched_bytes(program, layout, whole_capacity=0, capacity=limit * row_bytes)
    loops = [loop for loop in order.split(".") if loop in LEVELS]
    by_hand = fetched_by_hand(hub_matrix.pattern, loops, layout, moves={"spmm": 2, "sddmm": 1}[op], limit=limit)
    assert found == by_hand * row_bytes
    whole = traffic.whole_bytes(WIDTH)
    assert traffic.fetched_bytes(program, layout, whole_capacity=whole, capacity=row_bytes) == 0


def test_short_rows_fit_where_long_ones_do_not(hub_matrix):
    traffic, found = DenseTraffic(hub_matrix.pattern), []
    for order in ("io.ii.jo.ji.ko.ki", "ko.io.ii.jo.ji.ki"):
        program, layout = program_of("spmm", hub_matrix.pattern.shape, order=order, dense_tile=16, cols_tile="all")
        found.append(traffic.fetched_bytes(program, layout, whole_capacity=0, capacity=50 * 16 * 4))
    assert found[1] < found[0]


def test_less_cache_and_less_bandwidth_make_slower():
    found = Pieces(np.ones(320), np.array([0, 320]), repeats=1, even=0.0, shared=True)
    machine = platform(dispatch_ns=1e-6, barrier_ns=1e-6)

    def seconds(more: float, moved: float) -> float:
        return simulate(machine, found, 0.16, pieces_measured=found, threads=2, more_bytes=more,
                        bytes_moved=moved)

    assert seconds(0, 0) == pytest.approx(0.01)
    assert seconds(8e9, 0) == pytest.approx(0.02)  # 0.32 s more work, of all workers together
    assert seconds(0, 32e9) == pytest.approx(0.1)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_results_are_those_of_the_schedule(hub_matrix, op):
    many, operands = platform(), OPS[op.name].operands(hub_matrix, WIDTH, seed=0)
    config = many.baseline(op, hub_matrix.pattern)
    assert config.space == many.space(op).name == "cpu_many"
    assert_close(many.run(op, operands, config), op.oracle(operands), terms=op.terms(hub_matrix.pattern, WIDTH),
                 scale=op.scale(operands))


def test_nothing_is_measured(hub_matrix):
    timing = TimingProtocol(rounds=1, repetitions=1, short_seconds=0.0, most_repetitions=1, slow_factor=3.0,
                            steal_ratio=1.1, retakes=0, seed=0)
    many, operands = platform(), OPS["spmm"].operands(hub_matrix, WIDTH, seed=0)
    config = many.baseline(OPS["spmm"], hub_matrix.pattern)
    message = "simulated from seconds measured on cpu two_threads: experiment=collect_cpu_many makes its samples"
    with pytest.raises(Unsupported, match=message):
        many.measure(OPS["spmm"], operands, config, timing)
    with pytest.raises(Unsupported, match=message):
        many.measure_many(OPS["spmm"], operands, [config], timing)
