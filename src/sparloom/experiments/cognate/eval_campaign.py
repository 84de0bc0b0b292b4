"""Count the trials that a campaign needs on matrices of which all configurations have been simulated."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sparloom.data import SampleSource
from sparloom.experiments.cognate.evaluation_data import EvaluationData
from sparloom.experiments.harness import finish
from sparloom.files import scratch_folder
from sparloom.measure import geomean
from sparloom.ops import Op
from sparloom.report import RuntimeTable, draw_trials, ratio_bounds
from sparloom.sparse import Role
from sparloom.tuning import Campaign

if TYPE_CHECKING:
    from sparloom.platforms import Platform

logger = logging.getLogger(__name__)
METHODS: Mapping[str, str] = {
    "campaign": "campaign", "campaign_without_estimate": "campaign, no formula",
    "random_model": "random trials, model", "random_model_without_estimate": "random trials, model, no formula",
    "random": "random trials, best of them",
}
"""Methods -> as the table and the figure call them."""


@dataclass(frozen=True)
class EvalCampaign:
    """Compare campaigns with random trials, by how many each needs for a share of the best speed.

    The result of a campaign is the fastest configuration that has run on each matrix. That of random trials is the
    same, or the configuration that the campaign's model, fitted to them, expects to be fastest. Without a trial, a
    matrix has the default configuration.

    Args:
        matrices: of one campaign, drawn anew for every seed among those of the role.
        batch: trials between two looks at what was found.
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
        rows = []
        for seed in self.seeds:
            found = len(study.truth.matrices)
            places = np.sort(np.random.default_rng(seed).permutation(found)[:self.matrices])
            for method in METHODS:
                for trials, share in self._shares(study, places, method, seed):
                    rows.append({"method": method, "seed": seed, "trials": trials / len(places), "share": share})
                logger.info("seed %d, %s: %.4f of the best speed after %.1f trials per matrix", seed, method,
                            rows[-1]["share"], rows[-1]["trials"])
        frame = pd.DataFrame(rows)
        return finish(out, None, self._metrics(frame, len(places)),
                      lambda out: draw_trials(frame, out / "trials", share=self.share, labels=METHODS), trials=frame)

    def _shares(self, study: EvaluationData, places: np.ndarray, method: str, seed: int
                ) -> Iterator[tuple[int, float]]:
        """Yield trials in all, and the share of the best speed that was found with them."""
        truth = study.truth
        names = [truth.matrices[place] for place in places]
        estimator = None if "without" in method else study.estimator
        with scratch_folder("campaign") as folder:
            campaign = Campaign(folder, study.space, {name: study.views[name] for name in names}, seed=seed,
                                estimator=estimator)
            known = _Known(truth, names, campaign)
            drawn = known.programs() if method.startswith("random") else None
            order = np.random.default_rng([seed, 1]).permutation(0 if drawn is None else len(drawn))
            while campaign.count() < self.most * len(names):
                done = campaign.count()
                chosen = [(each.matrix, each.config.key) for each in campaign.ask(self.batch)] if drawn is None else [
                    drawn[place] for place in order[done:done + self.batch]]
                if not chosen:
                    break
                for name, key in chosen:
                    campaign.tell(name, key, seconds=known.seconds(name, key))
                yield campaign.count(), known.share(predicted="model" in method)

    def _metrics(self, frame: pd.DataFrame, matrices: int) -> Mapping[str, float]:
        """Count trials per matrix until the share is reached; those that never reach it count as `most`."""
        needed = pd.DataFrame({method: [self._needed(frame[(frame["method"] == method) & (frame["seed"] == seed)])
                                        for seed in self.seeds] for method in METHODS})
        metrics: dict[str, float] = {f"{self.eval_role}/matrices": float(matrices)}
        for method in METHODS:
            last = frame[frame["method"] == method].groupby("seed")["share"].last()
            reached, counts = float(needed[method].notna().mean()), needed[method].fillna(self.most)
            metrics |= {f"{self.eval_role}/{method}/trials": float(counts.mean()),
                        f"{self.eval_role}/{method}/reached": reached,
                        f"{self.eval_role}/{method}/share": geomean(last.to_numpy())}
        for ending in ("", "_without_estimate"):
            ratio = needed[f"random_model{ending}"].fillna(self.most) / needed[f"campaign{ending}"].fillna(self.most)
            metrics |= ratio_bounds(f"{self.eval_role}/random_model_over_campaign{ending}", ratio, seed=0)
        return metrics

    def _needed(self, frame: pd.DataFrame) -> float:
        reached = frame.loc[frame["share"] >= self.share, "trials"]
        return float(reached.iloc[0]) if len(reached) else float("nan")


class _Known:
    """The true seconds of a campaign's matrices."""

    def __init__(self, truth: RuntimeTable, names: Sequence[str], campaign: Campaign) -> None:
        self._names, self._campaign = names, campaign
        keys = [config.key for config in truth.configs]
        self._seconds = {name: dict(zip(keys, truth.seconds[truth.matrices.index(name)], strict=True))
                         for name in names}
        self._default = keys[truth.baseline]

    def programs(self) -> list[tuple[str, str]]:
        """List every program of every matrix."""
        return [(name, key) for name in self._names for key in self._campaign.predict(name)["config"]]

    def seconds(self, name: str, key: str) -> float:
        return float(self._seconds[name][key])

    def share(self, *, predicted: bool) -> float:
        """Return the speed of the chosen configurations over that of the best, geometric mean.

        Args:
            predicted: the model chooses, not the fastest that has run.
        """
        labels = self._campaign.labels()
        chosen = {}
        if predicted:
            for name in self._names:
                expected = self._campaign.predict(name)
                chosen[name] = expected.loc[expected["seconds"].idxmin(), "config"]
        elif len(labels):
            chosen = labels.loc[labels.groupby("matrix")["seconds"].idxmin()].set_index("matrix")["config"].to_dict()
        shares = [min(self._seconds[name].values()) / self.seconds(name, chosen.get(name, self._default))
                  for name in self._names]
        return geomean(np.array(shares))
