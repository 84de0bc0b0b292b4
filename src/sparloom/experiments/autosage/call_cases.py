"""Bind products as programs write them: with new index arrays in every call, on torch's tensors, with gradients."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import scipy.sparse
import torch

import sparloom
from sparloom import nn
from sparloom.baselines import csr_tensor, torch_csr
from sparloom.experiments.autosage.graph_training import (
    MEAN_TOLERANCE,
    OWN_LAYER,
    Steps,
    relative_distance,
    sorted_out,
)
from sparloom.experiments.harness import note_failure
from sparloom.ops import Operands

Call = Callable[[], Any]


def fresh_products(operands: Operands, threads: int) -> Steps:
    """Bind products whose index arrays are new in every call; all methods copy them and make what they multiply."""
    csr, dense = operands.matrix.to_scipy(), operands.dense["B"]
    features = torch.from_numpy(dense)

    def copies() -> tuple[np.ndarray, np.ndarray]:
        return csr.indptr.copy(), csr.indices.copy()

    def by_scipy() -> np.ndarray:
        indptr, indices = copies()
        return scipy.sparse.csr_array((csr.data, indices, indptr), shape=csr.shape) @ dense

    def by_torch() -> torch.Tensor:
        indptr, indices = map(torch.from_numpy, copies())
        return csr_tensor(indptr, indices, torch.from_numpy(csr.data), csr.shape) @ features

    return _compared({
        OWN_LAYER: lambda: sparloom.spmm((*copies(), csr.data, csr.shape), dense, threads=threads),
        "scipy": by_scipy, "torch_mm": by_torch}, [csr @ dense], lambda result: [result])


def tensor_products(operands: Operands, threads: int) -> Steps:
    """Bind products of torch's tensors without gradients."""
    torch.set_num_threads(threads)
    matrix, features = torch_csr(operands.matrix), torch.from_numpy(operands.dense["B"])
    return _compared({OWN_LAYER: lambda: nn.spmm(matrix, features), "torch_mm": lambda: matrix @ features},
                     [operands.matrix.to_scipy() @ operands.dense["B"]], lambda result: [result])


def gradient_products(operands: Operands, threads: int) -> Steps:
    """Bind products of torch's tensors with the gradient of the dense one.

    torch multiplies by indices of both types: with int32, some versions compute other gradients, which are refused.
    """
    torch.set_num_threads(threads)
    narrow, csr = torch_csr(operands.matrix), operands.matrix.to_scipy()
    wide = torch.sparse_csr_tensor(narrow.crow_indices().long(), narrow.col_indices().long(), narrow.values(),
                                   csr.shape)
    features = torch.from_numpy(operands.dense["B"]).requires_grad_()
    slopes = torch.rand(csr.shape[0], operands.width, generator=torch.Generator().manual_seed(0))

    def step(product: Call) -> Call:
        def run() -> torch.Tensor:
            features.grad = None
            result = product()
            result.backward(slopes)
            return result.detach()

        return run

    calls = {OWN_LAYER: step(lambda: nn.spmm(narrow, features)), "torch_mm": step(lambda: narrow @ features),
             "torch_int64": step(lambda: wide @ features)}
    wanted = [csr @ operands.dense["B"], csr.T @ slopes.numpy()]
    return _compared(calls, wanted, lambda result: [result, features.grad])


CALLS: Mapping[str, Callable[[Operands, int], Steps]] = MappingProxyType({
    "spmm_fresh": fresh_products, "spmm_torch": tensor_products, "spmm_gradient": gradient_products})
"""Operation -> function that binds its methods to operands and a number of threads."""


def _compared(
    calls: Mapping[str, Call], wanted: list[np.ndarray], results: Callable[[Any], list[Any]],
) -> Steps:
    """Run each method once, and refuse those whose results differ from SciPy's.

    Args:
        results: selects what is compared, after a call that returned its argument.
    """
    apart, refused = {"scipy's product": 0.0}, {}
    for name, call in calls.items():
        with note_failure(name, refused):
            pairs = zip(results(call()), wanted, strict=True)
            apart[name] = max(relative_distance(*map(torch.as_tensor, pair)) for pair in pairs)
    if OWN_LAYER in refused:
        raise AssertionError(f"{OWN_LAYER} fails: {refused[OWN_LAYER]}")
    peers = {name: call for name, call in calls.items() if name in apart and name != OWN_LAYER}
    return sorted_out(Steps({OWN_LAYER: calls[OWN_LAYER]}, peers, refused), apart, limit=MEAN_TOLERANCE, what="results")
