"""Bind variable-sized batched GEMM and triangular products, ours and those of PyTorch and BLAS, on CPU and GPU."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from scipy.linalg import blas

from sparloom import ragged
from sparloom.baselines import BoundModule, PackedInputs, cublas_strmm, mkl_gemm_batch
from sparloom.errors import Unsupported
from sparloom.experiments.cora.modules import stored_tensors
from sparloom.platforms import Gpu, RaggedOnDevice

Call = Callable[[], object]
TOLERANCE = 1e-4  # relative to the largest element, for sums of up to 4096 products in float32
TRIANGULAR: Mapping[str, Callable[[], ragged.Program]] = {
    "sparloom": ragged.tiled_trmm, "balanced": ragged.balanced_trmm, "split": ragged.split_trmm,
    "unsplit": ragged.unsplit_trmm,
}
log = logging.getLogger(__name__)
PROGRAMS: Mapping[str, Callable[[ragged.EncoderShape], ragged.Program]] = MappingProxyType(
    {"encoder": ragged.device_encoder_layer, "mha": ragged.device_attention})


@dataclass(frozen=True)
class ProductSizes:
    """Rows, columns and inner extents of a batch of products, (products,) each.

    Source: CoRa §7.1; drawn uniformly from multiples of 128 from 512 to 1408.
    """

    rows: np.ndarray
    cols: np.ndarray
    inners: np.ndarray

    @classmethod
    def drawn(cls, count: int, *, seed: int) -> "ProductSizes":
        rng = np.random.default_rng(seed)
        return cls(*(128 * rng.integers(4, 12, size=count) for _ in range(3)))

    def operands(self, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Draw normally distributed left and right matrices."""
        rng = np.random.default_rng(seed)
        lefts, rights = ([rng.standard_normal(shape, dtype=np.float32) for shape in zip(first, second, strict=True)]
                         for first, second in ((self.rows, self.inners), (self.inners, self.cols)))
        return lefts, rights

    @property
    def flops(self) -> int:
        """Number of multiplications and additions."""
        return int(2 * (self.rows * self.cols * self.inners).sum())


def variable_methods(sizes: ProductSizes, *, threads: int, seed: int) -> dict[str, Call]:
    """Bind all methods for a batch of products, checked against each other.

    Returns:
        "sparloom", "loop" (torch.mm into preallocated arrays), "padded" (torch.bmm with the largest extents), and if
        MKL is installed "mkl_batch" (its batched GEMM with a group for each product, CoRa's baseline).
    """
    torch.set_num_threads(threads)
    executable = ragged.Executable(ragged.tiled_vgemm(), threads=threads)
    methods = _variable_methods(sizes, executable.bind, np.asarray, torch.device("cpu"), seed=seed)
    lefts, rights = sizes.operands(seed)
    results = [np.empty((len(left), right.shape[1]), np.float32) for left, right in zip(lefts, rights, strict=True)]
    try:
        batch = mkl_gemm_batch(lefts, rights, results, threads=threads)
    except Unsupported as missing:
        log.warning("mkl_batch is left out: %s", missing)
        return methods
    batch()
    for result, left, right in zip(results, lefts, rights, strict=True):
        check_product("mkl_batch", result, left @ right)
    return {**methods, "mkl_batch": batch}


def variable_on_device(sizes: ProductSizes, gpu: Gpu, device: torch.device, *, seed: int) -> dict[str, Call]:
    """Bind the methods of `variable_methods` on a GPU; "loop" and "padded" call cuBLAS."""
    return _variable_methods(sizes, RaggedOnDevice(gpu, ragged.device_vgemm()).bind, gpu.download, device, seed=seed)


def _variable_methods(
    sizes: ProductSizes, bind: Callable[..., tuple[Call, Mapping[str, Any]]], download: Callable[[Any], np.ndarray],
    device: torch.device, *, seed: int,
) -> dict[str, Call]:
    lefts, rights = sizes.operands(seed)
    triples = [(torch.from_numpy(left).to(device), torch.from_numpy(right).to(device),
                torch.empty(len(left), right.shape[1], device=device))
               for left, right in zip(lefts, rights, strict=True)]

    def loop() -> None:
        for left, right, result in triples:
            torch.mm(left, right, out=result)

    wide_left, wide_right = (stacked(each).to(device) for each in (lefts, rights))
    wide = torch.empty(len(lefts), wide_left.shape[1], wide_right.shape[2], device=device)
    structure = ragged.vgemm_structure(sizes.rows, sizes.cols, sizes.inners)
    own, bound = bind(structure, **{name: np.concatenate([each.ravel() for each in arrays])
                                    for name, arrays in (("a", lefts), ("b", rights))})
    methods: dict[str, Call] = {
        "sparloom": own, "loop": loop, "padded": lambda: torch.bmm(wide_left, wide_right, out=wide)}
    for call in methods.values():
        call()
    expected = np.concatenate([result.cpu().numpy().ravel() for _, _, result in triples])
    cut = [wide[index, : result.shape[0], : result.shape[1]] for index, (_, _, result) in enumerate(triples)]
    check_product("sparloom", download(bound["c"]), expected)
    check_product("padded", np.concatenate([each.cpu().numpy().ravel() for each in cut]), expected)
    return methods


def triangular_methods(size: int, *, threads: int, seed: int) -> dict[str, Call]:
    """Bind all methods that multiply a lower triangular matrix by a square one, each checked.

    Returns:
        "sparloom", and as in the paper "unsplit", "split" and "balanced"; "blas" (STRMM of SciPy's BLAS), and "dense"
        (torch.mm with zeros above the diagonal).
    """
    torch.set_num_threads(threads)
    rng = np.random.default_rng(seed)
    lower = np.tril(rng.standard_normal((size, size), dtype=np.float32))
    dense = rng.standard_normal((size, size), dtype=np.float32)
    expected = lower @ dense
    structure, packed = ragged.trmm_structure(size), lower[np.tril_indices(size)]
    methods: dict[str, Call] = {}
    for name, program in TRIANGULAR.items():
        executable = ragged.Executable(program(), threads=threads)
        tensors = executable.program.tensors()
        methods[name], bound = executable.bind(structure, **_triangle_storage(tensors, structure, packed, dense))
        methods[name]()
        check_product(name, _packed(tensors["out"], structure, bound["out"]), expected)
    columns, factor = np.asfortranarray(dense), np.asfortranarray(lower)
    check_product("blas", blas.strmm(1.0, factor, columns, lower=1), expected)
    left, right, result = torch.from_numpy(lower), torch.from_numpy(dense), torch.empty(size, size)
    return {**methods, "blas": lambda: blas.strmm(1.0, factor, columns, lower=1),
            "dense": lambda: torch.mm(left, right, out=result)}


def stacked(matrices: list[np.ndarray]) -> torch.Tensor:
    """Stack matrices, padded with zeros."""
    rows, cols = (max(matrix.shape[axis] for matrix in matrices) for axis in (0, 1))
    stacked = torch.zeros(len(matrices), rows, cols)
    for index, matrix in enumerate(matrices):
        stacked[index, : matrix.shape[0], : matrix.shape[1]] = torch.from_numpy(matrix)
    return stacked


def _triangle_storage(
    tensors: Mapping[str, ragged.Tensor], structure: ragged.Structure, packed: np.ndarray, dense: np.ndarray,
) -> dict[str, np.ndarray]:
    return {name: ragged.RaggedTensor.from_packed(tensors[name], structure, values).data
            for name, values in (("lower", packed), ("b", dense))}


def _packed(tensor: ragged.Tensor, structure: ragged.Structure, data: np.ndarray) -> np.ndarray:
    return ragged.RaggedTensor(tensor, structure, data).to_packed()[0]


def check_product(name: str, found: np.ndarray, expected: np.ndarray) -> None:
    """Raise AssertionError if two results differ."""
    apart = float(np.abs(found.reshape(-1) - expected.reshape(-1)).max() / np.abs(expected).max())
    if not apart < TOLERANCE:
        raise AssertionError(f"the result of {name} is wrong by {apart:.1e} of the largest element")


def device_module(part: str, inputs: PackedInputs, gpu: Gpu, device: torch.device) -> BoundModule:
    """Bind the GPU program of a module to tokens and parameters.

    Args:
        part: "encoder" or "mha".
    """
    hidden = inputs.module.linear1.out_features if part == "encoder" else ragged.EncoderShape().hidden
    program = PROGRAMS[part](ragged.EncoderShape(inputs.width, inputs.heads, hidden))
    structure, (output,) = ragged.Structure({ragged.LENGTHS: inputs.lengths}), program.outputs
    run, there = RaggedOnDevice(gpu, program).bind(structure, **stored_tensors(program, structure, inputs))
    tensor = program.tensors()[output]

    def packed(_: object) -> torch.Tensor:
        found = ragged.RaggedTensor(tensor, structure, gpu.download(there[output])).to_packed()[0]
        return torch.from_numpy(np.ascontiguousarray(found)).reshape(-1, inputs.width).to(device)

    return BoundModule(run, packed)


def triangular_on_device(size: int, gpu: Gpu, device: torch.device, *, seed: int) -> dict[str, Call]:
    """Bind all methods that multiply a lower triangular matrix by a square one on a GPU, each checked.

    Returns:
        "sparloom", "dense" (torch.mm with zeros above the diagonal), and "blas" (STRMM of cuBLAS) if it is installed.
    """
    rng = np.random.default_rng(seed)
    lower = np.tril(rng.standard_normal((size, size), dtype=np.float32))
    dense = rng.standard_normal((size, size), dtype=np.float32)
    left, right = (torch.from_numpy(each).to(device) for each in (lower, dense))
    result, other = (torch.empty(size, size, device=device) for _ in range(2))
    program, structure = ragged.device_trmm(), ragged.trmm_structure(size)
    tensors = program.tensors()
    own, there = RaggedOnDevice(gpu, program).bind(
        structure, **_triangle_storage(tensors, structure, lower[np.tril_indices(size)], dense))
    methods: dict[str, Call] = {"sparloom": own, "dense": lambda: torch.mm(left, right, out=result)}
    results = {"dense": result}
    if device.type == "cuda":
        try:
            methods["blas"] = cublas_strmm(size, left.data_ptr(), right.data_ptr(), other.data_ptr())
            results["blas"] = other
        except Unsupported as error:
            log.warning("blas is left out: %s", error)
    for call in methods.values():
        call()
    expected = lower @ dense
    check_product("sparloom", _packed(tensors["out"], structure, gpu.download(there["out"])), expected)
    for name, each in results.items():
        check_product(name, each.cpu().numpy(), expected)
    return methods
