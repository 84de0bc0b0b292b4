"""Sparse operations on tensors: results and gradients against dense torch in float64, compilers, what is refused."""

import pytest
import torch
from sparse_tensors import (
    COLS,
    ROWS,
    assert_within,
    dense,
    dense_attention,
    dense_sddmm,
    dense_spmm,
    sparse_tensor,
    with_gradients,
)
from torch.utils._python_dispatch import TorchDispatchMode

from sparloom.nn import csr_attention, sddmm, spmm

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("sparse_cache"),
              pytest.mark.filterwarnings("ignore:Sparse")]  # torch says that they are in beta

INDICES = [torch.int32, torch.int64]


def parts(matrix: torch.Tensor, values: torch.Tensor) -> tuple:
    return matrix.crow_indices(), matrix.col_indices(), values, matrix.shape


def check_linear(function, exact, inputs: list[torch.Tensor], seen: torch.Tensor, *, terms: int) -> None:
    """Compare a product and its gradients, which are sums of products themselves; `terms` bounds their length."""
    found = with_gradients(function, inputs, seen)
    wide = [tensor.double() for tensor in inputs]
    expected = with_gradients(exact, wide, seen.double())
    magnitudes = with_gradients(exact, [tensor.abs() for tensor in wide], seen.double().abs())
    for actual, right, magnitude in zip(found, expected, magnitudes, strict=True):
        assert_within(actual, right, magnitude, roundings=terms + 3)


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("width", [1, 16, 33])
def test_spmm_and_its_gradients_are_the_dense_product(index, reduce, width) -> None:
    a = sparse_tensor(index=index)
    check_linear(lambda values, x: spmm(parts(a, values), x, reduce=reduce),
                 lambda values, x: dense_spmm(a, values, x, reduce),
                 [a.values(), dense(COLS, width)], dense(ROWS, width, seed=2), terms=max(ROWS, COLS, width))


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("width", [1, 16, 33])
def test_sddmm_and_its_gradients_are_the_dense_product(index, width) -> None:
    a = sparse_tensor(index=index)
    check_linear(lambda values, q, k: sddmm(parts(a, values), q, k), lambda values, q, k: dense_sddmm(a, values, q, k),
                 [a.values(), dense(ROWS, width), dense(COLS, width, seed=3)],
                 dense(a.values().shape[0], seed=2), terms=max(ROWS, COLS, width))


def check_attention(a: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Compare attention and its gradients.

    A score has a relative error of (d + 2) eps of |q| |k| / sqrt(d), its weight P therefore of `rho` with that of
    the sum of a row; results are sums of products with P, or with dS = P * (dP - D), whose magnitude is
    P * (|dP| + |D|) and which rounds P twice, dP and D once each.
    """
    seen = dense(a.shape[0], *v.shape[1:], seed=9)
    found = with_gradients(lambda *inputs: csr_attention(a, *inputs), [q, k, v], seen)
    wide = [tensor.double() for tensor in (q, k, v)]
    expected = with_gradients(lambda *inputs: dense_attention(a, *inputs), wide, seen.double())
    heads, d, e = q.shape[1], q.shape[2], v.shape[2]
    longest = max(a.shape)
    largest = max(1.0, float((q.abs().amax() * k.abs().amax()) * d**0.5))
    rho = 2 * (d + 2) * largest + longest + 8
    identity = torch.eye(a.shape[1], dtype=torch.float64)[:, None].expand(-1, heads, -1)
    weights = dense_attention(a, wide[0], wide[1], identity)  # P (rows, heads, cols)
    out, outer = torch.einsum("ihj,jhe->ihe", weights, wide[2].abs()), seen.double().abs()
    slopes = torch.einsum("ihe,jhe->ihj", outer, wide[2].abs()) + (outer * out).sum(2, keepdim=True)
    slopes = weights * slopes * d**-0.5
    magnitudes = [out, torch.einsum("ihj,jhd->ihd", slopes, wide[1].abs()),
                  torch.einsum("ihj,ihd->jhd", slopes, wide[0].abs()), torch.einsum("ihj,ihe->jhe", weights, outer)]
    for actual, right, magnitude in zip(found, expected, magnitudes, strict=True):
        assert_within(actual, right, magnitude, roundings=2 * rho + longest + e + 4)


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize(("heads", "d", "e"), [(1, 16, 16), (3, 8, 5), (2, 1, 1)])
def test_attention_and_its_gradients_are_the_dense_ones(index, heads, d, e) -> None:
    check_attention(sparse_tensor(index=index), dense(ROWS, heads, d), dense(COLS, heads, d, seed=3),
                    dense(COLS, heads, e, seed=4))


def test_attention_with_large_scores_does_not_overflow() -> None:
    check_attention(sparse_tensor(), 30 * dense(ROWS, 1, 8), 30 * dense(COLS, 1, 8, seed=3), dense(COLS, 1, 8, seed=4))


def test_attention_without_the_axis_of_heads() -> None:
    a, q, k, v = sparse_tensor(), dense(ROWS, 8), dense(COLS, 8, seed=3), dense(COLS, 5, seed=4)
    found = with_gradients(lambda *inputs: csr_attention(a, *inputs), [q, k, v], dense(ROWS, 5))
    headed = with_gradients(lambda *inputs: csr_attention(a, *inputs), [q[:, None], k[:, None], v[:, None]],
                            dense(ROWS, 1, 5))
    for flat, other in zip(found, headed, strict=True):
        assert torch.equal(flat, other[:, 0])


@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (5, 0), (5, 4)])
def test_matrices_without_nonzeros(shape) -> None:
    rows, cols = shape
    a = (torch.zeros(rows + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), torch.zeros(0), shape)
    x, q = dense(cols, 3).requires_grad_(), dense(rows, 3).requires_grad_()
    for reduce in ("sum", "mean", "max"):
        result = spmm(a, x, reduce=reduce)
        assert torch.equal(result, torch.zeros(rows, 3))
        assert torch.equal(torch.autograd.grad(result.sum(), x)[0], torch.zeros(cols, 3))
    assert sddmm(a, q, x).shape == (0,)
    attended = csr_attention(a, q, x, x)
    assert torch.equal(attended, torch.zeros(rows, 3))
    for gradient in torch.autograd.grad(attended.sum(), (q, x)):
        assert not gradient.any()


def test_the_gradient_of_a_sparse_tensor_is_sparse() -> None:
    a = sparse_tensor().requires_grad_()
    x, seen = dense(COLS, 4), dense(ROWS, 4, seed=2)
    (gradient,) = torch.autograd.grad(spmm(a, x), a, seen)
    assert gradient.layout == torch.sparse_csr
    exact = (seen.double() @ x.double().T)
    rows, cols = gradient.to_sparse_coo().indices()
    magnitude = (seen.double().abs() @ x.double().abs().T)[rows, cols]
    assert_within(gradient.values(), exact[rows, cols], magnitude, roundings=4 + 3)


def test_only_needed_results_are_computed_and_stored() -> None:
    a, x = sparse_tensor(), dense(COLS, 4).requires_grad_()
    result = spmm(a, x)
    kept = [tensor for tensor in result.grad_fn.saved_tensors if tensor is not None]
    assert all(tensor.data_ptr() != x.data_ptr() for tensor in kept)
    assert torch.autograd.grad(result.sum(), x)[0].shape == x.shape
    values = a.values().clone().requires_grad_()
    result = spmm(parts(a, values), x.detach())
    assert torch.autograd.grad(result.sum(), values)[0].shape == values.shape


def test_operands_with_gaps_and_in_other_orders() -> None:
    a, x = sparse_tensor(), dense(COLS, 8)
    expected = spmm(a, x)
    for inputs in (x.T.contiguous().T, torch.repeat_interleave(x, 2, dim=0)[::2], (-x)._neg_view()):
        assert torch.equal(spmm(a, inputs), expected)
    inputs = x.clone().requires_grad_()
    spmm(a, inputs).sum().backward()  # the gradient of a sum has strides of 0
    assert_within(inputs.grad, a.to_dense().double().sum(0)[:, None].expand(-1, 8),
                  a.to_dense().double().abs().sum(0)[:, None].expand(-1, 8), roundings=ROWS + 3)


def test_results_without_gradients() -> None:
    a, x = sparse_tensor(), dense(COLS, 8)
    expected = spmm(a, x)
    with torch.inference_mode():
        assert torch.equal(spmm(a, x), expected)
        made = sparse_tensor()
        assert torch.equal(spmm(made, x.clone()), expected)
    with torch.no_grad():
        assert not spmm(a, x.clone().requires_grad_()).requires_grad


def test_products_have_second_derivatives() -> None:
    a, seen = sparse_tensor(), dense(ROWS, 4, seed=2)

    def second(multiply, q, k, values):
        inputs = [tensor.clone().requires_grad_() for tensor in (values, q, k)]
        weights = multiply[1](inputs[0], inputs[1], inputs[2])
        result = multiply[0](weights.square(), inputs[2])
        (first,) = torch.autograd.grad(result, inputs[2], seen.to(q.dtype), create_graph=True)
        return [first.detach(), *torch.autograd.grad(first.square().sum(), inputs)]

    q, k = dense(ROWS, 4), dense(COLS, 4, seed=3)
    found = second((lambda w, x: spmm(parts(a, w), x), lambda w, q, k: sddmm(parts(a, w), q, k)), q, k, a.values())
    exact = second((lambda w, x: dense_spmm(a, w, x, "sum"), lambda w, q, k: dense_sddmm(a, w, q, k)),
                   q.double(), k.double(), a.values().double())
    for actual, right in zip(found, exact, strict=True):
        torch.testing.assert_close(actual.double(), right, rtol=0, atol=1e-5 * float(right.abs().max()))


def test_attention_refuses_second_derivatives() -> None:
    a, q = sparse_tensor(), dense(ROWS, 4).requires_grad_()
    (first,) = torch.autograd.grad(csr_attention(a, q, dense(COLS, 4), dense(COLS, 4)).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="csr_attention has no second derivatives and no forward mode"):
        first.sum().backward()


class Seen(TorchDispatchMode):
    """Record the operators that torch's dispatcher receives."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, inputs=(), options=None):
        self.names.append(str(function))
        return function(*inputs, **(options or {}))


def test_dispatch_modes_see_the_operators_and_get_the_same_results():
    a, x, seen = sparse_tensor(), dense(COLS, 3), dense(ROWS, 3)
    values = a.values().clone()
    short = with_gradients(lambda values, x: spmm(parts(a, values), x), [values, x], seen)
    with Seen() as mode:
        watched = with_gradients(lambda values, x: spmm(parts(a, values), x), [values, x], seen)
    assert {f"sparloom.{name}.default" for name in ("spmm", "spmm_transposed", "sddmm")} <= set(mode.names)
    with torch.profiler.profile() as profile:
        spmm(a, x)
    assert "sparloom::spmm" in {event.key for event in profile.key_averages()}
    for one, other in zip(short, watched, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.slow
def test_operators_pass_the_checks_of_torch() -> None:
    a = sparse_tensor()
    crow, col, values = a.crow_indices().clone(), a.col_indices().clone(), a.values().clone().requires_grad_()
    x, q = dense(COLS, 3).requires_grad_(), dense(ROWS, 3).requires_grad_()
    heads = [dense(rows, 2, 3, seed=rows).requires_grad_() for rows in (ROWS, COLS, COLS)]
    operators = torch.ops.sparloom
    for operator, inputs in (
        (operators.spmm, (crow, col, values, x, "mean")),
        (operators.spmm_transposed, (crow, col, values, q, COLS)),
        (operators.sddmm, (crow, col, values, q, x)),
        (operators.sddmm, (crow, col, None, q, x)),
        (operators.csr_attention, (crow, col, *heads)),
    ):
        torch.library.opcheck(operator.default, inputs)
    result = csr_attention(a, *heads).detach()
    torch.library.opcheck(operators.csr_attention_backward.default,
                          (crow, col, *(head.detach() for head in heads), result),
                          test_utils=("test_schema", "test_faketensor"))


@pytest.mark.slow
def test_compiled_functions_are_one_graph() -> None:
    a = sparse_tensor()
    values, x, q = a.values().clone(), dense(COLS, 4), dense(ROWS, 4)

    def network(values, x, q):
        matrix = (a_crow, a_col, values, (ROWS, COLS))
        weights = sddmm(matrix, q, x).tanh()
        mean = spmm((a_crow, a_col, weights, (ROWS, COLS)), x, reduce="mean")
        return mean + csr_attention(matrix, q, x, x)

    a_crow, a_col = a.crow_indices(), a.col_indices()
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    found = with_gradients(compiled, [values, x, q], dense(ROWS, 4, seed=2))
    expected = with_gradients(network, [values, x, q], dense(ROWS, 4, seed=2))
    for actual, right in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, right, rtol=0, atol=1e-6 * max(1.0, float(right.abs().max())))


@pytest.mark.parametrize(("inputs", "error", "message"), [
    (lambda a: a.to_dense(), TypeError, r"A has layout torch.strided: pass A.to_sparse_csr\(\)"),
    (lambda a: a.to_sparse_coo(), TypeError, "A has layout torch.sparse_coo"),
    (lambda a: "A", TypeError, "A is str: expected a sparse CSR tensor or"),
    (lambda a: parts(a, a.values())[:2], TypeError, "A is a tuple of 2"),
    (lambda a: a.to(torch.int64), TypeError, r"values of A are torch.int64: pass A.to\(torch.float32\)"),
    (lambda a: (a.crow_indices().short(), a.col_indices(), a.values()), TypeError, "crow_indices of A is torch.int16"),
    (lambda a: (a.crow_indices(), [1], a.values()), TypeError, "col_indices of A is list"),
    (lambda a: (a.crow_indices(), a.col_indices(), a.values().to("meta")), ValueError,
     r"values of A is on meta and crow_indices on cpu: move both to the same device"),
    (lambda a: tuple(part.to("meta") for part in (a.crow_indices(), a.col_indices(), a.values())), ValueError,
     r"A is on meta: only CPU and CUDA tensors are supported: pass A.cpu\(\) or A.cuda\(\)"),
    (lambda a: (a.crow_indices(), a.col_indices(), a.values()[1:]), ValueError,
     "values and .* col_indices: expected one value"),
    (lambda a: (a.crow_indices()[None], a.col_indices(), a.values()), ValueError, "expected one dimension"),
    (lambda a: (a.crow_indices(), a.col_indices(), a.values(), (ROWS + 1, COLS)), ValueError,
     r"A of shape .* has 41 crow_indices: expected rows \+ 1"),
    (lambda a: (a.crow_indices(), a.col_indices() + 1, a.values()), ValueError,
     "crow_indices and col_indices of A are not a CSR pattern .*outside 0 to 29"),
    (lambda a: (a.crow_indices(), a.col_indices().flip(0), a.values()), ValueError,
     r"columns must increase strictly.*coalesce\(\).to_sparse_csr\(\) makes a valid one"),
    (lambda a: (a.crow_indices().flip(0), a.col_indices(), a.values()), ValueError, "indptr runs from"),
    (lambda a: torch.ones(2, 3, 3).to_sparse_csr(), ValueError, r"A has shape \(2, 3, 3\)"),
])
def test_invalid_matrices_are_refused(inputs, error, message) -> None:
    with pytest.raises(error, match=message):
        spmm(inputs(sparse_tensor()), dense(COLS, 4))


@pytest.mark.parametrize(("inputs", "error", "message"), [
    (dense(COLS - 1, 4), ValueError, r"X has shape \(29, 4\): expected \(30, width\)"),
    (dense(COLS), ValueError, r"X has shape \(30,\)"),
    (dense(COLS, 4).long(), TypeError, r"X is torch.int64: pass X.float\(\)"),
    (dense(COLS, 4).to("meta"), ValueError, "X is on meta"),
    (dense(COLS, 4).numpy(), TypeError, "X is ndarray: expected a dense tensor"),
    (dense(COLS, 4).to_sparse(), TypeError, "X is a tensor of layout torch.sparse_coo"),
], ids=str)
def test_dense_operands_that_do_not_fit_are_refused(inputs, error, message) -> None:
    with pytest.raises(error, match=message):
        spmm(sparse_tensor(), inputs)


@pytest.mark.parametrize("rows", [0, ROWS])
def test_no_columns_give_empty_results_and_gradients(rows) -> None:
    """This is the behaviour of torch.sparse.mm and torch.sparse.sampled_addmm."""
    a = sparse_tensor() if rows else torch.zeros(0, COLS).to_sparse_csr()
    x, q = dense(COLS, 0).requires_grad_(), dense(rows, 0).requires_grad_()
    values = a.values().clone().requires_grad_()
    for reduce in ("sum", "mean", "max"):
        result = spmm(parts(a, values), x, reduce=reduce)
        assert result.shape == (rows, 0)
        for gradient, inputs in zip(torch.autograd.grad(result.sum(), (x, values)), (x, values), strict=True):
            assert torch.equal(gradient, torch.zeros_like(inputs))
    result = sddmm(parts(a, values), q, x)
    assert torch.equal(result, torch.zeros_like(values))
    for gradient, inputs in zip(torch.autograd.grad(result.sum(), (q, x, values)), (q, x, values), strict=True):
        assert torch.equal(gradient, torch.zeros_like(inputs))
    q, k, v = (dense(count, 2, 3).requires_grad_() for count in (rows, COLS, COLS))
    assert csr_attention(a, q, k, v[:, :, :0]).shape == (rows, 2, 0)
    assert csr_attention(a, q[:, :0], k[:, :0], v[:, :0]).shape == (rows, 0, 3)
    csr_attention(a, q, k, v[:, :, :0]).sum().backward()
    assert not q.grad.any()
    with pytest.raises(ValueError, match=r"Q has shape .*, 2, 0\): attention divides by the head width, which"):
        csr_attention(a, q[:, :, :0], k[:, :, :0], v)


@pytest.mark.parametrize("shape", [(ROWS, -1), (-1, COLS)])
def test_negative_shapes_are_refused(shape) -> None:
    a = sparse_tensor()
    with pytest.raises(ValueError, match=r"shape of A is \(.*\): rows and cols must be non-negative"):
        spmm((*parts(a, a.values())[:3], shape), dense(COLS, 4))


@pytest.mark.parametrize("shape", [(ROWS, float(COLS)), "ab", 5, (1, 2, 3), (ROWS, None)])
def test_invalid_shapes_are_refused(shape) -> None:
    a = sparse_tensor()
    with pytest.raises(TypeError, match=r"shape of A is .*: expected \(rows, cols\)"):
        spmm((*parts(a, a.values())[:3], shape), dense(COLS, 4))
    assert torch.equal(spmm((*parts(a, a.values())[:3], None), dense(COLS, 4)), spmm(a, dense(COLS, 4)))


def test_messages_fit_what_was_given() -> None:
    a, x = sparse_tensor(), dense(COLS, 4)
    for values in (a.values().bool(), a.values().int(), a.values().long()):
        with pytest.raises(TypeError, match=rf"values of A are {values.dtype}: pass values.float\(\) in the tuple"):
            spmm(parts(a, values), x)
    for inputs in (a.to(torch.complex64), parts(a, a.values().to(torch.complex64))):
        with pytest.raises(TypeError, match=r"values of A are torch\.complex64: complex dtypes are not supported"):
            spmm(inputs, x)
    with pytest.raises(TypeError, match=r"X is torch\.complex64: complex dtypes are not supported: pass the real"):
        spmm(a, x.to(torch.complex64))


def test_shapes_must_agree() -> None:
    a = sparse_tensor()
    with pytest.raises(ValueError, match=r"Q has shape \(40, 8\) and K \(30, 9\): trailing dimensions must match"):
        sddmm(a, dense(ROWS, 8), dense(COLS, 9))
    with pytest.raises(ValueError, match=r"Q has shape \(30, 8\): expected \(40, width\)"):
        sddmm(a, dense(COLS, 8), dense(COLS, 8))
    with pytest.raises(ValueError, match=r"V has shape \(40, 2, 8\): expected \(30, heads, width\)"):
        csr_attention(a, dense(ROWS, 2, 8), dense(COLS, 2, 8), dense(ROWS, 2, 8))
    with pytest.raises(ValueError, match="V has 3 heads and Q has 2: they must match"):
        csr_attention(a, dense(ROWS, 2, 8), dense(COLS, 2, 8), dense(COLS, 3, 8))
    with pytest.raises(ValueError, match="reduce='min': expected one of sum, mean, max"):
        spmm(a, dense(COLS, 8), reduce="min")
