"""Pools of processes that are forked from a server with loaded modules instead of loading them in each process."""

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext, ForkServerProcess
from types import SimpleNamespace
from typing import Any

import pytest

from sparloom.experiments.harness import process_pool

__all__ = ["warm_pool"]


class _Process(ForkServerProcess):
    """A process with the environment of the process that starts it, as a spawned one has it; the server's is older."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._environment = dict(os.environ)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        tempfile.tempdir = None  # found anew in this environment
        super().run()


class _Context(ForkServerContext):
    Process = _Process


def _ignore_interrupts(_: int) -> None:
    """Do what processes of pools do at first, but for ending with a parent, which is the server here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def warm_pool(modules: Sequence[str]) -> Iterator[None]:
    """Let pools fork their processes; the first one in this process says which modules are loaded."""
    multiprocessing.set_forkserver_preload([*modules])
    made = SimpleNamespace(get_context=lambda _: _Context(), active_children=multiprocessing.active_children)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_pool, "multiprocessing", made)
        patch.setattr(process_pool, "_end_with_parent", _ignore_interrupts)
        yield
