"""Probe what a fine-tuned network reads of a matrix.

Permutation importance asks whether its choices depend on the matrix at all, linear probes whether the average features
of its convolutions tell what decides which configuration is fast.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from sparloom.experiments.cognate.evaluation_data import EvaluationData
from sparloom.models import MAX_DEVIATIONS, CognateModel
from sparloom.report import places_by_bin
from sparloom.sparse import signed_logarithm

PROBED = ("row_cv", "imbalance_32", "reuse_32", "bandwidth_mean")
"""Statistics that linear probes predict: variation and imbalance of rows, reuse of columns, and bandwidth."""
PERMUTATIONS = 5
FOLDS = 5
PENALTIES = np.logspace(-2, 4, 13)  # of ridge regression; the best by cross-validation counts
LEAST = 2 * FOLDS  # matrices of a probe


def probe_network(model: CognateModel, study: EvaluationData, *, seed: int) -> dict[str, float]:
    """Return permutation importance on the judged matrices, and R² of linear probes on all labelled ones.

    Returns:
        `own_of_optimum`, `permuted_of_optimum` and their difference `permutation_importance`: speed of first choices
        over the optimum with every matrix's own embedding, and with that of another matrix, geometric means with equal
        weights of COGNATE's bins of rows; `r2_<statistic>` of `PROBED`, out of fold, missing for networks without
        convolutions and for fewer than 10 matrices.
    """
    return _permutation_importance(model, study, seed) | _linear_probes(model, study, seed)


def _permutation_importance(model: CognateModel, study: EvaluationData, seed: int) -> dict[str, float]:
    truth, views = study.truth, study.views
    embeddings = {name: model.embedding(views[name]) for name in truth.matrices}
    bins = places_by_bin([views[name].shape[0] for name in truth.matrices])

    rng = np.random.default_rng(seed)
    orders = [truth.matrices, *(tuple(rng.permutation(truth.matrices)) for _ in range(PERMUTATIONS))]
    scores = np.stack([model.score_embedded(np.stack([embeddings[order[place]] for order in orders]),
                                            views[name].shape, truth.configs)
                       for place, name in enumerate(truth.matrices)], axis=1)

    def share(scores: Float[np.ndarray, "matrices configs"]) -> float:
        taken = truth.seconds[np.arange(len(scores)), scores.argmin(axis=1)]
        logs = np.log(truth.best / taken)
        return float(np.exp(np.mean([logs[places].mean() for places in bins])))

    own, *others = map(share, scores)
    permuted = float(np.mean(others))
    return {"own_of_optimum": own, "permuted_of_optimum": permuted, "permutation_importance": own - permuted}


def _linear_probes(model: CognateModel, study: EvaluationData, seed: int) -> dict[str, float]:
    names = sorted(set(study.labels["matrix"]) & set(study.statistics.index))
    features = _pooled(model, study, names)
    if features is None or len(names) < LEAST:
        return {}
    folds, found = KFold(FOLDS, shuffle=True, random_state=seed), {}
    for name in PROBED:
        wanted = signed_logarithm(study.statistics.loc[names, name].to_numpy(np.float64))
        probe = make_pipeline(StandardScaler(), FunctionTransformer(_clip), RidgeCV(PENALTIES))
        found[f"r2_{name}"] = float(r2_score(wanted, cross_val_predict(probe, features, wanted, cv=folds)))
    return found


def _clip(deviations: np.ndarray) -> np.ndarray:
    """Limit features that are all but constant over the matrices of the other folds."""
    return deviations.clip(-MAX_DEVIATIONS, MAX_DEVIATIONS)


@torch.no_grad()
def _pooled(
    model: CognateModel, study: EvaluationData, names: Sequence[str],
) -> Float[np.ndarray, "matrices features"] | None:
    """Average the features of the convolutions, without any side vector."""
    featurizer = model.net.featurizer
    if not featurizer.convolutions():
        return None
    pooled = [featurizer.norm(featurizer.averages_of([study.inputs[name]]))[0].cpu().numpy() for name in names]
    return np.stack(pooled).astype(np.float64)
