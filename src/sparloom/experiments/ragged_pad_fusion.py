"""Multi-head attention with changes of padding as operators of their own, and within others."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from sparloom.experiments.module_tensors import stored_tensors
from sparloom.experiments.packed_inputs import PackedInputs, attention_module
from sparloom.experiments.packed_inputs import reference as computed_by_torch
from sparloom.experiments.peer import Peer
from sparloom.experiments.ragged_peers import Contenders
from sparloom.ragged import (
    LENGTHS,
    PADDED_ATTENTION,
    PADDING_CHANGES,
    EncoderSchedule,
    EncoderShape,
    Executable,
    Structure,
    scheduled_attention,
)

__all__ = ["pad_fusion_arms"]

Call = Callable[[], object]


def pad_fusion_arms(lengths: Sequence[int] | np.ndarray, *, threads: int, seed: int) -> dict[str, Call]:
    """Bind multi-head attention on one batch.

    Returns:
        "separate_products", "inlined_products", "separate_loops" and "inlined_loops", as in `PADDED_ATTENTION`;
        "changes", the changes of padding of "separate_products" alone; "sparloom", which pads nothing.

    Raises:
        AssertionError: an arm computes something else than PyTorch, sequence after sequence.

    Source: CoRa §7.2, Figure 12.
    """
    torch.set_num_threads(threads)
    inputs = PackedInputs.drawn(attention_module(seed=seed), [int(length) for length in lengths], seed=seed)
    agreed, structure = Contenders(computed_by_torch(inputs)), Structure({LENGTHS: lengths})
    programs = {"sparloom": scheduled_attention(EncoderShape(), EncoderSchedule()),
                **{arm: define(EncoderShape()) for arm, define in PADDED_ATTENTION.items()}}
    arms: dict[str, Call] = {}
    for arm, program in programs.items():
        kernels, bound = Executable(program, threads=threads).kernels(
            structure, **stored_tensors(program, structure, inputs))
        arms[arm] = _one_after_the_other(list(kernels.values()))
        agreed.check(arm, Peer(arms[arm], _packed(bound["attended"], inputs.width)))
        if arm == "separate_products":
            arms["changes"] = _one_after_the_other([kernels[name] for name in PADDING_CHANGES])
    return arms


def _one_after_the_other(calls: Sequence[Call]) -> Call:
    def run() -> None:
        for call in calls:
            call()

    return run


def _packed(found: np.ndarray, width: int) -> Callable[[object], torch.Tensor]:
    return lambda _: torch.from_numpy(found.reshape(-1, width))
