"""Powers and polynomials of a matrix: plain and blocked against float64 products, in all orders and widths."""

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse

from sparloom.solvers import MatrixPowers, matrix_powers, packed_steps, polynomial, powers, prepare_powers, traversal
from sparloom.sparse import Pattern, SparseMatrix

pytestmark = pytest.mark.cc

COEFFICIENTS = [0.5, -1.0, 2.0, 0.25, 0.125]


def band(rows: int = 300, half: int = 3) -> scipy.sparse.csr_array:
    rng = np.random.default_rng(0)
    offsets = range(-half, half + 1)
    return scipy.sparse.diags_array([rng.random(rows - abs(o)) for o in offsets], offsets=offsets, format="csr")


def mesh(side: int = 24) -> scipy.sparse.csr_array:
    line, eye = band(side, 1), scipy.sparse.eye_array(side)
    return scipy.sparse.csr_array(scipy.sparse.kron(eye, line) + scipy.sparse.kron(line, eye))


def shuffled(matrix: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    order = np.random.default_rng(1).permutation(matrix.shape[0])
    return scipy.sparse.csr_array(matrix[order][:, order])


def arrow(rows: int = 150) -> scipy.sparse.csr_array:
    dense = np.diag(np.arange(1.0, rows + 1))
    dense[0], dense[:, 0] = 1, 1
    return scipy.sparse.csr_array(dense / rows)


def random_graph(rows: int, share: float) -> scipy.sparse.csr_array:
    return scipy.sparse.random_array((rows, rows), density=share, rng=np.random.default_rng(2), format="csr")


MATRICES = {
    "band": band(),
    "mesh": mesh(),
    "pieces in another order": shuffled(scipy.sparse.block_diag([band(90), band(45, 1), band(150)], format="csr")),
    "random, with empty rows": random_graph(200, 0.01),
    "lower triangle": scipy.sparse.csr_array(scipy.sparse.tril(random_graph(150, 0.03))),
    "a hub": arrow(),
    "no nonzeros": scipy.sparse.csr_array((20, 20)),
    "one row": scipy.sparse.csr_array([[2.0]]),
}


@pytest.fixture
def small_blocks(monkeypatch):
    """Cut small matrices into many blocks, and let several threads work on them."""
    monkeypatch.setattr(matrix_powers, "THREAD_BYTES", 1)
    monkeypatch.setattr(traversal, "NEAR_BLOCK_BYTES", 600)
    monkeypatch.setattr(traversal, "SHARED_BLOCK_BYTES", 1500)
    monkeypatch.setattr(traversal, "LARGE_BYTES", 5000)


def expected(matrix: scipy.sparse.csr_array, x: np.ndarray, k: int) -> np.ndarray:
    found = [x.astype(np.float64)]
    for _ in range(k):
        found.append(matrix @ found[-1])
    return np.array(found)


def assert_near(actual: np.ndarray, wanted: np.ndarray, dtype: type) -> None:
    tolerance = 300 * np.finfo(dtype).eps
    assert actual.dtype == dtype
    assert actual.shape == wanted.shape
    np.testing.assert_allclose(actual, wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max(initial=1))


def columns(matrix: scipy.sparse.csr_array, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    return np.random.default_rng(3).random((matrix.shape[0], *shape)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", MATRICES)
def test_blocked_and_plain_products_equal_the_oracle(small_blocks, name, threads, dtype):
    matrix = MATRICES[name].astype(dtype)
    for method in ("plain", "blocked"):
        prepared = prepare_powers(matrix, k=5, columns=2, method=method, threads=threads)
        for shape in ((), (2,), (3,), (4,), (11,)):
            x = columns(matrix, shape, dtype)
            wanted = expected(MATRICES[name].astype(dtype).astype(float), x, 5)
            assert_near(prepared.powers(x, 5), wanted, dtype)
            assert_near(prepared.powers(x, 4, last=True), wanted[4], dtype)
            terms = np.einsum("k,k...->...", COEFFICIENTS, wanted[:5])
            assert_near(prepared.polynomial(x, COEFFICIENTS), terms, dtype)


@pytest.mark.parametrize("name", ["mesh", "pieces in another order", "a hub"])
def test_matrices_in_csr_are_blocked_likewise_where_nothing_can_be_packed(small_blocks, monkeypatch, name):
    monkeypatch.setattr(packed_steps, "can_pack", lambda: False)
    for dtype in (np.float32, np.float64):
        matrix = MATRICES[name].astype(dtype)
        prepared = prepare_powers(matrix, k=5, columns=2, method="blocked", threads=2)
        for shape in ((), (2,), (4,), (9,)):
            x = columns(matrix, shape, dtype)
            wanted = expected(matrix.astype(float), x, 5)
            assert_near(prepared.powers(x, 5), wanted, dtype)
            assert_near(prepared.powers(x, 5, last=True), wanted[5], dtype)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["mesh", "random, with empty rows"])
def test_chebyshev_polynomials_follow_their_recurrence(small_blocks, name, threads):
    matrix = MATRICES[name]
    x = columns(matrix, (2,), np.float64)
    shifted = 0.3 * matrix - 0.2 * scipy.sparse.eye_array(matrix.shape[0])
    terms = [x, shifted @ x]
    for _ in range(3):
        terms.append(2 * (shifted @ terms[-1]) - terms[-2])
    wanted = np.einsum("k,kij->ij", COEFFICIENTS, terms)
    for method in ("plain", "blocked"):
        prepared = prepare_powers(matrix, k=4, columns=2, method=method, threads=threads)
        found = prepared.polynomial(x, COEFFICIENTS, basis="chebyshev", scale=0.3, shift=-0.2)
        assert_near(found, wanted, np.float64)


@pytest.mark.parametrize("renumbered", [False, True])
def test_iterations_add_a_term_in_every_step(small_blocks, monkeypatch, renumbered):
    if renumbered:
        monkeypatch.setattr(traversal.Caches, "here", lambda threads: traversal.Caches(1000, 15_000, threads))
    matrix = shuffled(band(400, 2)) if renumbered else band(400, 2)
    prepared = prepare_powers(matrix, k=4, method="blocked", threads=2)
    assert prepared.plan(4, 1).renumbered == renumbered
    for shape in ((), (2,), (3,), (9,)):
        x, b = columns(matrix, shape, np.float64), columns(matrix, shape, np.float64)[::-1].copy()
        wanted = [x]
        for _ in range(4):
            wanted.append(0.5 * (matrix @ wanted[-1]) - 0.25 * wanted[-1] + 2 * b)
        factors = {"weight": 2.0, "scale": 0.5, "shift": -0.25}
        assert_near(prepared.iterate(x, 4, b, **factors), np.array(wanted), np.float64)
        assert_near(prepared.iterate(x, 4, b, last=True, **factors), wanted[4], np.float64)


@pytest.mark.parametrize("threads", [1, 2])
def test_levels_of_a_shuffled_band_let_products_share_a_reading(small_blocks, monkeypatch, threads):
    room = 20_000  # bytes, of a matrix of about 30,000
    monkeypatch.setattr(traversal.Caches, "here", lambda threads: traversal.Caches(room / 8, room, threads))
    matrix = shuffled(scipy.sparse.block_diag([band(200, 1), band(300, 2), band(5, 0)], format="csr"))
    prepared = prepare_powers(matrix, k=4, columns=1, method="blocked", threads=threads)
    plan = prepared.plan(4, 1)
    assert plan.renumbered
    assert plan.depth == 4
    for shape in ((), (2,), (5,)):
        x = columns(matrix, shape, np.float64)
        assert_near(prepared.powers(x, 4), expected(matrix, x, 4), np.float64)
        assert_near(prepared.polynomial(x, COEFFICIENTS), np.einsum(
            "k,k...->...", COEFFICIENTS, expected(matrix, x, 4)), np.float64)


def test_a_blocked_pass_does_not_start_before_its_rows_are_done(small_blocks):
    """Every step of a block follows the previous step of all blocks that it reads."""
    for matrix in map(scipy.sparse.csr_array.copy, MATRICES.values()):
        matrix.sort_indices()
        rows = SparseMatrix(Pattern(matrix.shape, matrix.indptr, matrix.indices), matrix.data, np.float64)
        packed = packed_steps.PackedMatrix.of(rows, threads=1, pack=False)
        schedule = traversal.schedule_steps(packed, 6, threads=1, copies=False, row_bytes=24)
        if schedule is None:
            continue
        done = [matrix.shape[0], *[0] * 6]
        for begin, end, step in schedule.tasks.tolist():
            assert begin * packed.chunk_rows == done[step] or done[step] >= matrix.shape[0]
            assert packed.last[begin:end].max() < done[step - 1]
            done[step] = min(end * packed.chunk_rows, matrix.shape[0])
        assert done == [matrix.shape[0]] * 7


@pytest.mark.parametrize("copies", [False, True])
def test_lists_of_a_phase_do_not_need_each_other(small_blocks, copies):
    """Threads meet only between phases: what a list reads comes from itself or from phases before."""
    for matrix in map(scipy.sparse.csr_array.copy, MATRICES.values()):
        matrix.sort_indices()
        packed = packed_steps.PackedMatrix.of(
            SparseMatrix(Pattern(matrix.shape, matrix.indptr, matrix.indices), matrix.data, np.float64), threads=1,
            pack=False)
        both = scipy.sparse.csr_array(matrix + matrix.T + scipy.sparse.eye_array(matrix.shape[0]))
        neighbours = [both.indices[both.indptr[row]:both.indptr[row + 1]] for row in range(matrix.shape[0])]
        schedule = traversal.schedule_steps(packed, 5, threads=3, copies=copies, row_bytes=24)
        steps = np.zeros(matrix.shape[0], int) - copies  # last step of every row that earlier phases have done
        for phase in range((schedule.bounds.size - 1) // schedule.lists if schedule else 0):
            reached = []
            for number in range(phase * schedule.lists, (phase + 1) * schedule.lists):
                own = steps.copy()
                for begin, end, step in schedule.tasks[schedule.bounds[number]:schedule.bounds[number + 1]].tolist():
                    rows = range(begin * packed.chunk_rows, min(end * packed.chunk_rows, matrix.shape[0]))
                    for row in rows:
                        assert own[row] == step - 1
                        if step > 0:  # neighbours, read or written over two steps later, are at this step or the next
                            assert set(own[neighbours[row]]) <= {step - 1, step}
                    own[list(rows)] = step
                reached.append(own)
            changed = np.array([own != steps for own in reached])
            assert (changed.sum(axis=0) <= 1).all()
            steps = np.max(reached, axis=0)
        assert schedule is None or (steps == 5).all()


def test_auto_chooses_and_agrees_with_plain_products(small_blocks):
    matrix = band(3000, 4)
    prepared = prepare_powers(matrix, k=4, columns=2)
    assert prepared.plan(4, 2).speedup >= 1
    assert prepared.shape == matrix.shape
    assert prepared.dtype == np.float64
    assert prepared.threads >= 1
    x = columns(matrix, (2,), np.float64)
    assert_near(prepared.powers(x, 4), expected(matrix, x, 4), np.float64)
    assert_near(powers(prepared, x, 4), expected(matrix, x, 4), np.float64)


def test_a_prepared_matrix_is_a_copy():
    matrix = band()
    x = columns(matrix, (), np.float64)
    wanted = expected(matrix, x, 2)
    prepared = prepare_powers(matrix, k=2)
    matrix.data[:] = 0
    matrix.indices[:] = 0
    assert_near(prepared.powers(x, 2), wanted, np.float64)


def test_a_prepared_matrix_is_copied_and_pickled():
    matrix = band()
    x = columns(matrix, (), np.float64)
    prepared = prepare_powers(matrix, k=2, threads=1)
    for other in (copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared))):
        assert_near(other.powers(x, 2), expected(matrix, x, 2), np.float64)


def test_infinities_reach_only_the_rows_that_read_them(small_blocks):
    matrix = scipy.sparse.csr_array(band(100, 2))
    x = np.ones(100)
    x[50] = np.inf
    for method in ("plain", "blocked"):
        found = prepare_powers(matrix, k=2, method=method).powers(x, 2, last=True)
        assert np.flatnonzero(~np.isfinite(found)).tolist() == list(range(46, 55))


def test_no_rows_no_columns_and_no_products():
    none = scipy.sparse.csr_array((0, 0))
    for prepared in (none, prepare_powers(none)):
        assert powers(prepared, np.zeros((0, 2)), 3).shape == (4, 0, 2)
        assert polynomial(prepared, np.zeros(0), [1.0, 2.0]).shape == (0,)
    matrix, x = band(), columns(band(), (2,), np.float64)
    assert powers(matrix, x[:, :0], 3).shape == (4, 300, 0)
    np.testing.assert_array_equal(powers(matrix, x, 0), x[None])
    np.testing.assert_array_equal(powers(matrix, x, 0, last=True), x)
    np.testing.assert_array_equal(polynomial(matrix, x, [2.0]), 2 * x)


@pytest.mark.parametrize(("change", "error", "message"), [
    ({"matrix": band()[:, :200]}, ValueError, "A is 300 x 200: only a square matrix"),
    ({"matrix": band().astype(complex)}, TypeError, "A is complex"),
    ({"matrix": band().astype(int)}, TypeError, "A is int64: give float32 or float64"),
    ({"matrix": np.eye(300)}, TypeError, "A is ndarray: give a SparseMatrix"),
    ({"x": np.zeros(299)}, ValueError, r"X has shape \(299,\): it must be \(300,\) or \(300, columns\)"),
    ({"x": np.zeros((300, 1, 1))}, ValueError, "X has shape"),
    ({"x": np.zeros(300, complex)}, TypeError, "X is complex128: give float32 or float64"),
    ({"x": np.ma.zeros(300)}, TypeError, "masked array"),
    ({"x": band()}, TypeError, "X is sparse"),
    ({"k": -1}, ValueError, "k=-1: give at least 0"),
    ({"k": 1.5}, TypeError, "k=1.5: give a whole number"),
    ({"k": True}, TypeError, "k=True"),
    ({"method": "best"}, ValueError, "method 'best': give one of auto, plain, blocked"),
    ({"threads": 0}, ValueError, "threads: 0 threads"),
])
def test_bad_arguments_are_named(change, error, message):
    arguments = {"matrix": band(), "x": np.zeros(300), "k": 2} | change
    with pytest.raises(error, match=message):
        powers(**arguments)


@pytest.mark.parametrize(("coefficients", "options", "error", "message"), [
    ([], {}, ValueError, "coefficients of shape"),
    ([[1.0]], {}, ValueError, "coefficients of shape"),
    ([1.0, np.nan], {}, ValueError, "coefficient 1 is not finite"),
    (["a"], {}, TypeError, "give real numbers"),
    ([1.0, 2.0], {"basis": "legendre"}, ValueError, "basis 'legendre': give one of monomial, chebyshev"),
    ([1.0, 2.0], {"scale": np.inf}, ValueError, "scale inf and shift 0.0: give finite numbers"),
])
def test_bad_polynomials_are_named(coefficients, options, error, message):
    with pytest.raises(error, match=message):
        polynomial(band(), np.zeros(300), coefficients, **options)


def test_a_prepared_float32_matrix_refuses_float64_input():
    prepared = prepare_powers(band().astype(np.float32), k=1)
    with pytest.raises(TypeError, match="X is float64 and the prepared matrix is float32"):
        prepared.powers(np.zeros(300), 1)
    with pytest.raises(ValueError, match="columns=0: give at least 1"):
        MatrixPowers(band(), columns=0)
