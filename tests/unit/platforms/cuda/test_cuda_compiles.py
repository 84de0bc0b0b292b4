"""The CUDA kernels of SpMM, SDDMM and attention compile for their target GPUs."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from nvrtc import check_cuda

from sparloom.errors import CompileError
from sparloom.jit import cuda_text
from sparloom.ops import SDDMM, CsrAttention, SpMM, SpmmMax, SpmmMean
from sparloom.platforms import CudaPlatform
from sparloom.platforms.cuda import COMBINE, AttentionProgram, SddmmProgram, SpmmProgram, element_macro

CORNERS = [
    SpmmProgram(lanes=8, columns=1, vector=1, reduction="outside", unroll=1, groups=1, balance="rows"),
    SpmmProgram(lanes=32, columns=8, vector=1, reduction="inside", unroll=4, groups=32, balance="rows"),
    SpmmProgram(lanes=16, columns=8, vector=4, reduction="outside", unroll=4, groups=16, balance="nonzeros"),
    SpmmProgram(lanes=16, columns=8, vector=4, reduction="outside", unroll=4, groups=16, balance="nonzeros",
                combine="kMean"),
    SpmmProgram(lanes=8, columns=2, vector=2, reduction="outside", unroll=4, groups=16, balance="q95",
                combine="kLargest"),
    SddmmProgram(lanes=8, vector=1, group=1, unroll="none", groups=1, balance="nonzeros"),
    SddmmProgram(lanes=32, vector=4, group=4, unroll="explicit", groups=8, balance="q95"),
    SddmmProgram(lanes=16, vector=2, group=4, unroll="implicit", groups=8, balance="nonzeros"),
    AttentionProgram(lanes=8, vector=1, packs=1, group=1, groups=8, balance="rows"),
    AttentionProgram(lanes=32, vector=4, packs=8, group=4, groups=8, balance="q95"),
]
ATTENTION = AttentionProgram(lanes=16, vector=2, packs=2, group=2, groups=8, balance="q95")

ARCHITECTURE = ["sm_80"]
PARTS = 8  # of all sources, compiled one after the other


@pytest.mark.parametrize("program", CORNERS, ids=repr)
def test_corners_of_the_spaces_compile(program):
    check_cuda(program.text)


@pytest.mark.parametrize("macros", ["#define ELEMENT double\n", "#define INDEX long long\n"])
def test_other_types_compile(macros):
    for program in (CORNERS[2], CORNERS[6]):
        check_cuda(macros + program.text, ARCHITECTURE)


@pytest.mark.parametrize("element", ["Half", "Bfloat"])
@pytest.mark.parametrize("program", [CORNERS[2], CORNERS[6], ATTENTION], ids=lambda program: type(program).__name__)
def test_elements_of_16_bits_compile(program, element):
    check_cuda(replace(program, element=element).text, ARCHITECTURE)


@pytest.mark.parametrize("element", ["float", "Half"])
def test_the_argmax_kernel_compiles(element):
    check_cuda(cuda_text("cuda/spmm_places.cu", {"THREADS": 256, **element_macro(element)}), ARCHITECTURE)


def test_the_rate_kernels_compile():
    check_cuda(cuda_text("cuda/rates.cu", {"THREADS": 256, "CHAINS": 8}), ARCHITECTURE)


def test_a_missing_macro_is_refused():
    text = cuda_text("cuda/spmm.cu", {"LANES": 8, "COLUMNS": 1, "VECTOR": 1, "REDUCTION": "kOutside", "UNROLL": 1})
    with pytest.raises((CompileError, pytest.skip.Exception), match=r"THREADS|CUDA compiler"):
        check_cuda(text, ARCHITECTURE)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("place", range(PARTS))
def test_every_configuration_compiles(place):
    """Distinct sources of all configurations, but for the size of a block, each in a namespace of one text."""
    chosen = _texts()[place::PARTS]
    check_cuda("".join(_apart(text, number) for number, text in enumerate(chosen)), ARCHITECTURE,
               ["--Ofast-compile=max"])


@cache
def _texts() -> list[str]:
    """Sources of all configurations in a fixed order, one of those that differ in the size of a block only."""
    texts = {made.text.replace(f"#define THREADS {made.threads}\n", ""): made.text for made in _programs()}
    return [texts[body] for body in sorted(texts)]


def _programs() -> Iterator[SpmmProgram | SddmmProgram | AttentionProgram]:
    for space in ("cuda", "cuda_kernels"):
        for op, program in ((SpMM(), SpmmProgram), (SDDMM(), SddmmProgram)):
            yield from (program.of(config) for config in CudaPlatform(space, "h200", 256).space(op))
    for op, element in ((SpmmMean(), "Half"), (SpmmMax(), "float")):  # means of float are sums
        for config in CudaPlatform("cuda_kernels", "h200", 256).space(op):
            yield SpmmProgram.of(config, element, COMBINE[op.name])
    for config in CudaPlatform("cuda_kernels", "h200", 256).space(CsrAttention()):
        yield AttentionProgram.of(config, 256)


def _apart(text: str, place: int) -> str:
    lines = text.replace('extern "C" ', "").splitlines()
    macros = [line.split()[1] for line in lines if line.startswith("#define")]
    inner = "\n".join([f"namespace kernel_{place} {{", *lines, "}", *(f"#undef {macro}" for macro in macros)])
    return inner.replace("shared_bytes", f"shared_bytes_{place}") + "\n"
