"""Draws calls of sparse operations on torch tensors, with gradients, as `array_calls` on arrays."""

import traceback
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from array_calls import Case, Wrong, close, in_child, pick
from sparse_inputs import PATTERNS

from sparloom.nn import csr_attention, sddmm, spmm

__all__ = ["VIEWS", "WRONG_TENSORS", "changed", "compare", "draw_operation", "draw_tensor_steps",
           "draw_wrong_operation", "drawn", "near"]

LARGE = range(5, len(PATTERNS))
REDUCTIONS = ("sum", "mean", "max")

VIEWS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda x: x,
    "computed": lambda x: x * 1,
    "columns first": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "offset": lambda x: torch.stack([x, x])[1],
    "gaps": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "every second": lambda x: x.repeat_interleave(2, 0)[::2],
    "flipped": lambda x: x.flip(0),
    "expanded": lambda x: x[:1].expand(x.shape),
    "real part": lambda x: torch.complex(x, x).real,
    "negated": lambda x: torch.complex(x, x).conj().imag,
    "split": lambda x: torch.cat([x, x]).split(x.shape[0])[1],
}
"""Views, and other tensors that are no leaves, with the same meaning in any type."""

WRONG_TENSORS: Mapping[str, Callable[[torch.Tensor], Any]] = {
    **{str(dtype): lambda x, dtype=dtype: x.to(dtype) for dtype in (
        torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool, torch.complex64)},
    "list": lambda x: x.tolist(), "None": lambda x: None, "array": lambda x: x.numpy(), "text": lambda x: "x",
    "COO": lambda x: x.to_sparse(), "meta": lambda x: x.to("meta"), "a row more": lambda x: torch.cat([x, x[:1]]),
    "a row less": lambda x: x[1:], "one axis more": lambda x: x[None], "no axis": lambda x: x.sum(),
    "nested": lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged),
}


def drawn(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.uniform(-1, 1, shape).astype(np.float32))


def compare(
    rng: np.random.Generator, leaves: dict[str, torch.Tensor], call: Callable[..., torch.Tensor],
    reference: Callable[..., torch.Tensor], *, learn: bool = True, again: bool = False, tolerance: float = 5e-5,
) -> None:
    """Compare a call and its gradients with a reference in float64.

    Args:
        leaves: operands of both.
        again: the same backward pass is made twice.

    Raises:
        Wrong: they differ, or an operand was written.
    """
    own = {name: leaf.detach().clone().requires_grad_(learn) for name, leaf in leaves.items()}
    wide = {name: leaf.detach().double().requires_grad_(learn) for name, leaf in leaves.items()}
    found, expected = call(**own), reference(**wide)
    near(found, expected, "result", tolerance)
    if learn and found.requires_grad:
        upstream = drawn(rng, *found.shape).to(found.dtype)
        if upstream.numel():
            upstream = VIEWS[pick(rng, VIEWS)](upstream)
        for _ in range(1 + again):
            found.backward(upstream, retain_graph=again)
            expected.backward(upstream.double(), retain_graph=again)
    elif learn and expected.requires_grad:
        raise Wrong("the result has no gradient")
    for name, leaf in own.items():
        if not torch.equal(leaf.detach(), leaves[name]):
            raise Wrong(f"{name} was written")
        if learn and wide[name].grad is not None:
            given = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            near(given, wide[name].grad, f"gradient of {name}", tolerance)


def near(found: torch.Tensor, expected: torch.Tensor, name: str, tolerance: float = 5e-5) -> None:
    if not isinstance(found, torch.Tensor):
        raise Wrong(f"{name} is a {type(found).__name__}")
    wanted = expected.detach().numpy()
    try:
        close(found.detach().numpy(), wanted, tolerance * (np.abs(wanted).max(initial=0) + 2e-2),
              dtype=found.detach().numpy().dtype)
    except Wrong as error:
        raise Wrong(f"{name}: {error}") from None


# Operations.

def _pattern(number: int) -> tuple[torch.Tensor, torch.Tensor, tuple[int, int], torch.Tensor]:
    """Return crow, col, shape and the row of every nonzero."""
    shape, indptr, indices = PATTERNS[number]
    crow, col = torch.from_numpy(indptr.astype(np.int64)), torch.from_numpy(indices.astype(np.int64))
    return crow, col, shape, torch.repeat_interleave(torch.arange(shape[0]), crow.diff())


_kept = cache(_pattern)  # calls on these share what was prepared


def _matrix(form: str, crow: torch.Tensor, col: torch.Tensor, shape: tuple[int, int], values: torch.Tensor) -> Any:
    match form:
        case "tensor" | "tensor of int32":
            kind = torch.int32 if form.endswith("int32") else torch.int64
            return torch.sparse_csr_tensor(crow.to(kind), col.to(kind), values.detach(), shape, check_invariants=False)
        case "int32":
            return crow.int(), col.int(), values, shape
        case "mixed":
            return crow, col.int(), values, list(shape)
        case "gaps":
            return crow.repeat_interleave(2)[::2], col.repeat_interleave(2)[::2], values, torch.Size(shape)
        case "no shape":
            return crow, col, values
    return crow, col, values, shape


MATRIX_FORMS = ("tuple", "tuple", "tensor", "tensor of int32", "int32", "mixed", "gaps", "no shape")


def _product(operation: str, shape: tuple[int, int], rows: torch.Tensor, col: torch.Tensor
             ) -> Callable[..., torch.Tensor]:
    """Return the reference of an operation."""
    def multiply(values: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
        products = values[:, None] * X[col]
        if operation == "max":
            kept = torch.zeros(shape[0], X.shape[1], dtype=X.dtype)
            return kept.scatter_reduce(0, rows[:, None].expand(products.shape), products, "amax", include_self=False)
        total = torch.zeros(shape[0], X.shape[1], dtype=X.dtype).index_add(0, rows, products)
        counts = torch.bincount(rows, minlength=shape[0]).clamp(min=1)
        return total / counts[:, None] if operation == "mean" else total

    def sample(values: torch.Tensor, Q: torch.Tensor, K: torch.Tensor) -> torch.Tensor:
        return values * (Q[rows] * K[col]).sum(1)

    def attend(values: torch.Tensor, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("qhd,khd->hqk", Q, K) * Q.shape[2] ** -0.5
        inside = torch.zeros(shape, dtype=torch.bool)
        inside[rows, col] = True
        weights = torch.softmax(scores.masked_fill(~inside, -torch.inf), 2).nan_to_num(0)
        return torch.einsum("hqk,khe->qhe", weights, V)

    return {"sddmm": sample, "attention": attend}.get(operation, multiply)


def _leaves(rng: np.random.Generator, operation: str, shape: tuple[int, int]) -> dict[str, torch.Tensor]:
    rows, cols = shape
    width = pick(rng, (1, 3, 8))
    if operation in REDUCTIONS:
        return {"X": drawn(rng, cols, width)}
    if operation == "sddmm":
        return {"Q": drawn(rng, rows, width), "K": drawn(rng, cols, width)}
    heads = pick(rng, (1, 2))
    return {"Q": drawn(rng, rows, heads, width), "K": drawn(rng, cols, heads, width),
            "V": drawn(rng, cols, heads, pick(rng, (1, 4)))}


def _operate(operation: str, a: Any, *dense: Any) -> torch.Tensor:
    if operation in REDUCTIONS:
        return spmm(a, *dense, reduce=operation)
    return {"sddmm": sddmm, "attention": csr_attention}[operation](a, *dense)


def draw_operation(rng: np.random.Generator) -> Case:
    """Draw a valid operation: all forms, values with gradients, operands in shared memory, empty operands."""
    number, operation = pick(rng, range(len(PATTERNS))), pick(rng, (*REDUCTIONS, "sddmm", "attention"))
    crow, col, shape, rows = (_kept if rng.random() < 0.6 else _pattern)(number)
    leaves = {"values": drawn(rng, col.numel()), **_leaves(rng, operation, shape)}
    form, views = pick(rng, MATRIX_FORMS), {name: pick(rng, VIEWS) for name in leaves}
    if operation == "max":  # equal products are the first one's here, and shared there
        views = {name: "offset" if view == "expanded" else view for name, view in views.items()}
    views = {name: "plain" if leaves[name].numel() == 0 else view for name, view in views.items()}
    learn = rng.random() < 0.7
    shared = operation == "sddmm" and shape[0] == shape[1] and rng.random() < 0.5
    if shared:
        leaves["K"] = leaves.pop("Q")
        views["Q"] = views["K"]
    reference, learning = _product(operation, shape, rows, col), set(leaves)
    if form.startswith("tensor") or operation == "attention":
        learning.discard("values")

    def seen(own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        given = {name: VIEWS[views[name]](leaf) for name, leaf in own.items()}
        if "values" not in learning:
            given["values"] = given["values"].detach()
        return {"values": given["values"], "Q": given["K"], "K": given["K"]} if shared else given

    def call(**own: torch.Tensor) -> torch.Tensor:
        given = seen(own)
        return _operate(operation, _matrix(form, crow, col, shape, given.pop("values")), *given.values())

    again = rng.random() < 0.2
    return Case(f"operation {operation}, pattern {number}, {form}, {views}{', shared' * shared}, learn {learn}",
                lambda: compare(rng, leaves, call, lambda **wide: reference(**seen(wide)), learn=learn, again=again))


def changed(tensor: torch.Tensor, place: int, value: int) -> torch.Tensor:
    made = tensor.clone()
    made[place] = value
    return made


WRONG_MATRICES: Mapping[str, Callable[[Any, Any, Any, Any], Any]] = {
    "COO": lambda p, c, v, s: torch.sparse_csr_tensor(p, c, v, s).to_sparse_coo(),
    "CSC": lambda p, c, v, s: torch.sparse_csr_tensor(p, c, v, s).to_sparse_csc(),
    "BSR": lambda p, c, v, s: torch.sparse_csr_tensor(p, c, v, s).to_dense().to_sparse_bsr((1, 1)),
    "dense": lambda p, c, v, s: torch.sparse_csr_tensor(p, c, v, s).to_dense(),
    "complex": lambda p, c, v, s: (p, c, v * 1j, s),
    "integers": lambda p, c, v, s: (p, c, v.long(), s), "bool": lambda p, c, v, s: (p, c, v > 0, s),
    "tensor of complex": lambda p, c, v, s: torch.sparse_csr_tensor(p, c, v * 1j, s),
    "None": lambda p, c, v, s: None, "pair": lambda p, c, v, s: (p, c), "list": lambda p, c, v, s: [p, c, v, s],
    "arrays": lambda p, c, v, s: (p.numpy(), c.numpy(), v.numpy(), s),
    "crow of int16": lambda p, c, v, s: (p.short(), c, v, s), "col of floats": lambda p, c, v, s: (p, c.float(), v, s),
    "crow short": lambda p, c, v, s: (p[:-1], c, v, s), "crow empty": lambda p, c, v, s: (p[:0], c, v, s),
    "crow falls": lambda p, c, v, s: (changed(p, 1, 10**6), c, v, s),
    "crow negative": lambda p, c, v, s: (changed(p, 0, -5), c, v, s),
    "crow ends late": lambda p, c, v, s: (changed(p, -1, int(p[-1]) + 7), c, v, s),
    "col beyond": lambda p, c, v, s: (p, changed(c, -1, s[1]), v, s),
    "col far": lambda p, c, v, s: (p, changed(c, 0, 2**40), v, s),
    "col negative": lambda p, c, v, s: (p, changed(c, 0, -1), v, s),
    "col flipped": lambda p, c, v, s: (p, c.flip(0), v, s), "col short": lambda p, c, v, s: (p, c[:-1], v, s),
    "values short": lambda p, c, v, s: (p, c, v[:-1], s), "values matrix": lambda p, c, v, s: (p, c, v[:, None], s),
    "values sparse": lambda p, c, v, s: (p, c, v.to_sparse(), s),
    "meta": lambda p, c, v, s: (*(x.to("meta") for x in (p, c, v)), s),
    "values of meta": lambda p, c, v, s: (p, c, v.to("meta"), s),
    "shape narrow": lambda p, c, v, s: (p, c, v, (s[0], int(c.max()))),
    "shape high": lambda p, c, v, s: (p, c, v, (s[0] + 1, s[1])),
    "shape negative": lambda p, c, v, s: (p, c, v, (s[0], -1)),
    "shape text": lambda p, c, v, s: (p, c, v, "ab"), "shape of three": lambda p, c, v, s: (p, c, v, (*s, 1)),
    "batch": lambda p, c, v, s: torch.stack([torch.sparse_csr_tensor(p, c, v, s).to_dense()] * 2).to_sparse_csr(),
}


def draw_wrong_operation(rng: np.random.Generator) -> Case:
    """Draw an operation with an invalid operand."""
    number, operation = pick(rng, LARGE), pick(rng, (*REDUCTIONS, "sddmm", "attention"))
    crow, col, shape, _ = (_kept if rng.random() < 0.5 else _pattern)(number)
    values, dense = drawn(rng, col.numel()), _leaves(rng, operation, shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if rng.random() < 0.5:
            form = pick(rng, WRONG_MATRICES)
            a = WRONG_MATRICES[form](crow, col, values, shape)
            fault = r"\bA\b|crow|col_ind|values|column|rows|\b[QKVX] has shape"
            if rng.random() < 0.3:
                dense = {name: each.requires_grad_() for name, each in dense.items()}
        else:
            a, name = (crow, col, values, shape), pick(rng, dense)
            form, fault = pick(rng, WRONG_TENSORS), rf"\b{name}\b"
            dense[name] = WRONG_TENSORS[form](dense[name])
            form = f"{name} {form}"
            if operation == "attention":
                fault = r"\b[QKV]\b"
    return Case(f"wrong {operation}, pattern {number}: {form}", lambda: _operate(operation, a, *dense.values()), fault)


# Sequences of calls.

class _Steps:
    """One matrix, as tensors, through calls and changes; its index tensors stay the same objects."""

    def __init__(self, rng: np.random.Generator, number: int, form: str) -> None:
        self.rng = rng
        self.crow, self.col, self.shape, self.rows = _pattern(number)
        self.values = drawn(rng, self.col.numel())
        self.a = _matrix(form, self.crow, self.col, self.shape, self.values)
        if isinstance(self.a, torch.Tensor):
            self.crow, self.col, self.values = self.a.crow_indices(), self.a.col_indices(), self.a.values()

    def call(self) -> None:
        operation = pick(self.rng, (*REDUCTIONS, "sddmm", "attention"))
        reference = _product(operation, self.shape, self.rows, self.col.long())
        compare(self.rng, _leaves(self.rng, operation, self.shape), lambda **dense: _operate(
            operation, self.a, *dense.values()), lambda **dense: reference(self.values.double(), **dense))

    def values_changed(self) -> None:
        """Write values, in ways that torch counts and does not count."""
        new = drawn(self.rng, self.values.numel())
        pick(self.rng, (lambda: self.values.copy_(new), lambda: self.values.data.copy_(new),
                        lambda: np.copyto(self.values.numpy(), new.numpy())))()
        self.call()

    def written_between(self) -> None:
        """Write an operand between forward and backward: torch refuses."""
        x = drawn(self.rng, self.shape[1], 3).requires_grad_()
        y = x * 1
        values = self.values.clone().requires_grad_()
        found = spmm((self.crow, self.col, values, self.shape), y, reduce=pick(self.rng, REDUCTIONS))
        y.detach().add_(1)
        try:
            found.sum().backward()
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
        else:
            raise Wrong("gradients of what was written in between")
        self.call()

    def together(self) -> None:
        """Call from two threads at once, forward and backward."""
        x = [drawn(self.rng, self.shape[1], width).requires_grad_() for width in (3, 3, 8)]

        def run(leaf: torch.Tensor) -> torch.Tensor:
            found = spmm(self.a, leaf)
            found.sum().backward()
            return found

        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(run, x))
        reference = _product("sum", self.shape, self.rows, self.col.long())
        for found, leaf in zip(results, x, strict=True):
            wide = leaf.detach().double().requires_grad_()
            expected = reference(self.values.double(), wide)
            expected.sum().backward()
            near(found, expected, "result")
            near(leaf.grad, wide.grad, "gradient of X")

    def forked(self) -> None:
        """Call in a forked child without gradients, because torch does not compute them in a child."""
        x = drawn(self.rng, self.shape[1], 3)
        expected = _product("sum", self.shape, self.rows, self.col.long())(self.values.double(), x.double())
        in_child(lambda: near(spmm(self.a, x), expected, "result"))
        self.call()


def draw_tensor_steps(rng: np.random.Generator) -> Case:
    """Draw a sequence of calls on one matrix."""
    form, number = pick(rng, [each for each in MATRIX_FORMS if each != "no shape"]), pick(rng, LARGE)
    names = ["call"] + [pick(rng, ("call", "values_changed", "values_changed", "written_between", "together"))
                        for _ in range(rng.integers(2, 6))]
    if rng.random() < 0.15:
        names.insert(int(rng.integers(1, len(names))), "forked")

    def call() -> None:
        steps = _Steps(rng, number, form)
        for place, name in enumerate(names):
            try:
                getattr(steps, name)()
            except Exception as error:
                raise Wrong(f"step {place}, {name}: {traceback.format_exc()}") from error

    return Case(f"steps of tensors, {form}, pattern {number}: {', '.join(names)}", call)
