"""Who takes part in a decision: candidates and baselines, bound to the parts of a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sparloom.ops import Op, Operands, assert_few_close, few_rows
from sparloom.platforms import Family
from sparloom.space import Config
from sparloom.tuning.decision import Decision
from sparloom.tuning.racing import Call
from sparloom.tuning.sparse.place import Place
from sparloom.tuning.sparse.rivals import Library

__all__ = ["Contest", "CsrChoice", "CsrPlan", "FewRows"]

EPS: Mapping[str, float] = {"bfloat16": 2.0**-7}
"""Of types that are compared as float32."""


@dataclass(frozen=True)
class CsrChoice:
    """What runs: a library, or a configuration of our kernels.

    Args:
        library: its name, "" for our own kernels.
        config: key of a point of the space, "" for a library.
        threads: of the configuration; 0: all that the place has.
    """

    library: str = ""
    config: str = ""
    threads: int = 0

    def to_json(self) -> dict[str, Any]:
        """Write as JSON values; threads only where they are not all."""
        return {name: value for name, value in asdict(self).items() if value or name != "threads"}

    @property
    def name(self) -> str:
        """Name it among trials."""
        return self.library or (f"{self.config},threads={self.threads}" if self.threads else self.config)


@dataclass(frozen=True)
class CsrPlan:
    """How one operation on one matrix runs from now on.

    Args:
        space: name of that of our kernels.
    """

    choice: CsrChoice
    decision: Decision
    space: str = "cpu_kernels"

    @cached_property
    def config(self) -> Config:
        """Configuration of our kernels, where they were chosen."""
        return Config.parse(self.space, self.choice.config)


@dataclass(frozen=True)
class FewRows:
    """Some rows of a problem, in which results are compared."""

    op: Op
    where: Place
    operands: Operands

    def of(self, result: Any) -> np.ndarray:
        """Take these rows of a result for all."""
        pattern = self.operands.matrix.pattern
        return self.where.some(result, pattern.nonzeros_of(self.rows) if self.op.name == "sddmm" else self.rows)

    def difference(self, found: np.ndarray, expected: np.ndarray) -> str:
        """Say where a result for them is other than the one of a baseline; "" if it is not."""
        few = self.where.few(self.operands, self.rows, self.op.name)
        eps = EPS.get(self.where.dtype(self.op.name, self.operands))
        try:
            assert_few_close(found, expected, self.op, few, eps=eps)
        except AssertionError as error:
            return f"other than the baseline: {error}"
        return ""

    def computed(self, choice: CsrChoice, libraries: Mapping[str, Library]) -> np.ndarray:
        """Compute them alone."""
        operands = self.where.take_rows(self.operands, self.rows, self.op.name)
        family = self.where.kernels(self.op, operands.width)
        result = _computed(choice, operands, family, libraries, self.where.threads)
        return self.where.some(result, np.arange(result.shape[0]))

    @cached_property
    def rows(self) -> np.ndarray:
        """Which they are."""
        return few_rows(self.operands.matrix.pattern)


class Contest:
    """Candidates and baselines bound to the parts of a sample, when they are asked for.

    Args:
        own: configurations of our kernels, the safe one first; the libraries follow.
    """

    def __init__(
        self, op: Op, where: Place, own: Sequence[Config], libraries: Mapping[str, Library],
        parts: Sequence[Operands],
    ) -> None:
        self.own, self.parts = own, parts
        self.names = [*(config.key for config in own), *libraries]
        self._op, self._where, self._libraries = op, where, libraries
        self._families = [where.kernels(op, part.width) for part in parts]
        self._results = [family.result(part) for family, part in zip(self._families, parts, strict=True)]

    def choice(self, place: int) -> CsrChoice:
        """Name a candidate."""
        name = self.names[place]
        return CsrChoice(config=name) if place < len(self.own) else CsrChoice(library=name)

    def call(self, place: int) -> Call:
        """Run a candidate on all parts, one after the other."""
        calls = [self._bound(place, part) for part in range(len(self.parts))]

        def run() -> None:
            for call in calls:
                call()

        return run

    def rivals(self, one: int, other: int) -> list[tuple[Call, Call]]:
        """Bind two candidates to each part."""
        return [(self._bound(one, part), self._bound(other, part)) for part in range(len(self.parts))]

    def difference(self, winner: int, baseline: int) -> str:
        """Say where, in some rows, the winner computes something else than the baseline; "" if it does not."""
        few = FewRows(self._op, self._where, self.parts[0])
        expected, found = (few.of(self._computed(place, self.parts[0])) for place in (baseline, winner))
        return few.difference(found, expected)

    def _bound(self, place: int, part: int) -> Call:
        operands = self.parts[part]
        if place < len(self.own):
            return self._families[part].bind(operands, self.own[place], self._results[part])
        product = self._libraries[self.names[place]](operands.matrix, self._where.threads)
        return lambda: product(operands)

    def _computed(self, place: int, operands: Operands) -> Any:
        return _computed(self.choice(place), operands, self._families[0], self._libraries, self._where.threads)


def _computed(
    choice: CsrChoice, operands: Operands, family: Family, libraries: Mapping[str, Library], threads: int,
) -> Any:
    """Run a choice once."""
    if choice.library:
        return libraries[choice.library](operands.matrix, threads)(operands)
    result = family.result(operands)
    family.bind(operands, Config.parse(family.space().name, choice.config), result)()
    return result
