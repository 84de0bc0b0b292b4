"""Numbers for the hardware-specific parameters, the input of the latent encoder."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sparloom.space.config import Value

__all__ = ["Code", "flag", "letters", "logarithm", "one_hot"]


@dataclass(frozen=True)
class Code:
    """How the values of one parameter become numbers.

    Args:
        parameter: which parameter is read.
        names: one name per number.
        table: (value, numbers) for every value of the parameter.
    """

    parameter: str
    names: tuple[str, ...]
    table: tuple[tuple[Value, tuple[float, ...]], ...]


def flag(parameter: str, values: Sequence[Value] = (0, 1)) -> Code:
    """Write the first value as 0 and the second as 1."""
    return Code(parameter, (parameter,), tuple((value, (float(place),)) for place, value in enumerate(values)))


def logarithm(parameter: str, values: Sequence[Value], scale: float) -> Code:
    """Write integers as log2(value) / scale; with text among the values, a second number marks the text."""
    if all(isinstance(value, int) for value in values):
        return Code(parameter, (parameter,), tuple((value, (math.log2(value) / scale,)) for value in values))
    table = ((value, (math.log2(value) / scale, 0.0) if isinstance(value, int) else (0.0, 1.0)) for value in values)
    return Code(parameter, (parameter, f"{parameter}_text"), tuple(table))


def one_hot(parameter: str, values: Sequence[Value]) -> Code:
    """Write a value as a 1 in its place."""
    table = ((value, tuple(float(value == other) for other in values)) for value in values)
    return Code(parameter, tuple(f"{parameter}_{value}" for value in values), tuple(table))


def letters(parameter: str, values: Sequence[str], positions: Sequence[str], one: str) -> Code:
    """Write a word as one number per letter: 1 where the letter is `one`."""
    table = ((value, tuple(float(letter == one) for letter in value)) for value in values)
    return Code(parameter, tuple(f"{parameter}_{position}" for position in positions), tuple(table))
