"""Digests of the conditions of a measurement are equal exactly for equal settings."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from sparloom.data import Conditions, Journal, SampleTable, compact
from sparloom.errors import SchemaError


@dataclass(frozen=True)
class Machine:
    rate: float
    name: str = "a"


@dataclass(frozen=True)
class Renamed:
    name: str
    rate: float


SETTINGS = {"machine": {"rate": 58.6, "ways": [8, 20]}, "timing": {"seed": 0, "slow": float("inf")}}


@pytest.mark.parametrize("same", [
    {"timing": {"slow": np.float64("inf"), "seed": np.int64(0)}, "machine": {"ways": (8.0, 20), "rate": 58.6}},
    {"machine": {"rate": np.float64(58.6), "ways": [8, np.int32(20)]}, "timing": {"seed": 0.0, "slow": float("inf")}},
])
def test_order_and_types_of_numbers_do_not_count(same):
    assert Conditions(same).digest == Conditions(SETTINGS).digest


@pytest.mark.parametrize("other", [
    {**SETTINGS, "machine": {"rate": 5, "ways": [8, 20]}}, {**SETTINGS, "machine": {"rate": 58.6, "ways": [20, 8]}},
    {**SETTINGS, "timing": {"seed": False, "slow": float("inf")}}, {"machine": SETTINGS["machine"]},
    {**SETTINGS, "timing": {"seed": "0", "slow": float("inf")}},
])
def test_everything_else_counts(other):
    assert Conditions(other).digest != Conditions(SETTINGS).digest


def test_the_digest_stays_the_same_for_good():
    assert Conditions(SETTINGS).digest == "2b8195e4fa763506"
    assert Conditions({"machine": Machine(2)}).digest == Conditions({"machine": Renamed("a", 2)}).digest


def test_a_table_stores_the_conditions_of_its_rows(tmp_path: Path, sample):
    made = Conditions(SETTINGS)
    made.write(tmp_path / "journals")
    Journal(tmp_path / "journals", ("cpu", "", "spmm", "g/a")).append([sample(conditions=f"{made.digest}:ab")])
    table = compact(tmp_path / "journals", [{"seed": 0}])
    table.write(tmp_path / "t.parquet")
    again = SampleTable.read(tmp_path / "t.parquet")
    assert again.conditions() == {("spmm", "cpu", ""): made.digest}
    assert Conditions(again.settings(("spmm", "cpu", ""))).digest == made.digest
    assert len(again.without(("spmm", "cpu", ""))) == 0


def test_rows_of_two_conditions_are_not_joined(tmp_path: Path, sample):
    def table(matrix: str, conditions: str, preset: str = "") -> SampleTable:
        folder = tmp_path / f"{matrix}{conditions}{preset}".replace("/", "_")
        Journal(folder, ("cpu", preset, "spmm", matrix)).append(
            [sample(matrix=matrix, conditions=conditions, preset=preset)])
        return compact(folder, [])

    first, second = table("g/a", "1" * 16), table("g/b", "2" * 16)
    for join in (lambda: SampleTable.concat([first, second]), lambda: first.updated(second)):
        with pytest.raises(SchemaError, match=r"spmm cpu  were made under different conditions \(1+, 2+\)"):
            join()
    assert len(first.updated(table("g/b", "1" * 16))) == 2
    assert first.updated(table("g/a", "2" * 16)).conditions() == {("spmm", "cpu", ""): "2" * 16}
    assert len(SampleTable.concat([first, table("g/b", "2" * 16, "other")])) == 2
    old = table("g/b", "")
    with pytest.raises(SchemaError, match=r"1+, unknown"):
        first.updated(old)
    joined = SampleTable.concat([first, old])
    assert joined.conditions() == {("spmm", "cpu", ""): ""}


def test_journals_of_two_conditions_make_no_table(tmp_path: Path, sample):
    Journal(tmp_path, ("cpu", "", "spmm", "g/a")).append([sample(conditions="1" * 16)])
    Journal(tmp_path, ("cpu", "", "spmm", "g/b")).append([sample(matrix="g/b", conditions="2" * 16)])
    with pytest.raises(SchemaError, match="were made under different conditions"):
        compact(tmp_path, [])


def test_a_journal_counts_its_conditions_and_can_drop_others(tmp_path: Path, sample):
    journal = Journal(tmp_path, ("cpu", "", "spmm", "g/a"))
    assert journal.conditions() == {}
    journal.append([sample(conditions="aa:1"), sample(conditions="aa:1", round=1)])
    assert journal.conditions() == {"aa:1": 2}
    journal.append([sample(conditions="bb:1", round=2), sample(round=3)])
    assert journal.conditions() == {"aa:1": 2, "bb:1": 1, "": 1}
    journal.keep("aa:1")
    assert [row.round for row in journal.samples()] == [0, 1]


def test_a_changed_digit_in_a_journal_is_damage(tmp_path: Path, sample):
    journal = Journal(tmp_path, ("cpu", "", "spmm", "g/a"))
    journal.append([sample()])
    journal.path.write_bytes(journal.path.read_bytes().replace(b"0.002", b"0.003"))
    with pytest.raises(SchemaError, match=r"line 1 is damaged \(its checksum does not match\)"):
        journal.samples()
