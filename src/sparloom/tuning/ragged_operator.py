"""Ragged operators whose schedules are chosen: their space, their programs, and which batches are alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from sparloom.ragged import (
    LENGTHS,
    PANEL,
    EncoderSchedule,
    EncoderShape,
    NormSchedule,
    Program,
    SoftmaxSchedule,
    Structure,
    scheduled_attention,
    scheduled_encoder_layer,
    scheduled_layer_norm,
    scheduled_mixing,
    scheduled_softmax,
    tiled_trmm,
    tiled_vgemm,
)
from sparloom.space import Config, EncoderSpace, GridSpace, NormSpace, RaggedProductSpace, SoftmaxSpace

__all__ = ["RaggedOperator", "encoder_operators", "product_operators", "token_operators"]


@dataclass(frozen=True)
class RaggedOperator:
    """An operator that has several schedules.

    Args:
        name: with all sizes that are the same for every batch.
        program: of a configuration of the space.
        alike: numbers of a batch; batches of which they are equal share a schedule.
        part: of a batch, what is enough to measure on.
    """

    name: str
    space: GridSpace
    program: Callable[[Config], Program]
    alike: Callable[[Structure], Mapping[str, int]]
    part: Callable[[Structure], Structure]


@cache
def encoder_operators(shape: EncoderShape) -> Mapping[str, RaggedOperator]:
    """Give the encoder layer, multi-head attention and attention without projections: encoder, attention, mixing."""
    sizes = ",".join(f"{name}={value}" for name, value in vars(shape).items() if value is not None)
    makers = {"encoder": scheduled_encoder_layer, "attention": scheduled_attention, "mixing": scheduled_mixing}

    def operator(name: str, made: Callable[[EncoderShape, EncoderSchedule], Program]) -> RaggedOperator:
        return RaggedOperator(f"{name} {sizes}", EncoderSpace(name, panel=PANEL), lambda config: made(
            shape, EncoderSchedule(**{name: int(value) for name, value in config.values})), _sequences, _some_sequences)

    return {name: operator(name, made) for name, made in makers.items()}


@cache
def token_operators(width: int, epsilon: float = 1e-5) -> Mapping[str, RaggedOperator]:
    """Give softmax along the tokens of every sequence, and layer norm of tokens: softmax, norm."""
    def softmax(config: Config) -> Program:
        return scheduled_softmax(width, SoftmaxSchedule(**dict(config.values)))

    def norm(config: Config) -> Program:
        return scheduled_layer_norm(width, NormSchedule(**dict(config.values)), epsilon=epsilon)

    return {
        "softmax": RaggedOperator(f"softmax width={width}", SoftmaxSpace("softmax"), softmax, _sequences,
                                  _some_sequences),
        "norm": RaggedOperator(f"norm width={width},epsilon={epsilon}", NormSpace("norm"), norm, _sequences,
                               _some_sequences)}


def product_operators() -> dict[str, RaggedOperator]:
    """Give vgemm and trmm."""
    def operator(name: str, made: Callable[..., Program]) -> RaggedOperator:
        return RaggedOperator(name, RaggedProductSpace(name, panel=PANEL), lambda config: made(
            **{name: int(value) for name, value in config.values}), _sizes, lambda structure: structure)

    return {"vgemm": operator("vgemm", tiled_vgemm), "trmm": operator("trmm", tiled_trmm)}


TOKENS = 4096  # of a batch that is measured on


def _sequences(structure: Structure) -> dict[str, int]:
    """Powers of two of the tokens and of the mean length, halves of how much longer the longest is."""
    lengths = np.asarray(structure.table(LENGTHS))
    if not lengths.size or not lengths.sum():
        return {"tokens": 0, "mean": 0, "spread": 0}
    mean = float(lengths.mean())
    return {"tokens": min(round(np.log2(lengths.sum())), 14), "mean": round(np.log2(mean)),
            "spread": round(2 * float(lengths.max()) / mean)}


def _some_sequences(structure: Structure) -> Structure:
    """Sequences of all lengths, evenly picked; at least one."""
    lengths = np.sort(np.asarray(structure.table(LENGTHS)))[::-1]
    step = max(1, round(lengths.sum() / TOKENS))
    return Structure({LENGTHS: lengths[min(step // 2, lengths.size - 1) :: step]}) if step > 1 else structure


def _sizes(structure: Structure) -> dict[str, int]:
    """Powers of two of the number and of the mean of every length function."""
    found: dict[str, int] = {}
    for length, given in structure.given().items():
        entries = np.asarray(given).reshape(-1)
        found[length.name] = round(np.log2(max(1.0, float(entries.mean())))) if entries.size else 0
        found[f"{length.name} count"] = round(np.log2(max(1, entries.size)))
    return found
