"""What it takes to build auxiliary tables for a batch: shared by kernels, for each kernel, by sparse storage."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np

from sparloom.ragged import (
    LENGTHS,
    PRELUDES,
    AuxiliaryTables,
    EncoderSchedule,
    EncoderShape,
    EncoderSizes,
    Executable,
    Prelude,
    Structure,
    TileSizes,
    auxiliary_bytes,
    kernel_preludes,
    scheduled_encoder_layer,
    with_bulk_sequence,
)

__all__ = ["prelude_arms", "prelude_bytes"]

Call = Callable[[], object]

BULK = 64  # tokens, of the paper's padding sequence
FUSION = ("fused_outer", "fused_inner")
FORMULAS: Mapping[str, str] = MappingProxyType({  # arms with the paper's tables, by what PRELUDES calls them
    "redundant": "redundant", "by_tensor": "by_tensor", "by_layout": "shared", "sparse_redundant": "sparse_redundant",
    "sparse_by_tensor": "sparse_by_tensor"})


def prelude_arms(lengths: np.ndarray) -> dict[str, Call]:
    """Give what builds all tables of a layer anew; all layers of a model share them.

    Returns:
        "shared", our structure, and "unshared", one for each kernel: compiled code. The paper's tables, by vectorised
        NumPy: "redundant", each kernel its own; "by_tensor", each tensor once (the paper's optimised prelude);
        "by_layout", equal ones once; and by sparse storage "sparse_redundant" and "sparse_by_tensor", which have none
        for loops.

    Raises:
        AssertionError: an arm builds other tables than it should.
    """
    arms: dict[str, Call] = {}
    for arm, preludes in _preludes().items():
        arms[arm] = partial(_structures, lengths, preludes)
        _check(_structures(lengths, preludes), preludes, lengths)
    for arm, tables in _tables(lengths).items():
        arms[arm] = partial(_built, tables)
        for table, arrays in zip(tables, _built(tables), strict=True):
            if sum(array.size for array in arrays) != table.entries:
                raise AssertionError(f"{arm}: the tables of {table.subject} have not {table.entries} entries")
    return arms


def prelude_bytes(batches: Sequence[np.ndarray]) -> dict[str, dict[str, float]]:
    """Count what tables take: "storage" and "fusion" by arm, means over batches."""
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
            add(arm, "storage", auxiliary_bytes(tables, "storage"))
            add(arm, "fusion", auxiliary_bytes(tables, "fusion"))
    return found


def _preludes() -> dict[str, list[Prelude]]:
    """Those of structures that an arm makes."""
    program = scheduled_encoder_layer(EncoderShape(), EncoderSchedule())
    return {"shared": [Executable(program).prelude], "unshared": list(kernel_preludes(program).values())}


def _structures(lengths: np.ndarray, preludes: Sequence[Prelude]) -> list[Structure]:
    found = []
    for prelude in preludes:
        found.append(Structure({LENGTHS: lengths}))
        found[-1].prepare(prelude)
    return found


def _tables(lengths: np.ndarray) -> dict[str, list[AuxiliaryTables]]:
    bulk = with_bulk_sequence(lengths, BULK)
    return {arm: PRELUDES[name](bulk, EncoderSizes(), TileSizes()) for arm, name in FORMULAS.items()}


def _built(tables: Sequence[AuxiliaryTables]) -> list[tuple[np.ndarray, ...]]:
    return [table.build() for table in tables]


def _check(structures: Sequence[Structure], preludes: Sequence[Prelude], lengths: np.ndarray) -> None:
    """Offsets that end with the number of tokens are where sequences begin."""
    starts = np.concatenate(([0], np.cumsum(lengths)))
    for structure, prelude in zip(structures, preludes, strict=True):
        for made in prelude.kernels:
            entries = np.asarray(structure.table(made.table))
            if made.table.label == "offsets" and entries[-1] == starts[-1] and not np.array_equal(entries, starts):
                raise AssertionError("offsets of tokens are not the sums of the lengths before")
