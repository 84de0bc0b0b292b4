"""Cost models without a network: static, trees; and the view of a matrix they read."""

import math
import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from model_parts import spade

from sparloom.data import TinySamples, matrix_samples
from sparloom.models import CostModel, Ensemble, GaussianProcess, MatrixFeatures, Static, Trees
from sparloom.space import Config
from sparloom.sparse import Pattern

SOURCE = TinySamples(matrices=12, configs=256, seed=0)
SETTINGS = {"features": "pattern", "bags": 2, "rounds": 60, "learning_rate": 0.1, "leaves": 8,
            "rows_per_leaf": 5, "ridge": 1.0, "row_share": 0.7, "column_share": 0.7, "threads": 1, "seed": 0}


class RandomScores:
    """Random scores, different for every matrix."""

    def score(self, matrix: MatrixFeatures, configs: Sequence[Config]) -> np.ndarray:
        return np.random.default_rng([0, *matrix.shape, matrix.nnz]).random(len(configs))


def labels(share: float = 1.0) -> pd.DataFrame:
    whole = SOURCE.table("spade", "t1", "spmm").labels()
    return whole.groupby("matrix", group_keys=False).sample(frac=share, random_state=0)


def views() -> dict[str, MatrixFeatures]:
    numbers, inputs = SOURCE.statistics(), SOURCE.inputs()
    return {name: MatrixFeatures.from_stored(inputs[name], numbers.loc[name].to_dict()) for name in inputs.names}


def chosen_over_best(model: CostModel, names: list[str]) -> float:
    whole, space = labels(), spade()
    seconds = whole.pivot(index="matrix", columns="config", values="seconds")
    ratios = []
    for name in names:
        scores = model.score(views()[name], list(space))
        key = list(space)[int(np.argmin(scores))].key
        ratios.append(seconds.loc[name, key] / seconds.loc[name].min())
    return float(np.exp(np.log(ratios).mean()))


def test_static_is_the_geometric_mean_where_all_was_tried() -> None:
    space, whole = spade(), labels()
    model = Static().fit(whole, space=space)
    logs = whole.assign(log=np.log(whole["seconds"])).groupby("config")["log"].mean()
    scores = model.score(next(iter(views().values())), list(space))
    np.testing.assert_allclose(scores, [logs[config.key] for config in space], rtol=1e-9)


def test_static_estimates_untried_configurations() -> None:
    """A third of all pairs at random says nearly as well as all of them which configuration is best."""
    space = spade()
    whole, part = Static().fit(labels(), space=space), Static().fit(labels(0.33), space=space)
    view = next(iter(views().values()))
    scores, guess = whole.score(view, list(space)), part.score(view, list(space))
    assert np.corrcoef(scores, guess)[0, 1] > 0.9
    assert scores[guess.argmin()] < np.quantile(scores, 0.05)


@pytest.mark.parametrize("objective", ["log", "rank"])
def test_trees_beat_random_on_unseen_matrices(objective: str) -> None:
    names = sorted(SOURCE.split())
    train = labels(0.4)[lambda frame: frame["matrix"].isin(names[:8])]
    trees = Trees(objective=objective, **SETTINGS).fit(train, space=spade(), matrices=views())
    assert chosen_over_best(trees, names[8:]) < 0.5 * (1 + chosen_over_best(RandomScores(), names[8:]))


def test_trees_use_a_prior_in_any_unit() -> None:
    """With the true seconds as the prior, few labels choose better than without; milliseconds give the same."""
    class Told:
        def __init__(self, unit: float) -> None:
            self.logs = unit * np.log(labels().pivot(index="matrix", columns="config", values="seconds"))
            self.names = {view.input.digest: name for name, view in views().items()}

        def score(self, matrix: MatrixFeatures, configs: Sequence[Config]) -> np.ndarray:
            row = self.logs.loc[self.names[matrix.input.digest]]
            return row[[config.key for config in configs]].to_numpy()

    names = sorted(SOURCE.split())
    train = labels(0.1)[lambda frame: frame["matrix"].isin(names[:8])]
    alone = Trees(objective="log", **SETTINGS)
    chosen = [chosen_over_best(trees.fit(train, space=spade(), matrices=views()), names[8:])
              for trees in (alone, alone.with_prior(Told(1)), alone.with_prior(Told(7)))]
    assert chosen[1] - 1 < 0.7 * (chosen[0] - 1)
    assert chosen[1] == pytest.approx(chosen[2])


LEARNERS = {
    "static": lambda frame: Static().fit(frame, space=spade()),
    **{objective: lambda frame, objective=objective: Trees(objective=objective, **SETTINGS).fit(
        frame, space=spade(), matrices=views()) for objective in ("log", "level", "rank")},
    "process": lambda frame: GaussianProcess(smoothness=2.5).fit(frame, space=spade(), matrices=views()),
    "ensemble": lambda frame: Ensemble(members=[GaussianProcess(smoothness=2.5)]).fit(
        frame, space=spade(), matrices=views()),
    "network": lambda frame: matrix_samples(frame, SOURCE.inputs(), spade()),
}
NO_TIMES = (math.nan, 0.0, -1.0, math.inf, -math.inf, None, "0.5", True, 1j, pd.NA, pd.Timedelta(1), [1.0])


@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("wrong", NO_TIMES, ids=repr)
def test_labels_that_are_no_times_are_refused_by_all_that_learn(learner: str, wrong: object) -> None:
    frame = labels(0.03).astype({"seconds": object if not isinstance(wrong, float) else float}).reset_index(drop=True)
    frame.at[5, "seconds"] = wrong
    name = f"{frame['matrix'][5]}, {frame['config'][5]}: seconds={wrong!r}: give a positive number"
    with pytest.raises(ValueError, match=re.escape(name)):
        LEARNERS[learner](frame)


def test_tables_may_have_gaps_but_no_other_labels_without_a_time() -> None:
    table, keys = np.array([[1.0, np.nan], [2.0, 3.0]]), [config.key for config in list(spade())[:2]]
    Static().fit_table(table, keys, space=spade())
    for wrong in (0.0, -1.0, np.inf):
        table[1, 0] = wrong
        with pytest.raises(ValueError, match=f"matrix 1, row_panel=.*: seconds={wrong}: give a positive number"):
            Static().fit_table(table, keys, space=spade())


def test_view_of_a_pattern_equals_the_stored_one() -> None:
    pattern = Pattern.from_coo([0, 1, 2, 2], [0, 1, 0, 2], (3, 3))
    live = MatrixFeatures.from_pattern(pattern, "a/b")
    stored = MatrixFeatures.from_stored(live.input, live.statistics)
    assert (stored.shape, stored.nnz) == (live.shape, live.nnz) == ((3, 3), 4)
    np.testing.assert_array_equal(live.input.coords, [(0, 0), (1, 1), (2, 0), (2, 2)])
    assert live.statistics["nnz"] == 4


@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (5, 3)])
def test_models_score_matrices_without_nonzeros(shape: tuple[int, int]) -> None:
    from model_parts import ready_net

    from sparloom.models import CognateModel

    empty = Pattern.from_coo([], [], shape)
    trees = Trees(objective="log", **SETTINGS).fit(labels(0.1), space=spade(), matrices=views())
    for model in (Static().fit(labels(), space=spade()), trees, CognateModel(ready_net(spade()), spade())):
        assert np.isfinite(model.score(empty, list(spade()))).all()
