"""Attention between two batches: the definition computes what NumPy does by sequence."""

from dataclasses import replace

import numpy as np
import pytest
from interpreted import InterpretedLibrary

from sparloom import ragged
from sparloom.errors import Unsupported

OF_LENGTHS, OF_MEMORY = [5, 1, 0, 6, 2], [3, 4, 2, 0, 9]
SHAPE = ragged.EncoderShape(width=8, heads=4, cross=True)


def inputs_of(program: ragged.Program, of: ragged.Structure) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found = {name: 0.4 * rng.standard_normal(of.size(tensor), dtype=np.float32)
             for name, tensor in sorted(program.tensors().items()) if name in program.inputs()}
    if "mask" in found:
        found["mask"] = np.arange(found["mask"].size) % 3 > 0
        found["mask"][: OF_MEMORY[0]] = 0  # hides the whole memory of the first sequence
        found["mask"] = found["mask"].astype(np.float32)
    return found


@pytest.mark.parametrize("shape", [SHAPE, replace(SHAPE, masked=True, scale=0.3)])
def test_definition(shape: ragged.EncoderShape) -> None:
    program = ragged.cross_attention(shape)
    of = ragged.Structure({ragged.LENGTHS: OF_LENGTHS, ragged.MEMORY_LENGTHS: OF_MEMORY}, InterpretedLibrary)
    packed = inputs_of(program, of)
    shapes = {name: [int(size.value) for _, size in program.tensors()[name].axes if hasattr(size, "value")]
              for name in packed}
    given = {name: value.astype(float).reshape(-1, *shapes[name]) if name in ("x", "memory") else
             value.astype(float).reshape(shapes[name] or -1) for name, value in packed.items()}
    result = ragged.interpreted(program, of, **packed)["attended"].reshape(-1, 8)
    ends, memory_ends = np.cumsum(OF_LENGTHS), np.cumsum(OF_MEMORY)
    for number, (length, keys) in enumerate(zip(OF_LENGTHS, OF_MEMORY, strict=True)):
        x = given["x"][ends[number] - length : ends[number]]
        memory = given["memory"][memory_ends[number] - keys : memory_ends[number]]
        q = (np.einsum("tm,m...->t...", x, given["w_q"]) + given["b_q"]).reshape(length, 4, 2)
        k, v = np.einsum("tm,mphd->pthd", memory, given["w_kv"]) + given["b_kv"][:, None]
        weights = np.exp(np.einsum("thd,shd->hts", q, k) * shape.score_scale)
        if shape.masked:
            weights *= given["mask"][memory_ends[number] - keys : memory_ends[number]]
        total = weights.sum(-1, keepdims=True)
        weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
        mixed = np.einsum("hts,shd->thd", weights, v).reshape(length, 8)
        expected = mixed @ given["w_out"].reshape(8, 8) + given["b_out"]
        np.testing.assert_allclose(result[ends[number] - length : ends[number]], expected, atol=1e-5)


@pytest.mark.cc
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_other_precisions_are_near(precision: str) -> None:
    wide, rng = ragged.EncoderShape(width=48, heads=3), np.random.default_rng(1)
    sizes = {"w_q": (48, 48), "b_q": (48,), "w_kv": (96, 48), "b_kv": (96,), "w_out": (48, 48), "b_out": (48,)}
    values = {name: (rng.normal(size=size) * 0.15).astype(np.float32) for name, size in sizes.items()}
    x, memory = (rng.normal(size=(sum(each), 48)).astype(np.float32) for each in (OF_LENGTHS, OF_MEMORY))
    found = []
    for name in ("float32", precision):
        layer = ragged.compiled_cross_attention(replace(wide, precision=name), ragged.EncoderSchedule(), 1)
        weights, out = ragged.Weight.pack_all(layer.forward_weights, values), np.empty_like(x)
        layer.inference.run(ragged.structure_of(OF_LENGTHS, OF_MEMORY), {
            "x": x, "memory": memory, **weights, layer.result: out})
        found.append(out)
    cosines = (found[0] * found[1]).sum(1) / np.linalg.norm(found[0], axis=1) / np.linalg.norm(found[1], axis=1)
    assert {"bfloat16": 0.9999, "int8": 0.999}[precision] <= cosines.min()
    assert np.abs(found[0] - found[1]).max() > 1e-6


def test_what_depends_on_distances_is_refused() -> None:
    for option in ({"causal": True}, {"window": 3}, {"rotary": 2}, {"distances": 4}):
        name, value = next(iter(option.items()))
        with pytest.raises(Unsupported, match=f"{name}={value} with tokens of another batch"):
            ragged.compiled_cross_attention(replace(SHAPE, **option), ragged.EncoderSchedule())
    with pytest.raises(ValueError, match="2 sequences attend to 3: pass as many"):
        ragged.structure_of([1, 2], [1, 2, 3])
