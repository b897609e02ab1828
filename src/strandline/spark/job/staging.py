"""Committables of sinks: written output that becomes visible with the checkpoint that covers it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from msgspec import UNSET

from strandline.core import failpoints
from strandline.core.errors import ConfigurationError, KeeperError
from strandline.core.ids import Epoch
from strandline.format.manifest import Manifest, SinkInfo
from strandline.spark.lower.frames import EpochFrames
from strandline.spark.sinks.base import Sink, committables_of, kind_of
from strandline.spark.sinks.sink_errors import name_error

log = logging.getLogger(__name__)

_SLOW_S = 60.0
_SLOW = (
    "sink '%s' has not shown the rows of the newest checkpoint within %d s: no other checkpoint completes before; "
    "a function that calls another system needs a time-out"
)

Staged = list[tuple[str, str]]
"""One epoch's committables, each with its sink's name."""


class Staging:
    """The sinks of one run, by name, with their committables. Epochs add committables, checkpoints commit them."""

    def __init__(self, sinks: Sequence[tuple[str, Sink]], waiting: Mapping[str, Sequence[str]] | None = None) -> None:
        """`waiting` has, by sink, the committables of the restored checkpoint that could not be committed yet."""
        self._sinks, waiting = list(sinks), waiting or {}
        # The dicts are ordered sets.
        self._staged: dict[str, dict[str, None]] = {name: dict.fromkeys(waiting.get(name, ())) for name, _ in sinks}
        self._lock = threading.Lock()
        self.on_visible: Callable[[str], object] = lambda sink: None
        """Called with a sink's name when it has shown all rows that a checkpoint lists."""

    def write(self, built: EpochFrames, epoch: Epoch, is_over: Callable[[], bool]) -> Staged:
        """Let the sinks write an epoch's rows; return the committables of the rows that are not visible yet."""
        staged: Staged = []
        for name, sink, rows in built.outputs:
            failpoints.hit("epoch.sink.before")
            if is_over():
                raise KeeperError("the run ended in the middle of an epoch")
            try:
                written = sink.write(rows, epoch)
            except Exception as error:
                raise name_error(error, name, epoch) from error
            staged += [(name, text) for text in committables_of(name, written)]
        return staged

    def keep(self, staged: Staged) -> None:
        """Keep the committables of an epoch that all keepers have applied, for the next checkpoint."""
        with self._lock:
            for name, text in staged:
                if text in self._staged[name]:
                    raise ConfigurationError(
                        f"sink '{name}': two committables that wait for a checkpoint are the same: {text:.300}",
                        hint="let each committable contain a name that is never used again",
                    )
                self._staged[name][text] = None

    def pending(self) -> list[SinkInfo]:
        """Return the sinks with the committables that a checkpoint taken now makes visible."""
        with self._lock:
            return [
                SinkInfo(
                    name=name,
                    pending=list(self._staged[name]),
                    kind=kind_of(sink),
                    destination=str(sink.destination) or UNSET,
                    reached=sink.reached() or UNSET,
                )
                for name, sink in self._sinks
            ]

    def commit(self, manifest: Manifest) -> bool:
        """Commit what a published checkpoint lists; return True if a sink's target is unavailable and rows wait."""
        pending = {sink.name: sink.pending for sink in manifest.sinks}
        has_left = False
        for name, sink in self._sinks:
            with self._lock:
                # Only those of this run: a restored checkpoint may list another sink's under this name.
                mine = [text for text in pending.get(name, []) if text in self._staged[name]]
            slow = threading.Timer(_SLOW_S, log.warning, (_SLOW, name, _SLOW_S))
            slow.daemon = True
            slow.start()
            sink.is_behind = has_left
            try:
                left = set(sink.commit(mine) or ())
            finally:
                slow.cancel()
            has_left = has_left or bool(left)
            with self._lock:
                for text in mine:
                    if text not in left:
                        self._staged[name].pop(text, None)
            if mine and not left:
                self.on_visible(name)
        return has_left
