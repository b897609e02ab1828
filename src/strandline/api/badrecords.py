"""What becomes of an event that a function fails for, and what is kept of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from strandline.core.errors import ConfigurationError
from strandline.core.settings import parse_duration_ms

Then = Literal["fail", "skip", "dead-letter"]

DEAD_LETTERS = "dead_letters"
"""The side output that dead letters come out of."""
DEAD_LETTER = (
    "operator string, step string, reason string, key string, event string, event_time timestamp, traceback string"
)
"""The columns of dead letters: the same of every operator, so that all of a job's can go to one place."""


@dataclass(frozen=True, slots=True)
class OnError:
    """What becomes of an event that a function fails for: `on_error=` of process(), windows, map() and sources.

    `"fail"` ends the job. `"skip"` leaves the event out: nothing that the failing call did to state, timers and outputs
    stays, and the event is counted. `"dead-letter"` does so too, and gives a row with the event and the reason, which
    `dead_letters` of the resulting stream has.

    With `at_most`, the job fails when more events than that fail within `per` of the clock in one partition: an outage
    is no bad record. Errors of storage and memory always fail the job.

    >>> checked = OnError("dead-letter", at_most=100, per="1 min")
    """

    then: Then = "dead-letter"
    at_most: int | None = None
    per: str = "1 min"

    def __post_init__(self) -> None:
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
        """Within what time `at_most` counts, in milliseconds."""
        return parse_duration_ms(self.per, "OnError: per")

    @property
    def fails(self) -> bool:
        """Whether an error ends the job."""
        return self.then == "fail"

    @property
    def gives(self) -> bool:
        """Whether there are dead letters."""
        return self.then == "dead-letter"


FAIL = OnError("fail")


def on_error_of(where: str, given: Any) -> OnError:
    """Return what somebody said about errors; refuse what nobody can have meant, naming where it was said."""
    try:
        return given if isinstance(given, OnError) else OnError(given)
    except (ConfigurationError, TypeError) as error:
        said = error if isinstance(error, ConfigurationError) else ConfigurationError(f"on_error is {given!r}")
        raise ConfigurationError(f"{where}: {said.message}", hint=said.hint) from None
