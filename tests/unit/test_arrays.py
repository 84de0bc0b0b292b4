"""`SparseArray` computes what SciPy's array computes, wherever solvers and estimators take one."""

import pickle
import warnings

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse.linalg import cg, eigsh, lobpcg, svds
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.metrics import f1_score
from sklearn.preprocessing import LabelBinarizer
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.extmath import randomized_svd
from sklearn.utils.multiclass import type_of_target

from sparloom import SparseArray, as_linear_operator
from sparloom.arrays import TransposedSparseArray
from sparloom.arrays.transposed import FIRST_CALLS, _Tiles, _TransposedCopy

pytestmark = pytest.mark.cc


def random_csr(rows, cols, *, density=0.05, dtype=np.float64, index=np.int32, seed=0):
    made = scipy.sparse.random_array((rows, cols), density=density, format="csr", dtype=dtype,
                                     rng=np.random.default_rng(seed))
    made.indices, made.indptr = made.indices.astype(index), made.indptr.astype(index)
    return made


def dense(*shape, dtype=np.float64, order="C", seed=1):
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), dtype, order)


def assert_equal(actual, expected):
    assert actual.dtype == expected.dtype
    tolerance = 400 * np.finfo(actual.dtype).eps
    largest = max(1, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * largest)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [0, 1, 3, 16, 17, 130])
def test_products_are_those_of_scipy(dtype, index, width):
    plain = random_csr(300, 200, dtype=dtype, index=index)
    array = SparseArray(plain)
    assert np.shares_memory(array.data, plain.data)
    assert np.shares_memory(array.indices, plain.indices)
    for order in "CF":
        right, left = dense(200, width, dtype=dtype, order=order), dense(300, width, dtype=dtype, order=order)
        assert_equal(array @ right, plain @ right)
        assert_equal(array.T @ left, plain.T @ left)
        assert_equal(left.T @ array, left.T @ plain)
        assert_equal(right.T @ array.T, right.T @ plain.T)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_vectors_strided_operands_and_threads(threads):
    plain = random_csr(400, 300, density=0.1)
    array = SparseArray(plain, threads=threads)
    assert array.T.threads == threads
    right, left = dense(300), dense(400)
    assert_equal(array @ right, plain @ right)
    assert_equal(left @ array, left @ plain)
    assert_equal(array.T @ left, plain.T @ left)
    wide = dense(800, 40)[::-2, ::3]
    assert_equal(array.T @ wide, plain.T @ wide)
    assert_equal(array.dot(right[:, None], threads=1), plain @ right[:, None])


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 1), (3, 5)])
def test_arrays_without_nonzeros(shape):
    plain = scipy.sparse.csr_array(shape, dtype=np.float32)
    array = SparseArray(plain)
    assert_equal(array @ dense(shape[1], 3, dtype=np.float32), np.zeros((shape[0], 3), np.float32))
    assert_equal(array.T @ dense(shape[0], 3, dtype=np.float32), np.zeros((shape[1], 3), np.float32))


@pytest.mark.parametrize("kinds", [(np.float32, np.float64), (np.float64, np.float32), (np.float32, np.int64),
                                   (np.int32, np.float32), (bool, np.float64), (np.complex64, np.float32),
                                   (np.float32, np.complex128)])
def test_types_are_promoted_as_by_numpy(kinds):
    plain = (random_csr(60, 50, density=0.2) * 10).astype(kinds[0])
    right = (10 * dense(50, 4)).astype(kinds[1])
    assert_equal(SparseArray(plain) @ right, plain @ right)
    assert_equal(SparseArray(plain.T.tocsr()).T @ right, plain @ right)


def test_other_operands_go_to_scipy():
    plain = random_csr(40, 40)
    array = SparseArray(plain)
    for product in (array @ plain, array * 2, abs(array), array[3:9], array + plain):
        assert isinstance(product, SparseArray)
    assert (array @ plain != plain @ plain).nnz == 0
    assert (array.tocsc() != plain.tocsc()).nnz == 0
    assert_equal(array @ np.ones(40).tolist(), plain @ np.ones(40))
    assert isinstance(array.T, TransposedSparseArray)
    assert isinstance(array.T.T, SparseArray)
    assert np.shares_memory(array.T.T.data, plain.data)
    assert not np.shares_memory(array.transpose(copy=True).data, plain.data)


def tall(*, cols):
    """Matrix of several tiles of rows; few columns have many nonzeros in each, many columns have few."""
    return random_csr(2500, cols, density=20 / cols, dtype=np.float32)


@pytest.mark.parametrize("cols", [200, 20_000])
def test_repeated_transposed_products_use_what_was_prepared(cols):
    plain = tall(cols=cols)
    array = SparseArray(plain)
    left, expected = dense(2500, 20, dtype=np.float32), None
    for call in range(FIRST_CALLS + 4):
        array.data[:] = plain.data  # the same memory
        if call % 2:
            array.data[call] = call  # values may change
        expected = plain.T @ left
        assert_equal(array.T.dot(left, threads=2), expected)
    assert list(array._transposition._prepared) == [_Tiles if cols == 200 else _TransposedCopy]
    out = np.empty_like(expected)
    assert array.T.dot(left, out=out) is out
    assert_equal(out, expected)


@pytest.mark.parametrize("cols", [200, 20_000])
@pytest.mark.parametrize("change", [
    lambda a: a.__setitem__((3, 7), 5.0), lambda a: a.setdiag(2.0), lambda a: a.resize(2400, a.shape[1] - 9),
    lambda a: (a.data.__setitem__(slice(0, 40), 0), a.eliminate_zeros()), lambda a: a.sort_indices()])
def test_methods_may_change_the_pattern(cols, change):
    plain = tall(cols=cols)
    plain.indices[:2], plain.data[:2] = plain.indices[1::-1].copy(), plain.data[1::-1].copy()
    plain.has_sorted_indices = False
    array = SparseArray(plain.copy())
    width = 16
    for _ in range(FIRST_CALLS + 2):
        array.T.dot(dense(array.shape[0], width, dtype=np.float32), threads=1)
        array.dot(dense(array.shape[1], width, dtype=np.float32), threads=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.sparse.SparseEfficiencyWarning)
        change(array)
        change(plain)
    left, right = (dense(extent, width, dtype=np.float32) for extent in array.shape)
    for _ in range(2):
        assert_equal(array.T.dot(left, threads=1), plain.T @ left)
        assert_equal(array.dot(right, threads=1), plain @ right)


def test_wrong_index_arrays_are_refused():
    for damage in (lambda a: a.indices.__setitem__(5, 10**6), lambda a: a.indices.__setitem__(5, -1),
                   lambda a: a.indptr.__setitem__(3, 10**6), lambda a: a.indptr.__setitem__(3, -4)):
        array = SparseArray(random_csr(2500, 100, dtype=np.float32))
        left = dense(2500, 20, dtype=np.float32)
        damage(array)
        for width in (1, 20):
            with pytest.raises(ValueError, match="indptr or indices of A are not those of a matrix"):
                array.T @ left[:, :width]


def test_wrong_arguments_are_refused():
    array = SparseArray(random_csr(30, 20))
    with pytest.raises(ValueError, match="X has 30 rows and A 20 columns"):
        array.dot(dense(30, 2), threads=1)
    with pytest.raises(TypeError, match=r"threads and out go with .*: A is float64 and X is complex128"):
        array.dot(np.ones((20, 2), complex), threads=1)
    with pytest.raises(ValueError, match=r"out is float32 \(20, 2\): it must be an array of float64"):
        array.T.dot(dense(30, 2), out=np.empty((20, 2), np.float32))
    left = dense(30, 30)
    with pytest.raises(ValueError, match="memory of an operand"):
        array.T.dot(left, out=left[:20])
    with pytest.raises(ValueError, match="two axes"):
        array.dot(dense(20), out=np.empty(30))
    with pytest.raises((TypeError, ValueError), match="threads"):
        SparseArray(random_csr(3, 3), threads=0)


@pytest.fixture(scope="module")
def cells():
    """Counts of 300 cells for 120 genes, of low rank."""
    rng = np.random.default_rng(3)
    rates = rng.gamma(0.3, size=(300, 4)) @ rng.gamma(0.3, size=(4, 120))
    return scipy.sparse.csr_array(rng.poisson(rates).astype(np.float64))


def test_solvers_of_scipy_take_it(cells):
    for given in (SparseArray(cells), as_linear_operator(cells), as_linear_operator(cells.tocsc())):
        for solver in ("arpack", "lobpcg"):
            values = svds(given, k=3, solver=solver, return_singular_vectors=False, rng=np.random.default_rng(0))
            np.testing.assert_allclose(np.sort(values), np.linalg.svd(cells.toarray())[1][2::-1], rtol=1e-6)
    gram = (cells.T @ cells + 10 * scipy.sparse.eye_array(120)).tocsr()
    expected, right = np.linalg.eigvalsh(gram.toarray()), dense(120)
    for given in (SparseArray(gram), as_linear_operator(gram, threads=1)):
        np.testing.assert_allclose(eigsh(given, k=2, return_eigenvectors=False, v0=right), expected[-2:], rtol=1e-8)
        found, _ = lobpcg(given, dense(120, 3), tol=1e-8, maxiter=400)
        np.testing.assert_allclose(found, expected[:-4:-1], rtol=1e-5)
        solution, failed = cg(given, right, rtol=1e-10)
        assert not failed
        np.testing.assert_allclose(gram @ solution, right, atol=1e-7)


def test_estimators_of_scikit_learn_take_it(cells):
    array = SparseArray(cells)
    np.testing.assert_allclose(randomized_svd(array, 4, random_state=0)[1], randomized_svd(cells, 4, random_state=0)[1])
    for make in (lambda: TruncatedSVD(4, random_state=0), lambda: TruncatedSVD(4, algorithm="arpack", random_state=0),
                 lambda: PCA(4, svd_solver="arpack", random_state=0),
                 lambda: PCA(4, svd_solver="covariance_eigh")):
        ours, theirs = make().fit(array), make().fit(cells)
        np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, rtol=1e-7)
        np.testing.assert_allclose(np.abs(ours.transform(array)), np.abs(theirs.transform(cells)), atol=1e-6)


@pytest.mark.parametrize("derive", [
    lambda array: array, lambda array: array[:, [0, 2]], lambda array: array[::2], lambda array: 1 * array,
    lambda array: array.T.T, lambda array: SparseArray(array.T.tocsr()).T, lambda array: array.T,
    lambda array: pickle.loads(pickle.dumps(array))])
def test_scikit_learn_takes_it_as_targets(derive):
    labels = np.random.default_rng(5).random((40, 3)) < 0.5
    ours, theirs = derive(SparseArray(labels.astype(int))), derive(scipy.sparse.csr_array(labels.astype(int)))
    features = dense(ours.shape[0], 4)
    assert type_of_target(ours) == type_of_target(theirs) == "multilabel-indicator"
    binarized = [LabelBinarizer(sparse_output=True).fit(each).transform(each).toarray() for each in (ours, theirs)]
    np.testing.assert_array_equal(*binarized)
    scores = [(f1_score(each, 1 - each.toarray(), average="micro"),
               DecisionTreeClassifier(random_state=0, max_depth=2).fit(features, each.toarray()).score(features, each))
              for each in (ours, theirs)]
    assert scores[0] == scores[1]


def test_centred_operator_is_that_of_the_dense_matrix(cells):
    means = cells.mean(axis=0)
    operator, centred = as_linear_operator(cells, center=means), cells.toarray() - means
    right, left = dense(120, 4), dense(300, 4)
    np.testing.assert_allclose(operator @ right, centred @ right, atol=1e-10)
    np.testing.assert_allclose(operator.T @ left, centred.T @ left, atol=1e-10)
    np.testing.assert_allclose(operator @ right[:, 0], centred @ right[:, 0], atol=1e-10)
    np.testing.assert_allclose(operator.rmatvec(left[:, 0]), centred.T @ left[:, 0], atol=1e-10)
    np.testing.assert_allclose(svds(operator, 3, return_singular_vectors=False, v0=left[:120, 0] + right[:, 0]),
                               np.linalg.svd(centred)[1][2::-1], rtol=1e-8)


def test_wrong_operators_are_refused():
    with pytest.raises(TypeError, match="complex"):
        as_linear_operator(scipy.sparse.csr_array(np.eye(2, dtype=complex)))
    with pytest.raises(ValueError, match="center has 3 numbers, and A 2 columns"):
        as_linear_operator(scipy.sparse.csr_array(np.eye(2)), center=np.ones(3))
    with pytest.raises(ValueError, match="two axes"):
        as_linear_operator(scipy.sparse.coo_array(np.ones(4)))
    assert as_linear_operator(scipy.sparse.csr_array(np.eye(2, dtype=np.int8))).dtype == np.float64
