"""Contents of generated kernels."""

import numpy as np
import pytest
from interpreted import InterpretedLibrary
from ragged_cases import CASES, batches, col, lengths, operands, row

from sparloom import ragged
from sparloom.errors import IllegalSchedule
from sparloom.ir import For, Load, Ref, interpret, pretty, walk


def text(program, **options):
    return "\n".join(pretty(each.kernel) for each in ragged.lower(program, **options))


def fused_projection():
    return ragged.parallel(ragged.fuse(CASES["projection"].program, "y", "batch", "row"), "y", "batch_row")


def test_a_tensor_stored_in_the_order_of_a_fused_loop_is_accessed_at_it_alone():
    printed = text(fused_projection())
    assert "x[batch_row * 3 + inner]" in printed
    assert "y[batch_row * 4 + out]" in printed


def test_programs_and_kernels_are_logged(caplog):
    program = CASES["scaled"].program
    with caplog.at_level("DEBUG", logger="sparloom.ragged.lowering"):
        ragged.lower(program)
    assert caplog.messages == [str(program), text(program)]


def test_maps_that_nothing_reads_are_not_built():
    (lowered,) = ragged.lower(fused_projection())
    assert [param.name for param in lowered.kernel.params] == ["x", "w", "bias", "y", "offsets", "batches"]
    (before,) = ragged.lower(CASES["scaled"].program)
    assert {table.label for table in before.meaning.values() if not isinstance(table, ragged.Tensor)} == {
        "batches", "lengths", "offsets"}


def test_identities_of_the_maps():
    o, i = Ref("o"), Ref("i")
    outer, other = ragged.FusedOuter(batches(), lengths(Ref("x0"))), ragged.FusedInner(batches(),
                                                                                       lengths(Ref("x0")) + 1)
    assert ragged.simplify_map(ragged.At(outer, (ragged.At(outer.starts, (o,)) + i,))) == o
    assert ragged.simplify_map(ragged.At(ragged.FusedInner(outer.extent, outer.inner),
                                         (ragged.At(outer.starts, (o,)) + i,))) == i
    kept = ragged.At(other, (ragged.At(outer.starts, (o,)) + i,))
    assert ragged.simplify_map(kept) == kept


def loads_inside_innermost(program, **options):
    (lowered,) = ragged.lower(program, **options)
    tables = {param.name for param in lowered.kernel.params if param.buffer and param.type.scalar in ("i32", "i64")}
    innermost = [node for node in walk(lowered.kernel) if isinstance(node, For) and not any(
        isinstance(each, For) for each in walk(node.body))]
    return [node for loop in innermost for node in walk(loop.body) if isinstance(node, Load) and node.buffer in tables]


def test_load_hoisting_leaves_no_table_in_the_innermost_loops():
    for name in ("scores", "values"):
        assert loads_inside_innermost(CASES[name].program, hoisted=False)
        assert not loads_inside_innermost(CASES[name].program)


def test_hoisting_changes_no_result():
    case = CASES["causal"]
    of = ragged.Structure({lengths: [3, 0, 4]}, InterpretedLibrary)
    inputs = {name: value.data for name, value in operands(case.program, of, seed=1).items()}
    found = ragged.interpreted(case.program, of, **inputs)
    plain = ragged.bind_arrays(case.program, of, inputs)
    for each in ragged.lower(case.program, hoisted=False):
        interpret(each.kernel, **ragged.kernel_arguments(each, of, plain))
    for name in case.program.outputs:
        np.testing.assert_array_equal(plain[name], found[name])


def test_a_reduction_is_kept_in_a_variable_an_array_or_the_result():
    values = CASES["values"].program
    assert "var o_acc: f32" in text(values)
    tiled = ragged.reorder(ragged.split(values, "o", "inner", 2), "o", ("inner_outer", "col", "inner_inner"))
    assert "array o_acc: f32[2]" in text(tiled)
    moved = ragged.reorder(CASES["scores"].program, "s", ("inner", "col"))
    assert "array" not in text(moved)
    assert "s_acc" not in text(moved)


def test_padded_iterations_of_a_reduction_add_nothing():
    stored = CASES["values"].program
    for tensor, padding in {"p": {col: 4}, "v": {row: 4}}.items():
        stored = ragged.pad_storage(stored, tensor, padding)
    printed = text(ragged.pad_loop(stored, "o", col, 4))
    assert "select(col < " in printed


def test_storage_is_checked_again_when_lowering():
    program = CASES["scaled"].program
    stored = ragged.pad_loop(ragged.pad_storage(ragged.pad_storage(program, "x", {row: 4}), "y", {row: 4}), "y", row, 4)
    unpadded = stored.with_tensor(program.tensors()["x"])
    with pytest.raises(IllegalSchedule, match="y accesses x, dimension row, at row, whose loops are padded"):
        ragged.lower(unpadded)
