"""Probe whether the choices of a fine-tuned network depend on the matrix at all: permutation importance."""

import numpy as np
from jaxtyping import Float

from sparloom.experiments.cognate.evaluation_data import EvaluationData
from sparloom.models import CognateModel
from sparloom.report import places_by_bin

PERMUTATIONS = 5


def permutation_importance(model: CognateModel, study: EvaluationData, *, seed: int) -> dict[str, float]:
    """Score the judged matrices with their own embeddings and with those of other matrices.

    Returns:
        `own_of_optimum`, `permuted_of_optimum` and their difference `permutation_importance`: speed of first choices
        over the optimum, geometric means with equal weights of COGNATE's bins of rows.
    """
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
