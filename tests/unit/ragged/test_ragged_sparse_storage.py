"""Pointers of sparse storage: tables, what is refused, and the order in which tables are built."""

import numpy as np
import pytest
from interpreted import InterpretedLibrary
from ragged_cases import CASES, structure

from sparloom import ragged
from sparloom.errors import IllegalSchedule

SCORES = CASES["scores"].program


def tables(prog, access):
    return {table for each in ragged.lower(prog, access=access) for table in each.meaning.values()
            if not isinstance(table, ragged.Tensor)}


def test_pointers_are_those_of_the_papers_scheme():
    of = structure([3, 0, 2])
    (pointers,) = (table for table in tables(SCORES, ragged.pointer_steps) if isinstance(table, ragged.Pointers))
    scheme = ragged.PRELUDES["sparse_by_tensor"](np.array([3, 0, 2]), ragged.EncoderSizes(heads=2),
                                                 ragged.TileSizes(storage=1))
    rows, columns = next(table for table in scheme if table.subject == "scores").build()
    np.testing.assert_array_equal(of.table(pointers), columns)
    (offsets,) = (table for table in tables(SCORES, ragged.pointer_steps) if table.label == "offsets")
    np.testing.assert_array_equal(of.table(offsets), rows)


def test_a_level_inside_of_one_dimension_shares_the_table_of_the_dimension_graph():
    inputs = CASES["projection"].program
    assert tables(inputs, ragged.pointer_steps) == tables(inputs, ragged.offset_steps)


def test_rows_found_by_pointers_are_not_offloaded():
    prog = ragged.reorder(CASES["values"].program, "o", ("batch", "head", "row", "inner", "col"))
    prog = ragged.offload(prog, "o", "row", "inner", "col")
    with pytest.raises(IllegalSchedule, match="elements of p are not evenly spaced along row, inner and col"):
        ragged.lower(prog, access=ragged.pointer_steps)


@pytest.mark.parametrize("operator", ragged.ATTENTION_LOOPS)
def test_looped_operators_access_the_same_elements(operator):
    prog = ragged.ATTENTION_LOOPS[operator](ragged.EncoderShape(width=16, heads=2))
    of, rng = ragged.Structure({ragged.LENGTHS: [4, 0, 3]}, InterpretedLibrary), np.random.default_rng(0)
    arrays = {name: rng.standard_normal(of.size(prog.tensors()[name]), dtype=np.float32) for name in prog.inputs()}
    found = ragged.interpreted(prog, of, ragged.pointer_steps, **arrays)
    np.testing.assert_array_equal(found[prog.outputs[0]], ragged.interpreted(prog, of, **arrays)[prog.outputs[0]])
    assert any(isinstance(table, ragged.Pointers) for table in tables(prog, ragged.pointer_steps))
