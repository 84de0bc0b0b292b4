"""Jacobi's method on systems of any scale, and its errors: results hold for the system as it was passed."""

import logging

import numpy as np
import pytest
import scipy.sparse

from sparloom.solvers import JacobiSolver, converging_relaxation, jacobi
from sparloom.sparse import Pattern, SparseMatrix

pytestmark = pytest.mark.cc

ROWS = 30
B = np.random.default_rng(0).standard_normal((ROWS, 3))
PLAIN = scipy.sparse.csr_array(scipy.sparse.diags_array([4.0, -1.0, -1.0], offsets=[0, 1, -1], shape=(ROWS, ROWS)))
PLAIN.sort_indices()
SOLUTION = np.linalg.solve(PLAIN.toarray(), B)


def matrix(values: np.ndarray | None = None, dtype: str = "float64") -> SparseMatrix:
    """The stencil [-1, 4, -1], or its pattern with other values."""
    return SparseMatrix(Pattern(PLAIN.shape, PLAIN.indptr, PLAIN.indices), PLAIN.data if values is None else values,
                        dtype)


def exact_residuals(given: SparseMatrix, b: np.ndarray, x: np.ndarray) -> np.ndarray:
    """‖D⁻¹(b − A x)‖ / ‖D⁻¹b‖ in extended precision, without squares of large or small numbers."""
    a = given.to_scipy().toarray().astype(np.longdouble)
    scaled = a / np.diag(a)[:, None]
    constant = b.astype(np.longdouble) / np.diag(a)[:, None]
    rest = constant - scaled @ x.astype(np.longdouble)
    sizes = np.abs(constant).max(axis=0)
    lengths = np.linalg.norm((constant / sizes).astype(float), axis=0)
    return np.linalg.norm((rest / sizes).astype(float), axis=0) / lengths


@pytest.mark.parametrize("numbering", ["natural", "bandwidth"])
@pytest.mark.parametrize(("dtype", "tolerance", "scales"), [
    ("float32", 1e-4, [1e-38, 1e-25, 1e-22, 1e-21, 1e15, 1e20, 1e37]),
    ("float64", 1e-9, [1e-300, 1e-165, 1e-162, 1e-158, 1e100, 1e155, 1e300])])
def test_solutions_do_not_depend_on_the_units_of_the_right_hand_side(dtype, tolerance, scales, numbering):
    solver = JacobiSolver(matrix(), 3, dtype=dtype, numbering=numbering, threads=2)
    for scale in scales:
        found = solver.solve(B * scale, tolerance=tolerance)
        assert found.converged.all(), scale
        np.testing.assert_allclose(found.solution / scale, SOLUTION, atol=10 * tolerance)
        assert (exact_residuals(matrix(), B * scale, found.solution) <= tolerance).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_solutions_do_not_depend_on_the_units_of_the_matrix(dtype):
    tolerance = 1e-4 if dtype == "float32" else 1e-9
    for scale in (1e-310, 1e-162, 1e-40, 1e-22, 1e20, 1e38, 1e155, 1e300):
        given = matrix(PLAIN.data * scale)
        found = jacobi(given, B * scale, dtype=dtype, tolerance=tolerance)
        assert found.converged.all(), scale
        assert (exact_residuals(given, B * scale, found.solution) <= tolerance).all()
        np.testing.assert_allclose(found.solution, SOLUTION, atol=10 * tolerance)


def test_columns_and_rows_may_have_different_units():
    columns = np.array([1e-280, 1.0, 1e280])
    rows = 10.0 ** np.linspace(-150, 150, ROWS)
    given = matrix(PLAIN.data * rows[np.repeat(np.arange(ROWS), np.diff(PLAIN.indptr))])
    found = jacobi(matrix(), B * columns)
    assert found.converged.all()
    np.testing.assert_allclose(found.solution / columns, SOLUTION, atol=1e-7)
    found = jacobi(given, B * rows[:, None])
    assert found.converged.all()
    np.testing.assert_allclose(found.solution, SOLUTION, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scaling_by_powers_of_two_is_exact(dtype):
    solver = JacobiSolver(matrix(), 3, dtype=dtype, threads=2)
    tolerance = 1e-5 if dtype == "float32" else 1e-10
    plain = solver.solve(B, tolerance=tolerance)
    for power in (-110, -1, 3, 100):
        found = solver.solve(np.ldexp(B, power), tolerance=tolerance)
        np.testing.assert_array_equal(found.iterations, plain.iterations)
        np.testing.assert_array_equal(found.residuals, plain.residuals)
        np.testing.assert_array_equal(found.solution, np.ldexp(plain.solution, power))


@pytest.mark.parametrize("scale", [1e-60, 1e-44, 1e-42])
def test_a_solution_too_small_for_its_type_has_not_converged(scale, caplog):
    found = jacobi(matrix(), B * scale, dtype="float32", tolerance=1e-4)
    assert not found.converged.any()
    assert not found.diverged.any()
    np.testing.assert_allclose(found.residuals, exact_residuals(matrix(), B * scale, found.solution), rtol=1e-6)
    assert "comes no nearer in float32" in caplog.text


def test_a_solution_too_large_for_its_type_has_not_converged(caplog):
    """The first iterate fits into float32, but later ones overflow."""
    narrow = matrix(np.where(PLAIN.data == 4, 2.01, PLAIN.data))
    b = np.full((ROWS, 2), 3e38)
    b[:, 1] = 1
    found = jacobi(narrow, b, dtype="float32", tolerance=1e-4, max_iterations=10_000)
    np.testing.assert_array_equal(found.converged, [False, True])
    assert not found.diverged.any()
    assert found.residuals[0] == np.inf
    assert "in float32 to 1 of 2 solutions" in caplog.text
    with pytest.raises(ValueError, match=r"right-hand side 1, divided by the diagonal, is of size 2\^131, which fl"):
        jacobi(matrix(), np.array([[1, 1e40]] * ROWS), dtype="float32")
    with pytest.raises(ValueError, match="which float64 does not hold: scale it"):
        jacobi(matrix(PLAIN.data * 1e-200), B * 1e200)


def test_a_type_too_coarse_for_the_tolerance_is_reported(caplog):
    found = jacobi(matrix(), B, dtype="float32", tolerance=1e-9)
    assert not found.converged.any()
    np.testing.assert_allclose(found.residuals, exact_residuals(matrix(), B, found.solution), rtol=1e-9)
    assert "Give a larger tolerance, dtype=\"float64\"" in caplog.text
    found = jacobi(matrix(), B, tolerance=1e-18)
    assert not found.converged.any()
    assert (found.residuals > 1e-18).all()


def test_convergence_near_the_precision_of_the_type_is_genuine(caplog):
    for tolerance in (1.2e-7, 2e-7, 5e-7, 1e-6):
        found = jacobi(matrix(), B, dtype="float32", tolerance=tolerance)
        exact = exact_residuals(matrix(), B, found.solution)
        assert (exact[found.converged] <= tolerance).all()
        assert (exact[~found.converged] > tolerance).all()
    with caplog.at_level(logging.WARNING):
        assert jacobi(matrix(), B, dtype="float32", tolerance=1e-6).converged.all()


def test_values_are_used_as_the_matrix_holds_them():
    values = PLAIN.data * (1 + 1e-9 * np.arange(PLAIN.nnz))
    found = jacobi(matrix(values), B, tolerance=1e-13)
    assert (exact_residuals(matrix(values), B, found.solution) <= 1e-13).all()
    single = matrix(values.astype(np.float32), "float32")
    found = jacobi(single, B, tolerance=1e-13)
    assert (exact_residuals(single, B, found.solution) <= 1e-13).all()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [0, 1, PLAIN.nnz - 2])
def test_a_matrix_with_infinities_is_rejected(value, place):
    values = PLAIN.data.copy()
    values[place] = value
    row = np.searchsorted(PLAIN.indptr, place, side="right") - 1
    text = f"1 values of the matrix are not finite, the first is {value} in row {row}, column {PLAIN.indices[place]}"
    for refused in (lambda given: jacobi(given, B), converging_relaxation):
        with pytest.raises(ValueError, match=text):
            refused(matrix(values))


@pytest.mark.parametrize(("wrong", "text"), [
    (B + 1j, "complex right-hand sides: only real systems"), (B.astype(np.complex64), "complex"),
    (B.astype(object), "type object: give real numbers"), (B.astype(str), "give real numbers"),
    (scipy.sparse.csr_array(B), "a csr_array: give a dense array"),
    (np.ma.masked_less(B, 0), "masked entries"), (B.astype("datetime64[s]"), "give real numbers")])
def test_right_hand_sides_that_are_not_real_are_rejected(wrong, text):
    solver = JacobiSolver(matrix(), 3, threads=2)
    for refused in (solver.solve, solver.sweeps, lambda b: jacobi(matrix(), b)):
        with pytest.raises(TypeError, match=text):
            refused(wrong)


@pytest.mark.parametrize("wrong", [None, "1", 1j, np.ones(2), [1.0], np.array([])])
def test_tolerance_and_relaxation_must_be_scalars(wrong):
    with pytest.raises(TypeError, match=r"tolerance .*above 0"):
        jacobi(matrix(), B, tolerance=wrong)
    with pytest.raises(TypeError, match=r"relaxation .*: give one real number above 0"):
        jacobi(matrix(), B, relaxation=wrong)


@pytest.mark.parametrize("given", [PLAIN, scipy.sparse.coo_matrix(PLAIN), PLAIN.toarray(), None])
def test_other_matrix_types_are_rejected_by_name(given):
    for refused in (lambda a: jacobi(a, B), lambda a: JacobiSolver(a, 3), converging_relaxation):
        with pytest.raises(TypeError, match=f"the matrix is a {type(given).__name__}, not a sparloom.sparse.SparseM"):
            refused(given)


@pytest.mark.parametrize("wrong", [
    {"tolerance": np.nan}, {"tolerance": -1e-8}, {"tolerance": np.inf}, {"max_iterations": -2}])
def test_invalid_tolerances_and_step_limits_are_rejected(wrong):
    with pytest.raises(ValueError, match="both must be above 0 and finite"):
        jacobi(matrix(), B, **wrong)


@pytest.mark.parametrize("relaxation", [np.nan, np.inf, -1.0])
def test_a_relaxation_is_a_finite_number_above_0(relaxation):
    with pytest.raises(ValueError, match="give a finite number above 0"):
        jacobi(matrix(), B, relaxation=relaxation)


@pytest.mark.parametrize("relaxation", [1.0, 0.7])
def test_systems_without_unknowns_are_solved(relaxation):
    nothing = SparseMatrix(Pattern((0, 0), [0], []), [], np.float64)
    found = jacobi(nothing, np.zeros((0, 2)), relaxation=relaxation)
    assert found.converged.all()
    assert found.solution.shape == (0, 2)


def test_a_matrix_whose_ratios_overflow_is_rejected():
    values = np.where(PLAIN.data == 4, 1e-30, PLAIN.data * 1e20)
    with pytest.raises(ValueError, match="row 0 holds a value so much larger than its diagonal that float32 does not"):
        JacobiSolver(matrix(values), 3, dtype="float32")
    with pytest.raises(ValueError, match="float64 does not hold their ratio: scale the unknowns"):
        JacobiSolver(matrix(np.where(PLAIN.data == 4, 1e-300, PLAIN.data * 1e20)), 3)


def test_the_relaxation_does_not_depend_on_units():
    dense = np.full((ROWS, ROWS), 0.6) + 0.4 * np.eye(ROWS)
    pattern = Pattern.from_coo(*np.nonzero(dense), dense.shape)
    found = converging_relaxation(SparseMatrix(pattern, dense.ravel(), np.float64))
    for scale in (1e-300, 1e300):
        again = converging_relaxation(SparseMatrix(pattern, dense.ravel() * scale, np.float64))
        assert again == pytest.approx(found)
    with pytest.raises(ValueError, match="negative in row 0: the matrix is not positive definite"):
        converging_relaxation(SparseMatrix(pattern, -dense.ravel(), np.float64))
