"""What a surrogate reads of a space: every value of a parameter has an effect by itself."""

import dataclasses

import numpy as np
import pytest

from sparloom.models import Points, Priors, Surrogate
from sparloom.space import SearchParameter, SearchSpace
from sparloom.tuning.encoding import SpaceEncoding


def test_effects_of_single_values_add_up_in_combinations_that_never_ran() -> None:
    """Four numbers from 1 to 8 whose effects jump from each to the next; 60 of 4,096 combinations ran."""
    space = SearchSpace("jumps", tuple(SearchParameter(f"p{place}", "integer", 1, tuple(range(1, 9)))
                                       for place in range(4)))
    encoding = SpaceEncoding(space, {"": {}})
    columns = space.enumerate(4096)
    points, priors = encoding.points("", columns), encoding.priors
    effects = np.random.default_rng(0).normal(size=(4, 8))
    values = effects[np.arange(4), space.codes(columns).astype(int)].sum(axis=1)
    values = (values - values.mean()) / values.std()
    seen = np.random.default_rng(1).permutation(4096)[:60]

    def error(points: Points, priors: Priors) -> float:
        posterior = Surrogate(priors).fit(points[seen], values[seen]).condition(points[seen], values[seen])
        return float(np.sqrt(((posterior.at(points)[0] - values) ** 2).mean()))

    without = dataclasses.replace(priors, slopes=priors.slopes[:0], linear_groups=priors.linear_groups[:0])
    assert error(points, priors) < 0.1
    assert error(Points(points.smooth, points.linear[:, :0]), without) > 0.2


@pytest.mark.parametrize(("parameter", "width"), [
    (SearchParameter("p", "integer", 1, (1, 2, 4)), 3), (SearchParameter("p", "integer", 1, tuple(range(1, 100))), 1),
    (SearchParameter("p", "float", 0.5, interval=(0.0, 1.0)), 1), (SearchParameter("p", "boolean", 0, (0, 1)), 2),
    (SearchParameter("p", "integer", 1, (1,)), 0)])
def test_a_parameter_of_many_values_has_a_slope_instead(parameter, width) -> None:
    space = SearchSpace("one", (parameter,))
    several = SpaceEncoding(space, {"a": {"size": 1}, "b": {"size": 2}})
    points = several.points("b", space.columns([space.default()]))
    assert points.linear.shape == (1, 2 + width)
    assert list(points.linear[0, :2]) == [0, 1]
    assert list(several.priors.linear_groups) == [0, 0] + [1] * width
