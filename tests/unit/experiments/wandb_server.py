"""Local server that emulates the requests of Weights & Biases that runs make, and records them."""

import base64
import gzip
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["WandbServer", "wandb_server"]


class WandbServer(ThreadingHTTPServer):
    """Takes every key but `refused`.

    keys: of all queries; runs: name -> what its creation said; rows: name -> lines of its history.
    """

    refused = "no" * 20

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        self.requests = 0
        self.keys: set[str] = set()
        self.runs: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, list[dict[str, Any]]] = {}

    def answer(self, query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a query of GraphQL."""
        if "upsertBucket" in query:
            run = self.runs.setdefault(variables["name"], dict(variables))
            project = {"id": "p", "name": run["project"], "entity": {"id": "e", "name": "someone"}}
            return {"upsertBucket": {"inserted": True, "bucket": {
                "id": run["name"], "name": run["name"], "displayName": run["displayName"], "project": project}}}
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.address}/upload"} for name in variables["files"]]
            return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}
        viewer = {"id": "u", "username": "someone", "entity": "someone", "flags": "{}", "teams": {"edges": []}}
        return {"viewer": viewer, "entity": {"organization": None}}


class _Handler(BaseHTTPRequestHandler):
    server: WandbServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.requests += 1
        if self.path == "/graphql":
            self._graphql(json.loads(body))
        else:
            if self.path.endswith("/file_stream"):
                history = json.loads(body).get("files", {}).get("wandb-history.jsonl", {"content": []})
                self.server.rows.setdefault(self.path.split("/")[-2], []).extend(map(json.loads, history["content"]))
            self._send(200, {})

    def do_PUT(self) -> None:
        self.do_POST()

    def log_message(self, *_: object) -> None:
        pass

    def _graphql(self, asked: Mapping[str, Any]) -> None:
        key = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode().removeprefix("api:")
        self.server.keys.add(key)
        if key == self.server.refused:
            self._send(401, {"errors": [{"message": "user is not logged in"}]})
        else:
            self._send(200, {"data": self.server.answer(asked["query"], asked.get("variables") or {})})

    def _send(self, status: int, value: Mapping[str, Any]) -> None:
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@contextmanager
def wandb_server() -> Iterator[WandbServer]:
    """Serve until the block ends."""
    with WandbServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()

