"""Schedules for a GPU: their CUDA text runs on the host, and compiles where there is a compiler."""

import numpy as np
import pytest
from cuda_devices import run_on_host
from nvrtc import check_cuda
from ragged_cases import CASES as DEFINED
from ragged_cases import row, structure

from sparloom import ragged
from sparloom.errors import Unsupported
from sparloom.ir import render_cuda
from sparloom.jit import compile_c
from sparloom.ops import assert_close

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]

def fused(name, nest):
    return ragged.parallel(ragged.fuse(DEFINED[name].program, nest, "batch", "row"), nest, "batch_row")


def halves():
    program = ragged.split_operation(DEFINED["scores"].program, "s", row, multiple=2)
    program = ragged.unroll(ragged.split(program, "s_main", "row", 2), "s_main", "row_inner")
    return ragged.hfuse(ragged.parallel(ragged.parallel(program, "s_main", "batch"), "s_rest", "batch"),
                        ["s_main", "s_rest"])


def blocks():
    """Tiles of tokens for blocks, tokens for threads."""
    tiled = ragged.split(ragged.fuse(DEFINED["projection"].program, "y", "batch", "row"), "y", "batch_row", 2)
    return ragged.bind_threads(ragged.parallel(tiled, "y", "batch_row_outer"), "y", "batch_row_inner")


PLAIN, CAUSAL = ragged.EncoderShape(16, 2, 24), ragged.EncoderShape(16, 2, 24, causal=True, step=2)
ROWS = structure([3, 0, 5, 1], compiler=compile_c)
SEQUENCES = ragged.Structure({ragged.LENGTHS: [3, 0, 5, 1]})
CASES = {
    "attention": (ragged.device_attention(PLAIN), ragged.attention(PLAIN), SEQUENCES),
    "masked attention": (ragged.device_attention(CAUSAL), ragged.attention(CAUSAL), SEQUENCES),
    "encoder layer": (ragged.device_encoder_layer(PLAIN), ragged.encoder_layer(PLAIN), SEQUENCES),
    "vgemm": (ragged.device_vgemm(), ragged.vgemm(), ragged.vgemm_structure([3, 0, 5], [2, 4, 7], [6, 1, 0])),
    "projection": (fused("projection", "y"), DEFINED["projection"].program, ROWS),
    "projection in blocks": (blocks(), DEFINED["projection"].program, ROWS),
    "values": (ragged.remap(ragged.parallel(DEFINED["values"].program, "o", "batch"), "o", "batch"),
               DEFINED["values"].program, ROWS),
    "scores": (halves(), DEFINED["scores"].program, ROWS),
    "trmm": (ragged.device_trmm(), ragged.trmm(), ragged.trmm_structure(9)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_cuda_text_run_on_the_host_matches_the_definition(name, tmp_path):
    program, definition, of = CASES[name]
    rng = np.random.default_rng(0)
    tensors = program.tensors()
    values = {each: rng.standard_normal(of.size(tensors[each]), dtype=np.float32) for each in program.inputs()}
    wanted = ragged.Executable(definition).bind(of, **values)
    wanted[0]()
    arrays = ragged.bind_arrays(program, of, values)
    lowered = ragged.lower(program)
    run = run_on_host([each.kernel for each in lowered], tmp_path)
    for each in lowered:
        run(each.kernel, ragged.kernel_arguments(each, of, arrays))
    for output in program.outputs:
        assert_close(arrays[output], wanted[1][output], terms=64, scale=8.0)


@pytest.mark.parametrize("name", CASES)
def test_the_text_compiles(name):
    for each in ragged.lower(CASES[name][0]):
        check_cuda(render_cuda(each.kernel))


def test_a_tile_is_a_block():
    (text,) = ragged.Executable(CASES["projection in blocks"][0]).cuda()
    assert "batch_row_outer = (int64_t)blockIdx.x" in text
    assert "batch_row_inner = (int64_t)threadIdx.x" in text


def test_a_serial_program_has_no_cuda_form():
    with pytest.raises(Unsupported, match="kernel scaled_y has no CUDA form: give it one parallel loop at the top"):
        ragged.Executable(DEFINED["scaled"].program).cuda()
