"""What sinks have written and do not show yet: it becomes visible with the checkpoint that covers it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from msgspec import UNSET

from strandline.core import failpoints
from strandline.core.errors import ConfigurationError, KeeperError
from strandline.core.ids import Epoch
from strandline.format.manifest import Manifest, SinkInfo
from strandline.spark.lower.plan import Built
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
    """The sinks of one run, by name, and what each has staged. Epochs add to it, checkpoints take from it."""

    def __init__(self, sinks: Sequence[tuple[str, Sink]], waiting: Mapping[str, Sequence[str]] | None = None) -> None:
        """`waiting` is, by sink, what the restored checkpoint lists and could not be shown yet."""
        self._sinks, waiting = list(sinks), waiting or {}
        # In order, and each once: the values mean nothing.
        self._staged: dict[str, dict[str, None]] = {name: dict.fromkeys(waiting.get(name, ())) for name, _ in sinks}
        self._lock = threading.Lock()

    def write(self, built: Built, epoch: Epoch, is_over: Callable[[], bool]) -> Staged:
        """Have the sinks write an epoch's rows; return what stands for those that they do not show yet."""
        found: Staged = []
        for name, sink, rows in built.outputs:
            failpoints.hit("epoch.sink.before")
            if is_over():
                raise KeeperError("the run ended in the middle of an epoch")
            try:
                written = sink.write(rows, epoch)
            except Exception as error:
                raise name_error(error, name, epoch) from error
            found += [(name, text) for text in committables_of(name, written)]
        return found

    def keep(self, staged: Staged) -> None:
        """All keepers have applied the epoch: what was written of it is to be shown."""
        with self._lock:
            for name, text in staged:
                if text in self._staged[name]:
                    raise ConfigurationError(
                        f"sink '{name}': two committables that wait for a checkpoint are the same: {text:.300}",
                        hint="let each name what was staged, by a name that is never used again",
                    )
                self._staged[name][text] = None

    def pending(self) -> list[SinkInfo]:
        """Return what a checkpoint of now makes visible."""
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
        """Show what a published checkpoint lists and waits; return True if some has to wait on, for what is away."""
        listed = {sink.name: sink.pending for sink in manifest.sinks}
        has_left = False
        for name, sink in self._sinks:
            with self._lock:
                # A sink of this name that a restored checkpoint has may be another one, and was dealt with.
                mine = [text for text in listed.get(name, []) if text in self._staged[name]]
            slow = threading.Timer(_SLOW_S, log.warning, (_SLOW, name, _SLOW_S))
            slow.daemon = True
            slow.start()
            try:
                left = set(sink.commit(mine) or ())
            finally:
                slow.cancel()
            has_left = has_left or bool(left)
            with self._lock:
                for text in mine:
                    if text not in left:
                        self._staged[name].pop(text, None)
        return has_left
