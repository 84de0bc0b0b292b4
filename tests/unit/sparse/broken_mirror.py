"""HTTP mirror with prescribed faults."""

import socket
import struct
import time
from collections import defaultdict
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

__all__ = ["BrokenMirror"]


class BrokenMirror(ThreadingHTTPServer):
    """Serve files from memory; `faults[path]` is a list of what goes wrong, one item per request.

    Faults: a number is a status; ("cut", n) closes after n bytes of the body; ("reset", n) resets the connection there;
    ("stall", seconds) sends one byte and waits; ("trickle", seconds) sends the headers, ("trickle_headers", seconds)
    half a header, then a byte after each pause until the client leaves; "no_range" sends everything whatever is asked
    for; "from_zero" claims a part and starts at 0; "rubbish" changes the bytes; "no_length" leaves the length out;
    ("short", n) sends n bytes and says that these are all. A fault in `always[path]` stays.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list] = defaultdict(list)
        self.always: dict[str, object] = {}
        self.requests: list[tuple[str, str | None]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add_folder(self, folder: Path) -> None:
        for path in folder.rglob("*"):
            if path.is_file():
                self.files[f"/{path.relative_to(folder).as_posix()}"] = path.read_bytes()

    def asked(self, path: str) -> list[str | None]:
        """List the Range headers of the requests for a path."""
        return [header for found, header in self.requests if found == path]

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore the error: clients of these tests close connections."""


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server: BrokenMirror = self.server
        asked = self.headers.get("Range")
        server.requests.append((self.path, asked))
        queue = server.faults[self.path]
        fault = queue.pop(0) if queue else server.always.get(self.path)
        name, size = fault if isinstance(fault, tuple) else (fault, 0)
        body = server.files.get(self.path)
        if isinstance(fault, int) or body is None:
            self.send_error(fault if body is not None else 404)
            return
        if name == "rubbish":
            body = bytes(byte ^ 0x55 for byte in body)
        if name == "short":
            body = body[:size]
        self._send(body, asked if name != "no_range" else None, name, size)

    def _send(self, body: bytes, asked: str | None, name: object, size: float) -> None:
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if start >= len(body) and asked:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(body)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if name == "trickle_headers":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            self._trickle(b"x", size)
            return
        start = 0 if name == "from_zero" else start
        part = body[start:]
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if name != "no_length":
            self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if name in ("cut", "reset"):
            self.wfile.write(part[:size])
            if name == "reset":
                self.wfile.flush()
                time.sleep(0.05)  # let what was sent arrive before the reset discards it
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
        elif name == "trickle":
            self._trickle(part[:1], size)
        elif name == "stall":
            self.wfile.write(part[:1])
            self.wfile.flush()
            time.sleep(size)
        else:
            self.wfile.write(part)

    def _trickle(self, byte: bytes, pause: float) -> None:
        with suppress(OSError):  # the client has left
            for _ in range(10_000):
                self.wfile.write(byte)
                self.wfile.flush()
                time.sleep(pause)

    def log_message(self, *args: object) -> None:
        """Stay silent."""
