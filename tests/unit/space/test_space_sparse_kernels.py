"""The spaces of hand-written sparse kernels: numbers of points, defaults."""

import numpy as np
import pytest

from sparloom.space import AttentionSpace, SddmmSpace, SpmmMaxSpace, SpmmSpace


@pytest.mark.parametrize(("make", "width", "points"), [
    (SpmmSpace, 128, 90), (SpmmSpace, 64, 72), (SddmmSpace, 128, 54), (SpmmMaxSpace, 128, 18), (SpmmMaxSpace, 1, 18),
    (AttentionSpace, 128, 18),
])
def test_points_are_counted(make, width, points):
    assert len(make(width)) == len(set(make(width))) == points


@pytest.mark.parametrize("make", [SpmmSpace, SddmmSpace, SpmmMaxSpace, AttentionSpace])
def test_defaults_take_rows_as_stored_without_prefetching(make):
    space, default = make(64), make(64).default()
    space.validate(default)
    assert (default["order"], default["balance"], default["prefetch"]) == ("natural", "dynamic", 0)


def test_models_read_strips_as_extents_and_the_rest_as_codes():
    space = SpmmSpace(128).bind((1000, 700))
    shared = space.shared(space.config(strip=64))
    assert (shared.I, shared.J, shared.K, shared.K_inner) == (64, 700, 64, 1)
    assert space.shared(space.config(strip="all")).K == 128
    for bound in (space, SddmmSpace(128).bind((1000, 700))):
        configs = list(bound)
        vectors = np.concatenate(bound.vectors(configs), axis=1)
        assert len(np.unique(vectors, axis=0)) == len(configs)  # no two look the same
    with pytest.raises(ValueError, match=r"call bind\(shape\)"):
        SddmmSpace(128).shared(SddmmSpace(128).default())
