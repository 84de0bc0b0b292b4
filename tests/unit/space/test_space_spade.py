"""The SPADE space: its points, phi with appendix E's example, equal programs, the readings."""

import numpy as np
import pytest

from sparloom.space import Readings, SpadeSpace

SPACE = SpadeSpace("spmm")
EXAMPLE = SPACE.config(row_panel=4, column_panel=1024, split=32)


@pytest.mark.parametrize("op", ["spmm", "sddmm"])
def test_space_has_256_distinct_points(op: str) -> None:
    points = list(SpadeSpace(op))
    assert len(points) == len(set(points)) == len(SpadeSpace(op)) == 256


def test_default_is_spade_base() -> None:
    assert SPACE.default().key == "row_panel=256,column_panel=all,split=256,barrier=0,bypass=0,reorder=0"
    assert SPACE.default() in set(SPACE)


def test_example_of_appendix_e() -> None:
    shared = SPACE.shared(EXAMPLE)
    assert (shared.I, shared.J, shared.K, shared.K_inner) == (4, 1024, 32, 1)
    assert shared.order == (6, 7, 2, 4, 1, 3, 5)


def test_barrier_puts_column_panels_outside_row_panels() -> None:
    assert SPACE.shared(EXAMPLE.replace(barrier=1)).order == (6, 7, 4, 2, 1, 3, 5)


def test_extents_are_clipped_to_the_matrix() -> None:
    shared = SPACE.bind((100, 3000)).shared(SPACE.config(row_panel=2048, column_panel=65536))
    assert (shared.I, shared.J) == (100, 3000)


def test_flags_are_the_hardware_specific_part() -> None:
    assert SPACE.heterogeneous_names == ("barrier", "bypass", "reorder")
    assert SPACE.heterogeneous(EXAMPLE.replace(bypass=1)).tolist() == [0, 1, 0]
    assert SPACE.heterogeneous_codes().shape == (8, 3)


def test_panels_beyond_the_columns_are_one_program() -> None:
    bound = SPACE.bind((100_000, 20_000))
    same = [SPACE.config(column_panel=value, barrier=barrier) for value in (65536, "all") for barrier in (0, 1)]
    assert {bound.canonical(config).key for config in same} == {SPACE.default().key}
    assert bound.canonical(SPACE.config(column_panel=16384, barrier=1))["barrier"] == 1


def test_equal_programs_have_equal_vectors_except_for_the_barrier() -> None:
    bound = SPACE.bind((200, 20_000))
    for config in SPACE:
        ours, theirs = bound.shared(config), bound.shared(bound.canonical(config))
        assert (ours.I, ours.J, ours.K) == (theirs.I, theirs.J, theirs.K)


def test_reading_literal_swaps_the_panels() -> None:
    shared = SpadeSpace("spmm", readings=Readings(panels="literal")).shared(EXAMPLE)
    assert (shared.I, shared.J) == (1024, 4)


def test_reading_counts_divides_the_matrix() -> None:
    space = SpadeSpace("spmm", readings=Readings(panel_values="counts"))
    shared = space.bind((1000, 4096)).shared(EXAMPLE)
    assert (shared.I, shared.J) == (250, 4)
    assert space.bind((1001, 4096)).shared(EXAMPLE).I == 251
    assert isinstance(space.bind((1001, 4096)).shared(EXAMPLE).I, int)
    with pytest.raises(ValueError, match=r"^a number of panels has no extent"):
        space.shared(EXAMPLE)


def test_reading_passes_divides_the_width() -> None:
    space = SpadeSpace("spmm", readings=Readings(split="passes"))
    assert space.shared(EXAMPLE).K == 256 // 32
    assert space.shared(EXAMPLE.replace(split=256)).K == 1
    assert SpadeSpace("spmm", width=100, readings=Readings(split="passes")).shared(EXAMPLE).K == 3


def test_readings_of_the_barrier() -> None:
    only_order = SpadeSpace("spmm", readings=Readings(barrier="order"))
    assert only_order.heterogeneous_names == ("bypass", "reorder")
    assert only_order.shared(EXAMPLE.replace(barrier=1)).order == (6, 7, 4, 2, 1, 3, 5)
    only_latent = SpadeSpace("spmm", readings=Readings(barrier="latent"))
    assert only_latent.heterogeneous_names == ("barrier", "bypass", "reorder")
    assert only_latent.shared(EXAMPLE.replace(barrier=1)).order == (6, 7, 2, 4, 1, 3, 5)


def test_reading_config_encodes_every_parameter() -> None:
    space = SpadeSpace("spmm", readings=Readings(latent="config"))
    vectors = np.array([space.heterogeneous(config) for config in space])
    assert len(np.unique(vectors, axis=0)) == len(space.heterogeneous_codes()) == 256
    assert space.heterogeneous(EXAMPLE)[:2].tolist() == [2 / 16, 10 / 16]  # as encode() writes extents


def test_digest_changes_with_op_width_and_reading() -> None:
    reading = SpadeSpace("spmm", readings=Readings(barrier="order"))
    spaces = [SPACE, SpadeSpace("sddmm"), SpadeSpace("spmm", width=128), reading]
    assert len({space.digest() for space in spaces}) == len(spaces)
    assert SPACE.digest() == SpadeSpace("spmm").bind((3, 4)).digest()


def test_panels_of_exactly_the_matrix_are_those_of_all() -> None:
    bound = SPACE.bind((32, 1024))
    canonical = bound.canonical(SPACE.config(row_panel=2048, column_panel=1024, barrier=1))
    assert (canonical["row_panel"], canonical["column_panel"], canonical["barrier"]) == (32, "all", 0)
    assert SpadeSpace("spmm", width=32).bind((32, 1024)).canonical(SPACE.config(split=256))["split"] == 32


def test_walks_follow_the_parameters() -> None:
    space = SpadeSpace("spmm", width=32)
    assert space.walk(SPACE.config(row_panel=4, column_panel=1024, split=32, reorder=1)) == (1, 4, 1024, 0, 32)
    assert space.walk(SPACE.config(row_panel=32, split=256, barrier=1)) == (0, 32, 0, 1, 32)
    assert SpadeSpace("spmm", width=512).walk(SPACE.config(split=256)).slice == 256
