"""A proxy on loopback in front of an object store, which fails as networks and services do. Seeded."""

from __future__ import annotations

import http.client
import random
import threading
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

BUSY, FAILED, UNHEARD, LOST, TORN = "busy", "failed", "unheard", "lost", "torn"
"""Answered 503 or 500 and not done; dropped and not done; done, and the answer never comes, or a part of it."""


class FaultyHttp:
    """Passes requests on; a share of them, `rate`, fails in one of the ways.

    A conditional create whose answer is lost conflicts with itself when it is tried again. So it does here only if
    `lost_creates` says so: then each does, once. While `denies` is set, nobody may do anything; while `misroutes` is,
    it knows of no storage, as a gateway that reloads its routes. The next uploads in parts, as many as `forgets` says,
    are forgotten before they are completed.
    """

    def __init__(self, endpoint: str, *, seed: int = 0, rate: float = 0.0, lost_creates: bool = False) -> None:
        self.rate = rate
        self.denies = self.misroutes = False
        self.forgets = 0
        self._lost_creates = lost_creates
        self._created: set[str] = set()
        self.happened: Counter[str] = Counter()
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        proxy, address = self, urlsplit(endpoint).netloc

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def handle_one_request(self) -> None:
                with suppress(ConnectionError):
                    super().handle_one_request()

            def pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if proxy.denies or proxy.misroutes:
                    page = b"" if proxy.denies or self.command == "HEAD" else b"404 page not found\n"
                    self.send_response(403 if proxy.denies else 404)
                    self.send_header("Content-Length", str(len(page)))
                    self.end_headers()
                    self.wfile.write(page)
                    return
                fault = proxy._next_fault(self.command, self.path, is_create="If-None-Match" in self.headers)
                if fault in (BUSY, FAILED):
                    self.send_response(503 if fault == BUSY else 500)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if fault != UNHEARD:
                    status, headers, answer = self._ask(body)
                if proxy.forgets and self.command == "POST" and "uploadId=" in self.path:
                    proxy.forgets -= 1
                    status, answer = 404, b"<Error><Code>NoSuchUpload</Code><Message>gone</Message></Error>"
                    headers = [("Content-Length", str(len(answer)))]
                if fault in (UNHEARD, LOST):
                    self.close_connection = True
                    return
                self.send_response_only(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.end_headers()
                if fault == TORN:
                    answer = answer[: len(answer) // 2]
                    self.close_connection = True
                self.wfile.write(answer)

            def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
                behind = http.client.HTTPConnection(address, timeout=60)
                try:
                    behind.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        behind.putheader(name, value)
                    behind.endheaders(body)
                    found = behind.getresponse()
                    data = found.read()
                    gone = ("transfer-encoding", "connection")
                    headers = [(name, value) for name, value in found.getheaders() if name.lower() not in gone]
                    if not any(name.lower() == "content-length" for name, _ in headers):
                        headers.append(("Content-Length", str(len(data))))
                    return found.status, headers, data
                finally:
                    behind.close()

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _next_fault(self, method: str, path: str, *, is_create: bool) -> str:
        with self._lock:
            if is_create and self._lost_creates and path not in self._created:
                self._created.add(path)
                return self._count("create", LOST)
            if self._rng.random() >= self.rate:
                return ""
            return self._count(method, self._rng.choice([BUSY, FAILED, UNHEARD] + [LOST, TORN] * (not is_create)))

    def _count(self, what: str, fault: str) -> str:
        self.happened[f"{what} {fault}"] += 1
        return fault
