"""HTTP mirror with prescribed faults."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

__all__ = ["BrokenMirror"]


class BrokenMirror(ThreadingHTTPServer):
    """Serve files from memory; `faults[path]` is a list of what goes wrong, one item per request.

    Faults: a number is a status; ("cut", n) closes after n bytes of the body; ("stall", seconds) sends one byte and
    waits; "rubbish" changes the bytes; "no_length" leaves the length out; ("short", n) sends n bytes and says that
    these are all. A fault in `always[path]` stays.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list] = defaultdict(list)
        self.always: dict[str, object] = {}
        self.requests: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add_folder(self, folder: Path) -> None:
        for path in folder.rglob("*"):
            if path.is_file():
                self.files[f"/{path.relative_to(folder).as_posix()}"] = path.read_bytes()

    @contextmanager
    def running(self) -> Iterator["BrokenMirror"]:
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            self.server_close()
            thread.join()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore the error: clients of these tests close connections."""


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server: BrokenMirror = self.server
        server.requests.append(self.path)
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
        self.send_response(200)
        if name != "no_length":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:size] if name == "cut" else body[:1] if name == "stall" else body)
        if name == "stall":
            self.wfile.flush()
            time.sleep(size)

    def log_message(self, *args: object) -> None:
        """Stay silent."""
