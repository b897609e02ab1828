"""Draining: a job's event time is brought to its end, so that windows and timers give what they hold, and the job ends.

One epoch without rows, whose watermark is the end of time: each operator's timers fire, those that they set too, and
what comes of them goes through all operators behind. Then a last checkpoint, with which sinks show everything. A
checkpoint of a drained job says so by its watermark. What fails on the way is done again from the checkpoint before.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from strandline.core.errors import BEGIN_ANEW, ConfigurationError
from strandline.core.ids import CheckpointId
from strandline.format.manifest import Manifest
from strandline.runtime.watermarks import is_drained


@dataclass
class Draining:
    """Whether a run is to be drained. It holds for all attempts: one that fails on the way leaves it to the next."""

    at_end: bool = False
    """Whether it is when the sources have ended."""
    asked: threading.Event = field(default_factory=threading.Event)
    """Somebody wants it, whatever the sources still have."""
    held: threading.Event = field(default_factory=threading.Event)
    """Whoever asked makes a savepoint of what is left: the run ends when that is done."""
    done: threading.Event = field(default_factory=threading.Event)
    """The job is drained, and its last checkpoint is complete."""
    _has_begun: bool = False
    _reopened: CheckpointId | None = None
    """The drained checkpoint that the run went on from, knowingly."""

    def refuse(self, job: str, manifest: Manifest | None, *, reopen: bool) -> None:
        """Raise ConfigurationError if a job is to begin with a drained snapshot, and nobody says that it may."""
        if manifest is None or self._has_begun or reopen or not is_drained(manifest.watermarks):
            return
        raise ConfigurationError(
            f"job '{job}' was drained with checkpoint {manifest.checkpoint}: its results are complete, event time has "
            "come to its end, and every event from now on would be late",
            hint="to go on with its state, let event time begin anew, with start(reopen=True) or --reopen: a window "
            "that was cut short comes again then, with its new events alone; or " + BEGIN_ANEW,
        )

    def refuse_rollback(self, job: str, manifest: Manifest) -> None:
        """Raise ConfigurationError if a run is to go back to a drained checkpoint: it would end with that at once."""
        if is_drained(manifest.watermarks) and manifest.checkpoint != self._reopened:
            raise ConfigurationError(
                f"job '{job}' does not go back to checkpoint {manifest.checkpoint}: it was drained with that one, and "
                "event time has come to its end there",
                hint=f"stop it, and start it with restore='…/{job}/chk-{manifest.checkpoint}' and reopen=True; or go "
                "back to another checkpoint",
            )

    def watermarks(self, manifest: Manifest | None, *, reopen: bool) -> Mapping[str, int]:
        """Return the watermarks that an attempt goes on with."""
        if manifest is None:
            return {}
        if not is_drained(manifest.watermarks):
            return manifest.watermarks
        if reopen and not self._has_begun:
            self._reopened = manifest.checkpoint
        return {} if manifest.checkpoint == self._reopened else manifest.watermarks

    def begun(self) -> None:
        """An attempt runs: what is restored from now on is the run's own, or what it began with."""
        self._has_begun = True
