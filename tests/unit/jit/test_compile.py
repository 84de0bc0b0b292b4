"""Libraries, translation units and their cache."""

import multiprocessing
import os

import numpy as np
import pytest

from sparloom.errors import CompileError, IllegalSchedule
from sparloom.ir import F32, I64, Assign, Const, For, Kernel, Param, Ref, Store
from sparloom.jit import Source, compile_c
from sparloom.jit.compile import UNIT_SIZE
from sparloom.jit.toolchain import Toolchain

pytestmark = pytest.mark.cc

OUT = (Param("y", I64, True, False),)


def store(value: int, name: str | None = None) -> Kernel:
    return Kernel(name or f"store{value}", OUT, [Store("y", 0, value)])


def result(library, name: str) -> int:
    y = np.zeros(1, np.int64)
    library.function(name)(y)
    return int(y[0])


@pytest.fixture
def runs(monkeypatch):
    """Flags of every compiler run."""
    seen, compile_ = [], Toolchain.compile

    def count(self, source, library, flags, *more):
        seen.append(flags)
        compile_(self, source, library, flags, *more)

    monkeypatch.setattr(Toolchain, "compile", count)
    return seen


def test_kernels_are_compiled_once_in_units(runs):
    kernels = [store(value) for value in range(UNIT_SIZE + 1)]
    library = compile_c(kernels)
    assert len(runs) == 2
    assert [result(library, kernel.name) for kernel in kernels] == list(range(UNIT_SIZE + 1))
    assert library.names == tuple(kernel.name for kernel in kernels)


def test_cached_kernels_are_found_in_any_batch(runs):
    compile_c([store(1), store(2), store(3)])
    library = compile_c([store(3), store(4), store(1)])
    assert len(runs) == 2  # the second for 4 alone
    assert [result(library, f"store{value}") for value in (1, 3, 4)] == [1, 3, 4]


def test_same_name_with_other_content_is_another_kernel(runs):
    assert result(compile_c([store(1, "k")]), "k") == 1
    assert result(compile_c([store(2, "k")]), "k") == 2
    assert len(runs) == 2
    with pytest.raises(ValueError, match="two different kernels are named k: give each its own name"):
        compile_c([store(1, "k"), store(2, "k")])
    compile_c([store(1, "k"), store(1, "k")])
    assert len(runs) == 2


def test_flags_are_part_of_the_key(runs, monkeypatch):
    for flags in (("-O0",), ("-O1",), ("-O0",)):
        monkeypatch.setattr("sparloom.jit.compile.default_flags", lambda _, flags=flags: flags)
        assert result(compile_c([store(1)]), "store1") == 1
    assert runs == [("-O0",), ("-O1",)]


def test_compiler_and_processor_are_part_of_the_key(runs, monkeypatch):
    from sparloom.jit import compile as module

    real = module.find_toolchain("c")
    for version, processor in (("a", "x"), ("b", "x"), ("a", "y"), ("a", "x")):
        toolchain = Toolchain(real.command, "c", version, processor)
        monkeypatch.setattr(module, "find_toolchain", lambda language, toolchain=toolchain: toolchain)
        compile_c([store(1)])
    assert len(runs) == 3


def test_no_kernels_make_an_empty_library(runs):
    assert compile_c([]).names == ()
    assert runs == []


def test_unknown_function_lists_what_there_is():
    with pytest.raises(KeyError, match="no kernel 'k' in the library; there are: store1"):
        compile_c([store(1)]).function("k")


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", b"garbage" * 1000])
def test_damaged_libraries_are_rebuilt(runs, cache, damage):
    compile_c([store(1), store(2)])
    (library,) = (cache / "jit" / "objects").iterdir()
    whole = library.read_bytes()
    library.unlink()  # another file, since this process has the old one mapped
    library.write_bytes(damage or whole[: len(whole) // 2])
    assert result(compile_c([store(1), store(2)]), "store2") == 2
    assert len(runs) == 2


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"../../etc/passwd", b"0" * 64])
def test_damaged_keys_are_rebuilt(runs, cache, damage):
    compile_c([store(1)])
    (key,) = (path for path in (cache / "jit" / "keys").rglob("*") if path.is_file())
    key.write_bytes(damage)
    assert result(compile_c([store(1)]), "store1") == 1
    assert len(runs) == 2


def _in_process(folder: str, barrier, queue) -> None:
    os.environ["SPARLOOM_CACHE"] = folder
    barrier.wait()
    library = compile_c([store(value) for value in range(8)])
    queue.put([result(library, f"store{value}") for value in range(8)])


def test_processes_compile_together_and_leave_one_library(cache):
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(4), context.Queue()
    workers = [context.Process(target=_in_process, args=(str(cache), barrier, queue)) for _ in range(4)]
    for worker in workers:
        worker.start()
    answers = [queue.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    assert answers == [list(range(8))] * 4
    assert len(list((cache / "jit" / "objects").iterdir())) == 1


def test_jobs_build_units_side_by_side(runs):
    kernels = [store(value) for value in range(UNIT_SIZE * 2)]
    assert result(compile_c(kernels, jobs=2), f"store{UNIT_SIZE * 2 - 1}") == UNIT_SIZE * 2 - 1
    assert len(runs) == 2


def test_sources_keep_their_text_and_symbol():
    text = "static int two(void) { return 2; }\nvoid twice(float *y) { *y *= two(); }\n"
    source = Source("twice", (Param("y", F32, True, False),), text)
    library = compile_c([source, store(1)])
    y = np.ones(1, np.float32)
    library.function("twice")(y)
    assert y[0] == 2
    assert result(library, "store1") == 1


def test_refused_source_carries_text_and_log(cache):
    source = Source("broken", (), "void broken(void) { undeclared = 1; }\n")
    with pytest.raises(CompileError, match=r"refused kernels\.c: .*error.*undeclared") as caught:
        compile_c([source])
    assert caught.value.source == source.text
    assert "undeclared" in caught.value.log
    assert not (cache / "jit" / "objects").exists()


def test_missing_symbol_is_an_error():
    with pytest.raises(CompileError, match="defines no function renamed: the name of a Source is that of its function"):
        compile_c([Source("renamed", (), "void original(void) {}\n")])


def test_ill_formed_kernels_are_refused_before_the_compiler(runs):
    with pytest.raises(IllegalSchedule, match="a is not in scope"):
        compile_c([Kernel("k", (), [For("i", 0, 4, [Assign("a", Const(1))])])])
    assert runs == []


def test_threads_can_be_set():
    kernel = Kernel("k", OUT, [For("i", 0, 8, [Store("y", Ref("i"), Ref("i"))], "parallel")])
    library = compile_c([kernel, store(1)])
    y = np.zeros(8, np.int64)
    for count in (1, 3):
        library.set_threads(count)
        library.function("k")(y)
        np.testing.assert_array_equal(y, np.arange(8))
