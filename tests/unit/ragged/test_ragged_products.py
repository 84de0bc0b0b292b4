"""Products of matrices of variable size."""

import numpy as np
import pytest

from sparloom import ragged
from sparloom.ir import pretty
from sparloom.ops import assert_close

row, col, inner = ragged.dims("row col inner")

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("own_cache")]
SIZES = [(3, 5, 2), (64, 65, 7), (0, 4, 4), (4, 0, 3), (2, 3, 0), (17, 130, 33)]


def run(program, structure, **arrays):
    tensors = program.tensors()
    stored = {name: ragged.RaggedTensor.from_packed(tensors[name], structure, array).data for name,
              array in arrays.items()}
    output = program.outputs[0]
    return ragged.RaggedTensor(tensors[output], structure,
                               ragged.Executable(program)(structure, **stored)).to_packed()[0].reshape(-1)


@pytest.mark.parametrize("program", [
    ragged.vgemm(), ragged.tiled_vgemm(), ragged.tiled_vgemm(rows=5, cols=32, panel=16, depth=8),
    ragged.pad_storage(ragged.pad_storage(ragged.vgemm(), "a", full=(row, inner)), "c", full=(row, col)),
])
def test_vgemm_multiplies_each_pair(program):
    rng = np.random.default_rng(0)
    pairs = [(rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)) for m, n, k in SIZES]
    of = ragged.vgemm_structure(*zip(*SIZES, strict=True))
    found = run(program, of, a=np.concatenate([a.reshape(-1) for a, _ in pairs]),
                b=np.concatenate([b.reshape(-1) for _, b in pairs]))
    oracle = np.concatenate([(a.astype(float) @ b.astype(float)).reshape(-1) for a, b in pairs])
    assert_close(found, oracle, terms=33, scale=9.0)


@pytest.mark.parametrize("program", [
    ragged.trmm(), ragged.unsplit_trmm(), ragged.split_trmm(), ragged.balanced_trmm(),
    ragged.balanced_trmm(rows=3, cols=5),
    ragged.pad_storage(ragged.balanced_trmm(), "lower", full=(inner,)),
])
@pytest.mark.parametrize("extent", [0, 1, 31, 70])
def test_trmm_multiplies_by_the_triangle(program, extent):
    rng = np.random.default_rng(extent)
    triangle = np.tril(rng.standard_normal((extent, extent), np.float32))
    b = rng.standard_normal((extent, extent), np.float32)
    found = run(program, ragged.trmm_structure(extent), lower=triangle[np.tril_indices(extent)], b=b)
    assert_close(found, (triangle.astype(float) @ b).reshape(-1), terms=70, scale=9.0)


def test_the_main_part_of_a_split_product_has_whole_tiles():
    main = pretty(ragged.Executable(ragged.split_trmm()).lowered[0].kernel)
    reduction = main[main.index("for inner in 0 .. row_outer * 8:"):]
    assert "unrolled for row_inner in 0 .. 8:" in reduction
    assert "simd for col_inner in 0 .. 32:" in reduction
    assert "min(" not in main


def test_tasks_of_large_products_are_first():
    """Tasks have 256, 256 and 88 columns, 256 and 44, and 40."""
    of, run = ragged.vgemm_structure([4, 50, 50], [600, 300, 40],
                                     [7, 9, 9]), ragged.Executable(ragged.tiled_vgemm(cols=256))
    of.prepare(run.prelude)
    order, = (kernel.table for kernel in run.prelude.kernels if isinstance(kernel.table, ragged.Order))
    np.testing.assert_array_equal(of.table(order), [3, 4, 5, 0, 1, 2])


def test_the_order_of_balanced_rows_is_from_the_longest(golden):
    golden("ragged/balanced_trmm.txt", str(ragged.balanced_trmm()))
