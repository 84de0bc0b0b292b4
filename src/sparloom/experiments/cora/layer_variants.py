"""Time variants of an encoder layer: preludes, padding changes fused or separate, and every kernel by itself."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
import torch
from torch.nn.functional import layer_norm, linear, scaled_dot_product_attention

from sparloom import ragged
from sparloom.baselines import BoundModule, PackedInputs, attention_module, encoder_layer
from sparloom.baselines import reference as computed_by_torch
from sparloom.experiments.cora.modules import CandidateModules, stored_tensors

Call = Callable[[], object]

BULK = 64  # tokens of the paper's padding sequence
FUSION = ("fused_outer", "fused_inner")
FORMULAS: Mapping[str, str] = MappingProxyType({  # variant with the paper's tables -> key of PRELUDES
    "redundant": "redundant", "by_tensor": "by_tensor", "by_layout": "shared", "sparse_redundant": "sparse_redundant",
    "sparse_by_tensor": "sparse_by_tensor"})
TOLERANCE = 1e-4  # absolute, of values around 1; orders of addition differ
KERNELS: Mapping[str, str] = MappingProxyType({  # operator -> kernel
    "qkv": "qkv", "attention": "mixed", "projection": "attended", "norm1": "norm_1", "ff1": "active", "ff2": "fed",
    "norm2": "norm_2"})


def prelude_arms(lengths: np.ndarray) -> dict[str, Call]:
    """Bind calls that rebuild all tables of a layer, which the layers of a model share.

    Returns:
        Compiled code: "shared" (our structure) and "unshared" (one structure for each kernel). The paper's tables in
        vectorised NumPy: "redundant" (for each kernel), "by_tensor" (for each tensor, the paper's optimised prelude),
        "by_layout" (equal tables once), and with sparse storage "sparse_redundant" and "sparse_by_tensor", which have
        no tables for loops.
    """
    arms: dict[str, Call] = {}
    for arm, preludes in _preludes().items():
        arms[arm] = partial(_structures, lengths, preludes)
        _check(_structures(lengths, preludes), preludes, lengths)
    for arm, tables in _tables(lengths).items():
        arms[arm] = partial(_built, tables)
        for table, arrays in zip(tables, _built(tables), strict=True):
            if sum(array.size for array in arrays) != table.entries:
                raise AssertionError(f"{arm}: the tables of {table.subject} do not have {table.entries} entries")
    return arms


def prelude_bytes(batches: Sequence[np.ndarray]) -> dict[str, dict[str, float]]:
    """Count the bytes of tables by variant, "storage" and "fusion": means over batches."""
    found: dict[str, dict[str, float]] = {}

    def add(arm: str, purpose: str, count: int) -> None:
        taken = found.setdefault(arm, {"storage": 0.0, "fusion": 0.0})
        taken[purpose] += count / len(batches)

    own = _preludes()
    for lengths in batches:
        for arm, preludes in own.items():
            for structure, prelude in zip(_structures(lengths, preludes), preludes, strict=True):
                for made in prelude.kernels:
                    purpose = "fusion" if made.table.label in FUSION else "storage"
                    add(arm, purpose, np.asarray(structure.table(made.table)).nbytes)
        for arm, tables in _tables(lengths).items():
            add(arm, "storage", ragged.auxiliary_bytes(tables, "storage"))
            add(arm, "fusion", ragged.auxiliary_bytes(tables, "fusion"))
    return found


def _preludes() -> dict[str, list[ragged.Prelude]]:
    """Return the preludes of each variant of our structures."""
    program = ragged.scheduled_encoder_layer(ragged.EncoderShape(), ragged.EncoderSchedule())
    return {"shared": [ragged.Executable(program).prelude], "unshared": list(ragged.kernel_preludes(program).values())}


def _structures(lengths: np.ndarray, preludes: Sequence[ragged.Prelude]) -> list[ragged.Structure]:
    found = []
    for prelude in preludes:
        found.append(ragged.Structure({ragged.LENGTHS: lengths}))
        found[-1].prepare(prelude)
    return found


def _tables(lengths: np.ndarray) -> dict[str, list[ragged.AuxiliaryTables]]:
    arguments = ragged.with_bulk_sequence(lengths, BULK), ragged.EncoderSizes(), ragged.TileSizes()
    return {arm: ragged.PRELUDES[name](*arguments) for arm, name in FORMULAS.items()}


def _built(tables: Sequence[ragged.AuxiliaryTables]) -> list[tuple[np.ndarray, ...]]:
    return [table.build() for table in tables]


def _check(structures: Sequence[ragged.Structure], preludes: Sequence[ragged.Prelude], lengths: np.ndarray) -> None:
    """Check that offsets which end with the number of tokens are the starts of the sequences."""
    starts = np.concatenate(([0], np.cumsum(lengths)))
    for structure, prelude in zip(structures, preludes, strict=True):
        for made in prelude.kernels:
            entries = np.asarray(structure.table(made.table))
            if made.table.label == "offsets" and entries[-1] == starts[-1] and not np.array_equal(entries, starts):
                raise AssertionError("offsets of tokens are not the cumulative lengths")


def pad_fusion_arms(lengths: Sequence[int] | np.ndarray, *, threads: int, seed: int) -> dict[str, Call]:
    """Bind multi-head attention on one batch with different changes of padding.

    Returns:
        "separate_products", "inlined_products", "separate_loops" and "inlined_loops", see `PADDED_ATTENTION`;
        "changes" (only the changes of padding of "separate_products"); "sparloom" (no padding).

    Source: CoRa §7.2, Figure 12.
    """
    torch.set_num_threads(threads)
    inputs = PackedInputs.drawn(attention_module(seed=seed), [int(length) for length in lengths], seed=seed)
    agreed, structure = CandidateModules(computed_by_torch(inputs)), ragged.Structure({ragged.LENGTHS: lengths})
    programs = {"sparloom": ragged.scheduled_attention(ragged.EncoderShape(), ragged.EncoderSchedule()),
                **{arm: define(ragged.EncoderShape()) for arm, define in ragged.PADDED_ATTENTION.items()}}
    arms: dict[str, Call] = {}
    for arm, program in programs.items():
        kernels, bound = ragged.Executable(program, threads=threads).kernels(
            structure, **stored_tensors(program, structure, inputs))
        arms[arm] = _one_after_the_other(list(kernels.values()))
        agreed.check(arm, BoundModule(arms[arm], _packed(bound["attended"], inputs.width)))
        if arm == "separate_products":
            arms["changes"] = _one_after_the_other([kernels[name] for name in ragged.PADDING_CHANGES])
    return arms


def _one_after_the_other(calls: Sequence[Call]) -> Call:
    def run() -> None:
        for call in calls:
            call()

    return run


def _packed(found: np.ndarray, width: int) -> Callable[[object], torch.Tensor]:
    return lambda _: torch.from_numpy(found.reshape(-1, width))


def breakdown_arms(lengths: Sequence[int] | np.ndarray, *, threads: int, seed: int) -> dict[str, dict[str, Call]]:
    """Bind the operators of a layer on one batch; each reads the result of our previous kernel.

    Returns:
        "sparloom" and "torch" by operator, in order: qkv, attention (scores, softmax and mix), projection (with the
        residual), norm1, ff1 (with ReLU), ff2 (with the residual), norm2.

    Source: CoRa §7.2, Figures 13 and 24, Table 10.
    """
    torch.set_num_threads(threads)
    inputs = PackedInputs.drawn(encoder_layer(seed=seed), [int(length) for length in lengths], seed=seed)
    program = ragged.scheduled_encoder_layer(ragged.EncoderShape(), ragged.EncoderSchedule())
    structure = ragged.Structure({ragged.LENGTHS: lengths})
    kernels, bound = ragged.Executable(program, threads=threads).kernels(
        structure, **stored_tensors(program, structure, inputs))
    for run in kernels.values():
        run()
    made = {name: _rows(bound[name], program.tensors()[name], len(inputs.tokens)) for name in KERNELS.values()}
    operators = _operators(inputs, made)
    for operator, name in KERNELS.items():
        with torch.inference_mode():
            apart = float((operators[operator]() - made[name]).abs().max())
        if not apart < TOLERANCE:
            raise AssertionError(f"{operator}: our result differs from that of PyTorch by {apart:.1e}")
    return {operator: {"sparloom": kernels[name], "torch": operators[operator]} for operator, name in KERNELS.items()}


def _rows(storage: np.ndarray, tensor: ragged.Tensor, tokens: int) -> torch.Tensor:
    """Return a result as (tokens, columns), without gaps between rows."""
    columns = math.prod(extent.value for _, extent in tensor.axes[2:])
    return torch.from_numpy(storage.reshape(tokens, -1)[:, :columns]).contiguous()


def _operators(inputs: PackedInputs, made: Mapping[str, torch.Tensor]) -> dict[str, Callable[[], torch.Tensor]]:
    """Bind the operators of PyTorch to the same values."""
    layer, attention, tokens = inputs.module, inputs.attention, inputs.tokens
    found = torch.empty_like(tokens)
    slices = found.view(-1, inputs.heads, attention.head_dim).split(inputs.lengths)
    sequences = made["qkv"].view(-1, 3, inputs.heads, attention.head_dim).split(inputs.lengths)

    def attended() -> torch.Tensor:
        for sequence, part in zip(sequences, slices, strict=True):
            queries, keys, values = sequence.permute(1, 2, 0, 3)[:, None]
            part.copy_(scaled_dot_product_attention(queries, keys, values)[0].transpose(0, 1))
        return found

    def normalised(norm: torch.nn.LayerNorm, features: torch.Tensor) -> Callable[[], torch.Tensor]:
        return lambda: layer_norm(features, norm.normalized_shape, norm.weight, norm.bias, norm.eps)

    return {
        "qkv": lambda: linear(tokens, attention.in_proj_weight, attention.in_proj_bias),
        "attention": attended,
        "projection": lambda: tokens + attention.out_proj(made["mixed"]),
        "norm1": normalised(layer.norm1, made["attended"]),
        "ff1": lambda: torch.relu(layer.linear1(made["norm_1"])),
        "ff2": lambda: made["norm_1"] + layer.linear2(made["active"]),
        "norm2": normalised(layer.norm2, made["fed"]),
    }
