"""CUDA text of scheduled programs: run on the host, and compiled where there is a compiler."""

import pytest
from cuda_devices import run_on_host
from ragged_cases import CASES, expected, operands, row, structure

from sparloom import ragged
from sparloom.errors import Unsupported
from sparloom.ir import render_cuda
from sparloom.jit import check_cuda, compile_c
from sparloom.ops import assert_close

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]


def fused(name, nest):
    return ragged.parallel(ragged.fuse(CASES[name].program, nest, "batch", "row"), nest, "batch_row")


def halves():
    program = ragged.split_operation(CASES["scores"].program, "s", row, multiple=2)
    program = ragged.unroll(ragged.split(program, "s_main", "row", 2), "s_main", "row_inner")
    return ragged.hfuse(ragged.parallel(ragged.parallel(program, "s_main", "batch"), "s_rest", "batch"),
                        ["s_main", "s_rest"])


def blocks():
    """Tiles of tokens for blocks, tokens for threads."""
    tiled = ragged.split(ragged.fuse(CASES["projection"].program, "y", "batch", "row"), "y", "batch_row", 2)
    return ragged.bind_threads(ragged.parallel(tiled, "y", "batch_row_outer"), "y", "batch_row_inner")


PROGRAMS = {
    "projection": fused("projection", "y"),
    "projection in blocks": blocks(),
    "values": ragged.remap(ragged.parallel(CASES["values"].program, "o", "batch"), "o", "batch"),
    "scores": halves(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_cuda_text_run_on_the_host_matches_numpy(name, tmp_path):
    program, case = PROGRAMS[name], CASES[name.split()[0]]
    lowered = ragged.lower(program)
    run = run_on_host([each.kernel for each in lowered], tmp_path)
    of = structure([3, 0, 5, 1], compiler=compile_c)
    inputs = operands(program, of, seed=4)
    tensors = ragged.bind_arrays(program, of, {each: value.data for each, value in inputs.items()})
    for each in lowered:
        run(each.kernel, ragged.kernel_arguments(each, of, tensors))
    for output, oracle in expected(case, of, inputs).items():
        packed = ragged.RaggedTensor(program.tensors()[output], of, tensors[output]).to_packed()[0]
        assert_close(packed.reshape(-1), oracle, terms=16, scale=8.0)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_text_compiles(name):
    try:
        for each in ragged.lower(PROGRAMS[name]):
            check_cuda(render_cuda(each.kernel))
    except Unsupported as error:
        pytest.skip(str(error))


def test_a_tile_is_a_block():
    (text,) = ragged.Executable(PROGRAMS["projection in blocks"]).cuda()
    assert "batch_row_outer = (int64_t)blockIdx.x" in text
    assert "batch_row_inner = (int64_t)threadIdx.x" in text


def test_a_serial_program_has_no_cuda_form():
    with pytest.raises(Unsupported, match="kernel scaled_y has no CUDA form: give it one parallel loop at the top"):
        ragged.Executable(CASES["scaled"].program).cuda()
    assert 'extern "C" __global__ void projection_y' in ragged.Executable(PROGRAMS["projection"]).cuda()[0]
