"""The guard before all addresses of the page: only this machine's names, and only browsers that came with the token."""

from __future__ import annotations

import hmac
from http.cookies import SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HOSTS = frozenset(("127.0.0.1", "localhost", "::1"))
_HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Middleware that answers in place of the application unless the request may pass.

    The first address has the token, and is answered with a cookie: the token is then in no address, history or log of
    the browser. Cookies of one host are shared by all of its ports, so the cookie's name has the port.
    """

    def __init__(self, app: ASGIApp, token: str, cookie: str) -> None:
        self._app = app
        self._token = token
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        await (self._answer(scope) or self._app)(scope, receive, send_guarded)

    def _answer(self, scope: Scope) -> Response | None:
        """Return the answer to a request that does not pass; None for others."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if _name_of(host) not in _HOSTS:
            # A page of another site may have its name resolved to 127.0.0.1: its requests have that name.
            return PlainTextResponse(f"this page is at http://127.0.0.1, and not at {host!r}\n", 403)
        tokens = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if scope["path"] == "/" and tokens and self._is_token(tokens[0]):
            answer = RedirectResponse("/", 303)
            # Not "strict": a link to the first address, in a message for example, would then lead to a refusal.
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="lax")
            return answer
        cookie = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        if cookie is None or not self._is_token(cookie.value):
            return PlainTextResponse("open the address that `strandline ui` has printed: it has the token\n", 401)
        if scope["method"] not in ("GET", "HEAD") and headers.get("origin") != f"http://{host}":
            return PlainTextResponse("this request comes from another page\n", 403)
        return None

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self._token.encode())


def _name_of(host: str) -> str:
    """Return the name in a Host header; any port, since the page may be reached through a tunnel."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
