"""Count the trials that a campaign needs on matrices of which all configurations have been simulated."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sparloom.data import SampleSource
from sparloom.experiments.cognate.evaluation_data import EvaluationData
from sparloom.experiments.harness import finish
from sparloom.measure import geomean
from sparloom.ops import Op
from sparloom.report import draw_trials
from sparloom.sparse import Role
from sparloom.tuning import Optimizer

if TYPE_CHECKING:
    from sparloom.platforms import Platform

METHODS: Mapping[str, str] = {"campaign": "campaign", "campaign_without_estimate": "campaign without the formula",
                              "random": "random trials"}
"""Methods -> as the figure calls them."""


@dataclass(frozen=True)
class EvalCampaign:
    """Count trials until the fastest configurations that ran have a share of the best speed.

    A matrix without a trial has the default configuration.

    Args:
        matrices: of one campaign, drawn anew for every seed among those of the role.
        batch: trials between two looks at what was reached.
        most: trials per matrix at most.
        share: of the best speed, geometric mean over matrices, that is to be reached.
        eval_role: role of the matrices; "validation" while anything is being chosen by the result.
    """

    op: Op
    target: "Platform"
    samples: SampleSource
    matrices: int
    batch: int
    most: int
    share: float
    seeds: Sequence[int]
    eval_role: Role

    def run(self, out: Path) -> Mapping[str, float]:
        """Write trials.parquet and a plot, and print a table."""
        study = EvaluationData(self.target, self.op, self.samples, self.eval_role)
        study.refuse_other_widths()
        frame = pd.DataFrame([
            {"method": method, "seed": seed, "trials": trials, "share": share}
            for seed in self.seeds for method in METHODS for trials, share in self._shares(study, method, seed)])
        return finish(out, None, self._metrics(frame), lambda out: draw_trials(
            frame, out / "trials", share=self.share, labels=METHODS), trials=frame)

    def _shares(self, study: EvaluationData, method: str, seed: int) -> Iterator[tuple[float, float]]:
        """Yield trials per matrix and the share that they have reached, until it is enough."""
        truth, rng = study.truth, np.random.default_rng(seed)
        seconds = dict(zip(truth.matrices, truth.seconds, strict=True))
        names = sorted(rng.permutation(truth.matrices)[:self.matrices])
        numbers = {config.key: number for number, config in enumerate(truth.configs)}
        optimizer = Optimizer(study.space, {name: study.views[name] for name in names}, seed=seed,
                              estimator=study.estimator if method == "campaign" else None)
        fastest: dict[str, float] = {}
        drawn = rng.permutation([(name, number) for name in names for number in numbers.values()]).tolist()
        for done in range(self.batch, self.most * len(names) + 1, self.batch):
            if method == "random":
                chosen = [(name, truth.configs[int(number)]) for name, number in drawn[done - self.batch:done]]
            else:
                chosen = [(each.problem, each.config) for each in optimizer.ask(self.batch)]
            for name, config in chosen:
                measured = float(seconds[name][numbers[config.key]])
                fastest[name] = min(measured, fastest.get(name, measured))
                if method != "random":
                    optimizer.tell(config, seconds=measured, problem=name)
            share = geomean(np.array([seconds[name].min() / fastest.get(name, seconds[name][truth.baseline])
                                      for name in names]))
            yield done / len(names), share
            if share >= self.share:
                return

    def _metrics(self, frame: pd.DataFrame) -> Mapping[str, float]:
        """Return the trials that each method needs, mean over seeds; a seed that never gets there counts as `most`."""
        last = frame.groupby(["method", "seed"]).last()
        last["reached"] = last["share"] >= self.share
        last.loc[~last["reached"], "trials"] = self.most
        means = last.groupby("method").mean()
        return {f"{self.eval_role}/{method}/{name}": float(means.loc[method, name])
                for method in METHODS for name in ("trials", "reached")}
