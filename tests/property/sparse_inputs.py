"""Sparse matrices and dense arrays as users may pass them: many valid forms of one matrix, and invalid forms.

Forms are functions of a generator and a canonical CSR matrix, or a dense array. What is wrong with a form without
meaning is named by its error: MATRIX_FAULT for matrices, the name of the operand for arrays.
"""

import warnings

import numpy as np
import scipy.sparse

from sparloom.sparse import Pattern, SparseMatrix

__all__ = ["ARRAYS", "MATRICES", "MATRIX_FAULT", "PATTERNS", "WRONG_ARRAYS", "WRONG_MATRICES"]

MATRIX_FAULT = r"\b(A|indptr|indices|values)\b"


def _patterns():
    """Draw empty matrices, one element, random rows with empty ones, a hub row, a band, whole blocks."""
    rng = np.random.default_rng(0)
    band = np.abs(np.subtract.outer(np.arange(16), np.arange(16))) < 3
    hub = rng.random((12, 300)) < 0.02
    hub[7] = True
    sparse = rng.random((30, 20)) < 0.2
    sparse[[0, 11, 12, 29]] = False
    blocks = np.kron(rng.random((6, 5)) < 0.4, np.ones((2, 2))) > 0
    shapes = [np.zeros(shape, bool) for shape in ((0, 0), (0, 5), (5, 0), (6, 4))]
    made = [scipy.sparse.csr_array(inside) for inside in (*shapes, np.ones((1, 1), bool), sparse, hub, band, blocks)]
    return [(each.shape, each.indptr, each.indices) for each in made]


PATTERNS = _patterns()
BLOCKS = len(PATTERNS) - 1


def unaligned(array):
    """Copy to an address that is not a multiple of the element's size."""
    room = np.empty(array.nbytes + 1, np.uint8)
    copy = np.ndarray(array.shape, array.dtype, buffer=room, offset=1)
    copy[...] = array
    return copy


def _cast(array, dtype):
    with np.errstate(invalid="ignore", over="ignore"):
        return array.astype(dtype)


def read_only(array):
    copy = array.copy()
    copy.flags.writeable = False
    return copy


class Foreign:
    """Array of another library that supports only DLPack."""

    def __init__(self, array, *, error=None, device=None):
        self.ndim, self.shape = array.ndim, array.shape
        self._array, self._error, self._device = array, error, device

    def __dlpack__(self, **options):
        if self._error is not None:
            raise self._error
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._device or self._array.__dlpack_device__()


class Rubbish(Foreign):
    def __dlpack__(self, **options):
        return "no capsule"


def _shuffled(rng, a):
    """Shuffle the columns of every row."""
    order = np.lexsort((rng.random(a.nnz), np.repeat(np.arange(a.shape[0]), np.diff(a.indptr))))
    return a.indptr, a.indices[order], a.data[order]


def _doubled(rng, a):
    """Store every position twice, with half of the value."""
    return 2 * a.indptr, np.repeat(a.indices, 2), np.repeat(a.data / 2, 2)


def _csr(parts, a):
    indptr, indices, data = parts
    return scipy.sparse.csr_array((data, indices, indptr), shape=a.shape)


def _with(a, **arrays):
    """Set arrays of a SciPy matrix, which does not check them."""
    copy = a.copy()
    for name, array in arrays.items():
        setattr(copy, name, array)
    return copy


def _coo(parts, a):
    made = _csr(parts, a)
    rows = np.repeat(np.arange(a.shape[0]), np.diff(made.indptr))
    return scipy.sparse.coo_array((made.data, (rows, made.indices)), shape=a.shape)


def _dia(a):
    with warnings.catch_warnings():  # that so many diagonals are no use
        warnings.simplefilter("ignore", scipy.sparse.SparseEfficiencyWarning)
        return a.todia()


def _bsr(rng, a):
    return a.tobsr(blocksize=(2, 2) if a.nnz % 4 == 0 and a.shape == PATTERNS[BLOCKS][0] else (1, 1))


MATRICES = {
    "csr_array": lambda rng, a: a,
    "csr_matrix": lambda rng, a: scipy.sparse.csr_matrix(a),
    "csc": lambda rng, a: a.tocsc(),
    "coo": lambda rng, a: a.tocoo(),
    "coo, doubled": lambda rng, a: _coo(_doubled(rng, a), a),
    "coo, shuffled": lambda rng, a: _coo(_shuffled(rng, a), a),
    "bsr": _bsr,
    "dia": lambda rng, a: _dia(a),
    "lil": lambda rng, a: a.tolil(),
    "dok": lambda rng, a: a.todok(),
    "csr, 64 bits": lambda rng, a: _with(a, indptr=a.indptr.astype(np.int64), indices=a.indices.astype(np.int64)),
    "csr, shuffled": lambda rng, a: _csr(_shuffled(rng, a), a),
    "csr, doubled": lambda rng, a: _csr(_doubled(rng, a), a),
    "csr, read-only": lambda rng, a: _with(a, indptr=read_only(a.indptr), indices=read_only(a.indices),
                                           data=read_only(a.data)),
    "csr, unaligned": lambda rng, a: _with(a, indptr=unaligned(a.indptr), indices=unaligned(a.indices),
                                           data=unaligned(a.data)),
    "csr, gaps": lambda rng, a: _with(a, indices=np.repeat(a.indices, 2)[::2], data=np.repeat(a.data, 3)[::3]),
    "tuple": lambda rng, a: (a.indptr, a.indices, a.data, a.shape),
    "tuple, no shape": lambda rng, a: (a.indptr, a.indices, a.data),
    "tuple, 64 bits": lambda rng, a: (a.indptr.astype(np.int64), a.indices.astype(np.int64), a.data, list(a.shape)),
    "tuple, mixed bits": lambda rng, a: (a.indptr.astype(np.int64), a.indices, a.data, np.array(a.shape)),
    "tuple, shuffled": lambda rng, a: (*_shuffled(rng, a), a.shape),
    "tuple, doubled": lambda rng, a: (*_doubled(rng, a), a.shape),
    "tuple, unaligned": lambda rng, a: (*map(unaligned, (a.indptr, a.indices, a.data)), a.shape),
    "tuple, read-only": lambda rng, a: (*map(read_only, (a.indptr, a.indices, a.data)), a.shape),
    "tuple, backwards": lambda rng, a: (*(part[::-1].copy()[::-1] for part in (a.indptr, a.indices, a.data)), a.shape),
    "tuple, foreign": lambda rng, a: (*map(Foreign, (a.indptr, a.indices, a.data)), a.shape),
    "SparseMatrix": lambda rng, a: SparseMatrix(Pattern(a.shape, a.indptr, a.indices), a.data),
}
"""The same matrix each."""


def _changed(array, place, value):
    copy = array.copy()
    copy[place] = value
    return copy


def _place(rng, array):
    return int(rng.integers(array.size))


def _pointers(change):
    """Make a form with changed pointers."""
    def form(rng, a):
        parts = (change(rng, a.indptr), a.indices, a.data)
        return (*parts, a.shape) if rng.random() < 0.5 else _with(a, indptr=parts[0])
    return form


def _columns(change):
    """Make a form with changed indices, sometimes after SciPy has checked them."""
    def form(rng, a):
        if rng.random() < 0.5:
            return a.indptr, change(rng, a.indices, a.shape[1]), a.data, a.shape
        made = _with(a, indices=change(rng, a.indices, a.shape[1]))
        if rng.random() < 0.5:
            made.has_canonical_format = True
        return made
    return form


def _by_hand(convert, **changes):
    """Make a SciPy matrix of another format with some changed arrays."""
    def form(rng, a):
        made = convert(a)
        for name, change in changes.items():
            setattr(made, name, change(rng, getattr(made, name), made))
        return made
    return form


def _stale(rng, a):
    """Columns of a longer row exchanged after SciPy found them sorted."""
    begin = a.indptr[np.argmax(np.diff(a.indptr))]
    made = a.copy()
    made.has_canonical_format = True
    made.indices[begin : begin + 2] = made.indices[begin : begin + 2][::-1].copy()
    return made


def _lil(change):
    def form(rng, a):
        made = a.tolil()
        change(made.rows[int(np.argmax(np.diff(a.indptr)))], made)
        return made
    return form


def _dok(key):
    def form(rng, a):
        made = a.todok()
        made._dict[key(a.shape)] = np.float32(1)
        return made
    return form


WRONG_MATRICES = {
    "indptr falls": _pointers(lambda rng, p: _changed(p, rng.integers(1, p.size), -1)),
    "indptr far beyond": _pointers(lambda rng, p: _changed(p, rng.integers(1, p.size), 2**31 - 1)),
    "indptr wraps": lambda rng, a: (_changed(_changed(a.indptr, 1, 2**31 - 1), 2, -2), a.indices, a.data, a.shape),
    "indptr begins late": _pointers(lambda rng, p: _changed(p, 0, 1)),
    "indptr begins early": _pointers(lambda rng, p: _changed(p, 0, -3)),
    "indptr ends late": _pointers(lambda rng, p: _changed(p, -1, p[-1] + 1)),
    "indptr ends early": _pointers(lambda rng, p: _changed(p, -1, p[-1] - 1)),
    "indptr short": _pointers(lambda rng, p: p[:-1]),
    "indptr long": _pointers(lambda rng, p: np.append(p, p[-1:])),
    "indptr empty": lambda rng, a: (a.indptr[:0], a.indices, a.data, a.shape),
    "indptr backwards": _pointers(lambda rng, p: p[::-1].copy()),
    "indptr matrix": lambda rng, a: (a.indptr[None], a.indices, a.data, a.shape),
    "indptr float": lambda rng, a: (a.indptr.astype(np.float32), a.indices, a.data, a.shape),
    "indptr unsigned": lambda rng, a: (a.indptr.astype(np.uint64), a.indices, a.data, a.shape),
    "indptr foreign order": lambda rng, a: (a.indptr.astype(">i4"), a.indices, a.data, a.shape),
    "indptr None": lambda rng, a: (None, a.indices, a.data, a.shape),
    "indices beyond": _columns(lambda rng, i, cols: _changed(i, _place(rng, i), cols)),
    "indices far beyond": _columns(lambda rng, i, cols: _changed(i, _place(rng, i), 2**31 - 1)),
    "indices negative": _columns(lambda rng, i, cols: _changed(i, _place(rng, i), -1)),
    "indices least": _columns(lambda rng, i, cols: _changed(i, _place(rng, i), -(2**31))),
    "indices of 40 bits": lambda rng, a: (a.indptr, _changed(a.indices.astype(np.int64), _place(rng, a.indices), 2**40),
                                          a.data, a.shape),
    "indices short": lambda rng, a: (a.indptr, a.indices[:-1], a.data, a.shape),
    "indices list": lambda rng, a: (a.indptr, a.indices.tolist(), a.data, a.shape),
    "indices float": lambda rng, a: (a.indptr, a.indices.astype(float), a.data, a.shape),
    "indices of 16 bits": lambda rng, a: (a.indptr, a.indices.astype(np.int16), a.data, a.shape),
    "indices matrix": lambda rng, a: (a.indptr, a.indices[:, None], a.data, a.shape),
    "indices of a device": lambda rng, a: (a.indptr, Foreign(a.indices, error=BufferError("on a device")), a.data,
                                           a.shape),
    "values short": lambda rng, a: (a.indptr, a.indices, a.data[:-1], a.shape),
    "values by hand": lambda rng, a: _with(a, data=a.data[:-1]),
    "values matrix": lambda rng, a: (a.indptr, a.indices, a.data[:, None], a.shape),
    "values list": lambda rng, a: (a.indptr, a.indices, a.data.tolist(), a.shape),
    "values masked": lambda rng, a: (a.indptr, a.indices, np.ma.masked_greater(a.data, 0), a.shape),
    **{f"values {name}": lambda rng, a, name=name: (a.indptr, a.indices, _cast(a.data, name), a.shape)
       for name in ("int32", "complex64", "object", "bool", ">f4")},
    **{f"matrix of {name}": lambda rng, a, name=name: _csr((a.indptr, a.indices, _cast(a.data, name)), a)
       for name in ("int32", "complex64", "bool")},
    "shape narrow": lambda rng, a: (a.indptr, a.indices, a.data, (a.shape[0], int(a.indices.max()))),
    "shape high": lambda rng, a: (a.indptr, a.indices, a.data, (a.shape[0] + 1, a.shape[1])),
    "shape negative": lambda rng, a: (a.indptr, a.indices, a.data, (a.shape[0], -a.shape[1])),
    "shape huge": lambda rng, a: (a.indptr, a.indices, a.data, (a.shape[0], 2**31)),
    "shape of three": lambda rng, a: (a.indptr, a.indices, a.data, (*a.shape, 1)),
    "shape of floats": lambda rng, a: (a.indptr, a.indices, a.data, tuple(map(float, a.shape))),
    "shape None": lambda rng, a: (a.indptr, a.indices, a.data, None),
    "shape text": lambda rng, a: (a.indptr, a.indices, a.data, "ab"),
    "empty tuple": lambda rng, a: (),
    "pair": lambda rng, a: (a.indptr, a.indices),
    "tuple of five": lambda rng, a: (a.indptr, a.indices, a.data, a.shape, 1),
    "list": lambda rng, a: [a.indptr, a.indices, a.data, a.shape],
    "None": lambda rng, a: None,
    "text": lambda rng, a: "A",
    "dense": lambda rng, a: a.toarray(),
    "one axis": lambda rng, a: scipy.sparse.coo_array(a.toarray().ravel()),
    "csr of one axis": lambda rng, a: scipy.sparse.csr_array(a.toarray().ravel()),
    "stale flag": _stale,
    "csc, indices": _by_hand(lambda a: a.tocsc(), indices=lambda rng, i, m: _changed(i, _place(rng, i), m.shape[0])),
    "csc, indices far": _by_hand(lambda a: a.tocsc(), indices=lambda rng, i, m: _changed(i, _place(rng, i), 10**9)),
    "csc, indptr": _by_hand(lambda a: a.tocsc(), indptr=lambda rng, p, m: _changed(p, _place(rng, p), 2**31 - 1)),
    "csc, values": _by_hand(lambda a: a.tocsc(), data=lambda rng, d, m: d[:-1]),
    "coo, rows": _by_hand(lambda a: a.tocoo(), coords=lambda rng, c, m: (
        _changed(c[0], _place(rng, c[0]), 10**9), c[1])),
    "coo, columns": _by_hand(lambda a: a.tocoo(), coords=lambda rng, c, m: (c[0], _changed(c[1], 0, -1))),
    "coo, values": _by_hand(lambda a: a.tocoo(), data=lambda rng, d, m: d[:-1]),
    "bsr, indices": _by_hand(lambda a: a.tobsr((1, 1)), indices=lambda rng, i, m: _changed(i, _place(rng, i), 10**9)),
    "bsr, indptr": _by_hand(lambda a: a.tobsr((1, 1)), indptr=lambda rng, p, m: _changed(p, _place(rng, p), 10**9)),
    "bsr, values": _by_hand(lambda a: a.tobsr((1, 1)), data=lambda rng, d, m: d[:-1]),
    "dia, offsets": _by_hand(_dia, offsets=lambda rng, o, m: np.append(o, 10**6).astype(o.dtype)),
    "dia, offset lost": _by_hand(_dia, offsets=lambda rng, o, m: o[:-1]),
    "lil, column": _lil(lambda row, made: row.append(made.shape[1])),
    "lil, far column": _lil(lambda row, made: row.__setitem__(0, 2**40)),
    "lil, lost": _lil(lambda row, made: row.pop()),
    "lil, negative": _lil(lambda row, made: row.__setitem__(0, -1)),
    "dok, row": _dok(lambda shape: (shape[0] + 10**6, 0)),
    "dok, column": _dok(lambda shape: (0, -1)),
}
"""No matrix each; made of one with nonzeros."""


def _spread(axis):
    """Take every second element of an array twice as long."""
    def form(rng, x):
        picked = (slice(None),) * axis + (slice(None, None, 2),)
        return np.repeat(x, 2, axis=axis)[picked]
    return form


ARRAYS = {
    "plain": lambda rng, x: x,
    "Fortran": lambda rng, x: np.asfortranarray(x),
    "rows apart": _spread(0),
    "columns apart": _spread(1),
    "rows backwards": lambda rng, x: x[::-1].copy()[::-1],
    "columns backwards": lambda rng, x: x[..., ::-1].copy()[..., ::-1],
    "unaligned": lambda rng, x: unaligned(x),
    "read-only": lambda rng, x: read_only(x),
    "foreign": lambda rng, x: Foreign(x),
    "part of a wider one": lambda rng, x: np.pad(x, [(2, 1)] * x.ndim)[(slice(2, -1),) * x.ndim],
}
"""The same array each."""

WRONG_ARRAYS = {
    **{f"{name}": lambda rng, x, name=name: _cast(x, name)
       for name in ("int32", "complex64", "object", "bool", ">f4")},
    "list": lambda rng, x: x.tolist(),
    "None": lambda rng, x: None,
    "text": lambda rng, x: "X",
    "number": lambda rng, x: 1.5,
    "no axis": lambda rng, x: np.array(1, np.float32),
    "masked": lambda rng, x: np.ma.masked_greater(x, 0),
    "sparse": lambda rng, x: scipy.sparse.csr_array(x.reshape(x.shape[0], -1)),
    "a row more": lambda rng, x: np.pad(x, [(0, 1)] + [(0, 0)] * (x.ndim - 1)),
    "a row less": lambda rng, x: x[1:],
    "one axis more": lambda rng, x: x[None],
    "one axis less": lambda rng, x: x[:, 0] if x.ndim == 2 else x[0, 0],
    "of a device": lambda rng, x: Foreign(x, error=BufferError("device 2 is not the processor"), device=(2, 0)),
    "of a device that fails": lambda rng, x: Foreign(x, error=RuntimeError("cannot export"), device=(2, 0)),
    "rubbish": lambda rng, x: Rubbish(x),
}
"""No dense operand each; made of one with rows and at least two columns."""
