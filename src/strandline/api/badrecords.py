"""Handling of events for which a user's function fails: fail the job, skip them, or output dead letters."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from strandline.core.errors import ConfigurationError
from strandline.core.settings import parse_duration_ms

if TYPE_CHECKING:
    from strandline.core.settings import Duration
else:
    # Programs for keepers contain OnError, and msgspec decodes no union of str and timedelta.
    Duration = str

Then = Literal["fail", "skip", "dead-letter"]

DEAD_LETTERS = "dead_letters"
"""The name of the side output of dead letters."""
DEAD_LETTER = (
    "operator string, step string, reason string, key string, event string, event_time timestamp, traceback string"
)
"""The columns of dead letters, the same for all operators, so that one sink can take all of a job's."""


@dataclass(frozen=True, slots=True)
class OnError:
    """Handling of an event for which a function fails: `on_error=` of process(), windows, map() and sources.

    `"fail"` ends the job. `"skip"` counts the event and undoes all that the failing call did to state, timers and
    outputs. `"dead-letter"` does the same, and adds a row with the event and the reason to `dead_letters` of the
    resulting stream.

    With `at_most`, the job fails when more than that many events fail in one partition within `per` of processing
    time: an outage is not a bad record. Errors of storage and memory always fail the job.

    >>> checked = OnError("dead-letter", at_most=100, per="1 min")
    """

    then: Then = "dead-letter"
    at_most: int | None = None
    per: Duration = "1 min"

    def __post_init__(self) -> None:
        if isinstance(self.per, dt.timedelta):
            object.__setattr__(self, "per", f"{self.per / dt.timedelta(seconds=1)}s")
        if self.then not in get_args(Then):
            raise ConfigurationError(
                f"on_error is {self.then!r}, expected 'fail', 'skip' or 'dead-letter'",
                hint='or OnError("dead-letter", at_most=100, per="1 min"), so that an outage still ends the job',
            )
        if self.at_most is not None and (not isinstance(self.at_most, int) or isinstance(self.at_most, bool)):
            raise ConfigurationError(f"OnError: at_most is {self.at_most!r}, expected a number of events")
        if self.at_most is not None and self.at_most < 1:
            raise ConfigurationError(
                f"OnError: at_most is {self.at_most}, expected 1 or more", hint='on_error="fail" bears none'
            )
        if not self.per_ms:
            raise ConfigurationError(f"OnError: per is {self.per!r}, expected more than 0")

    @property
    def per_ms(self) -> int:
        """The time span in which `at_most` counts, in milliseconds."""
        return parse_duration_ms(self.per, "OnError: per")

    @property
    def fails(self) -> bool:
        """Whether an error ends the job."""
        return self.then == "fail"

    @property
    def has_dead_letters(self) -> bool:
        """Whether failing events become dead letters."""
        return self.then == "dead-letter"


FAIL = OnError("fail")


def on_error_of(where: str, option: Any) -> OnError:
    """Return the OnError of an `on_error=` option; refuse a wrong one, naming the operator or step in `where`."""
    try:
        return option if isinstance(option, OnError) else OnError(option)
    except (ConfigurationError, TypeError) as error:
        refusal = error if isinstance(error, ConfigurationError) else ConfigurationError(f"on_error is {option!r}")
        raise ConfigurationError(f"{where}: {refusal.message}", hint=refusal.hint) from None
