"""The server of the page: on loopback, with a token in its first address."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable

import uvicorn

from strandline.core.errors import ConfigurationError
from strandline.ui.app import Page

_HOST = "127.0.0.1"
_BACKLOG = 64
_SHUTDOWN_S = 5


def serve(page: Page, port: int, announce: Callable[[str], object]) -> None:
    """Serve the page until an interrupt; `announce` gets its first address. Port 0 is any free one."""
    with listen(port) as sock:
        port = sock.getsockname()[1]
        token = secrets.token_urlsafe(24)
        config = uvicorn.Config(
            page.app(token, f"strandline-{port}"), log_level="warning", access_log=False, server_header=False,
            lifespan="off", timeout_graceful_shutdown=_SHUTDOWN_S,
        )  # fmt: skip
        server = uvicorn.Server(config)
        page.is_over = lambda: server.should_exit
        announce(f"http://{_HOST}:{port}/?token={token}")
        try:
            server.run([sock])
        finally:
            page.close()


def listen(port: int) -> socket.socket:
    """Listen on loopback. Raises ConfigurationError for a port that another program has."""
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((_HOST, port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigurationError(
            f"port {port} of {_HOST} cannot be used: {error.strerror}",
            hint="give another one with --port",
        ) from None
    return sock
