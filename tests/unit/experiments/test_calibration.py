"""Calibrated recommendations: a fixed configuration votes where it helps, and bounds hold as often as they say."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from sparloom.errors import MissingArtifact
from sparloom.experiments.cognate import calibration
from sparloom.experiments.cognate.calibration import Recommendation, calibrate, calibrate_on
from sparloom.models import scale_scores
from sparloom.space import Config, GridSpace, Parameter

CONFIGS = 12
KEYS = [str(number) for number in range(CONFIGS)]


def matrices(
    rng: np.random.Generator, count: int, *, noise: float, common: float,
) -> tuple[np.ndarray, list[Recommendation]]:
    """Draw logarithms of seconds that have a common part, and recommendation that knows each with an error."""
    spreads = rng.uniform(0.1, 1.0, count)
    shared = np.linspace(0, 1, CONFIGS)
    times = spreads[:, None] * (common * shared + rng.normal(size=(count, CONFIGS)))
    voters = times[:, None] / spreads[:, None, None] + noise * rng.normal(size=(count, 3, CONFIGS))
    scaled = (voters - voters.mean(2, keepdims=True)) / voters.std(2, keepdims=True)
    return times, [Recommendation(each.mean(0), each, spread=float(spread))
                   for each, spread in zip(scaled, spreads, strict=True)]


def static_of(times: np.ndarray) -> dict[str, float]:
    scores = times.mean(0)
    return dict(zip(KEYS, ((scores - scores.mean()) / scores.std()).tolist(), strict=True))


def test_bounds_hold_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(20):
        times, recommendations = matrices(rng, 100, noise=1.0, common=1.0)
        found = calibrate_on(times, recommendations, static_of(times), KEYS, [f"m{number}" for number in range(100)])
        others, fresh = matrices(rng, 300, noise=1.0, common=1.0)
        choices = [int((each.scores + found.votes * np.array([found.static[key] for key in KEYS])).argmin())
                   for each in fresh]
        losses = [times[choice] - times.min() for times, choice in zip(others, choices, strict=True)]
        bounds = [np.log1p(found.loss(each, choice).bound) for each, choice in zip(fresh, choices, strict=True)]
        means = [np.log1p(found.loss(each, choice).mean) for each, choice in zip(fresh, choices, strict=True)]
        shares.append(np.mean(np.array(losses) <= bounds))
        assert np.mean(means) == pytest.approx(np.mean(losses), rel=0.5)
        assert np.corrcoef(means, losses)[0, 1] > 0.2
    assert np.mean(shares) == pytest.approx(calibration.COVERAGE, abs=0.03)


def test_a_fixed_configuration_votes_where_the_model_is_worse() -> None:
    rng = np.random.default_rng(1)
    for noise, common, wanted in ((0.0, 1.0, 0.0), (20.0, 20.0, 0.5)):
        times, recommendations = matrices(rng, 60, noise=noise, common=common)
        found = calibrate_on(times, recommendations, static_of(times), KEYS, [""] * 60)
        assert found.votes >= wanted if wanted else found.votes == 0
        configs = [SimpleNamespace(key=key) for key in KEYS]
        chosen = [int(found.scores(each, configs).argmin()) for each in recommendations]
        lost = np.array([row[choice] - row.min() for row, choice in zip(times, chosen, strict=True)])
        own = np.array([row[each.scores.argmin()] - row.min()
                        for row, each in zip(times, recommendations, strict=True)])
        assert lost.mean() <= own.mean()


@pytest.mark.parametrize(("noise", "of_formula", "counts"), [(0.2, 2.0, True), (2.0, 0.2, False)])
def test_the_model_counts_where_it_is_surely_better_than_the_formula(noise, of_formula, counts) -> None:
    rng = np.random.default_rng(3)
    times, recommendations = matrices(rng, 60, noise=noise, common=0.0)
    recommendations = [replace(each, formula=scale_scores(row / each.spread + of_formula * rng.normal(size=CONFIGS)))
                       for each, row in zip(recommendations, times, strict=True)]
    found = calibrate_on(times, recommendations, static_of(times), KEYS, [""] * 60)
    assert (found.model > 0) == counts


def test_few_known_or_missing_matrices_are_no_basis(tmp_path) -> None:
    space, views = GridSpace("chip", "spmm", (Parameter("way", tuple(range(CONFIGS))),), (0,)), [
        SimpleNamespace(number=number, digest=f"{number:064x}") for number in range(30)]
    values, _ = matrices(np.random.default_rng(2), 30, noise=0.5, common=1.0)
    names = [f"m{view.number}" for view in views]
    labels = pd.DataFrame([(name, config.key, float(np.exp(seconds))) for name, row in zip(names, values, strict=True)
                           for config, seconds in zip(space, row, strict=True)],
                          columns=["matrix", "config", "seconds"])
    table = SimpleNamespace(matrices=tuple(names), configs=tuple(space), seconds=np.exp(values))
    study = SimpleNamespace(
        platform=SimpleNamespace(name="chip"), op=SimpleNamespace(name="spmm"), space=space, labels=labels,
        views=dict(zip(names, views, strict=True)), names=lambda role: names,
        samples=SimpleNamespace(families=lambda: {name: f"f{int(name[1:]) // 3}" for name in names}),
        times=lambda role: table if role == "train" else None)
    asked: list[int] = []

    def recommend(view: SimpleNamespace, configs: list[Config]) -> Recommendation:
        asked.append(view.number)
        scores = values[view.number] + 0.1 * np.arange(CONFIGS)
        return Recommendation(scores, scores[None])

    def found(known: frozenset[str] = frozenset()):
        asked.clear()
        return calibrate(study, recommend, known, roles=("train", "validation"), folder=tmp_path)

    assert found(frozenset(f"m{number}" for number in range(15))) is None
    assert asked == []
    assert found(frozenset({"m0", "m7"})).matrices == [name for name in names if name not in
                                                       {"m0", "m1", "m2", "m6", "m7", "m8"}]  # their families
    first = found()
    assert first.matrices == names
    assert asked == list(range(30))
    assert found() == first
    assert asked == [0]  # the rest is kept
    file = max(tmp_path.iterdir(), key=lambda each: each.stat().st_mtime_ns)
    file.write_bytes(file.read_bytes()[:40])
    assert found() == first
    assert asked == list(range(30))
    views[20].digest = "f" * 64  # another pattern of that name
    assert found() == first
    assert asked == list(range(30))

    class Gone:
        def __init__(self, error: Exception) -> None:
            self._error = error

        @property
        def labels(self) -> None:
            raise self._error

    for error in (MissingArtifact("no samples", experiment="collect_spade"), ValueError("samples of other widths")):
        assert calibrate(Gone(error), recommend, frozenset(), roles=("train",), folder=tmp_path) is None
