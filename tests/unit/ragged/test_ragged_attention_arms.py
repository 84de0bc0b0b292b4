"""Operators of attention in several forms: all compute the same as NumPy, sequence by sequence."""

import numpy as np
import pytest
from interpreted import InterpretedLibrary

from sparloom.ir import Const
from sparloom.ragged import (
    ATTENTION_OPERATORS,
    LENGTHS,
    PADDED_ATTENTION,
    PADDING_CHANGES,
    SPLIT_ARMS,
    SPLIT_OPERATORS,
    EncoderSchedule,
    EncoderShape,
    Executable,
    RaggedTensor,
    Structure,
    Tensor,
    attention,
    encoder_layer,
    equal_tokens,
    interpreted,
    iterations,
    kernel_preludes,
    ragged_tokens,
    scheduled_attention,
    scheduled_encoder_layer,
    scheduled_mixing,
    stored_densely,
)

SHAPE = EncoderShape(width=32, heads=2, hidden=16)
GIVEN = [70, 64, 0, 5, 129, 1]
TINY, FEW = EncoderShape(width=16, heads=1), [0, 3]  # of what is interpreted: a tile is whole
TILE = 64


def drawn(program, of, seed=0):
    """Draw the elements of the inputs by name, independently of their storage."""
    rng, tensors = np.random.default_rng(seed), program.tensors()
    return {name: rng.standard_normal(of.size(Tensor(name, tensors[name].axes)), dtype=np.float32) / 4
            for name in sorted(program.inputs())}


def stored(program, of, values):
    tensors = program.tensors()
    return {name: RaggedTensor.from_packed(tensors[name], of, value).data for name, value in values.items()}


def packed(program, of, bound):
    name = program.outputs[0]
    return RaggedTensor(program.tensors()[name], of, bound[name]).to_packed()[0].reshape(-1)


def compiled(program, of, values, **options):
    run, bound = Executable(program, threads=2, **options).bind(of, **stored(program, of, values))
    run()
    return packed(program, of, bound)


def one(program, of, values, number):
    """Inputs of one sequence in float64; weights whole."""
    found = {}
    for name, value in values.items():
        plain = Tensor(name, program.tensors()[name].axes)
        ragged = RaggedTensor.from_packed(plain, of, value)
        within = (number,) if plain.axes[0][0].name == "batch" else ()
        found[name] = ragged.slice(*within).astype(np.float64)
    return found


def softmax(scores):
    powers = np.exp(scores / 4)
    return powers / powers.sum(axis=-1, keepdims=True)


ORACLES = {
    "proj1": lambda x, w_qkv, b_qkv: np.tensordot(x, w_qkv, axes=1) + b_qkv,
    "qkt": lambda qkv: np.einsum("rhd,chd->hrc", qkv[:, 0], qkv[:, 1]),
    "qkt_fused": lambda qkv: np.einsum("rhd,chd->hrc", qkv[:, 0], qkv[:, 1]),
    "softmax": lambda scores: softmax(scores),
    "attnv": lambda weights, qkv: np.einsum("hrc,chd->rhd", weights, qkv[:, 2]),
    "proj2": lambda mixed, w_out, b_out: np.tensordot(mixed, w_out, axes=2) + b_out,
}


def expected(operator, program, of, values, count):
    return np.concatenate([ORACLES[operator](**one(program, of, values, number)).reshape(-1)
                           for number in range(count)])


@pytest.mark.parametrize("operator", [
    pytest.param(name, marks=pytest.mark.slow if name == "qkt_fused" else ()) for name in ATTENTION_OPERATORS])
def test_interpreted_operators(operator):
    program, of = ATTENTION_OPERATORS[operator](TINY, ragged_tokens()), Structure({LENGTHS: FEW}, InterpretedLibrary)
    values = drawn(program, of)
    found = packed(program, of, interpreted(program, of, **stored(program, of, values)))
    np.testing.assert_allclose(found, expected(operator, program, of, values, len(FEW)), atol=1e-5)


@pytest.mark.slow
@pytest.mark.cc
@pytest.mark.parametrize("operator", ATTENTION_OPERATORS)
def test_variants_of_an_operator_on_ragged_sequences(operator):
    program, of = ATTENTION_OPERATORS[operator](SHAPE, ragged_tokens()), Structure({LENGTHS: GIVEN})
    values = drawn(program, of)
    wanted = expected(operator, program, of, values, len(GIVEN))
    for form, options in ((program, {}), (program, {"hoisted": False}), (stored_densely(program), {"hoisted": False})):
        np.testing.assert_allclose(compiled(form, of, values, **options), wanted, atol=1e-4)


@pytest.mark.cc
@pytest.mark.parametrize("operator", ATTENTION_OPERATORS)
def test_sequences_of_one_length_need_no_tables(operator):
    define = ATTENTION_OPERATORS[operator]
    dense, ragged = define(SHAPE, equal_tokens(2, 70)), define(SHAPE, ragged_tokens())
    of = Structure({LENGTHS: [70, 70]})
    values = drawn(ragged, of)
    np.testing.assert_array_equal(compiled(dense, of, values), compiled(ragged, of, values))
    assert Executable(dense).prelude.kernels == ()
    assert all(isinstance(extent, Const) for tensor in dense.tensors().values() for _, extent in tensor.axes)


def test_dense_storage_holds_the_longest_sequence():
    program = ATTENTION_OPERATORS["attnv"](SHAPE, ragged_tokens())
    of = Structure({LENGTHS: [3, 0, 2]}, InterpretedLibrary)
    sizes = {name: of.size(tensor) for name, tensor in stored_densely(program).tensors().items()}
    assert sizes == {"weights": 3 * 2 * 3 * 3, "qkv": 3 * 3 * 3 * 32, "mixed": 3 * 3 * 32}


@pytest.mark.cc
@pytest.mark.parametrize("operator", SPLIT_OPERATORS)
def test_split_and_padded_tiles_compute_the_same(operator):
    defined, of = SPLIT_OPERATORS[operator](SHAPE), Structure({LENGTHS: GIVEN})
    values = drawn(defined, of)
    wanted = compiled(SPLIT_ARMS["exact"](defined), of, values)
    inputs = [one(defined, of, values, number) for number in range(len(GIVEN))]
    plain = {"qkt": lambda queries, keys: queries.swapaxes(0, 1) @ keys,
             "attnv": lambda weights, values: (weights @ values.swapaxes(0, 1)).swapaxes(0, 1)}[operator]
    np.testing.assert_allclose(wanted, np.concatenate([plain(**each).reshape(-1) for each in inputs]), atol=1e-4)
    for arm in ("padded", "split", "hfused"):
        np.testing.assert_allclose(compiled(SPLIT_ARMS[arm](defined), of, values), wanted, atol=1e-5)


@pytest.mark.cc
@pytest.mark.parametrize("arm", PADDED_ATTENTION)
def test_attention_with_padding(arm):
    program, of = PADDED_ATTENTION[arm](SHAPE), Structure({LENGTHS: GIVEN})
    values = drawn(attention(SHAPE), of)
    wanted = compiled(scheduled_attention(SHAPE, EncoderSchedule()), of, values)
    np.testing.assert_allclose(compiled(program, of, values), wanted, atol=1e-5)
    launches = {launch.name for launch in program.launches}
    assert launches & set(PADDING_CHANGES) == (set(PADDING_CHANGES) if arm.startswith("separate") else set())


def test_iterations_of_a_schedule_are_those_of_its_definition():
    of = Structure({LENGTHS: GIVEN}, InterpretedLibrary)
    tokens, pairs = sum(GIVEN), sum(length**2 for length in GIVEN)
    found = iterations(scheduled_encoder_layer(SHAPE, EncoderSchedule()), of)
    assert found == iterations(encoder_layer(SHAPE), of)
    assert found["qkv"] == 3 * 32 * 32 * tokens
    assert found["scores"] == found["mixed"] == 32 * pairs
    assert found["mean_1"] == found["norm_1"] == 32 * tokens


def test_iterations_count_padding_and_triangles_of_tiles():
    of = Structure({LENGTHS: GIVEN}, InterpretedLibrary)
    padded = [-(-length // TILE) * TILE for length in GIVEN]
    qkt = SPLIT_ARMS["padded"](SPLIT_OPERATORS["qkt"](SHAPE))
    assert iterations(qkt, of) == {"scores": 32 * sum(length**2 for length in padded)}
    masked = scheduled_mixing(EncoderShape(width=32, heads=2, causal=True), EncoderSchedule(queries=TILE))
    seen = sum(min(length, (row // TILE + 1) * TILE) for length in GIVEN for row in range(length))
    assert iterations(masked, of)["weights"] == 2 * seen


@pytest.mark.cc
def test_kernels_run_one_by_one_compute_the_program():
    program, of = scheduled_attention(SHAPE, EncoderSchedule()), Structure({LENGTHS: GIVEN})
    values = drawn(program, of)
    kernels, bound = Executable(program, threads=2).kernels(of, **stored(program, of, values))
    assert list(kernels) == ["qkv", "mixed", "attended"]
    for name, run in kernels.items():
        assert not bound[name].any()
        run()
        assert bound[name].any()
    np.testing.assert_array_equal(packed(program, of, bound), compiled(program, of, values))


@pytest.mark.cc
def test_separate_preludes_build_the_tables_of_the_shared_one():
    program = scheduled_encoder_layer(SHAPE, EncoderSchedule())
    shared, single = Structure({LENGTHS: GIVEN}), kernel_preludes(program)
    shared.prepare(Executable(program).prelude)
    assert list(single) == [launch.name for launch in program.launches]
    for prelude in single.values():
        own = Structure({LENGTHS: GIVEN})
        own.prepare(prelude)
        for made in prelude.kernels:
            np.testing.assert_array_equal(own.table(made.table), shared.table(made.table))
    starts = np.concatenate(([0], np.cumsum(GIVEN)))
    assert any(np.array_equal(shared.table(made.table), starts) for made in single["qkv"].kernels)
