"""Decisions of another problem, machine or kernel are not found."""

import shutil
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from sparloom.fusion import Variant
from sparloom.jit import kernel_folder, sources_digest
from sparloom.measure import describe_machine
from sparloom.measure import machine as measured_machine
from sparloom.ops import GemmSpmm, SpmmSpmm
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import (
    Decision,
    FusionConfig,
    PlanCache,
    PlanKey,
    Problem,
    Rates,
    get_pair,
    get_rates,
    kernels_digest,
    machine,
    machine_digest,
    put_pair,
    put_rates,
)
from sparloom.tuning.sparse import CpuBackend, cpu

CHOICE = FusionConfig(True, 8192, 16 << 20, Variant(local=True, prefetch_bytes=4096), 2)
DECISION = Decision("measured", "accepted", (), executions=3, seconds=1.5)


def problem(op, rows: int = 20) -> Problem:
    pattern = Pattern.from_coo(np.arange(rows), np.arange(rows), (rows, rows))
    return Problem.of(op, op.operands(SparseMatrix(pattern, np.ones(rows)), 8, seed=0))


def key(op=None, *, rows: int = 20, threads: int = 2, fuse: str = "auto") -> PlanKey:
    return PlanKey.of(problem(op or GemmSpmm(), rows), threads=threads, fuse=fuse)


def changed(value):
    return value + 1 if isinstance(value, int) else value + "x"


@pytest.mark.parametrize("name", [field.name for field in fields(PlanKey)])
def test_a_decision_of_a_key_that_differs_in_one_field_is_not_found(name, tmp_path):
    cache, made = PlanCache(tmp_path), key()
    put_pair(cache, made, CHOICE, DECISION)
    assert get_pair(cache, made) == (CHOICE, replace(DECISION, from_cache=True))
    other = replace(made, **{name: changed(getattr(made, name))})
    assert other != made
    assert get_pair(cache, other) is None


def differs(one: PlanKey, other: PlanKey) -> set[str]:
    return {field.name for field in fields(PlanKey) if getattr(one, field.name) != getattr(other, field.name)}


def test_a_key_names_what_the_problem_is():
    assert differs(key(), key(rows=21)) == {"pattern"}
    assert differs(key(), key(GemmSpmm(inner=3))) == {"inner"}
    assert differs(key(), key(GemmSpmm(dtype="float64"))) == {"dtype"}
    assert differs(key(), key(GemmSpmm(c_transposed=True))) == {"form"}
    assert differs(key(), key(threads=3)) == {"threads"}
    assert differs(key(), key(fuse="never")) == {"fuse"}
    assert {"op", "right"} <= differs(key(), key(SpmmSpmm()))


def test_a_sparse_right_operand_is_named_by_its_own_pattern():
    same = problem(SpmmSpmm())
    other = Pattern.from_coo(np.arange(20), np.arange(20)[::-1], (20, 20))
    keys = [PlanKey.of(replace(same, right=right), threads=2, fuse="auto") for right in (same.pattern, other)]
    assert [each.right for each in keys] == [same.pattern.digest(), other.digest()]
    assert {each.pattern for each in keys} == {same.pattern.digest()}
    assert differs(*keys) == {"right"}
    assert key().right == ""
    assert key(SpmmSpmm()).right != key(SpmmSpmm(), rows=21).right
    assert key(SpmmSpmm(addends=True)).form == "addends"


@pytest.mark.parametrize("name", measured_machine.MACHINE)
def test_the_machine_is_all_that_describes_it(name, monkeypatch):
    here = machine_digest.__wrapped__()
    assert here == machine_digest.__wrapped__()
    described = describe_machine()
    monkeypatch.setattr(measured_machine, "describe_machine", lambda: described | {name: changed(described[name])})
    assert machine_digest.__wrapped__() != here


CPU_SOURCES = [name for name in (*machine.FUSED_SOURCES, *machine.RAGGED_SOURCES) if "*" not in name]


@pytest.mark.parametrize("source", ["cpu/fused.hpp", *CPU_SOURCES])
def test_kernels_are_all_sources(source, tmp_path, monkeypatch):
    """A change of any source changes the digest; headers belong to all."""
    shutil.copytree(kernel_folder() / "cpu", tmp_path / "cpu")
    monkeypatch.setattr(sys.modules[sources_digest.__module__], "kernel_folder", lambda: tmp_path)

    def digests() -> list[str]:
        return [kernels_digest.__wrapped__(names) for names in (machine.FUSED_SOURCES, machine.RAGGED_SOURCES)]

    fused, products = digests()
    assert [fused, products] == digests()
    (tmp_path / source).write_text((tmp_path / source).read_text(encoding="utf-8") + "// changed\n", encoding="utf-8")
    now_fused, now_products = digests()
    assert (now_fused != fused) is (source in machine.FUSED_SOURCES or Path(source).suffix == ".hpp")
    assert (now_products != products) is (source in machine.RAGGED_SOURCES)


@pytest.mark.parametrize("name", ["machine", "kernels"])
def test_sparse_kernels_are_decided_again_on_another_machine(name, monkeypatch):
    before = CpuBackend(2).signature()
    assert before != CpuBackend(1).signature()
    monkeypatch.setattr(cpu, f"{name}_digest", lambda *_: "another")
    assert before != CpuBackend(2).signature()
    assert {each for each, value in CpuBackend(2).signature().items() if value != before[each]} == {name}


@pytest.mark.parametrize("name", ["machine_digest", "kernels_digest"])
def test_rates_are_measured_again_on_another_machine(name, tmp_path, monkeypatch):
    cache = PlanCache(tmp_path)
    put_rates(cache, Rates(1e11, 2e11, 1e11, 5e10, 1 << 20, 1 << 25), threads=2)
    monkeypatch.setattr(machine, name, lambda *_: "another")
    assert get_rates(cache, threads=2) is None
