"""Lengths of a batch and the tables built from them."""

import inspect
from contextlib import suppress

import numpy as np
import pytest
from interpreted import InterpretedLibrary
from ragged_cases import CASES, batch, batches, lengths, widths

from sparloom import ragged
from sparloom.errors import SparloomError
from sparloom.ir import Ref
from sparloom.ragged import (
    FusedInner,
    FusedOuter,
    Length,
    Offsets,
    Structure,
    fuse,
    interpreted,
)
from sparloom.ragged.structure import Prelude
from sparloom.ragged.table_code import prelude_kernels


def interpreted_structure(entries):
    return Structure({lengths: entries}, InterpretedLibrary)


def test_the_number_of_sequences_is_that_of_their_lengths():
    assert interpreted_structure([4, 0, 2]).number(batches()) == 3


@pytest.mark.parametrize(("inputs", "message"), [
    ({lengths: [1, 2], batches: 3}, "length function lengths has 2 entries: it takes 3, one for every coordinate of "
                                    "batch"),
    ({lengths: [1, -2]}, "length function lengths has the entry -2: lengths are at least 0"),
    ({lengths: [1.5]}, "length function lengths is float64: lengths are integers"),
    ({lengths: [2**31]}, "length function lengths has the entry 2147483648: lengths are below 2\\^31"),
    ({lengths: [2, 1], widths: [1, 1]}, "length function widths has 2 entries: it takes 3, one for every coordinate of "
                                        "batch, row"),
    ({Length("bounded", {batch: batches()}, limit=4): [3, 5]}, "length function bounded has the entry 5, over its "
                                                               "limit of "
                                                             "4"),
])
def test_lengths_are_checked(inputs, message):
    with pytest.raises(ValueError, match=message):
        Structure(inputs, InterpretedLibrary)


def test_the_maps_of_a_fused_loop():
    of, x0 = interpreted_structure([2, 0, 3]), Ref("x0")
    outer, inner = (make(batches(), lengths(x0)) for make in (FusedOuter, FusedInner))
    np.testing.assert_array_equal(of.table(outer), [0, 0, 2, 2, 2])
    np.testing.assert_array_equal(of.table(inner), [0, 1, 0, 1, 2])
    np.testing.assert_array_equal(of.table(outer.starts), [0, 2, 2, 5])
    assert of.number(outer.total) == 5


def test_offsets_over_two_axes():
    of = Structure({lengths: [2, 0, 1], widths: [3, 1, 2]}, InterpretedLibrary)
    x0, x1 = Ref("x0"), Ref("x1")
    table = Offsets((batches(), lengths(x0)), widths(x0, x1))
    np.testing.assert_array_equal(of.table(table), [0, 3, 4, 0, 0, 2])


def test_a_program_is_interpreted_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path))
    program = fuse(CASES["scaled"].program, "y", "batch", "row")
    of = Structure({lengths: [3, 0, 2], widths: [1, 1, 1, 1, 1]}, InterpretedLibrary)
    found = interpreted(program, of, x=np.ones(15, np.float32))["y"]
    np.testing.assert_array_equal(found.reshape(5, 3)[:, 0], [2, 3, 4, 2, 3])
    assert of.table_bytes() > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.cc
def test_a_table_is_never_replaced(monkeypatch):
    """Another thread may build it meanwhile, and programs keep its address."""
    of = interpreted_structure([3, 0, 2])
    table = Offsets((batches(),), lengths(Ref("x0")))
    kernels = prelude_kernels((table,))
    prelude = Prelude(kernels, InterpretedLibrary([each.kernel for each in kernels]))
    run, first = prelude.run, []

    def interrupted(kernel, arguments):
        run(kernel, arguments)
        if not first:
            first.append(None)
            first[0] = of.table(table)

    monkeypatch.setattr(prelude, "run", interrupted)
    of.prepare(prelude)
    assert of.table(table) is first[0]


FUNCTIONS = [name for name in ragged.__all__ if inspect.isfunction(getattr(ragged, name))]
WRONG = [[1, 2, 3], (4, 0), [1.5], ["a"], "abc", None, 3, [[1, 2], [3]], {1: 2}, object()]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_of_the_wrong_type_are_refused_by_name(name) -> None:
    """Errors of methods that a list does not have would be AttributeError."""
    function = getattr(ragged, name)
    needed = [each for each in inspect.signature(function).parameters.values()
              if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
    for value in WRONG:
        named = {each.name: value for each in needed if each.kind is each.KEYWORD_ONLY}
        with suppress(TypeError, ValueError, SparloomError):
            function(*[value for each in needed if each.name not in named], **named)


@pytest.mark.parametrize(("lengths", "error", "message"), [
    ("abc", TypeError, "lengths of type str are not integers: give a vector"),
    ([[1, 2], [3]], TypeError, "lengths of type list are not a vector"), (["a"], TypeError, "are not integers"),
    (None, TypeError, "lengths of type NoneType"), (3, ValueError, "0 dimensions of int"),
    ([1.5], ValueError, "1 dimensions of float"), ([-1], ValueError, "lengths are at least 0"),
    ([[1, 2]], ValueError, "2 dimensions")])
def test_lengths_are_vectors_of_integers(lengths, error, message) -> None:
    with pytest.raises(error, match=message):
        ragged.structure_of(lengths)


@pytest.mark.parametrize("lengths", [[3, 0, 2], (3, 0, 2), range(3), np.array([3, 0, 2], np.int32), []])
def test_structures_of_any_sequence(lengths) -> None:
    structure = ragged.structure_of(lengths)
    assert structure is ragged.structure_of(np.array(lengths, np.int64))
    assert ragged.tokens_of(structure) == sum(lengths)
