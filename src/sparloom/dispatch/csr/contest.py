"""Who takes part in a decision: candidates and baselines, bound to the parts of a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparloom.dispatch.csr.rivals import Library
from sparloom.dispatch.racing import Call
from sparloom.ops import Op, Operands, assert_close
from sparloom.platforms import CpuKernels
from sparloom.space import Config
from sparloom.sparse import Pattern

__all__ = ["Contest", "CsrChoice"]

COMPARED_ROWS, COMPARED_NONZEROS = 64, 1 << 14  # of a result, at most


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
        own: configurations of our kernels, the default first; the libraries follow.
    """

    def __init__(
        self, op: Op, kernels: CpuKernels, own: Sequence[Config], libraries: Mapping[str, Library],
        parts: Sequence[Operands],
    ) -> None:
        self.own, self.parts = own, parts
        self.names = [*(config.key for config in own), *libraries]
        self._op, self._libraries, self._threads = op, list(libraries.values()), kernels.threads
        self._families = [CpuKernels(kernels.threads, kernels.width).family(op) for _ in parts]
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
        operands, name = self.parts[0], self._op.name
        expected, found = (self._computed(place, operands) for place in (baseline, winner))
        rows = _few_rows(operands.matrix.pattern)
        few = operands.take_rows(rows, name).used_columns(name)
        nonzeros = operands.matrix.pattern.nonzeros_of(rows)
        places = nonzeros if name == "sddmm" else rows
        expected, found = expected[places], found[places]
        known = np.isfinite(expected)
        if not np.array_equal(known, np.isfinite(found)):
            return "infinite or NaN in other places than the baseline"
        try:
            assert_close(np.where(known, found, 0), np.where(known, expected, 0).astype(np.float64),
                         terms=2 * self._op.terms(few.matrix.pattern, few.width), scale=self._op.scale(few))
        except AssertionError as error:
            return f"other than the baseline: {error}"
        return ""

    def _bound(self, place: int, part: int) -> Call:
        operands = self.parts[part]
        if place < len(self.own):
            return self._families[part].bind(operands, self.own[place], self._results[part])
        product = self._libraries[place - len(self.own)](operands.matrix, self._threads)
        return lambda: product(operands.dense)

    def _computed(self, place: int, operands: Operands) -> np.ndarray:
        if place >= len(self.own):
            return self._libraries[place - len(self.own)](operands.matrix, self._threads)(operands.dense)
        family = self._families[0]
        result = family.result(operands)
        family.bind(operands, self.own[place], result)()
        return result


def _few_rows(pattern: Pattern) -> np.ndarray:
    """Choose rows, rising, that have few nonzeros together; the shortest one if none has few."""
    spread = np.unique(np.linspace(0, pattern.rows - 1, COMPARED_ROWS).astype(np.int64))
    lengths = pattern.row_lengths()
    few = spread[np.cumsum(lengths[spread]) <= COMPARED_NONZEROS]
    return few if few.size else np.array([np.argmin(lengths)])
