"""Ragged tensors: a language of named dimensions and length functions, schedules, and kernels with minimal padding."""

from inspect import isfunction

from sparloom.ragged.definition import Part, part, program
from sparloom.ragged.dimensions import Dim, dims
from sparloom.ragged.layers.encoder import (
    KEPT,
    attention,
    attention_backward,
    device_attention,
    device_encoder_layer,
    device_mixing,
    encoder_backward,
    encoder_layer,
    mixing,
    scheduled_attention,
    scheduled_attention_backward,
    scheduled_encoder_backward,
    scheduled_encoder_layer,
    scheduled_mixing,
)
from sparloom.ragged.layers.layer import (
    Layer,
    Weight,
    arranged,
    compiled_attention,
    compiled_encoder_layer,
    compiled_layer_norm,
    compiled_softmax,
)
from sparloom.ragged.layers.operators import (
    ATTENTION_LOOPS,
    ATTENTION_OPERATORS,
    PADDED_ATTENTION,
    PADDING_CHANGES,
    SPLIT_ARMS,
    SPLIT_OPERATORS,
    TokenExtents,
    equal_tokens,
    ragged_tokens,
    stored_densely,
)
from sparloom.ragged.layers.products import (
    balanced_trmm,
    device_trmm,
    device_vgemm,
    scheduled_vgemm,
    split_trmm,
    tiled_trmm,
    tiled_vgemm,
    trmm,
    trmm_structure,
    unsplit_trmm,
    vgemm,
    vgemm_structure,
)
from sparloom.ragged.layers.tokens import (
    LENGTHS,
    EncoderSchedule,
    EncoderShape,
    NormSchedule,
    SoftmaxSchedule,
    layer_norm,
    layer_norm_backward,
    scheduled_layer_norm,
    scheduled_layer_norm_backward,
    scheduled_softmax,
    scheduled_softmax_backward,
    softmax,
    softmax_backward,
    structure_of,
    tokens_of,
)
from sparloom.ragged.layout import Access, offset_steps, pointer_steps
from sparloom.ragged.lowering import Lowered, lower
from sparloom.ragged.program import (
    Operation,
    Program,
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
from sparloom.ragged.runtime import DeviceProgram, Executable, Runner, interpreted, kernel_preludes
from sparloom.ragged.schedule.compute import compute_at, compute_with
from sparloom.ragged.schedule.loops import bind_threads, fuse, parallel, remap, reorder, split, unroll, vectorise
from sparloom.ragged.schedule.operations import decompose_reduction, hfuse, inline, narrow, offload, split_operation
from sparloom.ragged.schedule.storage import (
    PANEL,
    fuse_dimensions,
    pad_loop,
    pad_storage,
    reorder_dimensions,
    split_dimension,
)
from sparloom.ragged.structure import Prelude, RaggedTensor, Structure, iterations, jagged_length
from sparloom.ragged.tensor import At, Length, Tensor
from sparloom.ragged.type_errors import explain_type_errors
from sparloom.ragged.workloads import (
    DATASETS,
    PRELUDES,
    AuxiliaryTables,
    Dataset,
    EncoderSizes,
    LengthCorpus,
    LengthStatistics,
    LoopPadding,
    SequenceLengths,
    StoragePadding,
    TileSizes,
    auxiliary_bytes,
    dense_activations,
    dense_flops,
    generated_lengths,
    partial_flops,
    ragged_activations,
    ragged_flops,
    read_lengths,
    with_bulk_sequence,
)

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
globals().update({_name: explain_type_errors(_made) for _name in __all__
                  if _name not in _CHECKED and isfunction(_made := globals()[_name])})
