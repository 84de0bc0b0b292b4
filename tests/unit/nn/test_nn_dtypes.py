"""Sparse operations on float64, float16 and bfloat16 tensors: results, gradients, promotion; the products at argmax."""

from __future__ import annotations

import pytest
import torch

from sparloom.nn import csr_attention, sddmm, spmm

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("sparse_cache"),
              pytest.mark.filterwarnings("ignore:Sparse")]  # torch says that they are in beta

ROWS, COLS, WIDTH = 12, 9, 17
HALVES = [torch.float16, torch.bfloat16]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def dense(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def full_matrix() -> torch.Tensor:
    """Make a matrix with a full row and an empty one, dense."""
    matrix = dense(ROWS, COLS, seed=1) * (dense(ROWS, COLS, seed=2) > 0.3)
    matrix[3], matrix[5] = 0, dense(COLS, seed=3)
    return matrix


STORED = full_matrix() != 0
CROW = torch.cat([torch.zeros(1, dtype=torch.int64), STORED.sum(1).cumsum(0)])
COL, VALUES = STORED.nonzero()[:, 1], full_matrix()[STORED]


def a(values: torch.Tensor, index: torch.dtype = torch.int64) -> tuple[torch.Tensor | tuple[int, int], ...]:
    return CROW.to(index), COL.to(index), values, (ROWS, COLS)


def scattered(values: torch.Tensor) -> torch.Tensor:
    """Make the dense matrix of some values, in float64."""
    rows = torch.repeat_interleave(torch.arange(ROWS), CROW.diff())
    return torch.zeros(ROWS, COLS, dtype=torch.float64).index_put((rows, COL), values.double())


def reference(reduce: str, values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    matrix, x = scattered(values), x.double()
    counts = CROW.diff()[:, None]
    if reduce != "max":
        return matrix @ x / (counts.clamp(min=1) if reduce == "mean" else 1)
    stored = scattered(torch.ones(COL.numel())) > 0
    products = torch.where(stored[:, :, None], matrix[:, :, None] * x, -torch.inf).amax(1)
    return torch.where(counts > 0, products, 0)


def attention_reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    stored = scattered(torch.ones(COL.numel())) > 0
    scores = torch.einsum("ihd,jhd->hij", q.double(), k.double()) * q.shape[2] ** -0.5
    weights = torch.where(stored, scores, -torch.inf).softmax(2).nan_to_num(0)
    return torch.einsum("hij,jhd->ihd", weights, v.double())


def close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    bound = TOLERANCE[dtype] * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=bound)


def with_gradients(call, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """Compute, and differentiate a weighted sum of the result."""
    inputs = [each.detach().requires_grad_() for each in inputs]
    found = call(*inputs)
    (found.double() * dense(*found.shape, seed=9)).sum().backward()
    return [found.detach(), *(each.grad for each in inputs)]


CALLS = {
    **{reduce: (lambda values, x, reduce=reduce: spmm(a(values), x, reduce=reduce),
                lambda values, x, reduce=reduce: reference(reduce, values, x), ((COL.numel(),), (COLS, WIDTH)))
       for reduce in ("sum", "mean", "max")},
    "sddmm": (lambda values, q, k: sddmm(a(values), q, k),
              lambda values, q, k: values.double() * (q.double() @ k.double().T)[
                  torch.repeat_interleave(torch.arange(ROWS), CROW.diff()), COL],
              ((COL.numel(),), (ROWS, WIDTH), (COLS, WIDTH))),
    "attention": (lambda q, k, v: csr_attention(a(VALUES), q, k, v), attention_reference,
                  ((ROWS, 2, 5), (COLS, 2, 5), (COLS, 2, 6))),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float64, *HALVES], ids=str)
def test_results_and_gradients_are_right(name, dtype) -> None:
    call, exact, shapes = CALLS[name]
    inputs = [dense(*shape, dtype=dtype, seed=number) for number, shape in enumerate(shapes)]
    for found, expected in zip(with_gradients(call, *inputs), with_gradients(
            exact, *(each.double() for each in inputs)), strict=True):
        close(found, expected, dtype)


@pytest.mark.parametrize("name", CALLS)
def test_float64_gradients_pass_gradcheck(name) -> None:
    call, _, shapes = CALLS[name]
    inputs = [dense(*shape[:1], *(min(each, 3) for each in shape[1:]), seed=number).requires_grad_()
              for number, shape in enumerate(shapes)]
    assert torch.autograd.gradcheck(call, inputs)
    if name not in ("attention", "max"):
        assert torch.autograd.gradgradcheck(call, inputs)


@pytest.mark.parametrize(("first", "second"), [
    (torch.float32, torch.float64), (torch.float64, torch.float16), (torch.float16, torch.bfloat16),
    (torch.bfloat16, torch.float32)], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_operands_are_promoted_as_torch_does(name, first, second) -> None:
    call, exact, shapes = CALLS[name]
    inputs = [dense(*shape, dtype=first if number == 0 else second) for number, shape in enumerate(shapes)]
    found, *gradients = with_gradients(call, *inputs)
    close(found, exact(*inputs), torch.promote_types(first, second))
    assert [each.dtype for each in gradients] == [each.dtype for each in inputs]


@pytest.mark.parametrize("dtype", [torch.float64, *HALVES], ids=str)
def test_sparse_tensors_and_strided_operands(dtype) -> None:
    x = dense(WIDTH, COLS, dtype=dtype).T
    values = VALUES.to(dtype)
    tensor = torch.sparse_csr_tensor(CROW.int(), COL.int(), values, (ROWS, COLS))
    close(spmm(tensor, x), reference("sum", values, x), dtype)
    close(spmm(a(values, torch.int32), -x), reference("sum", values, -x), dtype)
    compiled = torch.compile(lambda values, x: spmm(a(values), x), backend="eager", fullgraph=True)
    close(compiled(values, x), reference("sum", values, x), dtype)


def test_other_dtypes_are_refused_by_name() -> None:
    x, values = dense(COLS, 4), VALUES
    for dtype in (torch.int64, torch.bool):
        with pytest.raises(TypeError, match=rf"X is {dtype}: pass X\.float\(\)"):
            spmm(a(values), x.to(dtype))
        with pytest.raises(TypeError, match=f"values of A are {dtype}"):
            sddmm(a(values.to(dtype)), dense(ROWS, 4), x)
    with pytest.raises(TypeError, match=r"K is torch\.complex64: complex dtypes are not supported: pass the real and"):
        csr_attention(a(values), dense(ROWS, 2, 4), dense(COLS, 2, 4).to(torch.complex64), dense(COLS, 2, 4))
