"""Kernels of the maximum of products: kernels/cpu/spmm_max.cpp bound to arrays."""

import ctypes
from functools import cache

import numpy as np

from sparloom.jit import address, aligned, compile_cpp
from sparloom.ops import Operands
from sparloom.platforms.cpu_kernels.sparse_family import SparseCall, SparseFamily
from sparloom.platforms.cpu_kernels.sparse_rows import Rows
from sparloom.space import Config, GridSpace, SpmmMaxSpace

__all__ = ["SpmmMaxKernels"]

MOST_PLACES = 2**31 - 1  # places are int32


class SpmmMaxKernels(SparseFamily):
    """The family of the maximum of products."""

    def space(self) -> GridSpace:
        """List the configurations."""
        return SpmmMaxSpace(self.width)

    def result(self, operands: Operands) -> np.ndarray:
        """Allocate D (rows, width)."""
        return self._allocate((operands.matrix.pattern.rows, operands.width), np.float32)

    def places(self, operands: Operands) -> np.ndarray:
        """Allocate the places of D's elements, (rows, width) int32."""
        return self._allocate((operands.matrix.pattern.rows, operands.width), np.int32)

    def bind(
        self, operands: Operands, config: Config, result: np.ndarray, places: np.ndarray | None = None,
    ) -> SparseCall:
        """Bind the kernel of a legal configuration.

        Args:
            places: gets, for each element of D, which nonzero of A it comes from: the first one whose product is the
                largest, or NaN; -1 in rows without nonzeros. None if nobody wants it.

        Raises:
            ValueError: places are wanted, and there are too many nonzeros to count them in int32.
        """
        nnz = operands.matrix.pattern.nnz
        if places is not None and nnz > MOST_PLACES:
            raise ValueError(f"A has {nnz} nonzeros, and places count up to {MOST_PLACES}: take parts of its rows")
        rows = self._rows.bind(operands.matrix.pattern, order=str(config["order"]), balance=str(config["balance"]))
        shape = (rows.pieces, operands.width)
        carries = aligned(shape, np.float32) if rows.cut else None
        carried_places = aligned(shape, np.int32) if rows.cut and places is not None else None
        arguments = _Arguments(
            rows=rows.arguments, carries=None if carries is None else address(carries),
            carried_places=None if carried_places is None else address(carried_places, np.int32),
            width=operands.width, ahead=1024 * int(config["prefetch"]))
        call = SparseCall(_library().sparloom_spmm_max, arguments, kept=(rows, carries, carried_places))
        self.rebind(call, operands, result, places)
        return call

    def rebind(
        self, call: SparseCall, operands: Operands, result: np.ndarray, places: np.ndarray | None = None,
    ) -> None:
        """Point a call to other arrays of the same shapes; with places only if it was bound with some."""
        arguments = call.arguments
        call.point(operands.matrix.values)
        arguments.dense, arguments.result = address(operands.dense["B"]), address(result, written=True)
        arguments.places = None if places is None else address(places, np.int32, written=True)
        call.lent = (operands, result, places)


class _Arguments(ctypes.Structure):
    """The struct SpmmMax of kernels/cpu/spmm_max.cpp."""

    _fields_ = (
        ("rows", Rows),
        *((name, ctypes.c_void_p) for name in ("dense", "result", "carries", "places", "carried_places")),
        ("width", ctypes.c_int64),
        ("ahead", ctypes.c_int32),
    )


@cache
def _library() -> ctypes.CDLL:
    return compile_cpp(["cpu/spmm_max.cpp"])
