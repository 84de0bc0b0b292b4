"""Schedules for a GPU: their CUDA text runs on the host, and compiles where there is a compiler."""

import numpy as np
import pytest
from cuda_devices import run_on_host
from nvrtc import check_cuda

from sparloom import ragged
from sparloom.ir import render_cuda
from sparloom.ops import assert_close

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]

PLAIN, CAUSAL = ragged.EncoderShape(16, 2, 24), ragged.EncoderShape(16, 2, 24, causal=True, step=2)
SEQUENCES = ragged.Structure({ragged.LENGTHS: [3, 0, 5, 1]})
CASES = {
    "attention": (ragged.device_attention(PLAIN), ragged.attention(PLAIN), SEQUENCES),
    "masked attention": (ragged.device_attention(CAUSAL), ragged.attention(CAUSAL), SEQUENCES),
    "encoder layer": (ragged.device_encoder_layer(PLAIN), ragged.encoder_layer(PLAIN), SEQUENCES),
    "vgemm": (ragged.device_vgemm(), ragged.vgemm(), ragged.vgemm_structure([3, 0, 5], [2, 4, 7], [6, 1, 0])),
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
