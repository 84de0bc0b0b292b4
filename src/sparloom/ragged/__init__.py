"""Ragged tensors: a language of named dimensions and length functions, schedules, and kernels with minimal padding."""

from inspect import isfunction

from sparloom.ragged.activations import StoragePadding, dense_activations, ragged_activations
from sparloom.ragged.arrange import arranged
from sparloom.ragged.attention_loops import ATTENTION_LOOPS
from sparloom.ragged.attention_operators import (
    ATTENTION_OPERATORS,
    TokenExtents,
    equal_tokens,
    ragged_tokens,
    stored_densely,
)
from sparloom.ragged.attention_padding import PADDED_ATTENTION, PADDING_CHANGES
from sparloom.ragged.attention_splits import SPLIT_ARMS, SPLIT_OPERATORS
from sparloom.ragged.auxiliary import PRELUDES, AuxiliaryTables, TileSizes, auxiliary_bytes
from sparloom.ragged.batch import structure_of, tokens_of
from sparloom.ragged.compute_at import compute_at
from sparloom.ragged.compute_with import compute_with
from sparloom.ragged.decompose import decompose_reduction
from sparloom.ragged.define import program
from sparloom.ragged.device_program import DeviceProgram
from sparloom.ragged.device_schedules import (
    device_attention,
    device_encoder_layer,
    device_mixing,
    device_trmm,
    device_vgemm,
)
from sparloom.ragged.dimensions import Dim, dims
from sparloom.ragged.divide import split_operation
from sparloom.ragged.encoder import (
    LENGTHS,
    EncoderSchedule,
    EncoderShape,
    attention,
    encoder_layer,
    mixing,
    scheduled_attention,
    scheduled_encoder_layer,
    scheduled_mixing,
)
from sparloom.ragged.encoder_backward import (
    KEPT,
    attention_backward,
    encoder_backward,
    scheduled_attention_backward,
    scheduled_encoder_backward,
)
from sparloom.ragged.encoder_flops import (
    EncoderSizes,
    LoopPadding,
    dense_flops,
    partial_flops,
    ragged_flops,
    with_bulk_sequence,
)
from sparloom.ragged.executable import Executable, interpreted
from sparloom.ragged.fuse import fuse
from sparloom.ragged.hfuse import hfuse
from sparloom.ragged.inline import inline
from sparloom.ragged.iterations import iterations
from sparloom.ragged.kernel_preludes import kernel_preludes
from sparloom.ragged.kinds import bind_threads, parallel, unroll, vectorise
from sparloom.ragged.layer import (
    Layer,
    Weight,
    compiled_attention,
    compiled_encoder_layer,
    compiled_layer_norm,
    compiled_softmax,
)
from sparloom.ragged.layer_norm import (
    NormSchedule,
    layer_norm,
    layer_norm_backward,
    scheduled_layer_norm,
    scheduled_layer_norm_backward,
)
from sparloom.ragged.layout import Access, offset_steps
from sparloom.ragged.lengths import (
    DATASETS,
    Dataset,
    LengthCorpus,
    LengthStatistics,
    SequenceLengths,
    generated_lengths,
    read_lengths,
)
from sparloom.ragged.lower import Lowered, lower
from sparloom.ragged.narrow import narrow
from sparloom.ragged.offload import offload
from sparloom.ragged.operation import (
    Operation,
    compute,
    exp,
    less,
    max_over,
    maximum,
    min_over,
    minimum,
    real,
    sqrt,
    sum_over,
    where,
)
from sparloom.ragged.pad import pad_loop, pad_storage
from sparloom.ragged.panels import PANEL
from sparloom.ragged.parts import Part, part
from sparloom.ragged.pointers import pointer_steps
from sparloom.ragged.program import Program
from sparloom.ragged.ragged_tensor import RaggedTensor
from sparloom.ragged.remap import remap
from sparloom.ragged.reorder import reorder
from sparloom.ragged.runner import Runner
from sparloom.ragged.softmax import (
    SoftmaxSchedule,
    scheduled_softmax,
    scheduled_softmax_backward,
    softmax,
    softmax_backward,
)
from sparloom.ragged.split import split
from sparloom.ragged.structure import Prelude, Structure
from sparloom.ragged.tables import At, Length
from sparloom.ragged.tensor import Tensor
from sparloom.ragged.tensor_dimensions import fuse_dimensions, reorder_dimensions, split_dimension
from sparloom.ragged.told_lengths import jagged_length
from sparloom.ragged.told_types import tell_types
from sparloom.ragged.triangular import balanced_trmm, split_trmm, tiled_trmm, trmm, trmm_structure, unsplit_trmm
from sparloom.ragged.variable_gemm import scheduled_vgemm, tiled_vgemm, vgemm, vgemm_structure

__all__ = [
    "ATTENTION_LOOPS", "ATTENTION_OPERATORS", "DATASETS", "KEPT", "LENGTHS", "PADDED_ATTENTION", "PADDING_CHANGES",
    "PANEL", "PRELUDES", "SPLIT_ARMS", "SPLIT_OPERATORS", "Access", "At", "AuxiliaryTables", "Dataset", "DeviceProgram",
    "Dim", "EncoderSchedule", "EncoderShape", "EncoderSizes", "Executable", "Layer", "Length", "LengthCorpus",
    "LengthStatistics", "LoopPadding", "Lowered", "NormSchedule", "Operation", "Part", "Prelude", "Program",
    "RaggedTensor", "Runner", "SequenceLengths", "SoftmaxSchedule", "StoragePadding", "Structure", "Tensor",
    "TileSizes", "TokenExtents", "Weight", "arranged", "attention", "attention_backward", "auxiliary_bytes",
    "balanced_trmm", "bind_threads", "compiled_attention", "compiled_encoder_layer", "compiled_layer_norm",
    "compiled_softmax", "compute", "compute_at", "compute_with", "decompose_reduction", "dense_activations",
    "dense_flops", "device_attention", "device_encoder_layer", "device_mixing", "device_trmm", "device_vgemm", "dims",
    "encoder_backward", "encoder_layer", "equal_tokens", "exp", "fuse", "fuse_dimensions", "generated_lengths", "hfuse",
    "inline", "interpreted", "iterations", "jagged_length", "kernel_preludes", "layer_norm", "layer_norm_backward",
    "less", "lower", "max_over", "maximum", "min_over", "minimum", "mixing", "narrow", "offload", "offset_steps",
    "pad_loop", "pad_storage", "parallel", "part", "partial_flops", "pointer_steps", "program", "ragged_activations",
    "ragged_flops", "ragged_tokens", "read_lengths", "real", "remap", "reorder", "reorder_dimensions",
    "scheduled_attention", "scheduled_attention_backward", "scheduled_encoder_backward", "scheduled_encoder_layer",
    "scheduled_layer_norm", "scheduled_layer_norm_backward", "scheduled_mixing", "scheduled_softmax",
    "scheduled_softmax_backward", "scheduled_vgemm", "softmax", "softmax_backward", "split", "split_dimension",
    "split_operation", "split_trmm", "sqrt", "stored_densely", "structure_of", "sum_over", "tiled_trmm", "tiled_vgemm",
    "tokens_of", "trmm", "trmm_structure", "unroll", "unsplit_trmm", "vectorise", "vgemm", "vgemm_structure", "where",
    "with_bulk_sequence",
]

_CHECKED = ("structure_of", "tokens_of")  # they look at their arguments themselves
globals().update({_name: tell_types(_made) for _name in __all__
                  if _name not in _CHECKED and isfunction(_made := globals()[_name])})
