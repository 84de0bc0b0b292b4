"""Ragged programs: named dimensions and length functions, schedules, and kernels with minimal padding.

A program passes through these files:

    dimensions     named dimensions, and arithmetic on integer expressions over them
    tensor         length functions, tables derived from them, tensors and how they are stored
    layout         offsets of elements in ragged storage
    nests          operations and programs: scheduled loop nests
    definition     programs from operations; every access is checked to be in bounds
    schedule/      primitives that change a program: loops, compute, operations
    table_code     code that reads tables in kernels, and the prelude that builds them
    lowering       from programs to kernels of the loop IR
    structure      batches: lengths with their tables, and values of ragged tensors
    runtime        compiled, interpreted and device programs
    layers/        attention, the encoder layer, matrix products, and layers for arrays
    workloads      data sets of lengths, and costs of an encoder layer on them
"""

from inspect import isfunction
from typing import Any

from sparloom.errors import explain_type_errors
from sparloom.lazy import attach

_CHECKED = ("structure_of", "tokens_of")  # these check their arguments themselves
__all__, _find, __dir__ = attach(__name__, {
    "dimensions": ("Dim", "Polynomial", "dims", "min_of_sums", "round_up", "substitute", "without_inner"),
    "tensor": ("At", "FusedInner", "FusedOuter", "Largest", "Length", "Offsets", "Order", "Pointers", "Tensor"),
    "layout": ("Access", "evaluate", "offset_steps", "pointer_steps", "stored_dims"),
    "nests": (
        "Operation", "Program", "compute", "erf", "exp", "exp2", "less", "max_over", "maximum", "min_over", "minimum",
        "printable", "real", "sqrt", "sum_over", "tanh", "where"),
    "definition": ("part", "program"),
    "schedule.loops": ("bind_threads", "fuse", "parallel", "remap", "reorder", "split", "unroll", "vectorise"),
    "schedule.compute": ("compute_at", "compute_with", "index_range"),
    "schedule.operations": (
        "PANEL", "decompose_reduction", "hfuse", "inline", "narrow", "offload", "pad_loop", "pad_storage",
        "reorder_dimensions", "split_dimension", "split_operation"),
    "table_code": ("hoist", "prelude_kernels", "simplify_map"),
    "lowering": ("Lowered", "lower"),
    "structure": ("Prelude", "RaggedTensor", "Structure", "element_offsets", "iterations"),
    "runtime": (
        "BoundRun", "DeviceProgram", "Executable", "bind_arrays", "interpreted", "kernel_arguments", "kernel_preludes",
        "run_bound"),
    "layers.tokens": (
        "LENGTHS", "MEMORY_LENGTHS", "TOKENS", "EncoderSchedule", "EncoderShape", "schedule_token_sum",
        "schedule_weight_gradient", "structure_of", "sum_over_tokens", "tokens_of"),
    "layers.norms": (
        "NormSchedule", "SoftmaxSchedule", "layer_norm", "layer_norm_backward", "scheduled_layer_norm",
        "scheduled_layer_norm_backward", "scheduled_softmax", "scheduled_softmax_backward", "softmax",
        "softmax_backward"),
    "layers.attention": (
        "attention", "device_attention", "mixing", "scheduled_attention", "scheduled_mixing"),
    "layers.attention_gradients": ("attention_backward", "scheduled_attention_backward"),
    "layers.cross_attention": (
        "cross_attention", "cross_attention_backward", "scheduled_cross_attention",
        "scheduled_cross_attention_backward"),
    "layers.precision": ("PRECISIONS", "check_precision"),
    "layers.encoder": (
        "ACTIVATIONS", "KEPT", "Activation", "device_encoder_layer", "encoder_backward", "encoder_layer",
        "scheduled_encoder_backward", "scheduled_encoder_layer"),
    "layers.operators": (
        "ATTENTION_LOOPS", "ATTENTION_OPERATORS", "PADDED_ATTENTION", "PADDING_CHANGES", "SPLIT_ARMS",
        "SPLIT_OPERATORS", "TokenExtents", "equal_tokens", "ragged_tokens", "stored_densely"),
    "layers.products": (
        "balanced_trmm", "device_trmm", "device_vgemm", "split_trmm", "tiled_trmm", "tiled_vgemm",
        "trmm", "trmm_structure", "unsplit_trmm", "vgemm", "vgemm_structure"),
    "layers.layer": (
        "Layer", "Weight", "compiled_attention", "compiled_cross_attention", "compiled_encoder_layer",
        "compiled_layer_norm", "compiled_softmax", "pack_values"),
    "workloads": (
        "DATASETS", "PRELUDES", "AuxiliaryTables", "Dataset", "EncoderSizes", "LengthCorpus", "LengthStatistics",
        "LoopPadding", "SequenceLengths", "StoragePadding", "TileSizes", "auxiliary_bytes", "dense_activations",
        "dense_flops", "generated_lengths", "partial_flops", "ragged_activations", "ragged_flops", "read_lengths",
        "with_bulk_sequence"),
})


def __getattr__(name: str) -> Any:
    found = _find(name)
    if name not in _CHECKED and isfunction(found):
        found = explain_type_errors(found)
    globals()[name] = found
    return found
