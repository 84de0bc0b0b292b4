"""Download files over HTTP: resume, retry, verify the checksum, and rename when complete."""

import email.message
import http.client
import logging
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from sparloom.files import locked, sha256
from sparloom.log import console

log = logging.getLogger(__name__)

CHUNK = 1 << 16
FINAL_STATUSES = (400, 401, 403, 404, 405, 410, 451)  # a retry does not help


@dataclass(frozen=True)
class RetryPolicy:
    """Limits within which a download is retried.

    Args:
        attempts: give up after so many attempts in a row without progress, or below the minimum speed.
        timeout_seconds: silence after which a connection counts as broken; also the time in which it must answer.
        least_bytes_per_second: minimum speed; a connection that is slower for `timeout_seconds` counts as broken.
        pause_seconds: pause before the second attempt; it doubles up to 64 times.
        limit_bytes: maximum size of the file.
    """

    attempts: int = 5
    timeout_seconds: float = 30.0
    least_bytes_per_second: float = 1000.0
    pause_seconds: float = 0.5
    limit_bytes: int = 4 << 30


@contextmanager
def download_bars() -> Iterator[Progress]:
    """Show a bar per file with bytes, speed and remaining time; silent where the output is no terminal."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TextColumn("ETA"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        yield bars


def fetch(
    url: str, path: Path, *, digest: str | None, patience: RetryPolicy, advance: Callable[[int, int | None], None],
) -> None:
    """Download `url` to `path`; after a failure the next call continues PATH.partial.

    One process downloads; others that need the same path wait for it.

    Args:
        digest: sha256 of the file; None accepts any content of the promised length.
        advance: called with the bytes received so far and the size of the file (None: unknown).

    Raises:
        FileNotFoundError: the server refuses the file or does not have it.
        ConnectionError: no progress in `patience.attempts` attempts.
        ValueError: wrong checksum, or more than `patience.limit_bytes`; no partial file is left.
    """
    partial = path.with_name(f"{path.name}.partial")
    with locked(path.parent / ".locks" / path.name):
        if path.exists() and (digest is None or sha256(path) == digest):
            return  # another process has downloaded it
        continued = partial.exists() and partial.stat().st_size > 0
        _fill(url, partial, patience, advance)
        if digest is not None and continued and sha256(partial) != digest:
            log.warning("%s: the partial file of an earlier run does not fit; downloading it from the start", url)
            partial.unlink()
            _fill(url, partial, patience, advance)
        if digest is not None and (actual := sha256(partial)) != digest:
            partial.unlink()
            raise ValueError(
                f"{url}: checksum {actual}, the catalogue says {digest}: refused and removed; the mirror is damaged or "
                f"its catalogue in the cache is old")
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)


def _fill(url: str, partial: Path, patience: RetryPolicy, advance: Callable[[int, int | None], None]) -> None:
    """Make attempts until the partial file is complete."""
    farthest, failures, slow = _size(partial), 0, 0
    began, before = time.monotonic(), farthest  # the speed is measured over `timeout_seconds`, across attempts
    while True:
        try:
            _attempt(url, partial, patience, advance)
            return
        except urllib.error.HTTPError as error:
            if error.code in FINAL_STATUSES:
                raise FileNotFoundError(f"{url}: the server answers {error.code} {error.reason}") from error
            reason = f"the server answers {error.code} {error.reason}"
        except (OSError, http.client.HTTPException) as error:  # URLError, timeouts and resets are OSErrors
            reason = str(getattr(error, "reason", "") or error) or type(error).__name__
        reached, now = _size(partial), time.monotonic()
        failures = 0 if reached > farthest else failures + 1
        farthest = max(farthest, reached)
        if now - began >= patience.timeout_seconds:
            slow = slow + 1 if reached - before < patience.least_bytes_per_second * (now - began) else 0
            began, before = now, reached
        if max(failures, slow) >= patience.attempts:
            raise ConnectionError(
                f"{url}: gave up after {max(failures, slow)} attempts without progress ({reason}); the {reached} bytes "
                f"received so far are kept: run again to continue")
        log.debug("%s: %s; %d bytes received, trying again", url, reason, reached)
        time.sleep(patience.pause_seconds * 2 ** min(max(failures - 1, 0), 6))


def _attempt(url: str, partial: Path, patience: RetryPolicy, advance: Callable[[int, int | None], None]) -> None:
    """Request the missing bytes once and append them; an OSError leaves those received in the partial file."""
    with _Watch(patience) as watch:
        try:
            _append(url, partial, patience, advance=advance, watch=watch)
        except (OSError, http.client.HTTPException) as error:
            if watch.found_slow:
                raise TimeoutError(watch.found_slow) from error
            raise
    if watch.found_slow:  # a response without length ends where the connection does
        raise TimeoutError(watch.found_slow)


def _append(
    url: str, partial: Path, patience: RetryPolicy, *, advance: Callable[[int, int | None], None], watch: "_Watch",
) -> None:
    start = _size(partial)
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        answer = watch.opener().open(request, timeout=patience.timeout_seconds)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # nothing follows: complete, or longer than the file on the server
            if _content_range(error.headers)[1] == start:
                return
            partial.unlink(missing_ok=True)
            raise OSError("the partial file is longer than the file on the server") from error
        raise
    with answer:
        if answer.status == 206:
            begin, total = _content_range(answer.headers)
            if begin != start:
                partial.unlink(missing_ok=True)
                raise OSError(f"requested bytes from {start}, received them from {begin}")
        else:  # the server ignores ranges and sends everything
            start, total = 0, _content_length(answer.headers)
        reached = start
        with partial.open("ab" if start else "wb", buffering=0) as file:
            while data := answer.read1(CHUNK):  # the bytes that are here, so that a break loses nothing
                reached += len(data)
                if reached > patience.limit_bytes:
                    break
                file.write(data)
                watch.received += len(data)
                advance(reached, total)
    if reached > patience.limit_bytes:
        partial.unlink()
        raise ValueError(f"{url}: longer than {patience.limit_bytes} bytes: raise limit_bytes if the mirror is trusted")
    if total is not None and reached < total:
        raise OSError(f"the connection closed after {reached} of {total} bytes")


class _Watch:
    """Shuts down connections below the minimum speed, since socket timeouts restart with every byte."""

    def __init__(self, patience: RetryPolicy) -> None:
        self.received, self.found_slow = 0, ""
        self._patience, self._sockets, self._ended = patience, [], threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def opener(self) -> urllib.request.OpenerDirector:
        """Make an opener whose connections are watched."""
        plain, secure = urllib.request.HTTPHandler(), urllib.request.HTTPSHandler()
        plain.http_open = partial(plain.do_open, partial(_Plain, self._sockets))
        secure.https_open = partial(secure.do_open, partial(_Secure, self._sockets))
        return urllib.request.build_opener(plain, secure)

    def _look(self) -> None:
        seconds, least, before = self._patience.timeout_seconds, self._patience.least_bytes_per_second, 0
        while not self._ended.wait(seconds):
            new, before = self.received - before, self.received
            if new < least * seconds:
                self.found_slow = f"{new} bytes in {seconds:g} s, the minimum is {least:g} bytes per second"
                for each in tuple(self._sockets):
                    with suppress(OSError):  # it is closed
                        socket.socket.shutdown(each, socket.SHUT_RDWR)  # SSLSocket's would go on in plain bytes


class _Watched:
    """Connection that adds its socket to a list."""

    def __init__(self, sockets: list[socket.socket], host: str, **options: Any) -> None:
        super().__init__(host, **options)
        self._sockets = sockets

    def connect(self) -> None:
        super().connect()
        self._sockets.append(self.sock)


class _Plain(_Watched, http.client.HTTPConnection):
    """Watched HTTP connection."""


class _Secure(_Watched, http.client.HTTPSConnection):
    """Watched HTTPS connection."""


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _content_length(headers: email.message.Message) -> int | None:
    length = headers.get("Content-Length", "")
    return int(length) if length.isdigit() else None


def _content_range(headers: email.message.Message) -> tuple[int | None, int | None]:
    """Parse "bytes 5-9/10" or "bytes */10" into the first byte and the size of the file."""
    span, _, total = headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
    begin = span.partition("-")[0]
    return int(begin) if begin.isdigit() else None, int(total) if total.isdigit() else None
