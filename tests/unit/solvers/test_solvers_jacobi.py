"""Jacobi's method against dense NumPy iterates: fused and unfused, with columns that converge at different rates."""

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import patterns

from sparloom.solvers import JacobiSolver, converging_relaxation, jacobi
from sparloom.sparse import Pattern, SparseMatrix, read_matrix, write_matrix
from sparloom.tuning import PlanCache

pytestmark = pytest.mark.cc

FUSE = ["always", "never"]


def dominant(pattern: Pattern, *, excess: float = 1.3, seed: int = 0) -> SparseMatrix:
    """Random values off the diagonal, and a diagonal that is `excess` times the sum of their magnitudes."""
    rng = np.random.default_rng(seed)
    dense = np.zeros(pattern.shape)
    dense[pattern.row_ids(), pattern.indices] = rng.uniform(-1, 1, pattern.nnz)
    np.fill_diagonal(dense, 0)
    np.fill_diagonal(dense, (excess * np.abs(dense).sum(axis=1) + 0.1) * rng.choice([-1, 1], pattern.rows))
    return of_dense(dense)


def of_dense(dense: np.ndarray) -> SparseMatrix:
    places = np.nonzero(dense)
    return SparseMatrix(Pattern.from_coo(*places, dense.shape), dense[places], np.float64)


def plane(side: int = 24) -> SparseMatrix:
    """A five-point stencil with a shift: large enough for tiles of both kinds."""
    place = np.arange(side * side).reshape(side, side)
    dense = np.diag(np.full(side * side, 4.2))
    for one, other in ((place[1:], place[:-1]), (place[:, 1:], place[:, :-1])):
        dense[one.ravel(), other.ravel()] = dense[other.ravel(), one.ravel()] = -1
    return of_dense(dense)


def iterate(matrix: SparseMatrix, b: np.ndarray, steps: int, relaxation: float = 1.0) -> np.ndarray:
    """Jacobi's method as in textbooks."""
    a, x = matrix.to_scipy().toarray(), np.zeros(b.shape)
    for _ in range(steps):
        x = x + relaxation / np.diag(a)[:, None] * (b - a @ x)
    return x


def right_hand_sides(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(rows, columns))


def residuals(matrix: SparseMatrix, b: np.ndarray, x: np.ndarray) -> np.ndarray:
    a = matrix.to_scipy().toarray()
    scaled = np.diag(a)[:, None]
    return np.linalg.norm((b - a @ x) / scaled, axis=0) / np.linalg.norm(b / scaled, axis=0)


@pytest.mark.parametrize("fuse", FUSE)
@pytest.mark.parametrize("relaxation", [1.0, 0.8])
@pytest.mark.parametrize("columns", [1, 13, 64])
@pytest.mark.parametrize("numbering", ["natural", "bandwidth"])
def test_iterates_are_those_of_jacobis_method(fuse, relaxation, columns, numbering):
    matrix, b = plane(), right_hand_sides(576, columns)
    solver = JacobiSolver(matrix, columns, fuse=fuse, numbering=numbering, relaxation=relaxation, threads=2)
    assert (solver.numbering.order is None) == (numbering == "natural")
    sweeps = solver.sweeps(b)
    for pair in range(4):
        changes = sweeps.advance()
        now = iterate(matrix, b, 2 * pair, relaxation)
        np.testing.assert_allclose(solver.numbering.unpermute(sweeps.current), now, rtol=0, atol=1e-13)
        after = iterate(matrix, b, 2 * pair + 1, relaxation)
        np.testing.assert_allclose(changes, np.linalg.norm(after - now, axis=0), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_fused_and_unfused_iterates_are_equal_to_the_bit(dtype):
    matrix, b = plane(), right_hand_sides(576, 64)
    ones, others = (JacobiSolver(matrix, 64, fuse=fuse, numbering="bandwidth", dtype=dtype, threads=2).sweeps(b)
                    for fuse in ("always", "never"))
    for _ in range(5):
        np.testing.assert_allclose(ones.advance(), others.advance(), rtol=1e-5 if dtype == "float32" else 1e-13)
        assert ones.current.dtype == dtype
        np.testing.assert_array_equal(ones.current, others.current)


@settings(max_examples=30, deadline=None)
@given(pattern=patterns(max_rows=25, square=True), columns=st.integers(1, 20), fuse=st.sampled_from(FUSE))
def test_any_dominant_system_is_solved(pattern, columns, fuse):
    matrix, b = dominant(pattern), right_hand_sides(pattern.rows, columns)
    found = jacobi(matrix, b, fuse=fuse, threads=2, tolerance=1e-10)
    assert found.converged.all()
    assert not found.diverged.any()
    solution = np.linalg.solve(matrix.to_scipy().toarray(), b)
    np.testing.assert_allclose(found.solution, solution, rtol=0, atol=1e-8 * (1 + np.abs(solution).max(initial=0)))


@pytest.mark.parametrize("fuse", FUSE)
def test_converged_columns_stop(fuse):
    """Right-hand sides along eigenvectors converge at different rates; the arrays are narrowed on the way."""
    matrix = plane()
    a = matrix.to_scipy().toarray()
    values, vectors = np.linalg.eigh(np.eye(576) - a / 4.2)
    chosen = vectors[:, np.argsort(np.abs(values))[np.linspace(20, 575, 40).astype(int)]]
    b = np.random.default_rng(0).permutation((a @ chosen).T).T
    found = jacobi(matrix, b, fuse=fuse, threads=2, tolerance=1e-6, max_iterations=400)
    assert found.converged.all()
    assert np.unique(found.iterations).size > 10
    np.testing.assert_allclose(found.residuals, residuals(matrix, b, found.solution), rtol=1e-6, atol=1e-14)
    assert (found.residuals <= 1e-6).all()
    for column in range(40):
        steps = found.iterations[column]
        np.testing.assert_allclose(found.solution[:, column], iterate(matrix, b[:, [column]], steps)[:, 0], atol=1e-12)
        assert residuals(matrix, b[:, [column]], iterate(matrix, b[:, [column]], steps - 2))[0] > 1e-6


def test_fused_and_unfused_solutions_are_equal():
    matrix, b = plane(), right_hand_sides(576, 24)
    b[:, 5] = 0
    ones, others = (jacobi(matrix, b, fuse=fuse, numbering="natural", threads=2) for fuse in ("always", "never"))
    np.testing.assert_array_equal(ones.iterations, others.iterations)
    np.testing.assert_array_equal(ones.solution, others.solution)
    assert ones.iterations[5] == ones.residuals[5] == 0
    assert ones.converged.all()


def test_steps_are_limited():
    matrix, b = plane(), right_hand_sides(576, 8)
    found = jacobi(matrix, b, max_iterations=5, tolerance=1e-12)
    assert (found.iterations == 6).all()
    assert not found.converged.any()
    assert not found.diverged.any()
    np.testing.assert_allclose(found.solution, iterate(matrix, b, 6), atol=1e-13)
    np.testing.assert_allclose(found.residuals, residuals(matrix, b, found.solution), rtol=1e-9)


@pytest.mark.parametrize("factor", [1.5, 1e200])
def test_divergence_is_reported_and_other_columns_are_solved(factor, caplog):
    """Two systems side by side: divergence in one does not affect columns that are zero there."""
    rows = 40
    dense = np.zeros((2 * rows, 2 * rows))
    full = Pattern.from_coo(*np.nonzero(np.ones((rows, rows))), (rows, rows))
    dense[:rows, :rows] = dominant(full).to_scipy().toarray()
    dense[rows:, rows:] = np.eye(rows) + factor * np.eye(rows, k=1) + factor * np.eye(rows, k=1 - rows)
    matrix, b = of_dense(dense), right_hand_sides(2 * rows, 16)
    b[rows:, 3:] = 0
    with caplog.at_level(logging.WARNING, logger="sparloom"):
        found = jacobi(matrix, b, threads=2)
    np.testing.assert_array_equal(found.diverged, np.arange(16) < 3)
    np.testing.assert_array_equal(found.converged, np.arange(16) >= 3)
    assert "diverges in 3 of 16 columns" in caplog.text
    np.testing.assert_allclose(found.solution[:, 3:], np.linalg.solve(dense, b[:, 3:]), atol=1e-6)


def test_relaxation_makes_positive_definite_systems_converge():
    rows = 30
    dense = np.full((rows, rows), 0.6) + 0.4 * np.eye(rows)
    matrix, b = of_dense(dense), right_hand_sides(rows, 4)
    assert jacobi(matrix, b).diverged.all()
    found = jacobi(matrix, b, relaxation=1.9 / np.linalg.eigvalsh(dense).max())
    assert found.converged.all()
    np.testing.assert_allclose(dense @ found.solution, b, atol=1e-6)


def test_unsolvable_systems_are_rejected():
    b = np.ones((3, 2))
    rectangle = SparseMatrix(Pattern((3, 4), [0, 0, 0, 0], []), [])
    with pytest.raises(ValueError, match="a 3 x 4 matrix: Jacobi's method solves square systems"):
        jacobi(rectangle, b)
    stored = SparseMatrix(Pattern((3, 3), [0, 1, 2, 3], [0, 1, 2]), [1, 0, 2])
    with pytest.raises(ValueError, match="1 zeros on the diagonal, the first in row 1"):
        jacobi(stored, b)
    with pytest.raises(ValueError, match="2 zeros on the diagonal, the first in row 0"):
        jacobi(of_dense(np.array([[0.0, 1, 0], [1, 1, 0], [1, 0, 0]])), b)
    identity = of_dense(np.eye(3))
    with pytest.raises(ValueError, match=r"shape \(4, 2\): this solver is for \(3, 2\)"):
        jacobi(identity, np.ones((4, 2)))
    with pytest.raises(ValueError, match=r"shape \(3,\): give \(n, columns\)"):
        jacobi(identity, np.ones(3))
    with pytest.raises(ValueError, match="right-hand side 1 holds a value"):
        jacobi(identity, np.array([[1, 1], [1, np.nan], [1, 1]]))
    with pytest.raises(ValueError, match="0 right-hand sides"):
        JacobiSolver(identity, 0)
    with pytest.raises(ValueError, match="fuse='sometimes'"):
        jacobi(identity, b, fuse="sometimes")
    with pytest.raises(ValueError, match="numbering 'random' is not one of auto, natural, bandwidth"):
        jacobi(identity, b, numbering="random")
    with pytest.raises(ValueError, match="relaxation 0"):
        jacobi(identity, b, relaxation=0)
    for wrong in ({"tolerance": 0.0}, {"max_iterations": 0}):
        with pytest.raises(ValueError, match="both must be above 0"):
            jacobi(identity, b, **wrong)


@pytest.mark.parametrize("rows", [1, 2, 30])
def test_the_relaxation_that_converges_is_found(rows):
    heavy = of_dense(np.full((rows, rows), 0.6) + 0.4 * np.eye(rows))
    largest = 0.6 * rows + 0.4
    found = converging_relaxation(heavy)
    assert found == (1.0 if largest < 1.99 else pytest.approx(0.95 * 2 / largest, rel=1e-2))
    assert jacobi(heavy, right_hand_sides(rows, 2), relaxation=found).converged.all()
    assert converging_relaxation(plane()) == 1.0


@pytest.mark.parametrize("ending", [".mtx", ".npz"])
def test_a_matrix_from_a_file_keeps_all_its_digits(tmp_path, ending):
    matrix = dominant(Pattern.from_coo(*np.nonzero(np.ones((20, 20))), (20, 20)))
    write_matrix(tmp_path / f"m{ending}", matrix)
    b = np.random.default_rng(0).standard_normal((20, 2))
    result = jacobi(read_matrix(tmp_path / f"m{ending}"), b, tolerance=1e-13, fuse="never", cache=PlanCache(None))
    assert result.converged.all()
    dense = matrix.to_scipy().toarray()
    scaled = np.diag(dense)[:, None]
    left = np.linalg.norm((b - dense @ result.solution) / scaled, axis=0) / np.linalg.norm(b / scaled, axis=0)
    assert left.max() < 1e-12


@pytest.mark.parametrize("columns", [1, 3])
def test_blocked_steps_solve_in_as_many_steps_as_fused_ones(columns, tmp_path):
    matrix, b = plane(), right_hand_sides(24 * 24, columns)
    fused = JacobiSolver(matrix, columns, fuse="never", threads=1, cache=PlanCache(tmp_path)).solve(b, tolerance=1e-6)
    solver = JacobiSolver(matrix, columns, blocked_steps=8, threads=2)
    blocked = solver.solve(b, tolerance=1e-6)
    np.testing.assert_array_equal(blocked.iterations, fused.iterations)
    assert blocked.converged.all()
    np.testing.assert_allclose(blocked.solution, fused.solution, rtol=1e-9, atol=1e-12)
    assert (residuals(matrix, b, blocked.solution) <= 1e-6).all()
    assert solver.numbering.name == "natural"
    with pytest.raises(ValueError, match="this solver takes 8 steps at a time"):
        _ = solver.plan
    with pytest.raises(ValueError, match="blocked_steps=3: give an even number"):
        JacobiSolver(matrix, columns, blocked_steps=3)


def test_blocked_steps_stop_at_the_limit_and_go_on_with_some_columns():
    matrix = plane()
    solver = JacobiSolver(matrix, 2, blocked_steps=4, threads=1)
    b = right_hand_sides(24 * 24, 2)
    sweeps = solver.sweeps(b)
    for _ in range(3):
        sweeps.advance()
    np.testing.assert_allclose(sweeps.latest, iterate(matrix, b, 6), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(sweeps.current, iterate(matrix, b, 4), rtol=1e-9, atol=1e-12)
    sweeps.select_columns(np.array([1]))
    change = sweeps.advance()
    np.testing.assert_allclose(sweeps.latest, iterate(matrix, b[:, 1:], 8), rtol=1e-9, atol=1e-12)
    expected = np.linalg.norm(iterate(matrix, b[:, 1:], 7) - iterate(matrix, b[:, 1:], 6), axis=0)
    np.testing.assert_allclose(change, expected, rtol=1e-9)
    sweeps.restart()
    assert not sweeps.latest.any()
    assert (solver.solve(b, tolerance=1e-30, max_iterations=5).iterations == 6).all()
    assert jacobi(matrix, b, blocked_steps=8, tolerance=1e-6).converged.all()
