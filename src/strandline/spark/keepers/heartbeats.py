"""Heartbeats of executors, by which the driver notices a host that is silent: hung, without power, or cut off.

Nothing resets the connections of such a host, so that Spark waits for it for minutes. The nursery of each executor of a
job with standbys sends datagrams to the driver: it does nothing else that could delay them. Where they do not come
through at all, only Spark notices.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress

from pyspark.sql import SparkSession

from strandline.core.ids import unique_name
from strandline.keeper.spawning import Beat
from strandline.spark.base.session import core_setting

_SILENCE_S = 1.0
"""Ten heartbeats: a host under load may send late, and a restart for nothing would be an outage of its own."""
_STALL_S = 0.5
_MESSAGE_BYTES = 1024


class Heartbeats:
    """The driver's socket for one attempt, which one thread reads."""

    def __init__(self, spark: SparkSession) -> None:
        """Raise OSError if there can be no such socket."""
        host = core_setting(spark, "spark.driver.host")
        bound = core_setting(spark, "spark.driver.bindAddress") or host
        family, kind, _, _, address = socket.getaddrinfo(bound, 0, type=socket.SOCK_DGRAM)[0]
        self._socket = socket.socket(family, kind)
        self._socket.setblocking(False)
        try:
            self._socket.bind(address)
        except BaseException:
            self._socket.close()
            raise
        self.beat = Beat(host, self._socket.getsockname()[1], unique_name())
        """What nurseries are told."""
        self._heard_s: dict[str, float] = {}
        self._looked_s = time.monotonic()

    def silent(self) -> list[str]:
        """Read what has come; return the names of those that were heard before and are silent, while others are not."""
        now_s = time.monotonic()
        # This process may have been stopped, and not the others.
        has_stalled, self._looked_s = now_s - self._looked_s > _STALL_S, now_s
        if has_stalled:
            self._heard_s = dict.fromkeys(self._heard_s, now_s)
        with suppress(OSError):
            while True:
                token, _, name = self._socket.recv(_MESSAGE_BYTES).decode(errors="replace").partition(" ")
                if token == self.beat.token:
                    self._heard_s[name] = now_s
        silent = [name for name, heard_s in self._heard_s.items() if now_s - heard_s > _SILENCE_S]
        # If nothing comes, the driver is cut off: no host would be better than another.
        return silent if len(silent) < len(self._heard_s) else []

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
