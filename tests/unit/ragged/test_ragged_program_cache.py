"""Scheduled programs on disk: what is read is what was made, or it is made again; nothing that is read is executed."""

import os
import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sparloom.ir import render_c
from sparloom.jit import Cache
from sparloom.ragged import EncoderSchedule, EncoderShape, Program, lower
from sparloom.ragged.layers import attention, cross_attention, encoder, layer, norms
from sparloom.ragged.layers.layer import cached_program

TINY = EncoderShape(24, 3, 40)
SCHEDULE = EncoderSchedule(rows=6, panel=8, depth=16, queries=4)
MADE: list[tuple[object, ...]] = []


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path))
    MADE.clear()
    return tmp_path


def _softmax(width: int, *, kept: tuple[str, ...] = ()) -> Program:
    MADE.append((width, kept))
    return norms.scheduled_softmax(width, norms.SoftmaxSchedule())


def _entry(folder: Path) -> Path:
    entry, = folder.rglob("*.program")
    return entry


@pytest.mark.parametrize("make", [
    partial(encoder.scheduled_encoder_layer, TINY, SCHEDULE),
    partial(encoder.scheduled_encoder_layer, TINY, SCHEDULE, kept=encoder.KEPT),
    partial(encoder.scheduled_encoder_layer,
            EncoderShape(24, 3, 40, activation="gelu", gated=True, rotary=8, window=3, precision="int8"), SCHEDULE),
    partial(encoder.scheduled_encoder_layer, EncoderShape(24, 3, 40, precision="bfloat16", causal=True), SCHEDULE),
    partial(encoder.scheduled_encoder_backward, TINY, SCHEDULE),
    partial(attention.scheduled_attention, TINY, SCHEDULE),
    partial(cross_attention.scheduled_cross_attention, EncoderShape(24, 3, 40, cross=True), SCHEDULE),
    partial(norms.scheduled_layer_norm, 8, norms.NormSchedule(), epsilon=1e-5),
], ids=lambda make: make.func.__name__)
def test_a_program_that_is_read_compiles_to_the_same_code(make) -> None:
    made, read = cached_program(make), cached_program(make)
    assert read is not made
    assert read == made
    assert [render_c(each.kernel) for each in lower(read)] == [render_c(each.kernel) for each in lower(made)]


def test_a_program_is_made_once_for_each_set_of_arguments() -> None:
    makes = [partial(_softmax, 8), partial(_softmax, 9), partial(_softmax, 8, kept=("peak",))]
    for _ in range(2):
        for make in makes:
            cached_program(make)
    assert MADE == [(8, ()), (9, ()), (8, ("peak",))]


def test_changed_code_makes_programs_again(monkeypatch) -> None:
    cached_program(partial(_softmax, 8))
    monkeypatch.setattr(layer, "_source_digest", lambda: "of changed code")
    cached_program(partial(_softmax, 8))
    assert len(MADE) == 2


@pytest.mark.parametrize("damage", [b"", b"damaged", b"\x80\x05."])
def test_a_damaged_entry_is_replaced(folder, damage) -> None:
    whole = cached_program(partial(_softmax, 8))
    entry = _entry(folder)
    content = entry.read_bytes()
    entry.chmod(0o700)
    entry.write_bytes(damage)
    assert cached_program(partial(_softmax, 8)) == whole
    assert len(MADE) == 2
    assert entry.read_bytes() == content


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("value", [_Evil, lambda path: np.zeros(3), lambda path: [path], str])
def test_entries_of_anything_else_are_not_executed(folder, tmp_path, value) -> None:
    cached_program(partial(_softmax, 8))
    (key,), created = (folder / "jit" / "programs").glob("*/*"), tmp_path / "created"
    Cache(folder / "jit").store(pickle.dumps(value(created)), [("programs", key.name)])
    assert isinstance(cached_program(partial(_softmax, 8)), Program)
    assert len(MADE) == 2
    assert not created.exists()
