"""Encoder layers and attention: schedules compute the definitions; tests of nn compare with PyTorch."""

from dataclasses import replace

import numpy as np
import pytest
from interpreted import InterpretedLibrary

from sparloom import ragged
from sparloom.jit import compile_c

SHAPE = ragged.EncoderShape(width=4, heads=2, hidden=6)
CAUSAL = replace(SHAPE, causal=True, step=4)
MASKED = replace(CAUSAL, triangles=False)
SMALL = ragged.EncoderSchedule(rows=3, panel=4, depth=5, queries=4)
LENGTHS, MEMORY = [5, 1, 0, 6, 2], [3, 4, 2, 0, 9]
LAYER, ATTENTION, CROSS = (
    (getattr(ragged, name), getattr(ragged, f"scheduled_{name}"))
    for name in ("encoder_layer", "attention", "cross_attention"))
BACK, ATTENTION_BACK, CROSS_BACK = (
    (getattr(ragged, f"{name}_backward"), getattr(ragged, f"scheduled_{name}_backward"))
    for name in ("encoder", "attention", "cross_attention"))
FORMS = [replace(SHAPE, activation="gelu", norm_first=True), replace(SHAPE, activation="silu", gated=True, norm="rms"),
         replace(SHAPE, distances=3, scale=0.5), replace(SHAPE, distances=7, causal=True, step=4)]
CROSS_SHAPE = ragged.EncoderShape(width=8, heads=4, cross=True)
CROSS_FORMS = [CROSS_SHAPE, replace(CROSS_SHAPE, masked=True, scale=0.3),
               replace(CROSS_SHAPE, dropout=(0.4, 0.3, 0.0, 0.0))]


def drawn(program: ragged.Program, of: ragged.Structure) -> dict[str, np.ndarray]:
    """Draw packed inputs."""
    rng = np.random.default_rng(0)
    found = {name: 0.3 * rng.standard_normal(of.size(tensor), dtype=np.float32)
             for name, tensor in sorted(program.tensors().items()) if name in program.inputs()}
    if "mask" in found:
        found["mask"] = (np.arange(found["mask"].size) % 3 > 0).astype(np.float32)
        found["mask"][: MEMORY[0]] = 0  # hides the whole memory of the first sequence
    if "random" in found:
        found["random"] = rng.integers(0, 1 << 31, found["random"].size).astype(float)
    return found


def compare(plain: ragged.Program, chosen: ragged.Program, compiler: type) -> None:
    lengths = {ragged.LENGTHS: LENGTHS}
    if any("memory" in name or name == "d_kv" for name in plain.tensors()):
        lengths[ragged.MEMORY_LENGTHS] = MEMORY
    of = ragged.Structure(lengths, compiler)
    packed, found = drawn(plain, of), []
    for prog in (plain, chosen):
        inputs = {name: ragged.RaggedTensor.from_packed(prog.tensors()[name], of, value).data
                  for name, value in packed.items()}
        if compiler is InterpretedLibrary:
            found.append(ragged.interpreted(prog, of, **inputs))
        else:
            run, results = ragged.Executable(prog).bind(of, **inputs)
            run()
            found.append(results)
    assert plain.outputs == chosen.outputs
    for name in plain.outputs:
        scale = max(1e-3, np.abs(found[0][name]).max())
        np.testing.assert_allclose(found[1][name], found[0][name], atol=2e-5 * scale, err_msg=name)


@pytest.mark.parametrize(("pair", "shape"), [
    *((LAYER, shape) for shape in (SHAPE, CAUSAL)), *((ATTENTION, shape) for shape in (SHAPE, CAUSAL, MASKED)),
    *((BACK, shape) for shape in (SHAPE, *FORMS)), *((ATTENTION_BACK, shape) for shape in (CAUSAL, MASKED)),
    *((pair, shape) for pair in (CROSS, CROSS_BACK) for shape in CROSS_FORMS)])
def test_interpreted_schedules_compute_the_definitions(pair, shape) -> None:
    compare(pair[0](shape), pair[1](shape, SMALL), InterpretedLibrary)


@pytest.mark.cc
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("shape", [
    SHAPE, CAUSAL, ragged.EncoderShape(width=64, heads=2, hidden=80, causal=True),
    ragged.EncoderShape(width=8, heads=2, hidden=1024)])  # whose rows begin in one set of the cache
@pytest.mark.parametrize("chosen", [ragged.EncoderSchedule(queries=8),
                                    ragged.EncoderSchedule(rows=5, panel=8, depth=32, queries=64, shared_panels=2)])
def test_compiled_schedules_compute_the_definition(shape, chosen) -> None:
    shape = replace(shape, step=None)
    compare(ragged.encoder_layer(shape), ragged.scheduled_encoder_layer(shape, chosen), compile_c)


def test_causal_attention_computes_triangles_of_tiles() -> None:
    text = str(ragged.scheduled_mixing(CAUSAL, SMALL))
    assert "dense for col in 0 .. min(lengths(batch), (pos_outer + 1) * 4) (reduction):" in text
    assert "made scores: local f32[" in text
    assert str(ragged.mixing(CAUSAL)).count("launch") == 7
