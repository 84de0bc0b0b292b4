"""Models on statistics of tiled walks, with times of the SPADE simulator."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from model_parts import spade

from sparloom.errors import Unsupported
from sparloom.models import Ensemble, Estimate, GaussianProcess, Learner, MatrixFeatures, Trees
from sparloom.models.trees import SPECIFIC, walk_features
from sparloom.platforms.spade import estimate_seconds, simulate_many
from sparloom.space import Config, CpuSpace, SpmmSpace
from sparloom.sparse import Pattern, SyntheticCorpus

ROOT = Path(__file__).parents[3]
SETTINGS = {"features": "walk", "bags": 3, "rounds": 60, "learning_rate": 0.1, "leaves": 8, "rows_per_leaf": 3,
            "ridge": 1.0, "row_share": 0.7, "column_share": 0.5, "threads": 1, "seed": 0}
LEARNERS: dict[str, Learner] = {
    "gaussian": GaussianProcess(smoothness=2.5),
    "level": Trees(objective="level", **SETTINGS),
    "rank": Trees(objective="rank", **SETTINGS),
}
LEARNERS["ensemble"] = Ensemble(members=list(LEARNERS.values()))


@cache
def machine():
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return instantiate(compose("config", ["experiment=collect_spade"]).target).machine


@cache
def world() -> tuple[dict[str, MatrixFeatures], pd.DataFrame]:
    """Views and simulated seconds of twelve generated matrices."""
    corpus = SyntheticCorpus(rows=[1000, 4000], variants=1, seed=0)
    small = sorted((entry for entry in corpus.entries() if entry.nnz < 40_000), key=lambda entry: entry.name)
    configs = list(spade())
    views, rows = {}, []
    for entry in small[::3][:12]:
        pattern = corpus.load(entry.name).pattern
        seconds = simulate_many(pattern, "spmm", width=256, configs=configs, machines=[machine()])[0]
        views[entry.name] = MatrixFeatures.from_pattern(pattern, entry.name)
        rows += [{"matrix": entry.name, "config": config.key, "seconds": second}
                 for config, second in zip(configs, seconds, strict=True)]
    return views, pd.DataFrame(rows)


def share(learner: Learner, per_matrix: int) -> float:
    """Share of the optimum on four matrices after learning from eight."""
    views, whole = world()
    names, configs = sorted(views), list(spade())
    known = whole[whole["matrix"].isin(names[:8])]
    drawn = known.groupby("matrix", group_keys=False).sample(per_matrix, random_state=1)
    model = learner.with_seed(0).fit(drawn, space=spade(), matrices=views)
    table = whole.pivot(index="matrix", columns="config", values="seconds")
    found = []
    for name in names[8:]:
        seconds = table.loc[name, [config.key for config in configs]].to_numpy()
        found.append(np.log(seconds.min() / seconds[model.score(views[name], configs).argmin()]))
    return float(np.exp(np.mean(found)))


def estimate(matrix: MatrixFeatures, configs: Sequence[Config]) -> np.ndarray:
    return estimate_seconds(machine(), "spmm", matrix, configs, width=256)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gaussian", "level", "ensemble"])
def test_few_labels_are_enough_with_an_estimate(name):
    assert share(LEARNERS[name].with_estimate(estimate), 3) > 0.9


def test_an_estimate_needs_no_label():
    views, whole = world()
    assert share(Estimate().with_estimate(estimate), 1) > 0.9
    matrix, configs = views[sorted(views)[0]], list(spade())[:7]
    model = Estimate().with_estimate(estimate).fit(whole[:0], space=spade(), matrices={})
    np.testing.assert_allclose(np.exp(model.score(matrix, configs)), estimate(matrix, configs))
    with pytest.raises(ValueError, match="model=estimate ranks by the formula of a platform"):
        Estimate().fit(whole, space=spade(), matrices=views)


class Learned:
    """A member with a given share of explained errors, whose scores fall."""

    def __init__(self, explained_share: float | None = None) -> None:
        self.explained_share = explained_share

    def fit(self, labels, *, space, matrices):
        return self

    def score(self, matrix, configs):
        return -np.arange(len(configs), dtype=float)


def rising(matrix: MatrixFeatures, configs: Sequence[Config]) -> np.ndarray:
    """Seconds of an estimate whose scores rise."""
    return np.exp(np.arange(len(configs), dtype=float))


@pytest.mark.parametrize(("shares", "share"), [
    ([0.25, None], 0.25), ([0.9, 0.7], 0.8), ([1.0], 1.0),
    ([-0.5, None, 0.1], 0.0),  # they know nothing
    ([None, None], 0.5),       # nobody can tell
])
def test_members_have_the_share_of_votes_that_they_explain_of_an_estimates_error(shares, share):
    pattern, configs = Pattern.from_coo([0], [0], (2, 2)), list(spade())[:5]
    model = Ensemble(members=[Learned(each) for each in shares]).with_estimate(rising).with_pretrained(Learned(), 0.3)
    fitted = model.fit(pd.DataFrame(), space=spade(), matrices={})
    scores, opinions = fitted.score_with_opinions(pattern, configs)
    assert len(opinions) == len(shares) + 2
    against = share * (len(shares) + 0.3)
    total = against + (1 - share) * len(shares)
    np.testing.assert_allclose(scores, (total - 2 * against) / total * opinions[-1])


@pytest.mark.parametrize(("name", "low", "high"), [("none", -9.0, 0.0), ("all", 0.9, 1.0), ("opposite", -9.0, 0.0)])
def test_explained_share_is_that_of_errors_that_other_matrices_surely_explain(name, low, high):
    """Seconds are those estimated, times noise, a factor for one parameter, or such a factor that turns around."""
    views, _ = world()
    names, configs = sorted(views), list(spade())[::9]
    bypass = np.array([config["bypass"] for config in configs])
    noise = np.random.default_rng(0).normal(0, 0.2, (len(names), len(configs)))
    errors = {"none": noise, "all": np.tile(1.1 * bypass, (len(names), 1)),
              "opposite": 1.1 * bypass * np.where(np.arange(len(names)) % 2, 1, -1)[:, None]}[name]
    rows = [{"matrix": each, "config": config.key, "seconds": second} for each, error in zip(names, errors, strict=True)
            for config, second in zip(configs, estimate(views[each], configs) * np.exp(error), strict=True)]
    model = LEARNERS["gaussian"]
    assert model.fit(pd.DataFrame(rows), space=spade(), matrices=views).explained_share is None
    assert low <= model.with_estimate(estimate).fit(pd.DataFrame(rows), space=spade(),
                                                    matrices=views).explained_share <= high


@pytest.mark.parametrize("name", ["gaussian", "level"])
def test_what_an_estimate_leaves_unexplained_is_learned(name):
    """Seconds are those estimated, times a constant for one value of a parameter."""
    views, _ = world()
    names, configs = sorted(views), list(spade())
    factor = np.array([3.0 if config["bypass"] else 1.0 for config in configs])
    rows = [{"matrix": each, "config": config.key, "seconds": second} for each in names[:6]
            for config, second in list(zip(configs, estimate(views[each], configs) * factor, strict=True))[::5]]
    model = LEARNERS[name].with_estimate(estimate).fit(pd.DataFrame(rows), space=spade(), matrices=views)
    for each in names[6:]:
        exact = np.log(estimate(views[each], configs) * factor)
        assert np.abs(model.score(views[each], configs) - model.score(views[each], configs).mean()
                      - exact + exact.mean()).max() < 0.3


@pytest.mark.parametrize("name", LEARNERS)
def test_learner_chooses_well_on_unseen_matrices(name):
    views, whole = world()
    table = whole.pivot(index="matrix", columns="config", values="seconds").loc[sorted(views)[8:]]
    random = float(np.exp(np.log(table.min(axis=1)).mean() - np.log(table).to_numpy().mean()))
    assert share(LEARNERS[name], 40) > random + 0.5 * (1 - random)


@pytest.mark.parametrize("name", LEARNERS)
def test_learning_leaves_the_learner_as_it_was_and_is_repeatable(name):
    views, whole = world()
    drawn = whole.groupby("matrix", group_keys=False).sample(6, random_state=2)
    view, configs = next(iter(views.values())), list(spade())[::7]
    first, second = (LEARNERS[name].with_seed(3).fit(drawn, space=spade(), matrices=views) for _ in range(2))
    np.testing.assert_array_equal(first.score(view, configs), second.score(view, configs))
    if name != "ensemble":
        with pytest.raises(ValueError, match="call fit"):
            LEARNERS[name].score(view, configs)


def test_barrier_on_a_single_column_of_tiles_changes_only_its_own_code():
    view = MatrixFeatures.from_pattern(Pattern.from_coo([0, 1, 2, 2], [0, 1, 2, 0], (3, 3)))
    config = Config.parse("spade", "row_panel=4,column_panel=1024,split=32,barrier=0,bypass=0,reorder=0")
    first, second = (walk_features(view, [config.replace(barrier=flag)], spade())[0] for flag in (0, 1))
    differing = set(np.flatnonzero(first != second).tolist())
    own = range(len(SPECIFIC) - 1, len(SPECIFIC) - 1 + len(spade().heterogeneous_names))
    assert differing <= set(own)


def test_space_without_walks_is_refused():
    view = MatrixFeatures.from_pattern(Pattern.from_coo([0], [0], (2, 2)))
    space = CpuSpace("spmm")
    with pytest.raises(Unsupported, match="space cpu does not say how its configurations walk a matrix"):
        walk_features(view, [space.default()], space)


@pytest.mark.parametrize("learner", [GaussianProcess(smoothness=2.5), Trees(objective="level", **SETTINGS)])
def test_models_read_the_pattern_where_a_space_has_no_walks(learner):
    space, views = SpmmSpace(128), dict(list(world()[0].items())[:4])
    configs = list(space)[::4]
    labels = pd.DataFrame([{"matrix": name, "config": config.key, "seconds": 1.0 + (config["prefetch"] == 4)}
                           for name in views for config in configs])
    fitted = learner.fit(labels, space=space, matrices=views)
    for view in views.values():
        assert configs[int(fitted.score(view, configs).argmin())]["prefetch"] != 4
