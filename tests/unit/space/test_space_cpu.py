"""The CPU space: legal orders, formats, the sample, roles and letters."""

import itertools

import numpy as np
import pytest

from sparloom.errors import IllegalSchedule
from sparloom.space import CpuSpace, Readings, legal_orders

OPS = ("spmm", "sddmm")


@pytest.mark.parametrize(("op", "orders", "count"), [
    ("spmm", "all", 30), ("sddmm", "all", 30), ("spmm", "waco", 20), ("sddmm", "waco", 30),
])
def test_number_of_legal_orders(op: str, orders: str, count: int) -> None:
    assert len(set(legal_orders(op, orders))) == count


def test_legal_orders_are_exactly_those_that_keep_outer_before_inner() -> None:
    expected = set()
    for loops in itertools.permutations(("io", "ii", "jo", "ji", "ko", "ki")):
        place = loops.index
        if place("io") < place("ii") and place("jo") < place("ji") and loops[-1] == "ki":
            expected.add(".".join(loops))
    assert set(legal_orders("spmm")) == expected


@pytest.mark.parametrize("op", OPS)
def test_size_counts_the_legal_points(op: str) -> None:
    space = CpuSpace(op)
    parallel = 1 if op == "spmm" else 1.5  # jo may be parallel in the half of the orders where it comes before io
    assert len(space) == 7 * 6 * 5 * 30 * 15 * 5 * parallel


def test_default_is_row_parallel_csr() -> None:
    default = CpuSpace("spmm").default()
    assert default["formats"] == "UUUC"
    assert default["cols_tile"] == default["dense_tile"] == "all"
    CpuSpace("spmm").validate(default)
    CpuSpace("sddmm").validate(default)


@pytest.mark.parametrize("op", OPS)
def test_sample_is_the_default_a_third_near_its_order_and_the_rest(op: str) -> None:
    space = CpuSpace(op)
    drawn = space.sample(100, np.random.default_rng(3))
    assert len(set(drawn)) == 100
    assert drawn[0] == space.default()
    near = drawn[1:34]
    assert {config["order"] for config in near} == {space.default()["order"]}
    assert {config["formats"] for config in near} == {"UUUC", "UUCC", "CUUC", "CUCC"}
    assert len({config["order"] for config in drawn[34:]}) > 20
    for config in drawn:
        space.validate(config)


@pytest.mark.parametrize(("changes", "reason"), [
    ({"order": "ii.io.jo.ji.ko.ki"}, "has ii outside io"),
    ({"order": "io.ii.ji.jo.ko.ki"}, "has ji outside jo"),
    ({"order": "io.ii.jo.ji.ki.ko"}, "has ki outside ko"),
    ({"order": "io.jo.ko.ki.ii.ji"}, "does not end with ki"),
    ({"order": "io.ii"}, "is not an arrangement of io.ii.jo.ji.ko.ki"),
    ({"formats": "UUUU"}, "all four levels are dense"),
    ({"formats": "XUUC"}, "formats=XUUC is not in space cpu .*its values are CCCC|formats=XUUC is not in space cpu"),
    ({"rows_tile": 3}, "its values are 4, 8, 32, 128, 256, 1024, 2048"),
])
@pytest.mark.parametrize("op", OPS)
def test_illegal_schedules_are_refused_with_the_reason(op: str, changes: dict[str, str], reason: str) -> None:
    with pytest.raises(IllegalSchedule, match=reason):
        CpuSpace(op).config(**changes)


def test_columns_are_parallel_only_for_sddmm_and_only_outside_rows() -> None:
    with pytest.raises(IllegalSchedule, match="parallel=jo is not in space cpu"):
        CpuSpace("spmm").config(parallel="jo", order="jo.io.ii.ji.ko.ki")
    with pytest.raises(IllegalSchedule, match="put jo first"):
        CpuSpace("sddmm").config(parallel="jo")
    assert CpuSpace("sddmm").config(parallel="jo", order="jo.io.ii.ji.ko.ki")["parallel"] == "jo"


def test_shared_schedule_of_the_default() -> None:
    shared = CpuSpace("spmm").bind((1000, 500)).shared(CpuSpace("spmm").default())
    assert (shared.I, shared.J, shared.K, shared.K_inner) == (32, 500, 256, 1)
    assert shared.order == (2, 1, 4, 3, 6, 7, 5)


def test_tiles_larger_than_the_matrix_are_legal_and_clipped() -> None:
    space = CpuSpace("spmm", width=64).bind((10, 20))
    shared = space.shared(space.config(rows_tile=2048, cols_tile=65536, dense_tile=128))
    assert (shared.I, shared.J, shared.K) == (10, 20, 64)


def test_sddmm_by_letter_swaps_columns_and_dense_dimension() -> None:
    config = CpuSpace("sddmm").config(rows_tile=8, cols_tile=1024, dense_tile=16)
    role = CpuSpace("sddmm").bind((5000, 5000)).shared(config)
    letter = CpuSpace("sddmm", readings=Readings(sddmm="letter")).bind((5000, 5000)).shared(config)
    assert (role.I, role.J, role.K) == (8, 1024, 16)
    assert (letter.I, letter.J, letter.K) == (8, 16, 1024)
    assert letter.order == (2, 1, 6, 7, 5, 4, 3)
    same = CpuSpace("spmm", readings=Readings(sddmm="letter")).bind((5000, 5000)).shared(config)
    assert same == role


def test_formats_are_the_hardware_specific_part() -> None:
    space = CpuSpace("spmm")
    assert space.heterogeneous_names == ("formats_io", "formats_ii", "formats_jo", "formats_ji")
    assert space.heterogeneous(space.default()).tolist() == [1, 1, 1, 0]
    assert space.heterogeneous_codes().shape == (15, 4)


def test_chunk_and_parallel_join_by_a_reading() -> None:
    space = CpuSpace("sddmm", readings=Readings(cpu_latent="all"))
    assert space.heterogeneous_names[4:] == ("chunk", "parallel")
    config = space.config(parallel="jo", order="jo.io.ii.ji.ko.ki", chunk=256)
    assert space.heterogeneous(config).tolist() == [1, 1, 1, 0, 1, 1]
    assert space.heterogeneous_codes().shape == (15 * 5 * 2, 6)
