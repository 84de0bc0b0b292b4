"""Routines of the BLAS that SciPy brings, for calls from compiled code."""

import ctypes
import importlib

import numpy as np

__all__ = ["blas_routine"]

PREFIX = {"float32": "s", "float64": "d"}


def blas_routine(name: str, dtype: np.dtype) -> int:
    """Give the address of a Fortran routine, such as "gemm" for SGEMM or DGEMM."""
    capsule = importlib.import_module("scipy.linalg.cython_blas").__pyx_capi__[PREFIX[dtype.name] + name]
    python = ctypes.pythonapi
    python.PyCapsule_GetName.restype, python.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return python.PyCapsule_GetPointer(capsule, python.PyCapsule_GetName(capsule))
