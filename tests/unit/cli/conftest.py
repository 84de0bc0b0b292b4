"""Runs that begin in a test leave no handlers behind."""

import logging

import pytest


@pytest.fixture(autouse=True)
def _loggers():
    yield
    root = logging.getLogger("sparloom")
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    root.propagate = True
