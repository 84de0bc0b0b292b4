"""The GPU spaces as data."""

import pytest

from sparloom.space import CudaKernelSpace, CudaSpace


@pytest.mark.parametrize(("op", "count"), [("spmm", 288), ("sddmm", 324)])
def test_number_of_points(op: str, count: int) -> None:
    space = CudaSpace(op)
    assert len(set(space)) == len(space) == count
    space.validate(space.default())


@pytest.mark.parametrize(("op", "count"), [("spmm", 216), ("sddmm", 288)])
def test_narrow_operands_leave_fewer_points(op: str, count: int) -> None:
    space = CudaSpace(op, width=64)
    assert len(list(space)) == len(space) == count


@pytest.mark.parametrize(("op", "width", "count"), [
    ("spmm", 256, 270), ("sddmm", 256, 405), ("attention", 256, 324), ("attention", 64, 288), ("attention", 7, 36),
    ("attention", 300, 216), ("attention", 1024, 108),
])
def test_number_of_points_of_hand_written_kernels(op: str, width: int, count: int) -> None:
    space = CudaKernelSpace(op, width=width)
    assert len(set(space)) == len(space) == count
    space.validate(space.default())


def test_spmm_fills_all_four_extents() -> None:
    space = CudaSpace("spmm")
    shared = space.shared(space.config(rows_per_block=16, lanes=8, coarsening=4))
    assert (shared.I, shared.J, shared.K, shared.K_inner) == (16, 1, 4, 8)
    assert shared.order == (2, 1, 6, 7, 4, 3, 5)
    assert space.shared(space.config(reduction="inside")).order == (2, 1, 6, 7, 5, 4, 3)


def test_sddmm_maps_groups_to_rows_and_vectors_to_columns() -> None:
    space = CudaSpace("sddmm")
    shared = space.shared(space.config(groups_per_block=4, group=2, vector=4, lanes=16))
    assert (shared.I, shared.J, shared.K, shared.K_inner) == (8, 1, 4, 16)
    assert space.heterogeneous_codes().shape == (27, 5)
