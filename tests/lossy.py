"""A proxy on loopback that loses answers: what was asked for is done, and whoever asked does not hear of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

Fate = Literal["lost", "held"]


class Proxy:
    """Passes bytes on to a port, until a request comes that is to be lost."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.asked = 0
        """How many requests were lost, or held."""
        self._wanted: Callable[[bytes], Fate | None] = lambda request: None
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True, name="test-proxy").start()

    def lose(self, words: bytes, times: int = 1, fate: Fate = "lost") -> None:
        """Pass on requests that have these words, and then end the connection without their answer, or never answer."""
        left = times

        def wanted(request: bytes) -> Fate | None:
            nonlocal left
            if left and words in request:
                left -= 1
                self.asked += 1
                return fate
            return None

        self._wanted = wanted

    def close(self) -> None:
        self._listener.close()
        for each in list(self._open):
            _end(each)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=[client], daemon=True, name="test-proxy").start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._to))
        except OSError:
            _end(client)
            return
        self._open |= {client, server}
        fate: list[Fate] = []
        back = threading.Thread(target=self._answers, args=[server, client, fate], daemon=True, name="test-proxy")
        back.start()
        with suppress(OSError):
            while request := client.recv(1 << 16):
                fate += filter(None, [self._wanted(request)])
                server.sendall(request)
        _end(server)
        back.join()
        _end(client)
        self._open -= {client, server}

    def _answers(self, server: socket.socket, client: socket.socket, fate: list[Fate]) -> None:
        with suppress(OSError):
            while answer := server.recv(1 << 16):
                if "lost" in fate:
                    break
                if "held" not in fate:
                    client.sendall(answer)
        _end(client)


def _end(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
