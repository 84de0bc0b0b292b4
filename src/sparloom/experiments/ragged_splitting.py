"""Products of attention on whole tiles, made whole by padding or by splitting, and on tiles of any extent."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from sparloom.experiments.ragged_values import by_sequence, drawn, scale
from sparloom.ops import assert_close
from sparloom.ragged import (
    LENGTHS,
    SPLIT_ARMS,
    SPLIT_OPERATORS,
    EncoderShape,
    Executable,
    RaggedTensor,
    Structure,
)

__all__ = ["ORACLES", "splitting_arms"]

Call = Callable[[], None]


def splitting_arms(operator: str, lengths: np.ndarray, *, threads: int, seed: int) -> dict[str, Call]:
    """Bind QKT ("qkt") or AttnV ("attnv") on one batch.

    Returns:
        "padded", "split", "hfused" and "exact", as in `SPLIT_ARMS`.

    Raises:
        AssertionError: an arm computes something else than NumPy, sequence after sequence.

    Source: CoRa §7.3, Figure 14 (NoSplit, Split, Split-HFused).
    """
    defined = SPLIT_OPERATORS[operator](EncoderShape())
    structure, rng = Structure({LENGTHS: lengths}), np.random.default_rng(seed)
    values = {name: drawn(defined.tensors()[name], structure, rng) for name in defined.inputs()}
    expected = by_sequence(ORACLES[operator], values)
    arms: dict[str, Call] = {}
    for arm, schedule in SPLIT_ARMS.items():
        executable = Executable(schedule(defined), threads=threads)
        tensors, (output,) = executable.program.tensors(), executable.program.outputs
        arms[arm], bound = executable.bind(structure, **{
            name: value.stored_as(tensors[name]).data for name, value in values.items()})
        arms[arm]()
        found = RaggedTensor(tensors[output], structure, bound[output]).to_packed()[0].reshape(-1)
        assert_close(found, expected, terms=max(EncoderShape().head_width, int(lengths.max())), scale=scale(values))
    return arms


def _scores(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    return queries.swapaxes(0, 1) @ keys


def _mixed_values(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    return (weights @ values.swapaxes(0, 1)).swapaxes(0, 1)


ORACLES: Mapping[str, Callable[..., np.ndarray]] = MappingProxyType({"qkt": _scores, "attnv": _mixed_values})
