"""Python with preloaded modules: a server loads them once and forks a process for each program.

    python warm_python.py serve NAME MODULE ...
    python warm_python.py run NAME SCRIPT ARGUMENT ...

The second command takes the place of `python SCRIPT ARGUMENT ...`; SCRIPT may be `-m MODULE`. The program has its
arguments, environment, folder, input and outputs, and its exit status. A signal reaches this command and not the
program: who sends signals starts the program as a `WarmProgram`.
"""

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

__all__ = ["WarmProgram", "warm_python"]


@contextmanager
def warm_python(modules: Sequence[str]) -> Iterator[list[str]]:
    """Start a server with loaded modules; return the command that starts a program.

    Threads that a module starts while it is loaded would be missing in programs: OpenMP is limited to one.
    """
    name = f"sparloom-{uuid.uuid4()}"  # of an abstract socket: no path is too long, nothing is left behind
    with subprocess.Popen([sys.executable, __file__, "serve", name, *modules], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield [sys.executable, "-IS", __file__, "run", name]
        server.communicate()  # closes its input, which ends it


class WarmProgram:
    """A program forked from a server, in a session of its own; waited for and signalled as a `Popen` is.

    Args:
        python: the command that `warm_python` gives.
        command: path of the script and its arguments.
        folder: current folder of the program.
        outputs: descriptors or files that take its standard output and its errors.
        copied: fork the processes of its pools from a copy of the program as it begins; else they are spawned.
    """

    def __init__(self, python: Sequence[str], command: Sequence[str], *, folder: Path,
                 environment: Mapping[str, str] | None = None, outputs: Sequence[int | IO[Any]] = (1, 2),
                 copied: bool = False) -> None:
        self.returncode: int | None = None
        self._connection = socket.socket(socket.AF_UNIX)
        with open(os.devnull, "r+b") as null:
            shown = [each if isinstance(each, int) else each.fileno() for each in outputs]
            given = {"command": [*command], "folder": str(folder), "session": True, "copied": copied,
                     "environment": dict(os.environ if environment is None else environment)}
            self.pid = _ask(self._connection, python[-1], given, [null.fileno(), *shown])

    def poll(self) -> int | None:
        """Exit status, or None while the program runs."""
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            return self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the program, for so many seconds at most; returns its exit status."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            with self._connection:
                self.returncode = _number(self._connection)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signal the program, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End the program by SIGKILL, if it has not ended."""
        self.send_signal(signal.SIGKILL)


def _serve(name: str, modules: Sequence[str]) -> dict[str, Any]:
    """Fork for every connection until the input ends; returns, in a forked process only, what was asked for."""
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen(64)
        os.write(1, b"ready\n")
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                return _program(connection)
            connection.close()
            while _ended():
                pass
    sys.exit()


def _ended() -> bool:
    """Reap a child that has ended, if there is one."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _program(connection: socket.socket) -> dict[str, Any]:
    """Fork once more: one process reports the exit status of the other one, which becomes the program."""
    size = int.from_bytes(connection.recv(8, socket.MSG_WAITALL))
    content, descriptors, _, _ = socket.recv_fds(connection, size, 3, socket.MSG_WAITALL)
    program = os.fork()
    if program:
        connection.sendall(program.to_bytes(4, signed=True))
        for descriptor in descriptors:
            os.close(descriptor)  # who reads what the program writes sees its end
        status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        connection.sendall(status.to_bytes(4, signed=True))
        os._exit(0)
    connection.close()
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, place)
        os.close(descriptor)
    given = json.loads(content)
    if given["session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server may have been started to ignore it
    os.chdir(given["folder"])
    os.environ.clear()
    os.environ.update(given["environment"])
    tempfile.tempdir = None  # found anew in this environment
    return given


def _execute(command: list[str], *, copied: bool, **_: Any) -> None:
    """Be the program."""
    module = command[0] == "-m"
    sys.argv = command[module:]
    with importlib.import_module("warm_pool").copied_processes() if copied else nullcontext():
        if module:
            sys.path[0] = os.getcwd()
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(sys.argv[0]).parent)
            runpy.run_path(sys.argv[0], run_name="__main__")


def _run(name: str, command: Sequence[str]) -> int:
    """Ask the server for a process that runs a program; returns its exit status, or dies of the signal it died of."""
    given = {"command": command, "folder": os.getcwd(), "session": False, "copied": False,
             "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as connection:
        _ask(connection, name, given, [0, 1, 2])
        status = _number(connection)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _ask(connection: socket.socket, name: str, given: Mapping[str, Any], descriptors: Sequence[int]) -> int:
    """Ask the server for a process that runs a program; returns the number of the process."""
    content = json.dumps(given).encode()
    connection.connect(f"\0{name}")
    connection.sendall(len(content).to_bytes(8))
    sent = socket.send_fds(connection, [content], descriptors)
    connection.sendall(content[sent:])
    return _number(connection)


def _number(connection: socket.socket) -> int:
    """Receive a number that the server sends."""
    return int.from_bytes(connection.recv(4, socket.MSG_WAITALL), signed=True)


if __name__ == "__main__":
    if sys.argv[1] == "run":
        sys.exit(_run(sys.argv[2], sys.argv[3:]))
    _execute(**_serve(sys.argv[2], sys.argv[3:]))
