"""Feature specifications: refusals, data, and messages about differences."""

from dataclasses import replace

import numpy as np
import pytest
from gemm_cases import MACHINE, measured, space

from sparloom.errors import SchemaError
from sparloom.models.performance import GEMM_FEATURES, Feature, FeatureSpec, gemm_problems
from sparloom.ops import GemmShape
from sparloom.space import GemmSpace

WORK = (Feature("m", "problem", "m", "rows"), Feature("flops", "problem", "2 * m", "flop"),
        Feature("bytes", "problem", "4 * m", "B"))


def spec(*features: Feature) -> FeatureSpec:
    return FeatureSpec(op="gemm", version=1, features=(*WORK, *features), fallback="m == 1")


def test_every_feature_is_a_finite_number():
    data = measured(30)
    columns = {name: column[:, None] for name, column in data.problems.items()}
    numbers = GEMM_FEATURES.matrix(columns, GEMM_FEATURES.kernel(data.configs), names=GEMM_FEATURES.names)
    assert numbers.shape == (30, 48, len(GEMM_FEATURES.names))
    assert np.isfinite(numbers).all()


def test_features_equal_values_computed_by_hand():
    """Hand-computed for 100 x 70 x 300 with tiles of 16 x 256."""
    config = space().config(tile_m=16, tile_k=256, micro="8x32", pack="b")
    problem = gemm_problems([GemmShape(100, 70, 300)]) | MACHINE
    found = GEMM_FEATURES.evaluate(problem, GEMM_FEATURES.kernel([config]))
    expected = {
        "flops": 2 * 100 * 70 * 300, "bytes": 4 * (100 * 300 + 300 * 70 + 100 * 70), "blocks_m": 7, "blocks_n": 1,
        "blocks_k": 2, "tail_rows": 4, "tail_columns": 6, "vectors": 5, "micro_rows": 8, "micro_cols": 32, "packs_a": 0,
        "packs_b": 1, "fill_m": 100 / 112, "fill_n": 1, "fill_k": 300 / 512, "tail_row_share": 4 / 100,
        "tail_column_share": 6 / 70, "vector_fill": 70 / 80, "panels_m": 13, "panels_n": 3, "block_k": 256,
    }
    assert {name: found[name].item() for name in expected} == expected


def test_features_say_what_a_program_does_in_a_layout():
    """A transposed B is read along k unless it is packed; then a transposed A is copied, else read with strides."""
    real = GemmSpace()
    packed = real.config(pack="b")
    plain = real.config(unroll=4, prefetch=8, loop="persistent")
    for layout, config, expected in (
            ("nn", plain, {"dots": 0, "ahead": 8, "ahead_bytes": 4 * 8 * 70, "strided_a": 0, "copied_a": 0}),
            ("tn", plain, {"dots": 0, "ahead": 8, "strided_a": 1, "copied_a": 0, "stride_b": 4 * 70}),
            ("nt", plain, {"dots": 1, "ahead": 0, "strided_a": 0, "copied_a": 0, "stride_b": 4 * 300}),
            ("tt", plain, {"dots": 1, "ahead": 0, "strided_a": 0, "copied_a": 1 / 140, "blocks": 1}),
            ("tt", packed, {"dots": 0, "ahead": 0, "strided_a": 1, "copied_a": 0, "stride_b": 4 * 32})):
        problem = gemm_problems([GemmShape(100, 70, 300, layout)]) | MACHINE
        found = GEMM_FEATURES.evaluate(problem, GEMM_FEATURES.kernel([config]))
        assert {name: found[name].item() for name in expected} == expected, layout


def test_degenerate_shapes_fall_back():
    problems = gemm_problems([GemmShape(1, 8, 8), GemmShape(8, 1, 8), GemmShape(8, 8, 1), GemmShape(1, 1, 1)])
    assert GEMM_FEATURES.falls_back(problems).tolist() == [False, True, True, True]


@pytest.mark.parametrize(("changed", "named"), [
    (lambda spec: replace(spec, version=2), r"gemm, version 2; .* version 1; changed: order"),
    (lambda spec: replace(spec, fallback="m == 2"), "changed: order or fallback"),
    (lambda spec: replace(spec, features=(*spec.features, Feature("n", "problem", "n", "1"))), "changed: n"),
    (lambda spec: replace(spec, features=(*spec.features[:2], replace(spec.features[2], formula="8 * m"))),
     "changed: bytes"),
])
def test_models_of_other_features_are_refused(changed, named):
    with pytest.raises(SchemaError, match=rf"models/old was trained on other features .*{named}.*experiment=fit_trees"):
        spec().check(changed(spec()), origin="models/old")
