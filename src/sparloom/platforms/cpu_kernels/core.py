"""The native core: loads `sparloom._native` and tells it what it needs to know about this process.

The core (kernels/native) takes a call from Python to a kernel in one C++ function. It is compiled when the package is
installed; kernels are libraries of their own, loaded here when an operation is first used. Where the core is missing,
every call goes the way through Python.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import DTypeLike

from sparloom.errors import NoCompiler
from sparloom.jit import aligned, core_digest, kernel_library
from sparloom.measure import Caches, checked_threads, usable_memory
from sparloom.ops import Operands
from sparloom.platforms.cpu_kernels.row_pieces import SparseRows, useful_threads
from sparloom.platforms.cpu_kernels.sparse_kernels import ELEMENTS, MAX_STRIP
from sparloom.resources import CHECKOUT
from sparloom.space import Config
from sparloom.sparse import BFLOAT16, SparseMatrix

VARIABLE = "SPARLOOM_NATIVE"
OPERATIONS = ("spmm", "sddmm", "attention", "spmm_max")  # in the order of the core's numbers
TYPES = tuple(ELEMENTS)  # likewise
DENSE_AXES = 3  # dense operands of a call, at most
AHEAD_BYTES = {"sddmm": 2048}  # of each step of prefetching; others have 1024
HELPERS = (("check_indices", "check_indices"), ("check_indices", "cut_rows"), ("check_indices", "divide_by_row"),
           ("watch", "watch"), ("watch", "changed"), ("choose", "statistics"), ("choose", "choose"))
LAYER_SUFFIXES = {"float32": "f32", "float64": "f64"}
RESULT_SHARE, COPY_SHARE = 1 / 32, 1 / 32  # of the memory, for dead results, and for the copy of one pattern

log = logging.getLogger(__name__)


@cache
def native_core() -> ModuleType | None:
    """Return the core; None if it was not built, or is switched off by SPARLOOM_NATIVE=0."""
    if os.environ.get(VARIABLE) == "0":
        return None
    try:
        from sparloom import _native
    except ImportError:
        log.info("sparloom was installed without its native core, so calls take longer: install it again where a C++ "
                 "compiler is")
        return None
    if CHECKOUT is not None and core_digest() != _native.SOURCES:
        log.warning("the native core was built from other sources than those of %s, so it is not used and calls take "
                    "longer: run `pip install -e .` there", CHECKOUT)
        return None
    _native.set_classes(scipy.sparse.csr_matrix, scipy.sparse.csr_array, SparseMatrix, BFLOAT16)
    memory = usable_memory()
    _native.set_memory(int(RESULT_SHARE * memory), int(COPY_SHARE * memory))
    _use_threads(_native, None)
    return _native


def load_kernels(op: str, dtype: np.dtype) -> bool:
    """Load the kernels of an operation for a type of numbers into the core.

    Returns:
        whether the core can compute with them now.
    """
    core = native_core()
    if core is None or op not in OPERATIONS or dtype not in ELEMENTS:
        return False
    return _loaded(op, dtype)


def load_layer_kernels(dtype: np.dtype) -> bool:
    """Load the kernels of layers of graph networks, float32 or float64, and what products need, see `load_kernels`."""
    return load_kernels("spmm", dtype) and _loaded_layers(dtype)


def empty_result(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Return a contiguous, uninitialised array of up to three axes, in memory that is reused once nothing refers to it.

    Fresh memory costs a page fault and zeroing every 4096 bytes, which can take longer than computing a result.
    """
    core = native_core()
    if core is None or np.dtype(dtype) not in TYPES:
        return aligned(shape, dtype)
    return core.empty(shape, TYPES.index(np.dtype(dtype)))


def set_threads(threads: int | None) -> bool:
    """Tell the core about calls with so many threads; returns whether there is a core.

    Raises:
        TypeError, ValueError: see `checked_threads`.
    """
    checked_threads(threads)
    core = native_core()
    if core is not None:
        _use_threads(core, threads)
    return core is not None


def new_prepared(core: ModuleType, matrix: SparseMatrix, origin: Any) -> Any:
    """Make the core's object of a prepared matrix, to which kernels are bound by `bind_prepared`.

    Args:
        origin: the arrays that the matrix came in; calls go to Python once they have changed.
    """
    pattern = matrix.pattern
    return core.Prepared(*pattern.shape, pattern.nnz, matrix.values, origin.watch_address, origin)


def bind_prepared(prepared: Any, op: str, operands: Operands, config: Config, threads: int) -> None:
    """Let the core compute later calls with operands of these shapes by a kernel, unless it cannot.

    Args:
        prepared: made by `new_prepared` for the matrix of `operands`.
        op: name of an operation, or "spmm_mean".
        config: of the kernel.
    """
    kernel, mean = ("spmm", True) if op == "spmm_mean" else (op, False)
    dense = list(operands.dense.values())
    dtype = dense[0].dtype
    if not load_kernels(kernel, dtype):
        return
    rows = SparseRows().bind(
        operands.matrix.pattern, order=str(config["order"]), balance=str(config["balance"]),
        threads=useful_threads(operands, threads), together="together" in config.names and int(config["together"]) > 1)
    columns = [math.prod(array.shape[1:]) for array in dense] + [0] * (DENSE_AXES - len(dense))
    value = {"strip": "all", "stream": 0, "together": 1, "group": 16} | {name: config[name] for name in config.names}
    choice = (AHEAD_BYTES.get(kernel, 1024) * int(value["prefetch"]),
              MAX_STRIP if value["strip"] == "all" else int(value["strip"]),
              int(value["stream"]), int(int(value["together"]) > 1), int(value["group"]))
    heads = dense[0].shape[1] if op == "attention" else 1
    prepared.bind(OPERATIONS.index(kernel), TYPES.index(dtype), tuple(columns), heads, mean, choice,
                  ctypes.addressof(rows.arguments), rows.pieces.cut, rows)


@cache
def _loaded(op: str, dtype: np.dtype) -> bool:
    core = native_core()
    try:
        helpers = [_address(getattr(kernel_library(library), f"sparloom_{name}")) for library, name in HELPERS]
        kernel = _address(getattr(kernel_library(op, ELEMENTS[dtype]), f"sparloom_{op}"))
    except NoCompiler:
        return False
    core.set_helpers(*helpers)
    core.set_kernel(OPERATIONS.index(op), TYPES.index(dtype), kernel)
    return True


@cache
def _loaded_layers(dtype: np.dtype) -> bool:
    library, suffix = kernel_library("row_pass"), LAYER_SUFFIXES[dtype.name]
    native_core().set_layer_kernels(TYPES.index(dtype), _address(getattr(library, f"sparloom_row_pass_{suffix}")),
                                    _address(getattr(library, f"sparloom_row_pass_room_{suffix}")))
    return True


@cache
def _use_threads(core: ModuleType, threads: int | None) -> None:
    count = checked_threads(threads)
    caches = Caches.here(count)
    core.set_limits(count, caches.near_bytes, caches.far_bytes, threads is None)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value
