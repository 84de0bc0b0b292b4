"""Who takes part in a decision: candidates and baselines, bound to the parts of a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparloom.dispatch.csr.place import Place
from sparloom.dispatch.csr.rivals import Library
from sparloom.dispatch.racing import Call
from sparloom.ops import Op, Operands, assert_few_close, few_rows
from sparloom.space import Config

__all__ = ["Contest", "CsrChoice"]

EPS: Mapping[str, float] = {"bfloat16": 2.0**-7}
"""Of types that are compared as float32."""


@dataclass(frozen=True)
class CsrChoice:
    """What runs: a library, or a configuration of our kernels.

    Args:
        library: its name, "" for our own kernels.
        config: key of a point of the space, "" for a library.
    """

    library: str = ""
    config: str = ""


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
        self._op, self._where, self._libraries = op, where, list(libraries.values())
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
        operands = self.parts[0]
        pattern, op = operands.matrix.pattern, self._op
        rows = few_rows(pattern)
        places = pattern.nonzeros_of(rows) if op.name == "sddmm" else rows
        expected, found = (self._where.some(self._computed(place, operands), places) for place in (baseline, winner))
        try:
            assert_few_close(found, expected, op, self._where.few(operands, rows, op.name),
                             eps=EPS.get(self._where.dtype(op.name, operands)))
        except AssertionError as error:
            return f"other than the baseline: {error}"
        return ""

    def _bound(self, place: int, part: int) -> Call:
        operands = self.parts[part]
        if place < len(self.own):
            return self._families[part].bind(operands, self.own[place], self._results[part])
        product = self._libraries[place - len(self.own)](operands.matrix, self._where.threads)
        return lambda: product(operands)

    def _computed(self, place: int, operands: Operands) -> Any:
        if place >= len(self.own):
            return self._libraries[place - len(self.own)](operands.matrix, self._where.threads)(operands)
        family = self._families[0]
        result = family.result(operands)
        family.bind(operands, self.own[place], result)()
        return result
