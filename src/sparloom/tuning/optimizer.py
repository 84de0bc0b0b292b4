"""Ask and tell in memory: which configuration to time next.

    optimizer = Optimizer(space)
    for proposal in optimizer.ask(8):
        optimizer.tell(proposal.config, seconds=run(proposal.config))

Names as in Optuna: ask, tell, trial. `Campaign` is the same on disk, `OptunaSampler` inside a study of Optuna.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sparloom.data import checked_seconds
from sparloom.models import Estimator
from sparloom.space import Config, ConfigSpace, SearchSpace
from sparloom.tuning.engine import ONLY, Engine, Proposal, Trials
from sparloom.tuning.transfer import Source


class Optimizer:
    """Propose trials of one problem or several, and learn from what came out.

    Args:
        space: configurations.
        problems: features of every problem by name: numbers and categories, or a sparse matrix. None: there is one
            problem, without features.
        sources: trials of other devices, problem sizes, versions or a simulator.
        estimator: seconds of configurations of a matrix by a formula of the platform, if there is one.
        seed: of what is drawn.

    Raises:
        SchemaError: a source has no parameter in common with the space, or problems have different features.
    """

    def __init__(
        self, space: SearchSpace | ConfigSpace, problems: Mapping[str, Any] | None = None, *,
        sources: Sequence[Source] = (), estimator: Estimator | None = None, seed: int = 0,
    ) -> None:
        self._engine = Engine(space, {ONLY: {}} if problems is None else problems, sources=sources,
                              estimator=estimator, seed=seed)
        self._done: list[tuple[str, Config, float]] = []
        self._running: list[tuple[str, Config]] = []

    def ask(self, count: int = 1) -> list[Proposal]:
        """Choose the next trials, at most `count`; those that were asked and not told count as running."""
        chosen = self._engine.choose(Trials(self._done, self._running), count)
        self._running += [(each.problem, each.config) for each in chosen]
        return chosen

    def tell(self, config: Config | Mapping[str, Any], *, seconds: float | None = None, failure: str | None = None,
             problem: str = ONLY) -> None:
        """Add what came out of a trial, asked for or not.

        Raises:
            ValueError: the problem is unknown, seconds are not positive and finite, or both or none of seconds and
                failure are given.
            IllegalSchedule: the space does not have the configuration.
        """
        program = self._engine.program(problem, config)
        if (seconds is None) == (failure is None):
            raise ValueError(f"{program}: give either seconds or failure")
        value = math.nan if seconds is None else checked_seconds(seconds, lambda _: str(program)).item()
        self._done.append((problem, program, value))
        self._running = [each for each in self._running if each != (problem, program)]
