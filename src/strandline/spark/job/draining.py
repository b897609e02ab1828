"""Draining: the job's event time advances to its end, so that windows and timers output their results; then it ends.

1. One epoch without rows has the end of time as its watermark: all timers of each operator fire, also those that they
   set, and their output passes through the following operators.
2. A last checkpoint makes all output visible. Its watermark shows that the job is drained.

After a failure, the job restores the checkpoint before and drains again.
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
    """The state of a run's drain. It is shared by all attempts: after a failure, the next attempt drains."""

    at_end: bool = False
    """Whether to drain when the sources have ended."""
    requested: threading.Event = field(default_factory=threading.Event)
    """Drain now, even if the sources have more rows."""
    held: threading.Event = field(default_factory=threading.Event)
    """A savepoint of the drained job is being made: the run must not end before."""
    done: threading.Event = field(default_factory=threading.Event)
    """The job is drained, and its last checkpoint is complete."""
    _has_begun: bool = False
    _reopened: CheckpointId | None = None
    """The drained checkpoint from which the run continued because of `reopen`."""

    def refuse(self, job: str, manifest: Manifest | None, *, reopen: bool) -> None:
        """Raise ConfigurationError if the job would begin with a drained snapshot without `reopen`."""
        if manifest is None or self._has_begun or reopen or not is_drained(manifest.watermarks):
            return
        raise ConfigurationError(
            f"job '{job}' was drained with checkpoint {manifest.checkpoint}: its results are complete, event time has "
            "reached its end, and every later event would be late",
            hint="to continue with its state, restart event time with start(reopen=True) or --reopen: a window that "
            "was cut short is then output again, with its new events only; or " + BEGIN_ANEW,
        )

    def refuse_rollback(self, job: str, manifest: Manifest) -> None:
        """Raise ConfigurationError for a rollback to a drained checkpoint: the run would end at once."""
        if is_drained(manifest.watermarks) and manifest.checkpoint != self._reopened:
            raise ConfigurationError(
                f"job '{job}' does not go back to checkpoint {manifest.checkpoint}: it was drained with that one, and "
                "event time has reached its end there",
                hint=f"stop it, and start it with restore='…/{job}/chk-{manifest.checkpoint}' and reopen=True; or go "
                "back to another checkpoint",
            )

    def watermarks(self, manifest: Manifest | None, *, reopen: bool) -> Mapping[str, int]:
        """Return the watermarks with which an attempt begins."""
        if manifest is None:
            return {}
        if not is_drained(manifest.watermarks):
            return manifest.watermarks
        if reopen and not self._has_begun:
            self._reopened = manifest.checkpoint
        return {} if manifest.checkpoint == self._reopened else manifest.watermarks

    def note_begin(self) -> None:
        """Note that an attempt runs: later attempts restore the run's own checkpoints and need no `reopen`."""
        self._has_begun = True
