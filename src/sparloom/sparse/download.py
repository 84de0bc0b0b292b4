"""Download files over HTTP: retry, verify the checksum, and rename when complete."""

import http.client
import logging
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from sparloom.files import atomic_path, locked, sha256

log = logging.getLogger(__name__)

CHUNK = 1 << 20
FINAL_STATUSES = (400, 401, 403, 404, 405, 410, 451)  # a retry does not help


@dataclass(frozen=True)
class RetryPolicy:
    """Limits within which a download is retried.

    Args:
        attempts: give up after so many.
        timeout_seconds: silence after which a connection counts as broken; also the time in which it must answer.
        pause_seconds: pause before the second attempt; it doubles.
        limit_bytes: maximum size of the file.
    """

    attempts: int = 5
    timeout_seconds: float = 30.0
    pause_seconds: float = 0.5
    limit_bytes: int = 4 << 30


def fetch(url: str, path: Path, *, digest: str | None, policy: RetryPolicy) -> None:
    """Download `url` to `path`; one process downloads, and others that need the same path wait for it.

    Args:
        digest: sha256 of the file; None accepts any content of the promised length.

    Raises:
        FileNotFoundError: the server refuses the file or does not have it.
        ConnectionError: all attempts failed.
        ValueError: wrong checksum, or more than `policy.limit_bytes`; no partial file is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.parent / ".locks" / path.name):
        if path.exists() and (digest is None or sha256(path) == digest):
            return  # another process has downloaded it
        for attempt in range(policy.attempts):
            try:
                with atomic_path(path) as partial:
                    _download(url, partial, policy)
                    if digest is not None and (actual := sha256(partial)) != digest:
                        raise ValueError(f"{url}: checksum {actual}, the catalogue says {digest}: refused and removed; "
                                         "the mirror is damaged or its catalogue in the cache is old")
                return
            except (OSError, http.client.HTTPException) as error:  # URLError, timeouts and resets are OSErrors
                code = error.code if isinstance(error, urllib.error.HTTPError) else None
                reason = f"the server answers {code}" if code else str(error) or type(error).__name__
                if code in FINAL_STATUSES:
                    raise FileNotFoundError(f"{url}: {reason}") from error
            log.debug("%s: %s; trying again", url, reason)
            time.sleep(policy.pause_seconds * 2**attempt)
        raise ConnectionError(f"{url}: gave up after {policy.attempts} attempts ({reason})")


def _download(url: str, path: Path, policy: RetryPolicy) -> None:
    with urllib.request.urlopen(url, timeout=policy.timeout_seconds) as answer, path.open("wb") as file:
        length, received = answer.headers.get("Content-Length", ""), 0
        while data := answer.read(CHUNK):
            received += len(data)
            if received > policy.limit_bytes:
                raise ValueError(f"{url}: longer than {policy.limit_bytes} bytes: raise limit_bytes if the mirror is "
                                 "trusted")
            file.write(data)
    if length.isdigit() and received != int(length):
        raise OSError(f"the connection closed after {received} of {length} bytes")
