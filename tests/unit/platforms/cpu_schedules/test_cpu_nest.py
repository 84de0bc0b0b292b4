"""Generated loops: compiled = interpreted = oracle, for every order, level format and kind of tail."""

import dataclasses
import itertools

import numpy as np
import pytest

from sparloom.errors import IllegalSchedule
from sparloom.ir import interpret, render_c
from sparloom.ops import SDDMM, SpMM, assert_close
from sparloom.platforms.cpu_schedules import (
    LEVELS,
    Kernels,
    Layout,
    Packer,
    Program,
    arguments,
    fresh_result,
    lower,
    unpack_result,
)
from sparloom.space import Config, CpuSpace, legal_orders

OPS = {"spmm": SpMM(), "sddmm": SDDMM()}
FORMATS = ["".join(word) for word in itertools.product("UC", repeat=4) if set(word) != {"U"}]


def schedule(op: str, width: int, **changes) -> Config:
    return CpuSpace(op, width=width).default().replace(**changes)


def lowered(config: Config, shape, *, width: int, op: str, rows_tile=8, cols_tile: int | str = 16, registers=64):
    layout = Layout.of(shape, rows_tile=rows_tile, cols_tile=cols_tile, formats=config["formats"],
                       order=[loop for loop in config["order"].split(".") if loop in LEVELS])
    return layout, Program.of(op, config, layout, width=width, register_columns=registers)


def run_interpreted(op, matrix, program, layout, seed=0):
    operands = OPS[op].operands(matrix, program.width, seed)
    packed = Packer(matrix).pack(layout, locate=True)
    result = fresh_result(op, packed, operands)
    result.fill(np.nan)
    kernel = lower(program)
    given = arguments(layout, operands=operands, packed=packed, result=result, chunk=2)
    interpret(kernel, **{param.name: given[param.name] for param in kernel.params})
    return operands, unpack_result(op, packed, result)


def assert_right(op, operands, actual):
    assert_close(actual, OPS[op].oracle(operands), terms=OPS[op].terms(operands.matrix.pattern, operands.width),
                 scale=OPS[op].scale(operands))


@pytest.mark.cc
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("order", legal_orders("sddmm"))
def test_every_order_is_interpreted_right(hub_matrix, op, order):
    turn = legal_orders("sddmm").index(order)
    config = schedule(op, 21, order=order, formats=FORMATS[turn % len(FORMATS)], dense_tile=16)
    layout, program = lowered(config, hub_matrix.pattern.shape, width=21, op=op)
    assert_right(op, *run_interpreted(op, hub_matrix, program, layout))


@pytest.mark.cc
@pytest.mark.parametrize("op", OPS)
def test_interpreted_on_every_shape(matrix, op):
    for changes in ({}, {"order": "ko.jo.io.ji.ii.ki", "formats": "CUCC"}, {"order": "io.jo.ji.ii.ko.ki",
                                                                            "formats": "CCCC"}):
        config = schedule(op, 19, dense_tile=16, **changes)
        for cols_tile in (4, "all"):
            layout, program = lowered(config, matrix.pattern.shape, width=19, op=op, rows_tile=4, cols_tile=cols_tile)
            assert_right(op, *run_interpreted(op, matrix, program, layout))


def all_programs(op: str, orders, formats, tiles, cols_tiles=(16, "all")) -> dict[Program, None]:
    shape, programs = (45, 70), {}
    for order, letters, (width, tile, registers), cols_tile in itertools.product(orders, formats, tiles, cols_tiles):
        parallel = "jo" if op == "sddmm" and order.index("jo") < order.index("io") else "io"
        config = schedule(op, width, order=order, formats=letters, dense_tile=tile, parallel=parallel)
        programs[lowered(config, shape, width=width, op=op, cols_tile=cols_tile, registers=registers)[1]] = None
    return programs


@pytest.mark.cc
@pytest.mark.parametrize("op", OPS)
def test_every_order_is_compiled_right(op):
    programs = {}
    for turn, order in enumerate(legal_orders("sddmm")):
        programs |= all_programs(op, [order], [FORMATS[turn * 4 % len(FORMATS)]], [(40, 16, 64)], cols_tiles=(16,))
    assert Kernels(threads=2).prepare(programs) == len(programs) == 30


@pytest.mark.exhaustive
@pytest.mark.cc
@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_every_order_with_every_format_is_compiled_right(op):
    programs = all_programs(op, legal_orders("sddmm"), FORMATS, [(40, 16, 64)])
    assert Kernels(threads=2).prepare(programs) == len(programs) > 500


@pytest.mark.cc
@pytest.mark.parametrize("op", OPS)
def test_every_kind_of_dense_tail_is_compiled_right(op):
    orders = ["io.ii.jo.ji.ko.ki", "ko.jo.io.ji.ii.ki"]
    tiles = [(1, "all", 256), (15, "all", 256), (37, 16, 64), (64, 32, 64), (100, "all", 64), (300, 128, 256)]
    programs = all_programs(op, orders, ["UUUC"], tiles, cols_tiles=(16,))
    assert Kernels(threads=2).prepare(programs) == len(programs) == 12


@pytest.mark.cc
@pytest.mark.parametrize("op", OPS)
def test_compiled_equals_interpreted_on_every_shape(matrix, op):
    config = schedule(op, 24, order="jo.io.ko.ii.ji.ki", formats="CUCC", dense_tile=16)
    layout, program = lowered(config, matrix.pattern.shape, width=24, op=op, rows_tile=4, cols_tile=4)
    operands, expected = run_interpreted(op, matrix, program, layout)
    kernels = Kernels(threads=2)
    kernels.prepare([program])
    packed = Packer(matrix).pack(layout, locate=True)
    result = fresh_result(op, packed, operands)
    kernels.bind(program, layout, operands=operands, packed=packed, result=result, chunk=1)()
    actual = unpack_result(op, packed, result)
    terms, scale = OPS[op].terms(matrix.pattern, 24), OPS[op].scale(operands)
    assert_close(actual, expected.astype(np.float64), terms=terms, scale=scale)


@pytest.mark.cc
def test_a_wrong_kernel_is_found(monkeypatch):
    _, program = lowered(schedule("spmm", 16), (45, 70), width=16, op="spmm")
    idle = dataclasses.replace(lower(program), body=())
    monkeypatch.setattr("sparloom.platforms.cpu_schedules.kernels.lower", lambda _: idle)
    with pytest.raises(AssertionError, match=r"kernel spmm_\w+ is wrong: element \(0, 0\) is nan"):
        Kernels(threads=1).prepare([program])


def test_configurations_that_differ_in_run_time_numbers_share_a_program():
    programs = {lowered(schedule("spmm", 64, chunk=chunk), shape, width=64, op="spmm", rows_tile=tile)[1]
                for chunk, shape, tile in itertools.product((1, 256), ((50, 90), (500, 90)), (4, 32))}
    assert len(programs) == 1


@pytest.mark.parametrize(("op", "changes", "overwrites"), [
    ("spmm", {}, True),
    ("spmm", {"cols_tile": 16}, False),
    ("spmm", {"formats": "CUUC"}, False),
    ("spmm", {"formats": "UCUC"}, False),
    ("spmm", {"order": "io.jo.ji.ii.ko.ki"}, False),
    ("sddmm", {}, True),
    ("sddmm", {"dense_tile": 16}, True),
    ("sddmm", {"dense_tile": 16, "order": "io.ii.ko.jo.ji.ki"}, False),
])
def test_the_result_is_zeroed_only_where_it_must_be(op, changes, overwrites):
    config = schedule(op, 32, **changes)
    _, program = lowered(config, (50, 50), width=32, op=op, cols_tile=config["cols_tile"])
    assert program.overwrites == overwrites
    assert ("D[z] = 0" in render_c(lower(program))) != overwrites


@pytest.mark.cc
def test_the_interpreter_finds_the_race_of_an_illegal_parallel_loop(hub_matrix):
    config = schedule("spmm", 16, order="jo.io.ii.ji.ko.ki", parallel="jo")
    layout, program = lowered(config, hub_matrix.pattern.shape, width=16, op="spmm")
    with pytest.raises(IllegalSchedule, match="D"):
        run_interpreted("spmm", hub_matrix, program, layout)
