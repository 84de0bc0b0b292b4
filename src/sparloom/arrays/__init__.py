"""Sparse arrays of SciPy on the kernels of this package: `SparseArray`, and operators for its solvers.

    sparse_array    arrays and operators, and the choice between SciPy's product and ours
    transposed      products with the transposed matrix
"""

from sparloom.arrays.sparse_array import SparseArray, TransposedSparseArray, as_linear_operator

__all__ = ["SparseArray", "TransposedSparseArray", "as_linear_operator"]
