"""Whole layers in one call of the core, against dense products of torch in float64."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import patterns

from sparloom.measure import Caches
from sparloom.nn.convolution import Adjacency
from sparloom.nn.sorted_edges import EdgePattern
from sparloom.platforms.cpu_kernels import native_core
from sparloom.sparse import Pattern

pytestmark = [pytest.mark.cc, pytest.mark.skipif(native_core() is None, reason="the native core was not built")]


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed + sum(shape))) * 2 - 1


def adjacency(pattern: Pattern, dtype: torch.dtype, *, shuffled: bool = False) -> Adjacency:
    """Draw a matrix; shuffled: columns of a row in another order, and its first column twice."""
    indptr, indices = torch.from_numpy(pattern.indptr.copy()), torch.from_numpy(pattern.indices.copy())
    if shuffled:
        rows = [indices[begin:end].flip(0) for begin, end in itertools.pairwise(indptr.tolist())]
        rows = [torch.cat([row, row[-1:]]) for row in rows]
        indptr = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
        indices = torch.cat(rows) if rows else indices
    return Adjacency(EdgePattern(indptr, indices, pattern.cols), drawn(indices.numel(), dtype=dtype))


def dense(matrix: Adjacency) -> torch.Tensor:
    places = matrix.pattern.row_ids, matrix.pattern.columns.long()
    return torch.zeros(matrix.pattern.shape, dtype=torch.float64).index_put(
        places, matrix.values.double(), accumulate=True)


def grid(rows: int = 300, cols: int = 300) -> Pattern:
    """Rows of many lengths, some empty, one full."""
    rng = np.random.default_rng(1)
    filled = rng.random((rows, cols)) < rng.random((rows, 1)) ** 4
    filled[rows // 2], filled[: rows // 10] = True, False
    return Pattern.from_coo(*np.nonzero(filled), filled.shape)


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    scale = max(1.0, float(expected.detach().abs().max())) if expected.numel() else 1.0
    tolerance = 1000 * torch.finfo(actual.dtype).eps * scale
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=tolerance)


def check(matrix: Adjacency, inputs: int, outputs: int, *, order: str, bias: bool, root: str | None, x_needs: bool
          ) -> None:
    """Compare a convolution and all its gradients."""
    (rows, cols), dtype = matrix.pattern.shape, matrix.values.dtype
    x = drawn(cols, inputs, dtype=dtype).requires_grad_(x_needs)
    weight = drawn(outputs, inputs, dtype=dtype, seed=1).requires_grad_()
    b = drawn(outputs, dtype=dtype, seed=2).requires_grad_() if bias else None
    roots = {"x": x, "other": drawn(rows, 13, dtype=dtype, seed=3).requires_grad_(), None: None}
    r = roots[root]
    v = None if root is None else drawn(outputs, r.shape[1], dtype=dtype, seed=4).requires_grad_()
    result = matrix.convolve(x, weight, b, order=order, root=r, root_weight=v)
    wide = {each: each.detach().double().requires_grad_(each.requires_grad) for each in (x, weight, b, r, v)
            if each is not None}
    expected = dense(matrix) @ wide[x] @ wide[weight].T
    expected = expected if b is None else expected + wide[b]
    expected = expected if root is None else expected + wide[r] @ wide[v].T
    assert_near(result, expected)
    upstream, leaves = drawn(*result.shape, dtype=dtype, seed=5), [each for each in wide if each.requires_grad]
    own = torch.autograd.grad(result, leaves, upstream)
    right = torch.autograd.grad(expected, [wide[each] for each in leaves], upstream.double())
    for pair in zip(own, right, strict=True):
        assert_near(*pair)


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest):
    count = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(count)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("extents", [(1, 1), (32, 32), (33, 7), (5, 130), (600, 20)], ids=str)
@pytest.mark.parametrize("order", ["aggregate", "transform"])
def test_layers_of_all_kinds(dtype, extents, order, threads) -> None:
    matrix = adjacency(grid(), dtype, shuffled=threads == 2)
    for bias, root, x_needs in ((True, "x", True), (False, "other", True), (True, "other", False), (True, None, True),
                                (False, None, False)):
        check(matrix, *extents, order=order, bias=bias, root=root, x_needs=x_needs)


@pytest.mark.parametrize("shape", [(300, 90), (90, 300), (1, 300), (300, 1)], ids=str)
@pytest.mark.parametrize("order", ["aggregate", "transform"])
def test_bipartite_graphs(shape, order, threads) -> None:
    for root, x_needs in (("other", True), (None, True), ("other", False)):
        check(adjacency(grid(*shape), torch.float32), 40, 24, order=order, bias=True, root=root, x_needs=x_needs)


@settings(max_examples=60, deadline=None)
@given(pattern=patterns(), inputs=st.integers(1, 40), outputs=st.integers(1, 40),
       order=st.sampled_from(["aggregate", "transform"]), root=st.sampled_from([None, "other"]))
def test_any_pattern(pattern: Pattern, inputs: int, outputs: int, order: str, root: str | None) -> None:
    check(adjacency(pattern, torch.float32), inputs, outputs, order=order, bias=True, root=root, x_needs=True)


def test_rows_with_equal_columns(threads) -> None:
    rows = np.repeat(np.arange(400), 5)[:, None] % 13 + np.arange(0, 60, 9)
    matrix = adjacency(Pattern.from_coo(np.repeat(np.arange(2000), 7), rows.ravel(), (2000, 80)), torch.float32)
    check(matrix, 64, 64, order="aggregate", bias=True, root=None, x_needs=True)


def test_results_are_reproducible_to_the_bit() -> None:
    matrix = adjacency(grid(2000, 200), torch.float32)
    x, weight = drawn(200, 32), drawn(32, 32).requires_grad_()
    gradients = [torch.autograd.grad(matrix.convolve(x, weight, None, order="aggregate").square().sum(), weight)[0]
                 for _ in range(5)]
    for each in gradients[1:]:
        assert torch.equal(each, gradients[0])


def test_results_may_be_stored_past_the_caches(threads) -> None:
    core, caches = native_core(), Caches.here(threads)
    adjacency(grid(), torch.float32).convolve(drawn(300, 8), drawn(8, 8), None, order="aggregate")  # sets the limits
    core.set_limits(threads, 1.0, 1.0, False)
    try:
        for extents in ((32, 48), (33, 20)):
            for order, root in itertools.product(("aggregate", "transform"), ("x", None)):
                for bias in (True, False):
                    check(adjacency(grid(), torch.float32), *extents, order=order, bias=bias, root=root, x_needs=True)
    finally:
        core.set_limits(threads, caches.near_bytes, caches.far_bytes, False)


@pytest.mark.parametrize(("name", "wrong"), [
    ("x", drawn(299, 8)), ("x", drawn(8, 300).T), ("x", drawn(300, 8, dtype=torch.float64)),
    ("weight", drawn(8)), ("bias", drawn(7)), ("root", drawn(300, 5)), ("values", drawn(3)), ("root_weight", None)],
    ids=str)
def test_the_core_takes_fitting_tensors_only(name, wrong) -> None:
    matrix = adjacency(grid(), torch.float32)
    native = matrix.pattern.native
    assert native.ready(torch.float32)
    inputs = {"values": matrix.values, "x": drawn(300, 8), "weight": drawn(8, 8), "bias": drawn(8),
              "root": drawn(300, 8), "root_weight": drawn(8, 8)}
    assert native.convolve(*inputs.values(), True, False) is not None
    assert native.convolve(*(inputs | {name: wrong}).values(), True, False) is None
