"""Runs that begin in a test leave no handlers behind."""

import pytest
from run_loggers import forget_loggers


@pytest.fixture(autouse=True)
def _loggers():
    yield
    forget_loggers()
