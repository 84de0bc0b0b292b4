"""Layers compiled for arrays: programs of one shape, forward and backward, with packed weights."""

from __future__ import annotations

import ctypes
import itertools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np

from sparloom.errors import Unsupported
from sparloom.ir import BF16, DTYPES, Const, rounded
from sparloom.jit import address_of, compile_cpp
from sparloom.ragged.dimensions import Dim
from sparloom.ragged.layers import attention, attention_gradients, cross_attention, encoder, norms, tokens
from sparloom.ragged.layers.norms import NORMS, NormSchedule, SoftmaxSchedule
from sparloom.ragged.layers.precision import check_precision, quantised
from sparloom.ragged.layers.tokens import EncoderSchedule, EncoderShape
from sparloom.ragged.layout import evaluate, storage_size, stored_dims
from sparloom.ragged.nests import Program
from sparloom.ragged.runtime import BoundRun, Executable
from sparloom.ragged.structure import Structure
from sparloom.ragged.tensor import Change, SplitDim, StoredDims, Table, Tensor

Arrays = Mapping[str, np.ndarray]

COPIED_BY_NUMPY = 1 << 16  # bytes, below which starting a copy of our own takes longer
MOST_BYTES, MOST_DIMS = 4, 16  # of an element and of an array that it copies

_WEIGHTS: dict[tuple[tuple[str, Weight], ...], Mapping[str, Weight]] = {}


def pack_values(tensor: Tensor, values: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Copy values to the storage of a tensor of constant extents, such as panels of weights.

    Does the same as `RaggedTensor.from_padded`, with views instead of lists of coordinates: milliseconds instead of
    seconds.

    Args:
        values: array of the tensor's shape, with any strides.
        out: array to write instead of a new one.

    Returns:
        Flat array of the tensor's type; padding is 0.
    """
    stored = stored_dims(tensor)
    if not all(isinstance(extent, Const) for _, extent in (*tensor.axes, *stored.axes)):
        raise ValueError(f"tensor {tensor.name} has extents that vary: use RaggedTensor.from_padded")
    shape = tuple(int(extent.value) for _, extent in tensor.axes)
    if values.shape != shape:
        raise ValueError(f"tensor {tensor.name} from values of shape {values.shape}: it has {shape}")
    multiples = dict(tensor.padding)
    for axis, (dim, _) in enumerate(tensor.axes):
        values = _padded(values, axis, multiples.get(dim, 1))
    names = stored_dims(replace(tensor, changes=()))
    for change in tensor.changes:
        values = _changed(values, names, change, tensor.name)
        names = change.applied(tensor.name, names)
    if out is None:
        out = np.empty(values.size, DTYPES[tensor.type.scalar])
    _copy(values, out.reshape(values.shape))
    return out


def _copy(values: np.ndarray, out: np.ndarray) -> None:
    """Copy values to a contiguous array, faster than NumPy where a dimension that is contiguous becomes another one."""
    along = next((dim for dim, step in enumerate(values.strides) if step == values.itemsize), values.ndim)
    if (values.dtype != out.dtype or values.itemsize > MOST_BYTES or values.nbytes < COPIED_BY_NUMPY
            or values.ndim > MOST_DIMS or along >= values.ndim - 1
            or any(step % values.itemsize for step in values.strides)):
        np.copyto(out, values, casting="same_kind")
        return
    numbers = [np.array(vector, np.int64) // size for vector, size in (
        (values.shape, 1), (values.strides, values.itemsize), (out.strides, out.itemsize))]
    _strided_copy()(
        *[ctypes.c_void_p(address_of(each)) for each in (values, out)], ctypes.c_int64(values.itemsize),
        *[ctypes.c_void_p(address_of(each)) for each in numbers], ctypes.c_int64(values.ndim), ctypes.c_int64(along))


@cache
def _strided_copy() -> Any:
    function = compile_cpp(["cpu/strided_copy.cpp"]).sparloom_strided_copy
    function.restype = None
    return function


def _changed(values: np.ndarray, names: StoredDims, change: Change, owner: str) -> np.ndarray:
    """View an array in the dimensions after a change; `names` are those before."""
    match change:
        case SplitDim(name, factor):
            at = names.index(owner, name)
            values = _padded(values, at, factor)
            return values.reshape((*values.shape[:at], values.shape[at] // factor, factor, *values.shape[at + 1:]))
    here = [names.index(owner, name) for name in change.names]
    order = list(range(values.ndim))
    for to, at in zip(sorted(here), here, strict=True):
        order[to] = at
    return values.transpose(order)


def _padded(values: np.ndarray, axis: int, multiple: int) -> np.ndarray:
    """Round up an extent by appending zeros."""
    missing = -values.shape[axis] % multiple
    if not missing:
        return values
    return np.pad(values, [(0, missing if each == axis else 0) for each in range(values.ndim)])


@dataclass(frozen=True)
class Weight:
    """Storage of a parameter in a program.

    Args:
        shape: shape of the parameter, in dimensions of the tensor.
        order: dimensions of the parameter in the order of the tensor's.
    """

    tensor: Tensor
    shape: tuple[int, ...]
    order: tuple[int, ...]

    @cached_property
    def elements(self) -> int:
        """Number of elements of the storage, including padding."""
        return int(evaluate(storage_size(self.tensor), {}, _no_table))

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy type of the storage."""
        return np.dtype(DTYPES[self.tensor.type.scalar])

    def packed(self, values: np.ndarray | None, out: np.ndarray | None = None) -> np.ndarray:
        """Pack a parameter of any shape with the right number of elements, see `pack_values`; None stands for zeros."""
        values = np.zeros(self.shape, self.dtype) if values is None else values
        values = rounded(values) if self.tensor.type == BF16 and values.dtype == np.float32 else values
        return pack_values(self.tensor, values.reshape(self.shape).transpose(self.order), out)

    @staticmethod
    def pack_all(weights: Mapping[str, Weight], parameters: Mapping[str, np.ndarray | None],
                 out: Arrays = MappingProxyType({})) -> dict[str, np.ndarray]:
        """Pack parameters by name in the precision of a program.

        Args:
            parameters: None stands for zeros.
            out: arrays to write instead of new ones.

        Raises:
            ValueError: a matrix has another number of elements, or other rows.
        """
        for name in weights.keys() & parameters.keys():
            array, shape = parameters[name], weights[name].shape
            if array is not None and (array.size != math.prod(shape)
                                      or array.shape[0] not in itertools.accumulate(shape, operator.mul)):
                raise ValueError(f"parameter {name} has shape {array.shape}: expected the {math.prod(shape)} elements "
                                 f"of {shape}, with leading dimensions flattened or not")
        arrays = quantised(parameters, {name: weight.tensor for name, weight in weights.items()})
        return {name: weight.packed(arrays[name], out.get(name)) for name, weight in weights.items()}


class Layer:
    """Function of tokens and weights, with its gradients; programs are compiled at first use.

    Weights are named as in `encoder_layer`. PyTorch stores them in another order, (out, in), and both programs in
    their own panels: `forward_weights` and `backward_weights` pack them.

    Args:
        forward: makes the program; its argument `kept` names the results to store for the gradients.
        backward: makes the program of the gradients.
        threads: threads of parallel loops, by default OpenMP's.
    """

    def __init__(self, forward: Callable[..., Program], backward: Callable[[], Program], *,
                 threads: int | None = None) -> None:
        self._forward, self._backward, self._threads = forward, backward, threads

    @cached_property
    def inference(self) -> Executable:
        """Program that computes the result alone."""
        return Executable(self._forward(), threads=self._threads)

    @cached_property
    def training(self) -> Executable:
        """Program that computes the result and stores what the gradients need."""
        return Executable(self._forward(kept=encoder.KEPT), threads=self._threads)

    @cached_property
    def gradients(self) -> Executable:
        """Program that computes the gradients."""
        return Executable(self._backward(), threads=self._threads)

    @cached_property
    def forward_weights(self) -> Mapping[str, Weight]:
        """Weights of `inference` and `training` by name; the same object for layers with equal ones."""
        program = self.inference.program
        found: dict[str, Weight] = {}
        for operation in (nest.operation for nest in program.nests()):
            for tensor in (read.tensor for read in operation.reads):
                if tensor.name in program.inputs() and not _is_by_token(tensor):
                    found[tensor.name] = _weight(tensor, [dim for dim, _ in operation.reduced])
        return _shared(found)

    @cached_property
    def by_token(self) -> frozenset[str]:
        """Names of the inputs of `inference` that have a row for each token."""
        program = self.inference.program
        return frozenset(name for name in program.inputs() if _is_by_token(program.tensors()[name]))

    @cached_property
    def backward_weights(self) -> Mapping[str, Weight]:
        """Weights of `gradients` by name; the same object for layers with equal ones."""
        program = self.gradients.program
        tensors = program.tensors()
        return _shared({name: _weight(tensors[name], []) for name in program.inputs() if name in self.forward_weights})

    @cached_property
    def learned(self) -> frozenset[str]:
        """Names of what has gradients besides the tokens: weights, and the memory of cross attention."""
        return frozenset(name.removeprefix("d_") for name in self.gradients.program.outputs) - {"x"}

    @cached_property
    def result(self) -> str:
        """Name of the result."""
        return self.inference.program.outputs[0]

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """Names of the tensors that training stores for the gradients, besides tokens and weights."""
        made = set(self.training.program.tensors()) - set(self.training.program.inputs())
        return tuple(name for name in self.gradients.program.inputs() if name in made)

    def bind(self, structure: Structure, inputs: Arrays, weights: Mapping[str, int], out: np.ndarray) -> BoundRun:
        """Check the arguments of a run that computes the result.

        Args:
            structure: structure with LENGTHS.
            inputs: by name, x of (tokens, width) and whatever else the program reads of tokens.
            weights: addresses of the weights packed for the forward pass, by name.
            out: (tokens, width).
        """
        return self.inference.prepare(structure, {**inputs, self.result: out}, fixed=weights)

    def train(self, structure: Structure, inputs: Arrays, weights: Arrays, out: np.ndarray, *, kept: Arrays) -> None:
        """Compute the result and what the gradients need.

        Args:
            kept: arrays to write, by the names in `kept`, with the sizes of `sizes`.
        """
        self.training.run(structure, {**inputs, **weights, self.result: out, **kept}, (self.result, *kept))

    def sizes(self, structure: Structure) -> dict[str, int]:
        """Count the elements of the kept tensors."""
        elements = self.gradients.elements(structure)
        return {name: elements[name] for name in self.kept}

    def differentiate(self, structure: Structure, inputs: Arrays, weights: Arrays, upstream: np.ndarray, *,
                      kept: Arrays, wanted: Arrays) -> None:
        """Compute the wanted gradients, without launches that they do not need.

        Args:
            weights: packed for the backward pass.
            upstream: gradient of the result, (tokens, width).
            wanted: arrays to write: gradients by the name of x or a weight.
        """
        names = {f"d_{name}": array for name, array in wanted.items()}
        given = {name: array for name, array in inputs.items() if name in self.gradients.program.inputs()}
        self.gradients.run(structure, {**given, **weights, **kept, f"d_{self.result}": upstream, **names}, tuple(names))


@cache
def compiled_encoder_layer(shape: EncoderShape, schedule: EncoderSchedule, threads: int | None = None) -> Layer:
    """Return the encoder layer of a shape, one object per process, compiled when it first runs."""
    _check(shape)
    return Layer(partial(encoder.scheduled_encoder_layer, shape, schedule),
                 partial(encoder.scheduled_encoder_backward, shape, schedule), threads=threads)


@cache
def compiled_attention(shape: EncoderShape, schedule: EncoderSchedule, threads: int | None = None) -> Layer:
    """Return multi-head attention of a shape, like `compiled_encoder_layer`; `hidden` and `epsilon` are ignored."""
    _check(shape)
    return Layer(partial(attention.scheduled_attention, shape, schedule),
                 partial(attention_gradients.scheduled_attention_backward, shape, schedule), threads=threads)


@cache
def compiled_cross_attention(shape: EncoderShape, schedule: EncoderSchedule, threads: int | None = None) -> Layer:
    """Return attention to the tokens of another batch, like `compiled_attention`.

    It also reads `memory`, (tokens, width), and its structures have MEMORY_LENGTHS.

    Raises:
        Unsupported: scores of the shape depend on distances.
    """
    _check(shape)
    cross_attention.check_cross(shape)
    shape = replace(shape, cross=True)
    return Layer(partial(cross_attention.scheduled_cross_attention, shape, schedule),
                 partial(cross_attention.scheduled_cross_attention_backward, shape, schedule), threads=threads)


@cache
def compiled_softmax(width: int, schedule: SoftmaxSchedule, threads: int | None = None) -> Layer:
    """Return the softmax of a number of columns, at least 1, like `compiled_encoder_layer`; it has no weights."""
    return Layer(partial(norms.scheduled_softmax, width, schedule),
                 partial(norms.scheduled_softmax_backward, width, schedule), threads=threads)


@cache
def compiled_layer_norm(width: int, epsilon: float, schedule: NormSchedule, threads: int | None = None) -> Layer:
    """Return the layer norm of a width, at least 1, like `compiled_encoder_layer`; it has weights gain_1, shift_1."""
    return Layer(partial(norms.scheduled_layer_norm, width, schedule, epsilon=epsilon),
                 partial(norms.scheduled_layer_norm_backward, width, schedule), threads=threads)


def _check(shape: EncoderShape) -> None:
    numbers = [shape.width, shape.heads, shape.hidden, shape.head or 1]
    if min(numbers) < 1 or (shape.head is None and shape.width % shape.heads):
        raise ValueError(f"a layer of width {shape.width} with {shape.heads} heads and {shape.hidden} hidden columns: "
                         f"all are at least 1, and heads divide the width unless their columns are given")
    if shape.key_heads is not None and (shape.key_heads < 1 or shape.heads % shape.key_heads):
        raise ValueError(f"{shape.heads} heads of queries and {shape.key_heads} of keys: these divide those")
    if (shape.key_heads and not shape.rotary) or (shape.head_norms and not shape.key_heads) or (
            shape.sum_norms and not (shape.norm_first and shape.first_norm)):
        raise Unsupported("heads of keys need a rotation, norms of heads need heads of keys, and norms of sums need "
                          "norms that come first")
    for name, kinds in (("activation", encoder.ACTIVATIONS), ("norm", NORMS)):
        if getattr(shape, name) not in kinds:
            raise ValueError(f"{name}={getattr(shape, name)!r}: there are {', '.join(kinds)}")
    check_precision(shape)


def _shared(weights: Mapping[str, Weight]) -> Mapping[str, Weight]:
    return _WEIGHTS.setdefault(tuple(weights.items()), weights)


def _is_by_token(tensor: Tensor) -> bool:
    return tensor.axes[0][0] == tokens.batch


def _no_table(table: Table) -> int:
    raise ValueError(f"weights have constant extents, none of table {table}")


def _weight(tensor: Tensor, last: list[Dim]) -> Weight:
    """Describe a parameter whose dimensions `last` come last, wherever the tensor has them."""
    dims = [dim for dim, _ in tensor.axes]
    parameter = [dim for dim in dims if dim not in last] + [dim for dim in dims if dim in last]
    extents = {dim: int(extent.value) for dim, extent in tensor.axes}
    return Weight(tensor, tuple(extents[dim] for dim in parameter), tuple(parameter.index(dim) for dim in dims))
