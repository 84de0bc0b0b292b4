"""Ragged programs on a GPU and, for products, PyTorch's and cuBLAS's on the same operands.

Nothing of this has run on a GPU; see docs/gpu_status.md.
"""

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import torch

from sparloom.errors import Unsupported
from sparloom.experiments.module_tensors import stored_tensors
from sparloom.experiments.packed_inputs import PackedInputs
from sparloom.experiments.peer import Peer
from sparloom.experiments.ragged_products import Call, ProductSizes, check_product, stacked
from sparloom.platforms import Gpu, RaggedOnDevice, cublas_strmm
from sparloom.ragged import (
    LENGTHS,
    EncoderShape,
    Program,
    RaggedTensor,
    Structure,
    device_attention,
    device_encoder_layer,
    device_trmm,
    device_vgemm,
    trmm_structure,
    vgemm_structure,
)

__all__ = ["device_module", "triangular_on_device", "variable_on_device"]

log = logging.getLogger(__name__)

PROGRAMS: Mapping[str, Callable[[EncoderShape], Program]] = MappingProxyType(
    {"encoder": device_encoder_layer, "mha": device_attention})


def device_module(part: str, inputs: PackedInputs, gpu: Gpu, device: torch.device) -> Peer:
    """Bind the program of a module to tokens and parameters.

    Args:
        part: "encoder" or "mha".
        inputs: in the memory of the processor.
        device: where results are compared.
    """
    hidden = inputs.module.linear1.out_features if part == "encoder" else EncoderShape().hidden
    program = PROGRAMS[part](EncoderShape(inputs.width, inputs.heads, hidden))
    structure, (output,) = Structure({LENGTHS: inputs.lengths}), program.outputs
    run, there = RaggedOnDevice(gpu, program).bind(structure, **stored_tensors(program, structure, inputs))
    tensor = program.tensors()[output]

    def packed(_: object) -> torch.Tensor:
        found = RaggedTensor(tensor, structure, gpu.download(there[output])).to_packed()[0]
        return torch.from_numpy(np.ascontiguousarray(found)).reshape(-1, inputs.width).to(device)

    return Peer(run, packed)


def variable_on_device(sizes: ProductSizes, gpu: Gpu, device: torch.device, *, seed: int) -> dict[str, Call]:
    """Bind all ways to multiply a batch of products, each checked.

    Returns:
        "sparloom", "loop" of torch.mm into arrays that are there, and "padded", torch.bmm: both are cuBLAS's.

    Raises:
        AssertionError: a way computes something else.
    """
    lefts, rights = sizes.operands(seed)
    triples = [(torch.from_numpy(left).to(device), torch.from_numpy(right).to(device),
                torch.empty(len(left), right.shape[1], device=device))
               for left, right in zip(lefts, rights, strict=True)]

    def loop() -> None:
        for left, right, result in triples:
            torch.mm(left, right, out=result)

    wide_left, wide_right = (stacked(each).to(device) for each in (lefts, rights))
    wide = torch.empty(len(lefts), wide_left.shape[1], wide_right.shape[2], device=device)
    structure = vgemm_structure(sizes.rows, sizes.cols, sizes.inners)
    own, there = RaggedOnDevice(gpu, device_vgemm()).bind(
        structure, **{name: np.concatenate([each.ravel() for each in arrays])
                      for name, arrays in (("a", lefts), ("b", rights))})
    methods: dict[str, Call] = {
        "sparloom": own, "loop": loop, "padded": lambda: torch.bmm(wide_left, wide_right, out=wide)}
    for call in methods.values():
        call()
    expected = np.concatenate([result.cpu().numpy().ravel() for _, _, result in triples])
    cut = [wide[place, : result.shape[0], : result.shape[1]] for place, (_, _, result) in enumerate(triples)]
    check_product("sparloom", gpu.download(there["c"]), expected)
    check_product("padded", np.concatenate([each.cpu().numpy().ravel() for each in cut]), expected)
    return methods


def triangular_on_device(size: int, gpu: Gpu, device: torch.device, *, seed: int) -> dict[str, Call]:
    """Bind all ways to multiply a lower triangular matrix by a square one, each checked.

    Returns:
        "sparloom", "dense", torch.mm with zeros above the diagonal, and "blas", cuBLAS's STRMM, unless it is not there.

    Raises:
        AssertionError: a way computes something else.
    """
    rng = np.random.default_rng(seed)
    lower = np.tril(rng.standard_normal((size, size), dtype=np.float32))
    dense = rng.standard_normal((size, size), dtype=np.float32)
    left, right = (torch.from_numpy(each).to(device) for each in (lower, dense))
    result, other = (torch.empty(size, size, device=device) for _ in range(2))
    program, structure = device_trmm(), trmm_structure(size)
    tensors = program.tensors()
    own, there = RaggedOnDevice(gpu, program).bind(structure, **{
        name: RaggedTensor.from_packed(tensors[name], structure, values).data
        for name, values in (("lower", lower[np.tril_indices(size)]), ("b", dense))})
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
    found = RaggedTensor(tensors["out"], structure, gpu.download(there["out"])).to_packed()[0]
    check_product("sparloom", found, expected)
    for name, each in results.items():
        check_product(name, each.cpu().numpy(), expected)
    return methods
