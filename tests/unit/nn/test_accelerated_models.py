"""Random models train alike with and without `accelerate` or `pack`; tests/accelerated_models.py draws them."""

import pytest

accelerated_models = pytest.importorskip("accelerated_models", reason="torch_geometric or lightning is not installed",
                                         exc_type=ImportError)
pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("sparse_cache"), pytest.mark.filterwarnings("ignore")]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "cases"), [("plain", 30), ("hetero", 15), ("encoders", 15), ("lightning", 5)])
def test_models_train_alike(kind, cases) -> None:
    assert not accelerated_models.failures(kind, range(cases), seed=1)


@pytest.mark.slow
def test_models_train_alike_in_two_processes() -> None:
    assert not accelerated_models.in_processes(range(10), seed=1)
