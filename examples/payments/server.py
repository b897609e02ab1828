"""The dashboard's server: a page on loopback, its figures as Server-Sent Events, and its buttons.

Only this machine's names are answered, and only a browser that came with the token of the first address; a button's
request must come from the page itself.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from datetime import datetime
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from examples.payments.dashboard import ActionError, Dashboard

_HOST = "127.0.0.1"
_NAMES = ("127.0.0.1", "localhost")
_EVERY_S = 1.0
_IDLE_S = 10.0
_MOST_BYTES = 10_000
_TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_PAGE = Path(__file__).with_name("page")
_VENDOR = Path(str(files("strandline.ui"))) / "static" / "vendor"
"""The modules of other projects that the page of `strandline ui` has, too."""
_FILES = {f"/{path.name}": path for path in _PAGE.iterdir()} | {
    f"/vendor/{name}": _VENDOR / name for name in ("preact.js", "preact-hooks.js", "htm.js")
}


class Server(ThreadingHTTPServer):
    """Serves a dashboard until it is closed. Port 0 is any free one."""

    daemon_threads = False
    block_on_close = True

    def __init__(self, dashboard: Dashboard, port: int = 0) -> None:
        super().__init__((_HOST, port), Handler)
        self.dashboard = dashboard
        self.token = secrets.token_urlsafe(24)
        self.is_over = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="dashboard-server", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """The page's first address, with the token."""
        return f"http://{_HOST}:{self.server_port}/?token={self.token}"

    def close(self) -> None:
        """Send a last event to each page, and end."""
        self.is_over.set()
        self.shutdown()
        self.server_close()
        self._thread.join()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server
    timeout = _IDLE_S

    def do_GET(self) -> None:
        """Answer with a file of the page, or with events."""
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path == "/" and self._is_here() and self._is_token(query.get("token", "")):
            # From now on, the token is a cookie: it is in no history of the browser. Ports share a host's cookies.
            cookie = f"{self._cookie}={self.server.token}; HttpOnly; SameSite=Lax; Path=/"
            self._answer(303, "", {"Location": "/", "Set-Cookie": cookie})
        elif self._may_pass():
            if url.path == "/events":
                self._send_events(query.get("card", ""))
            elif (path := _FILES.get("/index.html" if url.path == "/" else url.path)) is not None:
                self._answer(200, path.read_bytes(), {"Content-Type": _TYPES[path.suffix]})
            else:
                self._answer(404, "there is no such page\n")

    def do_POST(self) -> None:
        """Do what a button says, and answer with a sentence."""
        if not self._may_pass():
            return
        length = self.headers.get("Content-Length", "")
        if self.headers.get("Origin") != f"http://{self.headers['Host']}":
            self._answer(403, "this request comes from another page\n")
            return
        if not length.isdecimal() or int(length) > _MOST_BYTES:
            self._answer(400, "expected a body of JSON\n")
            return
        try:
            wanted = json.loads(self.rfile.read(int(length)) or b"{}")
            if not isinstance(wanted, dict):
                raise ActionError("expected a JSON object")
            answer, code = (
                {"done": self.server.dashboard.act(urlsplit(self.path).path.removeprefix("/act/"), wanted)},
                200,
            )
        except (ActionError, ValueError) as error:
            answer, code = {"error": str(error)}, 409
        self._answer(code, json.dumps(answer), {"Content-Type": "application/json"})

    def _send_events(self, card: str) -> None:
        self._begin(200, {"Content-Type": "text/event-stream"})
        while True:
            is_last = self.server.is_over.is_set()
            view = self.server.dashboard.view(card)
            card = card or (view["card"] or {}).get("card", "")
            self.wfile.write(b"data: " + json.dumps(view | {"is_last": is_last}, default=_plain).encode() + b"\n\n")
            if is_last:
                return
            self.server.is_over.wait(_EVERY_S)

    @property
    def _cookie(self) -> str:
        return f"payments-{self.server.server_port}"

    def _is_here(self) -> bool:
        """Whether the request names this machine: another site may have its name resolved to 127.0.0.1."""
        try:
            return urlsplit(f"//{self.headers.get('Host', '')}").hostname in _NAMES
        except ValueError:
            return False

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self.server.token.encode())

    def _may_pass(self) -> bool:
        """Whether a request may pass; others are answered here."""
        cookie = SimpleCookie(self.headers.get("Cookie", "")).get(self._cookie)
        if not self._is_here():
            self._answer(403, f"this page is at http://{_HOST}\n")
        elif cookie is None or not self._is_token(cookie.value):
            self._answer(401, "open the address that the demo has printed: it has the token\n")
        else:
            return True
        return False

    def _answer(self, code: int, body: str | bytes, headers: dict[str, str] | None = None) -> None:
        content = body.encode() if isinstance(body, str) else body
        self._begin(code, {"Content-Type": "text/plain", "Content-Length": str(len(content)), **(headers or {})})
        self.wfile.write(content)

    def _begin(self, code: int, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def handle(self) -> None:
        """Answer, unless the browser has gone."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            pass

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal shows the demo."""


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    raise TypeError(f"{value!r} has no form in JSON")
