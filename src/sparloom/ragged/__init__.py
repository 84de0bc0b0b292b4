"""Ragged programs: named dimensions and length functions, schedules, and kernels with minimal padding.

A program passes through these files:

    dimensions     named dimensions, and arithmetic on integer expressions over them
    tensor         length functions, tables derived from them, tensors and how they are stored
    layout         offsets of elements in ragged storage
    program        operations and programs: scheduled loop nests
    definition     programs from operations; every access is checked to be in bounds
    schedule/      primitives that change a program: loops, compute, operations, storage
    table_code     code that reads tables in kernels, and the prelude that builds them
    lowering       from programs to kernels of the loop IR
    structure      batches: lengths with their tables, and values of ragged tensors
    runtime        compiled, interpreted and device programs
    layers/        attention, the encoder layer, matrix products, and layers for arrays
    workloads      data sets of lengths, and costs of an encoder layer on them

`sparloom.ragged.program` is the function that makes a program, not the file.
"""

from typing import Any

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
    compiled_attention,
    compiled_encoder_layer,
    compiled_layer_norm,
    compiled_softmax,
    pack_values,
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
    TOKENS,
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
from sparloom.ragged.layout import Access, evaluate, offset_steps, pointer_steps, stored_dims
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
    printable,
    real,
    sqrt,
    sum_over,
    where,
)
from sparloom.ragged.runtime import (
    DeviceProgram,
    Executable,
    Runner,
    bind_arrays,
    interpreted,
    kernel_arguments,
    kernel_preludes,
)
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
from sparloom.ragged.structure import Prelude, RaggedTensor, Structure, element_offsets, iterations, jagged_length
from sparloom.ragged.table_code import prelude_kernels
from sparloom.ragged.tensor import At, FusedInner, FusedOuter, Largest, Length, Offsets, Order, Pointers, Tensor
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
from sparloom.renamed import resolve

__all__ = [
    "ATTENTION_LOOPS", "ATTENTION_OPERATORS", "DATASETS", "KEPT", "LENGTHS", "PADDED_ATTENTION", "PADDING_CHANGES",
    "PANEL", "PRELUDES", "SPLIT_ARMS", "SPLIT_OPERATORS", "TOKENS", "Access", "At", "AuxiliaryTables", "Dataset",
    "DeviceProgram", "Dim", "EncoderSchedule", "EncoderShape", "EncoderSizes", "Executable", "FusedInner", "FusedOuter",
    "Largest", "Layer", "Length", "LengthCorpus", "LengthStatistics", "LoopPadding", "Lowered", "NormSchedule",
    "Offsets", "Operation", "Order", "Part", "Pointers", "Prelude", "Program", "RaggedTensor", "Runner",
    "SequenceLengths", "SoftmaxSchedule", "StoragePadding", "Structure", "Tensor", "TileSizes", "TokenExtents",
    "Weight", "attention", "attention_backward", "auxiliary_bytes", "balanced_trmm", "bind_arrays", "bind_threads",
    "compiled_attention", "compiled_encoder_layer", "compiled_layer_norm", "compiled_softmax", "compute", "compute_at",
    "compute_with", "decompose_reduction", "dense_activations", "dense_flops", "device_attention",
    "device_encoder_layer", "device_mixing", "device_trmm", "device_vgemm", "dims", "element_offsets",
    "encoder_backward", "encoder_layer", "equal_tokens", "evaluate", "exp", "fuse", "fuse_dimensions",
    "generated_lengths", "hfuse", "inline", "interpreted", "iterations", "jagged_length", "kernel_arguments",
    "kernel_preludes", "layer_norm", "layer_norm_backward", "less", "lower", "max_over", "maximum", "min_over",
    "minimum", "mixing", "narrow", "offload", "offset_steps", "pack_values", "pad_loop", "pad_storage", "parallel",
    "part", "partial_flops", "pointer_steps", "prelude_kernels", "printable", "program", "ragged_activations",
    "ragged_flops", "ragged_tokens", "read_lengths", "real", "remap", "reorder", "reorder_dimensions",
    "scheduled_attention", "scheduled_attention_backward", "scheduled_encoder_backward", "scheduled_encoder_layer",
    "scheduled_layer_norm", "scheduled_layer_norm_backward", "scheduled_mixing", "scheduled_softmax",
    "scheduled_softmax_backward", "scheduled_vgemm", "softmax", "softmax_backward", "split", "split_dimension",
    "split_operation", "split_trmm", "sqrt", "stored_densely", "stored_dims", "structure_of", "sum_over", "tiled_trmm",
    "tiled_vgemm", "tokens_of", "trmm", "trmm_structure", "unroll", "unsplit_trmm", "vectorise", "vgemm",
    "vgemm_structure", "where", "with_bulk_sequence",
]


def __getattr__(name: str) -> Any:
    return resolve(__name__, name)
