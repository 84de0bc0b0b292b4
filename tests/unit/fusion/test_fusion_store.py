"""Schedules on disk: what comes back, and what damaged or hostile files are answered with."""

import dataclasses
import io
import logging
import zipfile

import numpy as np
import pytest

from sparloom.errors import SchemaError
from sparloom.fusion import ScheduleKey, ScheduleStore, TileSchedule, load_schedule, save_schedule

KEY = ScheduleKey("gemm_spmm", "a" * 64, "", inner=32, width=64, element_bytes=4, threads=2, cache_bytes=1 << 20,
                  ct_size=2048)


@pytest.fixture
def schedule() -> TileSchedule:
    return TileSchedule(
        (1, 1), np.array([0, 3]), np.array([1, 0, 2], np.int32), np.array([0, 1, 3]), np.ones(3, np.uint8), 0.25)


def test_a_schedule_comes_back_as_it_was(schedule, tmp_path):
    save_schedule(tmp_path / "new" / "schedule.npz", schedule)
    loaded = load_schedule(tmp_path / "new" / "schedule.npz")
    assert loaded == schedule
    assert loaded.build_seconds == 0.25
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["schedule.npz"]


def test_a_schedule_of_no_iterations_comes_back(tmp_path):
    nothing = TileSchedule((0, 0), np.zeros(1, int), np.zeros(0, np.int32), np.zeros(1, int), np.zeros(0, np.uint8))
    save_schedule(tmp_path / "schedule.npz", nothing)
    assert load_schedule(tmp_path / "schedule.npz") == nothing


@pytest.mark.parametrize(("changes", "message"), [
    ({"version": np.int64(2)}, "version 2: this program reads version 1"),
    ({"version": None}, "version None"),
    ({"needed": None}, "member 'needed' is missing"),
    ({"tiles": np.array([1, -1])}, r"member 'tiles' is \[1, -1\]: it must be two counts"),
    ({"tiles": np.array([1, 2])}, "second_ptr has 3 elements"),
    ({"build_seconds": np.zeros(2)}, "member 'build_seconds' is float64 of shape"),
    ({"first": np.array([0.0, 3.0])}, "first is float64"),
    ({"second": np.array([1, 0, 7], np.int32)}, "second holds 7: iterations are 0 to 2"),
    ({"second": np.array([1, 0, 0], np.int32)}, "iteration 0 of loop two occurs 2 times"),
    ({"second_ptr": np.array([0, 9, 3])}, "second_ptr does not rise from 0 to 3"),
    ({"needed": np.array([None] * 3)}, "member 'needed' is no valid array: it holds Python objects"),
])
def test_a_file_that_holds_no_schedule_is_refused(schedule, tmp_path, changes, message):
    path = tmp_path / "schedule.npz"
    save_schedule(path, schedule)
    members = dict(np.load(path)) | changes
    np.savez(path, **{name: array for name, array in members.items() if array is not None})
    with pytest.raises(SchemaError, match=message) as raised:
        load_schedule(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_a_torn_file_is_refused(schedule, tmp_path):
    path = tmp_path / "schedule.npz"
    save_schedule(path, schedule)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(SchemaError, match="damaged or truncated"):
        load_schedule(path)


def test_a_member_that_claims_more_than_is_there_is_refused(schedule, tmp_path):
    path = tmp_path / "schedule.npz"
    save_schedule(path, schedule)
    whole = io.BytesIO()
    np.lib.format.write_array_header_1_0(whole, {"descr": "|u1", "fortran_order": False, "shape": (1 << 40,)})
    members = {info: zipfile.ZipFile(path).read(info) for info in zipfile.ZipFile(path).namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (members | {"needed.npy": whole.getvalue()}).items():
            archive.writestr(name, content)
    with pytest.raises(SchemaError, match="member 'needed' is no valid array: 0 bytes for shape"):
        load_schedule(path)


def test_a_file_that_unpacks_to_too_much_is_refused(schedule, tmp_path):
    save_schedule(tmp_path / "schedule.npz", schedule)
    with pytest.raises(SchemaError, match=r"unpacks to .* more than 100: raise limit_bytes"):
        load_schedule(tmp_path / "schedule.npz", limit_bytes=100)


def test_a_store_finds_what_it_keeps(schedule, tmp_path):
    store = ScheduleStore(tmp_path / "schedules")
    assert store.find(KEY) is None
    store.keep(KEY, schedule)
    assert store.find(KEY) == schedule


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(ScheduleKey)])
def test_a_schedule_for_something_else_is_not_found(schedule, tmp_path, field):
    store = ScheduleStore(tmp_path)
    store.keep(KEY, schedule)
    other = getattr(KEY, field) * 2 or ("b" if field == "inner_pattern" else 1)
    assert store.find(dataclasses.replace(KEY, **{field: other})) is None


def test_a_schedule_of_another_order_is_not_taken_for_the_natural_one(schedule, tmp_path):
    store = ScheduleStore(tmp_path)
    store.keep(dataclasses.replace(KEY, order="metis"), schedule)
    assert store.find(KEY) is None
    assert store.find(dataclasses.replace(KEY, order="bandwidth")) is None
    assert store.find(dataclasses.replace(KEY, order="metis")) == schedule


def test_a_damaged_file_of_a_store_counts_as_absent(schedule, tmp_path, caplog):
    store = ScheduleStore(tmp_path)
    store.keep(KEY, schedule)
    (tmp_path / f"{KEY.digest()}.npz").write_bytes(b"torn")
    with caplog.at_level(logging.WARNING):
        assert store.find(KEY) is None
    assert "damaged or truncated" in caplog.text
    assert "it is made anew" in caplog.text
