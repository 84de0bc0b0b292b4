"""The maximum of products on tensors: results and gradients against dense torch, ties, places, compilers, threads."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from sparse_tensors import COLS, ROWS, assert_within, dense, dense_largest, places, sparse_tensor, with_gradients

from sparloom.nn import spmm
from sparloom.nn.pattern_cache import PreparedPattern, pattern_cache
from sparloom.sparse import Pattern

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("sparse_cache"),
              pytest.mark.filterwarnings("ignore:Sparse")]  # torch says that they are in beta

INDICES = [torch.int32, torch.int64]


def largest(matrix: torch.Tensor, values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Compute the maximum with values that may need a gradient."""
    return spmm((matrix.crow_indices(), matrix.col_indices(), values, matrix.shape), x, reduce="max")


def check(matrix: torch.Tensor, values: torch.Tensor, x: torch.Tensor, seen: torch.Tensor) -> None:
    """Compare the result, which is one rounded product, bit by bit, and gradients, which are sums of products."""
    result, *gradients = with_gradients(lambda *inputs: largest(matrix, *inputs), [values, x], seen)
    expected, *_ = with_gradients(lambda *inputs: dense_largest(matrix, *inputs), [values, x], seen)
    assert torch.equal(result, expected)
    wide = [values.double(), x.double()]
    exact = with_gradients(lambda *inputs: dense_largest(matrix, *inputs), wide, seen.double())[1:]
    chosen = chosen_places(matrix, *wide)
    magnitudes = expected_gradients(matrix, wide[0].abs(), wide[1].abs(), seen.double().abs(), chosen)
    for actual, right, magnitude in zip(gradients, exact, magnitudes, strict=True):
        assert_within(actual, right, magnitude, roundings=max(matrix.shape[0], x.shape[1]) + 3)


def chosen_places(matrix: torch.Tensor, values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """First nonzero with the largest product, (rows, width), row by row; -1 in rows without."""
    crow, (_, cols) = matrix.crow_indices().tolist(), places(matrix)
    chosen = torch.full((matrix.shape[0], x.shape[1]), -1)
    for row in range(matrix.shape[0]):
        begin, end = crow[row : row + 2]
        if begin < end:
            products = values[begin:end, None] * x[cols[begin:end]]
            chosen[row] = begin + (products == products.max(0).values).long().argmax(0)
    return chosen


def expected_gradients(
    matrix: torch.Tensor, values: torch.Tensor, x: torch.Tensor, seen: torch.Tensor, chosen: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Element by element, as the definition says."""
    of_values, of_x, cols = torch.zeros_like(values), torch.zeros_like(x), places(matrix)[1]
    for (row, f), place in zip(torch.cartesian_prod(*map(torch.arange, chosen.shape)).tolist(),
                               chosen.flatten().tolist(), strict=True):
        if place >= 0:
            of_values[place] += seen[row, f] * x[cols[place], f]
            of_x[cols[place], f] += seen[row, f] * values[place]
    return of_values, of_x


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("width", [1, 16, 33, 100])
def test_the_maximum_and_its_gradients_are_the_dense_ones(index, width) -> None:
    a = sparse_tensor(index=index)
    check(a, a.values(), dense(COLS, width), dense(ROWS, width, seed=2))


def test_maxima_may_be_negative() -> None:
    a = sparse_tensor()
    values, x = a.values().abs() + 0.1, -dense(COLS, 9).abs() - 0.1
    result = largest(a, values, x)
    filled = a.crow_indices().diff() > 0
    assert (result[filled] < 0).all()
    assert (result[~filled] == 0).all()
    check(a, values, x, dense(ROWS, 9, seed=2))


def test_rows_without_nonzeros_pass_nothing() -> None:
    a = sparse_tensor()
    seen = torch.zeros(ROWS, 4)
    seen[a.crow_indices().diff() == 0] = 1.0
    for gradient in with_gradients(lambda *inputs: largest(a, *inputs), [a.values(), dense(COLS, 4)], seen)[1:]:
        assert not gradient.any()


def test_of_equal_products_the_first_gets_the_gradient() -> None:
    a = sparse_tensor()
    values, x, seen = torch.ones_like(a.values()), torch.full((COLS, 5), -2.5), dense(ROWS, 5, seed=2)
    _, of_values, of_x = with_gradients(lambda *inputs: largest(a, *inputs), [values, x], seen)
    begins = a.crow_indices()[:-1][a.crow_indices().diff() > 0]
    first = torch.zeros_like(values).index_fill(0, begins, 1.0)
    assert torch.equal(of_values != 0, first.bool())
    expected = expected_gradients(a, values, x, seen, chosen_places(a, values, x))
    for actual, right in zip((of_values, of_x), expected, strict=True):
        torch.testing.assert_close(actual, right, rtol=0, atol=1e-5)


def test_nan_passes_through() -> None:
    a, x = sparse_tensor(), dense(COLS, 4)
    x[7, 2] = torch.nan
    reached = a.to_dense()[:, 7] != 0
    assert torch.equal(largest(a, a.values(), x).isnan(), reached[:, None] & (torch.arange(4) == 2))


PRODUCTS = [
    lambda edges, at, values, x, y: edges.argmax_products.spmm_at(at, values, x),
    lambda edges, at, values, x, y: edges.argmax_products.spmm_transposed_at(at, values, y),
    lambda edges, at, values, x, y: edges.argmax_products.sddmm_at(at, y, x),
]


def pattern_of(matrix: torch.Tensor) -> Pattern:
    return Pattern(tuple(matrix.shape), matrix.crow_indices().numpy(), matrix.col_indices().numpy())


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Set the number of torch threads for one test."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [2, 3, 7], indirect=True)
def test_gradients_do_not_depend_on_the_number_of_threads(threads) -> None:
    a, width = sparse_tensor(), 40
    values, x, seen = a.values(), dense(COLS, width), dense(ROWS, width, seed=2)
    at = chosen_places(a, values, x).int()
    found = [product(PreparedPattern(pattern_of(a), count), at, values, x, seen)
             for count in (1, threads) for product in PRODUCTS]
    for alone, shared in zip(found[:3], found[3:], strict=True):
        assert torch.equal(shared, alone)
    check(a, values, x, seen)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_operands_that_no_near_cache_holds(count) -> None:
    a = sparse_tensor(2000, 9000, seed=3)
    values, x, y = a.values(), dense(9000, 33), dense(2000, 33, seed=2)
    at = (torch.from_numpy(np.random.default_rng(4).random((2000, 33))) * a.crow_indices().diff()[:, None]).long()
    at = torch.where(a.crow_indices().diff()[:, None] > 0, at + a.crow_indices()[:-1, None], -1)
    gathered, scattered, reduced = (product(PreparedPattern(pattern_of(a), count), at.int(), values, x, y)
                                    for product in PRODUCTS)
    filled, cols = at.clamp(min=0), a.col_indices()[at.clamp(min=0)]
    there = (at >= 0).double()
    assert torch.equal(gathered, values[filled] * x.gather(0, cols) * there.float())
    weighed = values.double()[filled] * y * there
    assert_within(scattered, torch.zeros(9000, 33).double().scatter_add(0, cols, weighed),
                  torch.zeros(9000, 33).double().scatter_add(0, cols, weighed.abs()), roundings=2000)
    products = y.double() * x.gather(0, cols) * there
    assert_within(reduced, torch.zeros(values.numel()).double().index_add(0, filled.flatten(), products.flatten()),
                  torch.zeros(values.numel()).double().index_add(0, filled.flatten(), products.abs().flatten()),
                  roundings=36)


def kept_like(result: torch.Tensor) -> list[torch.Tensor]:
    """Count the tensors stored for gradients that have the shape of a result."""
    return [kept for kept in result.grad_fn.saved_tensors if kept is not None and kept.shape == result.shape]


def test_the_argmax_is_stored_for_gradients_only(monkeypatch) -> None:
    a, x = sparse_tensor(), dense(COLS, 6)
    edges = pattern_cache().get(a.crow_indices(), a.col_indices(), COLS)
    expected = largest(a, a.values(), x)
    (kept,) = kept_like(largest(a, a.values(), x.clone().requires_grad_()))
    assert kept.dtype == torch.int32
    assert torch.equal(kept.long(), chosen_places(a, a.values(), x))

    def refuse(*inputs: torch.Tensor) -> None:
        raise AssertionError("the argmax was computed")

    monkeypatch.setattr(type(edges), "spmm_max", refuse)
    assert torch.equal(largest(a, a.values(), x), expected)
    with torch.no_grad():
        assert torch.equal(largest(a, a.values(), x.clone().requires_grad_()), expected)
    with torch.inference_mode():
        assert torch.equal(spmm(a, x, reduce="max"), expected)
    with pytest.raises(AssertionError, match="the argmax was computed"):
        largest(a, a.values().clone().requires_grad_(), x)


def test_only_the_gradients_that_are_wanted_are_computed() -> None:
    a, x = sparse_tensor(), dense(COLS, 4)
    result = largest(a, a.values(), x.clone().requires_grad_())
    assert all(kept is None or kept.shape != x.shape for kept in result.grad_fn.saved_tensors)
    values = a.values().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(largest(a, values, x).sum(), values)
    right, _ = expected_gradients(a, a.values(), x, torch.ones(ROWS, 4), chosen_places(a, a.values(), x))
    torch.testing.assert_close(gradient, right, rtol=0, atol=1e-5)


def test_the_gradient_of_a_sparse_tensor_is_sparse() -> None:
    a, x = sparse_tensor().requires_grad_(), dense(COLS, 4)
    (gradient,) = torch.autograd.grad(spmm(a, x, reduce="max").sum(), a)
    assert gradient.layout == torch.sparse_csr
    right, _ = expected_gradients(a, a.detach().values(), x, torch.ones(ROWS, 4),
                            chosen_places(a, a.detach().values(), x))
    torch.testing.assert_close(gradient.values(), right, rtol=0, atol=1e-5)


def test_operands_with_gaps_and_in_other_orders() -> None:
    a, x = sparse_tensor(), dense(COLS, 8)
    _, *expected = with_gradients(lambda *inputs: largest(a, *inputs), [a.values(), x], torch.ones(ROWS, 8))
    for made in (x.T.contiguous().T, torch.repeat_interleave(x, 2, dim=0)[::2], (-x)._neg_view()):
        values, inputs = a.values().clone().requires_grad_(), made.requires_grad_()
        found = torch.autograd.grad(largest(a, values, inputs).sum(), [values, inputs])  # its gradient has strides of 0
        for actual, right in zip(found, expected, strict=True):
            assert torch.equal(actual, right)


def test_the_operator_without_argmax_has_the_same_gradients() -> None:
    a, seen = sparse_tensor(), dense(ROWS, 5, seed=2)
    crow, col = a.crow_indices(), a.col_indices()
    inputs = [a.values(), dense(COLS, 5)]
    found = with_gradients(lambda values, x: torch.ops.sparloom.spmm(crow, col, values, x, "max"), inputs, seen)
    for actual, right in zip(found, with_gradients(lambda *g: largest(a, *g), inputs, seen), strict=True):
        assert torch.equal(actual, right)


def test_there_are_second_derivatives() -> None:
    a, seen = sparse_tensor(), dense(ROWS, 4, seed=2)

    def second(function, values, x):
        inputs = [tensor.clone().requires_grad_() for tensor in (values, x)]
        result = function(*inputs).square()
        first = torch.autograd.grad(result, inputs, seen.to(x.dtype), create_graph=True)
        return torch.autograd.grad(sum(gradient.square().sum() for gradient in first), inputs)

    x = dense(COLS, 4)
    found = second(lambda *inputs: largest(a, *inputs), a.values(), x)
    exact = second(lambda *inputs: dense_largest(a, *inputs), a.values().double(), x.double())
    for actual, right in zip(found, exact, strict=True):
        assert right.any()
        torch.testing.assert_close(actual.double(), right, rtol=0, atol=1e-5 * float(right.abs().max()))


def test_rows_of_one_nonzero_are_a_gather() -> None:
    col = torch.tensor([2, 0, 2])
    a = torch.sparse_csr_tensor(torch.tensor([0, 1, 2, 3]), col, torch.ones(3), size=(3, 4))
    x = dense(4, 3)
    result, _, of_x = with_gradients(lambda *inputs: largest(a, *inputs), [a.values(), x], torch.ones(3, 3))
    assert torch.equal(result, x[col])
    assert of_x[:, 0].tolist() == [1.0, 0.0, 2.0, 0.0]


@pytest.mark.slow
def test_operators_pass_the_checks_of_torch() -> None:
    a = sparse_tensor()
    crow, col, values = a.crow_indices().clone(), a.col_indices().clone(), a.values().clone().requires_grad_()
    x, y = dense(COLS, 3).requires_grad_(), dense(ROWS, 3).requires_grad_()
    operators = torch.ops.sparloom
    at = operators.spmm_max(crow, col, values, x)[1]
    for operator, inputs in (
        (operators.spmm, (crow, col, values, x, "max")),
        (operators.spmm_max, (crow, col, values, x)),
        (operators.spmm_at, (crow, col, values, x, at)),
        (operators.spmm_transposed_at, (crow, col, values, y, at, COLS)),
        (operators.sddmm_at, (crow, col, y, x, at)),
    ):
        torch.library.opcheck(operator.default, inputs)
        assert torch.Tag.pt2_compliant_tag in operator.default.tags


@pytest.mark.slow
@pytest.mark.parametrize("index", INDICES)
def test_compiled_functions_are_one_graph(index) -> None:
    a = sparse_tensor(index=index)
    crow, col = a.crow_indices(), a.col_indices()

    def network(values, x):
        return spmm((crow, col, values.tanh(), (ROWS, COLS)), x.sin(), reduce="max").square()

    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    inputs, seen = [a.values().clone(), dense(COLS, 4)], dense(ROWS, 4, seed=2)
    for actual, right in zip(with_gradients(compiled, inputs, seen), with_gradients(network, inputs, seen),
                             strict=True):
        torch.testing.assert_close(actual, right, rtol=0, atol=1e-6 * max(1.0, float(right.abs().max())))
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), network(*inputs))
