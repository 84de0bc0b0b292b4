"""Shapes of GEMM: kinds, limits, layers of published networks."""

from collections import Counter

import pytest

from sparloom.ops import GemmShapes

COUNTS = {"tiny": 40, "one_row": 32, "skinny": 36, "square": 28, "large": 36}


def shapes(**changes) -> GemmShapes:
    return GemmShapes(**{"counts": COUNTS, "flops": 5e8, "bytes": 6.7e7, "seed": 0, **changes})


def test_every_shape_is_within_the_limits():
    assert max(problem.shape.flops for problem in shapes().problems()) <= 5e8
    assert max(problem.shape.flops for problem in shapes(flops=1e8).problems()) <= 1e8
    assert max(problem.shape.bytes for problem in shapes(bytes=1e7).problems()) <= 1e7


def test_no_drawn_shape_is_degenerate():
    assert all(problem.shape.n > 1 and problem.shape.k > 1 for problem in shapes().problems())


def test_extents_spread_over_decades():
    drawn = [problem.shape for problem in shapes().problems() if problem.kind != "layer"]
    for name in ("m", "n", "k"):
        decades = Counter(len(str(getattr(shape, name))) for shape in drawn)
        assert min(decades[digits] for digits in (1, 2, 3, 4)) >= 4, name


def test_layers_name_their_network_and_its_source():
    layers = {problem.shape: problem.origin for problem in shapes().problems() if problem.kind == "layer"}
    text = [origin for shape, origin in layers.items() if (shape.m, shape.n, shape.k) == (12544, 64, 147)]
    assert text == ["ResNet-50, conv1 7x7; im2col (arXiv:1512.03385 table 1)"]
    assert all(origin.endswith(")") for origin in layers.values())


def test_shapes_that_cannot_be_drawn_are_refused():
    with pytest.raises(ValueError, match="shapes of kind 'huge' cannot be drawn: kinds are tiny, one_row"):
        shapes(counts={"huge": 1}).problems()
    with pytest.raises(ValueError, match="leave too few tiny shapes: draw fewer than 30000 or raise"):
        shapes(counts={"tiny": 30000}).problems()
