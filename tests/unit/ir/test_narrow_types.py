"""Numbers of 16 and 8 bits in buffers: what is cast, rounded and refused, interpreted and compiled."""

import numpy as np
import pytest
import torch

from sparloom import ir
from sparloom.errors import IllegalSchedule
from sparloom.jit import compile_c

COUNT = ir.Param("count", ir.I64)
HALVES = np.array([0.0, -0.0, -2.5, 3.14159, 1e-40, 65504.0, 3e38, np.inf, -np.inf, np.nan, 1.00390625, 1.01171875],
                  np.float32)


def copied(source: ir.Type, target: ir.Type) -> ir.Kernel:
    """Cast the elements of one buffer to another."""
    load = ir.Load("a", ir.Ref("i"))
    value = load if source == target else ir.Cast(target, load)
    return ir.Kernel("k", (COUNT, ir.Param("a", source, True), ir.Param("b", target, True, False)), [
        ir.For("i", 0, ir.Ref("count"), [ir.Store("b", ir.Ref("i"), value)], "simd")])


def run(kernel: ir.Kernel, values: np.ndarray, *, compiled: bool) -> np.ndarray:
    out = np.zeros(len(values), ir.DTYPES[kernel.params[2].type.scalar])
    if compiled:
        compile_c([kernel]).function("k")(len(values), values, out)
    else:
        ir.interpret(kernel, count=len(values), a=values, b=out)
    return out


@pytest.mark.cc
@pytest.mark.parametrize("compiled", [False, True])
def test_numbers_are_rounded_as_torch_rounds_them(compiled: bool) -> None:
    values = np.concatenate([HALVES, np.random.default_rng(0).standard_normal(200).astype(np.float32)])
    exact = torch.from_numpy(values).bfloat16()
    bits = run(copied(ir.F32, ir.BF16), values, compiled=compiled)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(bits[numbers], exact.view(torch.uint16).numpy()[numbers])
    back = run(copied(ir.BF16, ir.F32), bits, compiled=compiled)
    np.testing.assert_array_equal(back, exact.float().numpy())


@pytest.mark.cc
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("type", [ir.U8, ir.I8])
def test_bytes_keep_their_values(type: ir.Type, compiled: bool) -> None:
    limits = np.iinfo(ir.DTYPES[type.scalar])
    values = np.arange(limits.min, limits.max + 1, dtype=np.int32)
    stored = run(copied(ir.I32, type), values, compiled=compiled)
    np.testing.assert_array_equal(stored, values)
    np.testing.assert_array_equal(run(copied(type, ir.I32), stored, compiled=compiled), values)
    np.testing.assert_array_equal(run(copied(type, type), stored, compiled=compiled), stored)


def test_the_interpreter_detects_bytes_out_of_range() -> None:
    with pytest.raises(OverflowError, match="outside the range of u8"):
        run(copied(ir.I32, ir.U8), np.array([256], np.int32), compiled=False)


@pytest.mark.parametrize(("source", "target"), [(ir.BF16, ir.I32), (ir.F64, ir.BF16), (ir.U8, ir.F32), (ir.I8, ir.U8)])
def test_other_casts_are_refused(source: ir.Type, target: ir.Type) -> None:
    with pytest.raises(IllegalSchedule, match=f"cast of {source} to {target}: .* is cast from and to .* only"):
        ir.verify(copied(source, target))


@pytest.mark.parametrize(("value", "message"), [
    (ir.Binary("+", ir.Load("a", 0), ir.Load("a", 1)), r"operator \+ does not take bf16"),
    (ir.Const(1.0, ir.BF16), "constant 1.0 is no bf16"),
    (ir.Load("a", 0, 4), "elements of bf16 are loaded one at a time"),
])
def test_arithmetic_constants_and_vectors_are_refused(value: ir.Expr, message: str) -> None:
    kernel = ir.Kernel("k", (ir.Param("a", ir.BF16, True), ir.Param("b", ir.BF16, True, False)), [
        ir.Store("b", 0, value)])
    with pytest.raises(IllegalSchedule, match=message):
        ir.verify(kernel)


def test_sums_and_scalars_are_refused() -> None:
    buffer = ir.Param("b", ir.I8, True, False)
    with pytest.raises(IllegalSchedule, match="i8 cannot be added up: use Store"):
        ir.verify(ir.Kernel("k", (buffer,), [ir.Accumulate("b", 0, ir.Load("b", 1))]))
    with pytest.raises(IllegalSchedule, match="scalar parameter x is bf16: only buffers are"):
        ir.verify(ir.Kernel("k", (ir.Param("x", ir.BF16), buffer), []))
