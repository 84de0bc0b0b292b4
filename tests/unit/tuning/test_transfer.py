"""Sources of a campaign: exact where they have run, trusted by their order, and read from every kind of file."""

import numpy as np
import pandas as pd
import pytest

from sparloom.space import SearchParameter, SearchSpace
from sparloom.tuning import Source
from sparloom.tuning.transfer import PRIOR_TRUST, SourceModel, SourceModels, trust

SPACE = SearchSpace("kernel", (SearchParameter("block", "integer", 16, (16, 32, 64, 128, 256)),
                               SearchParameter("tile", "integer", 1, range(1, 9)),
                               SearchParameter("layout", "categorical", "row", ("row", "column"))))


def measured(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    configs = SPACE.configs(SPACE.sample(rows, rng))
    frame = pd.DataFrame([dict(each.values) for each in configs])
    return frame.assign(seconds=np.exp(np.abs(np.log2(frame["block"] / 64)) + 0.1 * (frame["tile"] - 4) ** 2
                                       + (frame["layout"] == "row")))


def test_what_a_source_has_run_is_exact_and_the_rest_is_predicted() -> None:
    frame = measured(50)
    model = SourceModel(Source("device", frame), SPACE)
    everything = SPACE.enumerate(10**3)
    predicted, failed = model.predict(everything)
    true = np.log(measured(80)["seconds"])
    assert not failed.any()
    configs = {config: value for config, value in zip(SPACE.configs(everything), predicted, strict=True)}
    ran = [configs[SPACE.parse(row)] for row in frame.drop(columns="seconds").to_dict("records")]
    logs = np.log(frame["seconds"])
    np.testing.assert_allclose(ran, (logs - logs.mean()) / logs.std(ddof=0))
    whole = [configs[SPACE.parse(row)] for row in measured(80).drop(columns="seconds").to_dict("records")]
    assert np.corrcoef(whole, true)[0, 1] > 0.95


def test_text_and_numbers_of_other_types_are_read() -> None:
    frame = measured(40)
    for other in (frame.astype({"block": str, "tile": str}), frame.astype({"block": float}),
                  frame.astype(object)):
        np.testing.assert_allclose(SourceModel(Source("a", other), SPACE).predict(SPACE.enumerate(100))[0],
                                   SourceModel(Source("a", frame), SPACE).predict(SPACE.enumerate(100))[0])


def test_failures_are_known_and_count_as_slow() -> None:
    frame = measured(80)
    frame.loc[frame["tile"] == 8, "seconds"] = np.nan
    columns = SPACE.enumerate(100)
    predicted, failed = SourceModel(Source("device", frame), SPACE).predict(columns)
    np.testing.assert_array_equal(failed == 1, columns["tile"] == 8)
    assert predicted[failed == 1].min() > np.median(predicted)


def test_problems_of_a_source_are_read_by_name_or_relative_to_their_mean() -> None:
    frame = measured(60)
    both = pd.concat([frame.assign(problem="a"), frame.assign(problem="b", seconds=1e3 / frame["seconds"])])
    models = SourceModels(SPACE, ["a", "b", "c"], [Source("device", both)])
    columns = SPACE.enumerate(100)
    a, b, c = (models.predict(name, columns)[0][:, 0] for name in "abc")
    assert np.corrcoef(a, b)[0, 1] < -0.9
    assert np.corrcoef(a, c)[0, 1] > 0  # of each configuration the fastest trial counts


def test_trust_grows_with_agreement_and_with_trials() -> None:
    rng = np.random.default_rng(0)
    seconds = rng.random(20)
    assert trust([]) == PRIOR_TRUST
    assert trust([(seconds, seconds)]) > trust([(seconds[:4], seconds[:4])]) > PRIOR_TRUST
    assert trust([(-seconds, seconds)]) == 0
    assert trust([(rng.random(20), seconds)]) < PRIOR_TRUST
    assert trust([(np.ones(20), seconds)]) < PRIOR_TRUST


@pytest.mark.parametrize("sign", [1, -1])
def test_slopes_follow_the_trials(sign) -> None:
    models = SourceModels(SPACE, [""], [Source("device", measured(80))])
    predicted = np.random.default_rng(1).standard_normal((30, 1))
    before, after = models.slopes([]), models.slopes([(predicted, 2 * sign * predicted[:, 0])])
    assert before > 0
    assert after == pytest.approx(2 * sign, abs=0.4)
