"""Hand-written and generated CUDA kernels of fused products compile and agree with the oracle."""

from dataclasses import replace

import numpy as np
import pytest
from cuda_devices import Device, Host, gpu
from fused_cases import CASES
from fused_cases import operands as case_operands
from tile_schedules import brute_force

from sparloom.errors import Unsupported
from sparloom.fusion import Budget, TileSchedule, fuse
from sparloom.fusion.codegen import SCHEDULE, lower_wavefronts
from sparloom.ir import DTYPES
from sparloom.jit import check_cuda, cuda_text
from sparloom.ops import GemmSpmm, Operands, SpmmSpmm, assert_close
from sparloom.sparse import Pattern, SparseMatrix

ELEMENTS = {"float32": "float", "float64": "double"}
KERNELS = ("gemm_spmm_wavefront0", "spmm_spmm_wavefront0", "wavefront1", "gemm_rows", "spmm_rows")
BLOCK, ROWS = 64, 6  # threads of a block, rows that it takes where nothing is fused

ops = pytest.mark.parametrize("op", [GemmSpmm(inner=7), SpmmSpmm()], ids=lambda op: op.name)
dtypes = pytest.mark.parametrize("dtype", ELEMENTS)


def _text(dtype: str) -> str:
    return cuda_text("cuda/fused.cu", {"ELEMENT": ELEMENTS[dtype]})


@dtypes
def test_fused_kernels_compile(dtype):
    try:
        check_cuda(_text(dtype))
    except Unsupported as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """The hand-written kernels, run on the CPU."""
    return {dtype: Host(_text(dtype), KERNELS, tmp_path_factory.mktemp(dtype)) for dtype in ELEMENTS}


@ops
@dtypes
@pytest.mark.cc
def test_kernels_compute_the_products_on_the_host(hosts, op, dtype):
    _check_products(hosts[dtype], replace(op, dtype=dtype))


@ops
@dtypes
@pytest.mark.gpu
def test_kernels_compute_the_products_on_a_gpu(op, dtype):
    _check_products(gpu(_text(dtype)), replace(op, dtype=dtype))


@dtypes
@pytest.mark.cc
def test_generated_wavefronts_compute_the_products_on_the_host(dtype, tmp_path):
    for name in ("gemm_spmm", "spmm_spmm", "spmm_gemm"):
        folder = tmp_path / name
        folder.mkdir()
        _check_generated(name, DTYPES[{"float32": "f32", "float64": "f64"}[dtype]],
                         lambda text, names, folder=folder: Host(text, names, folder))


@dtypes
@pytest.mark.gpu
def test_generated_wavefronts_compute_the_products_on_a_gpu(dtype):
    for name in ("gemm_spmm", "spmm_spmm", "spmm_gemm"):
        _check_generated(name, np.dtype(dtype).type, lambda text, names: gpu(text))


def _check_products(device: Device, op: GemmSpmm | SpmmSpmm) -> None:
    """Fused, with D1 in memory and in blocks, and unfused; schedules with and without a second wavefront."""
    for far, width in ((True, 40), (False, 5)):
        pattern = _pattern(far)
        values = np.random.default_rng(1).uniform(-1, 1, pattern.nnz)
        operands = op.operands(SparseMatrix(pattern, values, op.dtype), width, seed=0)
        schedule = brute_force(pattern, [10, 18], late_tiles=1)
        if not far:
            schedule = replace(schedule, tiles=(3, 0), second_ptr=schedule.second_ptr[:4])
        results = [_fused(device, op, operands, schedule, local=local) for local in (False, True)]
        for result in (*results, _unfused(device, op, operands)):
            assert_close(result, op.oracle(operands), terms=op.terms(pattern, width), scale=op.scale(operands))


def _pattern(far: bool) -> Pattern:
    row, column = np.indices((30, 30))
    dense = (np.abs(row - column) < 3) & (np.random.default_rng(0).random((30, 30)) < 0.7)
    if far:
        dense[12], dense[4, 27] = True, True
    else:  # every row within one tile
        dense &= np.searchsorted([10, 18], row, side="right") == np.searchsorted([10, 18], column, side="right")
    return Pattern.from_coo(*np.nonzero(dense), dense.shape)


def _fused(device: Device, op: GemmSpmm | SpmmSpmm, operands: Operands, schedule: TileSchedule, *, local: bool):
    width = np.int32(op.width(operands))
    lists = {name: device.array(getattr(schedule, name)) for name in ("first", "second", "second_ptr", "needed")}
    tiles, (a, kept) = _struct(device, lists), _csr(device, operands.matrix)
    first, also_kept = _first_operands(device, op, operands)
    d1, d = _outputs(device, operands, int(width))
    shared = int(schedule.largest_tile * width * d.dtype.itemsize) if local else 0
    device.launch(f"{op.name}_wavefront0", schedule.tiles[0], BLOCK,
                  (tiles, a, *first, width, np.int32(local), d1, d), shared)
    if schedule.tiles[1]:
        device.launch("wavefront1", schedule.tiles[1], BLOCK, (tiles, np.int64(schedule.tiles[0]), a, d1, width, d))
    del kept, also_kept
    return device.to_host(d)


def _unfused(device: Device, op: GemmSpmm | SpmmSpmm, operands: Operands):
    pattern, width = operands.matrix.pattern, np.int32(op.width(operands))
    a, kept = _csr(device, operands.matrix)
    first, also_kept = _first_operands(device, op, operands)
    d1, d = _outputs(device, operands, int(width))
    name = "gemm_rows" if op.name == "gemm_spmm" else "spmm_rows"
    device.launch(name, -(-pattern.cols // ROWS), BLOCK,
                  (np.int64(pattern.cols), np.int32(ROWS), *first, width, d1))
    device.launch("spmm_rows", -(-pattern.rows // ROWS), BLOCK,
                  (np.int64(pattern.rows), np.int32(ROWS), a, d1, width, d))
    del kept, also_kept
    return device.to_host(d)


def _first_operands(device: Device, op: GemmSpmm | SpmmSpmm, operands: Operands):
    """Return the arguments of loop one before the width, and the arrays that they point to."""
    c = device.array(operands.dense["C"])
    if op.name == "gemm_spmm":
        b = operands.dense["B"]
        return (device.array(b), c, np.int32(b.shape[1])), ()
    b, kept = _csr(device, operands.right)
    return (b, c), kept


def _outputs(device: Device, operands: Operands, width: int):
    """D1 and D, filled with NaN."""
    pattern = operands.matrix.pattern
    return tuple(device.array(np.full((rows, width), np.nan, operands.matrix.dtype))
                 for rows in (pattern.cols, pattern.rows))


def _csr(device: Device, matrix: SparseMatrix):
    arrays = {"indptr": matrix.pattern.indptr, "indices": matrix.pattern.indices, "values": matrix.values}
    kept = {name: device.array(array) for name, array in arrays.items()}
    return _struct(device, kept), kept


def _struct(device: Device, arrays: dict) -> np.ndarray:
    """A struct of pointers, passed by value: an array of one element for CuPy."""
    dtype = np.dtype([(name, np.uint64) for name in arrays])
    return np.array([tuple(device.address(array) for array in arrays.values())], dtype)


def _check_generated(name: str, real: type[np.generic], make_device) -> None:
    function, names = CASES[name]
    arguments = case_operands(names, n=40, real=real, seed=0)
    fused = fuse(function, budget=Budget(threads=2, cache_bytes=1 << 11, ct_size=8))
    schedule = fused.schedule(*arguments)
    program, operands = fused._compile(tuple(arguments), {})
    kernels = lower_wavefronts(program.program)
    device = make_device("\n".join(fused.cuda(*arguments)), [kernel.name for kernel in kernels])
    shapes = program.sizes(operands).shapes
    made = {array: device.array(np.zeros(shape, real)) for array, shape in shapes.items()}
    sources = {each.name: each.source for each in (*program.program.scalars, *program.program.arrays)}
    lists = [device.array(getattr(schedule, each)) for each in ("first", "second", "second_ptr")]
    for kernel, tiles in zip(kernels, schedule.tiles, strict=True):
        own = kernel.params[: len(kernel.params) - len(SCHEDULE)]
        given = [made[param.name] if param.name in made else _given(device, operands, sources[param.name])
                 for param in own]
        device.launch(kernel.name, max(1, tiles), BLOCK, (*given, *lists, *map(np.int64, schedule.tiles)))
    (result,) = program.program.results
    np.testing.assert_allclose(device.to_host(made[result]), function(*arguments), rtol=0,
                               atol=45 * 45 * np.finfo(real).eps)


def _given(device: Device, arguments: dict, source: tuple):
    value = arguments[source[0]]
    for step in source[1:]:
        value = value[step] if isinstance(step, int) else getattr(value, step)
    return device.array(value) if isinstance(value, np.ndarray) else np.int64(value)
