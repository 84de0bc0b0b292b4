"""Processes of pools and trainings are forked from a server with loaded modules."""

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.util
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext, ForkServerContext, ForkServerProcess
from typing import Any

import pytest
import torch.multiprocessing
from brief_timing import brief_timing

from sparloom.experiments.harness import process_pool

__all__ = ["warm_processes"]

MODULES = [  # what processes of any test use: a server is never started again
    "pytest", "torch", "lightning.pytorch", "pandas", "sparloom.models", "sparloom.data.lightning", "sparloom.report",
    "sparloom.baselines.sparse", "sparloom.experiments.autosage.bench_dispatch",
    "sparloom.experiments.autosage.cpu_cases", "sparloom.experiments.cognate.training",
]


class _Process(ForkServerProcess):
    """A process with the environment of the process that starts it, as a spawned one has it; the server's is older."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._environment = dict(os.environ)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        tempfile.tempdir = None  # found anew in this environment
        with brief_timing():
            super().run()


class _Context(ForkServerContext):
    Process = _Process


def _end_with_server(_: int) -> None:
    """Do what processes of pools do at first; their parent is the server here."""
    process_pool._end_with_parent(os.getppid())


@contextmanager
def warm_processes() -> Iterator[None]:
    """Let whoever asks for the start method "spawn" fork from a server that has loaded the modules."""
    multiprocessing.set_forkserver_preload(MODULES)
    with _forked():
        yield


@contextmanager
def _forked() -> Iterator[None]:
    usual = multiprocessing.get_context

    def get_context(method: str | None = None) -> BaseContext:
        return _Context() if method == "spawn" else usual(method)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing, "get_context", get_context)
        patch.setattr(torch.multiprocessing, "get_context", get_context)
        patch.setattr(process_pool, "_end_with_parent", _end_with_server)
        sharing = torch.multiprocessing.get_sharing_strategy()
        torch.multiprocessing.set_sharing_strategy("file_system")  # a server takes 252 descriptors, one per tensor
        yield
        torch.multiprocessing.set_sharing_strategy(sharing)
