"""What ragged programs print at every stage; tests/unit/ragged runs the same programs."""

import pytest
from ragged_cases import CASES, row

from sparloom.ir import pretty
from sparloom.ragged import (
    Executable,
    Tensor,
    fuse,
    lower,
    pad_loop,
    pad_storage,
    parallel,
    prelude_kernels,
    split,
    vectorise,
)


def padded_projection():
    scheduled = CASES["projection"].program
    for tensor in ("x", "y"):
        scheduled = pad_storage(scheduled, tensor, bulk={row: 8})
    return parallel(fuse(scheduled, "y", "batch", "row", padding=8), "y", "batch_row")


def tiled_scores():
    scheduled = pad_storage(pad_storage(CASES["scores"].program, "s", {row: 4}), "q", {row: 4})
    scheduled = fuse(split(pad_loop(scheduled, "s", row, 4), "s", "row", 4), "s", "batch", "row_outer")
    return vectorise(parallel(scheduled, "s", "batch_row_outer"), "s", "inner")


PROGRAMS = {"projection": padded_projection(), "scores": tiled_scores(), "causal": CASES["causal"].program}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_loops(name, golden):
    golden(f"ragged/{name}.txt", str(PROGRAMS[name]))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_kernels_and_their_prelude(name, golden):
    lowered = lower(PROGRAMS[name])
    tables = [each for kernel in lowered for each in kernel.meaning.values() if not isinstance(each, Tensor)]
    kernels = [each.kernel for each in (*lowered, *prelude_kernels(tables))]
    golden(f"ragged/{name}.ir", "\n".join(map(pretty, kernels)))


@pytest.mark.cc
def test_the_generated_code(golden, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARLOOM_CACHE", str(tmp_path))
    golden("ragged/projection.c", Executable(PROGRAMS["projection"]).source())
