"""Kernels as CUDA C++: a thread per iteration of the parallel loop, or a block where it contains shared loops."""

from __future__ import annotations

from sparloom.errors import Unsupported
from sparloom.ir.c_printer import Dialect, Printer
from sparloom.ir.cuda_prelude import cuda_prelude
from sparloom.ir.nodes import For, Kernel, Let
from sparloom.ir.products import without_products
from sparloom.ir.verify import verify

__all__ = ["render_cuda"]


def render_cuda(kernel: Kernel) -> str:
    """Print a kernel as `extern "C" __global__ void name(params)`, for nvcc and NVRTC.

    The body is one parallel loop, after any number of Let. Its iterations are dealt out to the threads of a
    one-dimensional grid of any size; inside an iteration all is serial: simd loops too, and vectors are arrays. If it
    contains shared loops, its iterations are dealt out to the blocks, and those of shared loops to the threads of a
    block, which wait for each other behind every shared loop. Products of tiles become loops.

    Raises:
        IllegalSchedule: the kernel does not verify.
        Unsupported: the body has another form, or a local array whose size is not a constant.
    """
    verify(kernel)
    kernel = without_products(kernel)
    *before, last = kernel.body or (None,)
    if not (isinstance(last, For) and last.kind == "parallel" and all(isinstance(stmt, Let) for stmt in before)):
        remedy = "give it one parallel loop at the top, after any number of Let"
        raise Unsupported(f"kernel {kernel.name} has no CUDA form: {remedy}")
    printer = Printer(kernel, _CUDA)
    function = printer.function()
    return "\n".join([cuda_prelude(printer.expressions.needs), function])


def _first(loop: For, lo: str) -> str:
    start = "" if lo == "0" else f"({lo}) + "
    return f"{start}{_workers(loop)[0]}{_times_step(loop)}"


def _step(loop: For, _: str) -> str:
    return f"{loop.var} += {_workers(loop)[1]}{_times_step(loop)}"


def _workers(loop: For) -> tuple[str, str]:
    """Number of the worker that an iteration belongs to, and how many workers there are."""
    if loop.kind == "shared":
        return "(int64_t)threadIdx.x", "(int64_t)blockDim.x"
    if any(isinstance(stmt, For) and stmt.kind == "shared" for stmt in loop.body):
        return "(int64_t)blockIdx.x", "(int64_t)gridDim.x"
    return "((int64_t)blockIdx.x * blockDim.x + threadIdx.x)", "(int64_t)gridDim.x * blockDim.x"


def _times_step(loop: For) -> str:
    return "" if loop.step == 1 else f" * {loop.step}"


_CUDA = Dialect(
    head='extern "C" __global__ void',
    restrict="__restrict__",
    array="",
    convert="convert({}, ({}*)0)",
    prefetch="",
    heap=None,
    pragma=lambda loop: "#pragma unroll" if loop.kind == "unrolled" else None,
    first=_first,
    step=_step,
    after=lambda loop: "__syncthreads();" if loop.kind == "shared" else None,
)
