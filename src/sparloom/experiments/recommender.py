"""Rank all configurations of a platform for a matrix file."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sparloom.errors import Unsupported
from sparloom.experiments.adviser import Adviser
from sparloom.models import Familiarity, MatrixView
from sparloom.ops import Op
from sparloom.report import draw_spy
from sparloom.space import Config, ConfigSpace
from sparloom.sparse import MATRIX_ENDINGS, SparseMatrix, locality_order, read_matrix, reorder

if TYPE_CHECKING:
    from sparloom.platforms import Platform

__all__ = ["SHOWN", "Ranking", "Recommender"]

SHOWN = 5
LARGEST_SPACE = 4096  # configurations that are scored one by one


@dataclass(frozen=True)
class Ranking:
    """The programs of a platform for one matrix, best first.

    Args:
        matrix: as it was read.
        view: what the adviser saw of it; its name is that of the file.
        programs: one configuration of each program that is different on this matrix.
        behind: (programs,) distance of each score from the first, in standard deviations of the scores of all
            configurations.
        familiarity: how near the matrix lies to those the adviser has learned from.
        read_seconds, rank_seconds: wall time of reading the file, and of everything after it.
    """

    matrix: SparseMatrix
    view: MatrixView
    programs: tuple[Config, ...]
    behind: np.ndarray
    familiarity: Familiarity
    read_seconds: float
    rank_seconds: float


@dataclass(frozen=True)
class Recommender:
    """Rankings of a platform's configurations; the adviser is made ready when the first matrix has been read.

    Args:
        adviser: of this platform and operation.
    """

    op: Op
    platform: "Platform"
    adviser: Adviser

    @cached_property
    def space(self) -> ConfigSpace:
        """All configurations.

        Raises:
            Unsupported: there are too many to score each.
        """
        space = self.platform.space(self.op)
        if len(space) > LARGEST_SPACE:
            raise Unsupported(f"platform {self.platform.name} has {len(space)} configurations and no fine-tuned model: "
                              "choose a target such as platform@target=spade")
        return space

    def rank(self, file: Path | str | None) -> Ranking:
        """Read a matrix, look at it, score all configurations, drop equal programs.

        Raises:
            Unsupported: the space is too large.
            ValueError: no file is given, it holds no matrix or no nonzeros, or the adviser knows but one matrix.
            MissingArtifact: the adviser lacks what it is made of.
        """
        space = self.space
        began = time.perf_counter()
        matrix = _read(file)
        read_seconds = time.perf_counter() - began
        self.adviser.prepare()
        began = time.perf_counter()
        view = MatrixView.of(matrix.pattern, Path(str(file)).name)
        bound = space.bind(view.shape)
        configs = list(bound)
        advice = self.adviser.advise(view, configs)
        programs = [bound.canonical(config) for config in configs]
        places = _distinct(np.argsort(advice.scores, kind="stable"), programs)
        behind = (advice.scores[places] - advice.scores[places[0]]) / (advice.scores.std() or 1.0)
        return Ranking(matrix, view, tuple(programs[place] for place in places), behind, advice.familiarity,
                       read_seconds, time.perf_counter() - began)

    def draw(self, ranking: Ranking, stem: Path) -> None:
        """Draw the tiles of the first choice, in the order of rows and columns that it asks for."""
        pattern, config = ranking.matrix.pattern, ranking.programs[0]
        shared = self.space.bind(pattern.shape).shared(config)
        if "reorder" in config.names and config["reorder"]:
            pattern = reorder(pattern, *locality_order(pattern))
        draw_spy(pattern, stem, rows_step=shared.I, cols_step=shared.J, title=f"{ranking.view.input.name}\n{config}")


def _read(file: Path | str | None) -> SparseMatrix:
    if not file:
        raise ValueError(f"no matrix given: add matrix=<path of a file that ends in {', '.join(MATRIX_ENDINGS)}>")
    matrix = read_matrix(Path(file).expanduser())
    if matrix.pattern.nnz == 0:
        raise ValueError(f"{file} has no nonzeros, so every configuration is as good: choose another matrix")
    return matrix


def _distinct(order: np.ndarray, programs: Sequence[Config]) -> list[int]:
    """Drop places whose configuration is the same program on this matrix as an earlier one."""
    seen: dict[Config, int] = {}
    for place in order.tolist():
        seen.setdefault(programs[place], place)
    return list(seen.values())
