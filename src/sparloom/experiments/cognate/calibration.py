"""Keep recommendations from being worse than a fixed configuration, and bound what they lose against the best.

Both are read off matrices that all configurations were timed on and that the model has not learned from:

    weights  of the model against the formula of the platform, and of mean scores over the training matrices, whose best
             is the fixed configuration: those that gain most for certain, where losses against it count twice; both are
             0 unless a gain is significant, so that the formula decides alone where there is one
    loss     logarithm of the seconds of a first choice over those of the best configuration; its mean and an upper
             bound, in proportion to the uncertainty of the model

The bound is the quantile of a split-conformal one. It holds for about the stated share of matrices like those of the
calibration, not for certain: weights are chosen on the same matrices, and scores over training matrices know some of
them.

Source: Lei et al. 2018, Distribution-Free Predictive Inference for Regression, for bounds in proportion to a scale.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sparloom import __version__
from sparloom.data import Conditions
from sparloom.errors import MissingArtifact
from sparloom.experiments.cognate.evaluation_data import EvaluationData
from sparloom.experiments.harness import code
from sparloom.files import read_json, write_checked_json
from sparloom.models import MatrixFeatures, Static
from sparloom.space import Config
from sparloom.sparse import Role

if TYPE_CHECKING:
    from jaxtyping import Float

COVERAGE = 0.9  # share of matrices whose loss is within the bound
MODEL_WEIGHTS = (0.0, 0.5, 1.0)  # against the formula, if there is one
VOTES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)  # of the best configuration over all matrices, beside one of these two
STANDARD_ERRORS = 2.0  # that the gain of weights is lowered by
LEAST_MATRICES = 20
BASE_UNCERTAINTY = 0.1  # of choices on which all voters agree, in standard deviations of their scores
ROLES: tuple[Role, ...] = ("train", "validation")


@dataclass(frozen=True)
class Recommendation:
    """Scores of a model for one matrix.

    Args:
        scores: (configs,), low = fast, no unit.
        opinions: (voters, configs) scores of the parts of the model, of unit variance each.
        formula: (configs,) scores of the formula, of unit variance; None: the platform has none.
        spread: standard deviation of the logarithms of estimated seconds over configurations; 1 without a formula.
    """

    scores: Float[np.ndarray, " configs"]
    opinions: Float[np.ndarray, "voters configs"]
    formula: Float[np.ndarray, " configs"] | None = None
    spread: float = 1.0

    def weighted(self, model: float) -> Float[np.ndarray, " configs"]:
        """Weigh the model against the formula, if there is one."""
        return self.scores if self.formula is None else model * self.scores + (1 - model) * self.formula

    def uncertainty(self, choice: int) -> float:
        """Tell how much faster voters expect their own first choices to be than this one."""
        behind = self.opinions[:, choice] - self.opinions.min(axis=1)
        return self.spread * (BASE_UNCERTAINTY + float(behind.mean()))


@dataclass(frozen=True)
class ExpectedLoss:
    """How much slower a choice is than the best configuration, as a share of the time of the best.

    Args:
        mean: what it is expected to lose.
        bound: what it loses at most on about a share `COVERAGE` of the matrices.
    """

    mean: float
    bound: float


@dataclass(frozen=True)
class Calibration:
    """What was learned about the choices of a model.

    Args:
        model: its weight against the formula.
        votes: of `static`, beside one of these two.
        mean, bound: of the loss, per unit of uncertainty.
        matrices: names of those behind it.
        static: key of a configuration -> its score over all training matrices, of unit variance.
    """

    model: float
    votes: float
    mean: float
    bound: float
    matrices: Sequence[str]
    static: Mapping[str, float]

    def scores(self, recommendation: Recommendation, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        """Combine the scores of the model with those over all matrices."""
        static = np.array([self.static[config.key] for config in configs])
        return (recommendation.weighted(self.model) + self.votes * static) / (1 + self.votes)

    def loss(self, recommendation: Recommendation, choice: int) -> ExpectedLoss:
        """Expect the loss of a choice, an index of the configurations that were scored."""
        uncertainty = recommendation.uncertainty(choice)
        return ExpectedLoss(math.expm1(self.mean * uncertainty), math.expm1(self.bound * uncertainty))


def calibrate(
    study: EvaluationData, recommend: Callable[[MatrixFeatures, Sequence[Config]], Recommendation],
    known: frozenset[str], *, roles: Sequence[Role], folder: Path,
) -> Calibration | None:
    """Calibrate a model on all matrices that have all configurations and of whose family it has learned none.

    Args:
        known: names of the matrices that the model has learned from.
        roles: of the matrices to calibrate on; those of role "test" judge the result.
        folder: keeps the calibration, so that the same model is calibrated once.

    Returns:
        None if there are fewer than `LEAST_MATRICES` such matrices.
    """
    try:
        _ = study.labels
    except (MissingArtifact, ValueError):  # samples are not here, or of other widths
        return None
    tables = [table for role in roles if (table := study.times(role)) is not None]
    families = study.samples.families()
    seen = known | {families[name] for name in known if name in families}
    rows = [(name, seconds) for table in tables for name, seconds in zip(table.matrices, table.seconds, strict=True)
            if name not in seen and families.get(name) not in seen]
    if len(rows) < LEAST_MATRICES:
        return None
    configs, names = tables[0].configs, [name for name, _ in rows]
    seconds = np.stack([each for _, each in rows])
    first = recommend(study.views[names[0]], configs)
    static = static_scores(study)
    conditions = Conditions({
        "code": code(), "platform": study.platform.name, "op": study.op.name, "matrices": names,
        "patterns": [study.views[name].digest for name in names],
        "content": hashlib.sha256(b"".join(
            each.tobytes() for each in (seconds, first.scores, first.opinions))).hexdigest(),
        "spread": first.spread, "static": static, "version": __version__,
        "settings": [COVERAGE, *MODEL_WEIGHTS, *VOTES, STANDARD_ERRORS, BASE_UNCERTAINTY]})
    file = folder / f"{conditions.digest}.json"
    with suppress(OSError, ValueError, TypeError):  # there is none, or it is damaged
        return Calibration(**read_json(file))
    found = calibrate_on(np.log(seconds), [first, *(recommend(study.views[name], configs) for name in names[1:])],
                         static, [config.key for config in configs], names)
    with suppress(OSError):  # a folder that cannot be written only costs the time to calibrate again
        file.parent.mkdir(parents=True, exist_ok=True)
        write_checked_json(file, asdict(found))
    return found


def calibrate_on(
    times: Float[np.ndarray, "matrices configs"], recommendations: Sequence[Recommendation],
    static: Mapping[str, float], keys: Sequence[str], names: Sequence[str],
) -> Calibration:
    """Choose the weights of the model and of the static configuration, and measure the losses of the choices.

    Args:
        times: logarithms of seconds.
        static: see `Calibration`.
        names: of the matrices.
    """
    common = np.array([static[key] for key in keys])
    lost = times - times.min(axis=1, keepdims=True)
    models = (1.0,) if recommendations[0].formula is None else MODEL_WEIGHTS
    weights = [(model, votes) for model in models for votes in VOTES]
    choices = np.array([[(each.weighted(model) + votes * common).argmin() for each in recommendations]
                        for model, votes in weights])
    losses = np.take_along_axis(lost, choices.T, axis=1).T  # (weights, matrices)
    costs = losses + np.maximum(0, losses - lost[:, common.argmin()])
    gains = costs[0] - costs
    sure = gains.mean(axis=1) - STANDARD_ERRORS * gains.std(axis=1) / math.sqrt(len(times))
    best = int(sure.argmax())
    choices, losses = choices[best], losses[best]
    uncertainties = np.array([each.uncertainty(int(choice))
                              for each, choice in zip(recommendations, choices, strict=True)])
    rank = min(math.ceil((len(losses) + 1) * COVERAGE), len(losses))
    bound = float(np.sort(losses / uncertainties)[rank - 1])
    return Calibration(*weights[best], float(losses.mean() / uncertainties.mean()), bound, list(names), dict(static))


def static_scores(study: EvaluationData) -> dict[str, float]:
    """Score every configuration over all training matrices, by key: mean 0, unit variance."""
    labels: pd.DataFrame = study.labels[study.labels["matrix"].isin(study.names("train"))]
    configs = list(study.space)
    scores = Static().fit(labels, space=study.space).score_configs(configs)
    scaled = (scores - scores.mean()) / (scores.std() or 1.0)
    return dict(zip((config.key for config in configs), scaled.tolist(), strict=True))
