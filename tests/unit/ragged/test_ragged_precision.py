"""Encoder layers in bfloat16 and int8: compiled and interpreted ones agree, and are near those in float32."""

from dataclasses import replace

import numpy as np
import pytest
from interpreted import InterpretedLibrary

from sparloom import ragged
from sparloom.errors import IllegalSchedule, Unsupported
from sparloom.ir import BF16, F32, I8, I32, U8, Cast, rounded, widened
from sparloom.ragged import EncoderSchedule, EncoderShape, compiled_encoder_layer, dims, structure_of
from sparloom.ragged.layers.encoder import scheduled_encoder_layer
from sparloom.ragged.schedule.loops import fuse, parallel, reorder, split
from sparloom.ragged.schedule.operations import offload, reorder_dimensions, split_dimension

batch, pos, inner, col = dims("batch pos inner col")
BATCHES = ragged.Length("batches")
LENGTHS = ragged.Length("lengths", {batch: BATCHES()})
TOKENS = {batch: BATCHES(), pos: LENGTHS(batch)}
OF_LENGTHS = [5, 0, 17, 1]
COUNT = sum(OF_LENGTHS)
DEPTH, COLS = 24, 40
SHAPE = EncoderShape(48, 3, 64, activation="gelu")
KINDS = {"bfloat16": (BF16, BF16, F32, 2), "int8": (U8, I8, I32, 4)}


def product(precision: str, *, interleave: bool = True) -> ragged.Program:
    """Multiply tokens by weights, in tiles."""
    left, right, made, group = KINDS[precision]
    t, w = ragged.Tensor("t", {**TOKENS, inner: DEPTH}, left), ragged.Tensor("w", {inner: DEPTH, col: COLS}, right)
    total = ragged.sum_over({inner: DEPTH}, Cast(made, t[batch, pos, inner]) * Cast(made, w[inner, col]))
    prog = ragged.program("product", [ragged.compute("y", {**TOKENS, col: COLS}, Cast(F32, total) * ragged.real(0.5))])
    if interleave:
        prog = split_dimension(split_dimension(prog, "w", "col", 16), "w", "inner", group)
        prog = reorder_dimensions(prog, "w", ("col_block", "inner_block", "col_within", "inner_within"))
    prog = split(split(fuse(prog, "y", "batch", "pos"), "y", "batch_pos", 8), "y", "col", 16)
    prog = reorder(prog, "y", ("batch_pos_outer", "col_outer", "batch_pos_inner", "col_inner", "inner"))
    return parallel(offload(prog, "y", "batch_pos_inner", "col_inner", "inner"), "y", "batch_pos_outer")


@pytest.mark.cc
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("precision", list(KINDS))
def test_products_of_narrow_types_are_exact_sums(precision: str) -> None:
    rng, prog = np.random.default_rng(0), product(precision)
    if precision == "bfloat16":
        t, w = (rounded(rng.normal(size=size).astype(np.float32)) for size in ((COUNT, DEPTH), (DEPTH, COLS)))
        exact = widened(t).astype(float) @ widened(w).astype(float)
    else:  # the extremes, too
        t, w = rng.integers(0, 256, (COUNT, DEPTH), np.uint8), rng.integers(-128, 128, (DEPTH, COLS), np.int8)
        t[0], w[:, 0] = 255, -128
        exact = t.astype(int) @ w.astype(int)
    stored = ragged.pack_values(prog.tensors()["w"], w)
    for of, run in ((ragged.Structure({LENGTHS: OF_LENGTHS}), lambda *a, **k: ragged.Executable(prog)(*a, **k)),
                    (ragged.Structure({LENGTHS: OF_LENGTHS}, InterpretedLibrary),
                     lambda *a, **k: ragged.interpreted(prog, *a, **k)["y"])):
        found = run(of, t=t, w=stored).reshape(COUNT, COLS)
        np.testing.assert_allclose(found, exact / 2, rtol=1e-5, atol=1e-5)


def test_reductions_of_any_length_are_not_interleaved() -> None:
    t, w = ragged.Tensor("t", {**TOKENS, inner: LENGTHS(batch)}, BF16), ragged.Tensor(
        "w", {batch: BATCHES(), inner: LENGTHS(batch), col: COLS}, BF16)
    prog = ragged.program("product", [ragged.compute("y", {**TOKENS, col: COLS}, ragged.sum_over(
        {inner: LENGTHS(batch)}, Cast(F32, t[batch, pos, inner]) * Cast(F32, w[batch, inner, col])))])
    with pytest.raises(IllegalSchedule, match="loop inner of the reduction is not a multiple of 2, the number of"):
        offload(prog, "y", "pos", "col", "inner")


def test_results_that_cannot_hold_partial_sums_are_refused() -> None:
    t, w = ragged.Tensor("t", {**TOKENS, inner: DEPTH}, BF16), ragged.Tensor("w", {inner: DEPTH, col: COLS}, BF16)
    total = ragged.sum_over({inner: DEPTH}, Cast(F32, t[batch, pos, inner]) * Cast(F32, w[inner, col]))
    prog = ragged.program("half", [ragged.compute("y", {**TOKENS, col: COLS}, Cast(BF16, total), BF16)])
    prog = reorder(prog, "y", ("batch", "inner", "pos", "col"))
    with pytest.raises(IllegalSchedule, match="y reduces f32 to a result of bf16, which cannot hold partial sums"):
        ragged.lower(prog)


def parameters(rng: np.random.Generator, shape: EncoderShape) -> dict[str, np.ndarray]:
    wide, hidden = shape.width, shape.hidden
    columns = 3 * shape.width
    sizes = {"w_qkv": (columns, wide), "b_qkv": (columns,), "w_out": (wide, wide), "b_out": (wide,),
             "w_in": (hidden, wide), "b_in": (hidden,), "w_back": (wide, hidden), "b_back": (wide,),
             "gain_1": (wide,), "shift_1": (wide,), "gain_2": (wide,), "shift_2": (wide,),
             **({"w_up": (hidden, wide), "b_up": (hidden,)} if shape.gated else {})}
    return {name: (rng.normal(size=size) * (size[-1]**-0.5 if len(size) > 1 else 0.3)
                   + (name[:4] == "gain")).astype(np.float32) for name, size in sizes.items()}


def run(shape: EncoderShape, values: dict[str, np.ndarray], x: np.ndarray, *, share: int = 0, **others: np.ndarray
        ) -> np.ndarray:
    layer = compiled_encoder_layer(shape, EncoderSchedule(shared_panels=share), 2)
    out = np.empty_like(x)
    weights = ragged.Weight.pack_all(layer.forward_weights, values)
    layer.inference.run(structure_of(OF_LENGTHS), {"x": x, **others, **weights, layer.result: out})
    return out


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min())


@pytest.mark.cc
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(("precision", "least"), [("bfloat16", 0.9999), ("int8", 0.999)])
@pytest.mark.parametrize("form", [{}, {"activation": "silu", "gated": True, "norm_first": True, "norm": "rms"},
                                  {"rotary": 16, "window": 3, "causal": True}])
def test_layers_are_near_those_in_float32(precision: str, least: float, form: dict[str, object]) -> None:
    shape, rng = replace(SHAPE, **form), np.random.default_rng(1)
    values, x = parameters(rng, shape), rng.normal(size=(COUNT, shape.width)).astype(np.float32)
    inputs = {"x": x}
    if shape.rotary:
        angles = rng.normal(size=(COUNT, shape.rotary))
        inputs |= {"turn_cos": np.cos(angles).astype(np.float32), "turn_sin": np.sin(angles).astype(np.float32)}
    exact, found = (run(replace(shape, precision=name), values, **inputs) for name in ("float32", precision))
    assert least <= cosine(exact, found) < 1 - 1e-9  # it is another precision, too


@pytest.mark.cc
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_schedules_compute_the_same(precision: str) -> None:
    shape, rng = replace(SHAPE, precision=precision), np.random.default_rng(2)
    values, x = parameters(rng, shape), rng.normal(size=(COUNT, shape.width)).astype(np.float32)
    np.testing.assert_array_equal(run(shape, values, x), run(shape, values, x, share=2))


@pytest.mark.cc
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_compiled_layers_are_interpreted_ones(precision: str) -> None:
    shape, rng = replace(SHAPE, width=8, heads=2, hidden=8, precision=precision), np.random.default_rng(3)
    values, x = parameters(rng, shape), rng.normal(size=(COUNT, shape.width)).astype(np.float32)
    of = ragged.Structure({ragged.LENGTHS: OF_LENGTHS}, InterpretedLibrary)
    weights = ragged.Weight.pack_all(compiled_encoder_layer(shape, EncoderSchedule(), 2).forward_weights, values)
    found = ragged.interpreted(scheduled_encoder_layer(shape, EncoderSchedule()), of, x=x, **weights)["norm_2"]
    found = found.reshape(x.shape)
    np.testing.assert_allclose(run(shape, values, x), found, atol=2e-2 if precision == "bfloat16" else 4e-2)
    assert cosine(run(shape, values, x), found) > 0.9999


FORMS = [{}, {"causal": True}, {"causal": True, "triangles": False}, {"window": 2}, {"causal": True, "window": 2},
         {"masked": True}, {"distances": 3, "masked": True}, {"distances": 3, "scale": 2.0},
         {"rotary": 4}, {"cross": True}, {"cross": True, "masked": True},
         {"dropout": (0.3, 0.0, 0.0, 0.0)}]
OF_MEMORY = [18, 3, 1, 0]


@pytest.mark.slow
@pytest.mark.cc
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("form", [form if place % 2 else pytest.param(form, marks=pytest.mark.exhaustive)
                                  for place, form in enumerate(FORMS)])
def test_attention_in_bfloat16_is_near_that_in_float32(form: dict[str, object]) -> None:
    """Also where numbers of keys are odd, and with one or no token; compiled and interpreted."""
    shape, rng = replace(EncoderShape(8, 2, precision="bfloat16"), **form), np.random.default_rng(7)
    cpu = ragged.scheduled_cross_attention if shape.cross else ragged.scheduled_attention
    lengths = {ragged.LENGTHS: OF_LENGTHS} | ({ragged.MEMORY_LENGTHS: OF_MEMORY} if shape.cross else {})
    of, seen = ragged.Structure(lengths), sum(OF_MEMORY if shape.cross else OF_LENGTHS)
    values = parameters(rng, shape)
    values |= {"w_q": values["w_qkv"][:8], "b_q": values["b_qkv"][:8], "w_kv": values["w_qkv"][8:],
               "b_kv": values["b_qkv"][8:]}
    values |= {f"bias_{side}": rng.normal(size=(2, 4)).astype(np.float32) for side in ("before", "after")}
    inputs = {"x": rng.normal(size=(COUNT, 8)), "memory": rng.normal(size=(seen, 8)), "mask": rng.random(seen) > 0.4,
              "turn_cos": np.cos(np.arange(COUNT * shape.rotary)), "turn_sin": np.sin(np.arange(COUNT * shape.rotary)),
              "random": rng.integers(1 << 31, size=COUNT).astype(np.float64)}
    inputs = {name: array if name == "random" else array.astype(np.float32) for name, array in inputs.items()}

    def run_attention(program: ragged.Program, *, interpreted: bool = False) -> np.ndarray:
        tensors, given = program.tensors(), program.inputs()
        arrays = {name: stored(tensors[name], values[name]) for name in given if name in values}
        arrays |= {name: array for name, array in inputs.items() if name in given}
        found = ragged.interpreted(program, ragged.Structure(lengths, InterpretedLibrary), **arrays)[
            "attended"] if interpreted else ragged.Executable(program, threads=2)(of, **arrays)
        return found.reshape(COUNT, 8)

    exact = run_attention(cpu(replace(shape, precision="float32"), EncoderSchedule()))
    program = cpu(shape, EncoderSchedule())
    found = run_attention(program)
    assert 1 - 1e-9 > cosine(exact, found) >= 0.9999
    others = [program, ragged.device_attention(shape)] if form in ({}, {"masked": True}) else [program]
    for other in (run_attention(each, interpreted=True) for each in others):
        np.testing.assert_allclose(found, other, atol=2e-2)
        assert cosine(found, other) > 0.9999


def stored(tensor: ragged.Tensor, values: np.ndarray) -> np.ndarray:
    """Pack a parameter, whose reduced dimensions are first in the tensor and last in the array."""
    extents = [int(extent.value) for _, extent in tensor.axes]
    reduced = {"w_out": len(extents) - 1}.get(tensor.name, 1) if tensor.name.startswith("w_") else 0
    found = np.moveaxis(values.reshape(*extents[reduced:], *extents[:reduced]), range(-reduced, 0), range(reduced))
    return ragged.pack_values(tensor, rounded(np.ascontiguousarray(found)) if tensor.type == BF16 else found)


@pytest.mark.cc
@pytest.mark.usefixtures("own_cache")
def test_weights_of_attention_add_up_to_one_in_bfloat16() -> None:
    """Values that are all equal mix to themselves, if those that padding adds have no part in sums."""
    shape, structure = EncoderShape(32, 4, precision="bfloat16"), structure_of(OF_LENGTHS)
    qkv = np.random.default_rng(8).normal(size=(COUNT, 3, 32)).astype(np.float32)
    qkv[:, 2] = 1.5
    run = ragged.Executable(ragged.scheduled_mixing(shape, EncoderSchedule()), threads=1)
    np.testing.assert_array_equal(widened(run(structure, qkv=rounded(qkv))), 1.5)


@pytest.mark.cc
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_tokens_that_are_not_finite_stay_so_in_bytes(bad: float) -> None:
    shape, rng = replace(SHAPE, precision="int8"), np.random.default_rng(4)
    values, x = parameters(rng, shape), rng.normal(size=(COUNT, shape.width)).astype(np.float32)
    x[7, 11] = bad  # of the second sequence with tokens
    found = run(shape, values, x)
    assert np.isnan(found[7]).all()
    assert np.isfinite(found[:5]).all()


@pytest.mark.cc
@pytest.mark.usefixtures("own_cache")
def test_weights_that_are_not_finite_stay_so_in_bytes() -> None:
    shape, rng = replace(SHAPE, precision="int8"), np.random.default_rng(5)
    values, x = parameters(rng, shape), rng.normal(size=(COUNT, shape.width)).astype(np.float32)
    values["w_back"][3, 2] = np.nan
    assert np.isnan(run(shape, values, x)).any(axis=1).all()


@pytest.mark.cc
@pytest.mark.usefixtures("own_cache")
def test_constant_tokens_and_zero_weights_are_exact_in_bytes() -> None:
    shape, rng = replace(SHAPE, precision="int8"), np.random.default_rng(6)
    values, x = parameters(rng, shape), np.full((COUNT, SHAPE.width), 0.25, np.float32)
    for name in ("w_qkv", "w_out", "w_in", "w_back"):
        values[name][:] = 0
    np.testing.assert_allclose(run(shape, values, x), run(SHAPE, values, x), rtol=1e-5, atol=1e-5)


def test_sizes_that_cannot_be_interleaved_are_refused() -> None:
    with pytest.raises(Unsupported, match="width of a head 15 is no multiple of 2, as bfloat16 needs it"):
        compiled_encoder_layer(EncoderShape(60, 4, 64, precision="bfloat16"), EncoderSchedule())
    with pytest.raises(Unsupported, match="hidden 66 is no multiple of 4, as int8 needs it"):
        compiled_encoder_layer(EncoderShape(48, 3, 66, precision="int8"), EncoderSchedule())


@pytest.mark.parametrize(("name", "value"), [("precision", "float16"), ("norm", "batch"), ("activation", "elu")])
def test_unknown_kinds_are_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{name}='{value}': there are "):
        compiled_encoder_layer(replace(SHAPE, **{name: value}), EncoderSchedule())


def test_programs_have_cuda_text() -> None:
    for precision in ("bfloat16", "int8"):
        layer = ragged.device_encoder_layer(replace(SHAPE, precision=precision))
        text = "".join(ragged.DeviceProgram(layer).texts.values())
        assert ("widened_bf16(" in text) == (precision == "bfloat16")
        assert ("const int8_t *" in text) == (precision == "int8")
