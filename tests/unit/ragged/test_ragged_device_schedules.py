"""Schedules for a GPU: their CUDA text runs on the host, and compiles where there is a compiler."""

import numpy as np
import pytest
from cuda_devices import run_on_host

from sparloom.errors import Unsupported
from sparloom.ir import render_cuda
from sparloom.jit import check_cuda
from sparloom.ops import assert_close
from sparloom.ragged import (
    LENGTHS,
    EncoderShape,
    Executable,
    Structure,
    attention,
    bind_arrays,
    device_attention,
    device_encoder_layer,
    device_mixing,
    device_trmm,
    device_vgemm,
    encoder_layer,
    kernel_arguments,
    lower,
    mixing,
    trmm,
    trmm_structure,
    vgemm,
    vgemm_structure,
)

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]

PLAIN, CAUSAL = EncoderShape(16, 2, 24), EncoderShape(16, 2, 24, causal=True, step=2)
SEQUENCES = Structure({LENGTHS: [3, 0, 5, 1]})
CASES = {
    "mixing": (device_mixing(PLAIN), mixing(PLAIN), SEQUENCES),
    "masked mixing": (device_mixing(CAUSAL), mixing(CAUSAL), SEQUENCES),
    "attention": (device_attention(PLAIN), attention(PLAIN), SEQUENCES),
    "encoder layer": (device_encoder_layer(PLAIN), encoder_layer(PLAIN), SEQUENCES),
    "vgemm": (device_vgemm(), vgemm(), vgemm_structure([3, 0, 5], [2, 4, 7], [6, 1, 0])),
    "trmm": (device_trmm(), trmm(), trmm_structure(9)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_cuda_text_run_on_the_host_matches_the_definition(name, tmp_path):
    program, definition, of = CASES[name]
    rng = np.random.default_rng(0)
    tensors = program.tensors()
    given = {each: rng.standard_normal(of.size(tensors[each]), dtype=np.float32) for each in program.inputs()}
    wanted = Executable(definition).bind(of, **given)
    wanted[0]()
    arrays = bind_arrays(program, of, given)
    lowered = lower(program)
    run = run_on_host([each.kernel for each in lowered], tmp_path)
    for each in lowered:
        run(each.kernel, kernel_arguments(each, of, arrays))
    for output in program.outputs:
        assert_close(arrays[output], wanted[1][output], terms=64, scale=8.0)


@pytest.mark.parametrize("name", CASES)
def test_the_text_compiles(name):
    try:
        for each in lower(CASES[name][0]):
            check_cuda(render_cuda(each.kernel))
    except Unsupported as error:
        pytest.skip(str(error))


def test_keys_and_values_are_not_copied():
    tensors = device_encoder_layer(PLAIN).tensors()
    assert not {"keys", "values"} & tensors.keys()
    assert {"scores", "weights"} <= tensors.keys()
