"""Retries of failed calls to other systems."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from strandline.core.errors import ConfigurationError
from strandline.core.settings import Duration, parse_duration_ms

_MOST = 100


@dataclass(frozen=True, slots=True)
class Retry:
    """Retries of a failed call: `retry=` of map_async().

    There are at most `times` retries, after a pause of `backoff` that doubles with each retry up to `longest`. Jitter
    shortens it by up to half, so that rows do not retry all at once. A timeout is a failure. With `on`, only exceptions
    of these types are retried.

    >>> patient = Retry(3, backoff="200ms", on=(ConnectionError, TimeoutError))
    """

    times: int
    backoff: Duration = "500ms"
    longest: Duration = "30s"
    on: type[Exception] | tuple[type[Exception], ...] = Exception

    def __post_init__(self) -> None:
        if type(self.times) is not int or not 0 <= self.times <= _MOST:
            raise ConfigurationError(
                f"Retry: times is {self.times!r}, expected a number from 0 to {_MOST}",
                hint="write the number of retries of a failed call: Retry(3)",
            )
        if not self.backoff_ms:
            raise ConfigurationError(f"Retry: backoff is {self.backoff!r}, expected more than 0")
        if self.longest_ms < self.backoff_ms:
            raise ConfigurationError(
                f"Retry: longest is {self.longest!r}, expected at least backoff, the first pause: {self.backoff!r}"
            )
        types = self.on if isinstance(self.on, tuple) else (self.on,)
        if not types or not all(inspect.isclass(each) and issubclass(each, Exception) for each in types):
            raise ConfigurationError(
                f"Retry: on is {self.on!r}, expected types of exceptions",
                hint="write on=(ConnectionError, TimeoutError)",
            )

    @property
    def backoff_ms(self) -> int:
        """The first pause, in milliseconds."""
        return parse_duration_ms(self.backoff, "Retry: backoff")

    @property
    def longest_ms(self) -> int:
        """The longest pause, in milliseconds."""
        return parse_duration_ms(self.longest, "Retry: longest")


NEVER = Retry(0)


def retry_of(option: Any) -> Retry:
    """Return the Retry of a `retry=` option, which is a Retry or a number of retries."""
    if isinstance(option, Retry):
        return option
    if type(option) is int:
        return Retry(option)
    raise ConfigurationError(
        f"map_async: retry is {option!r}, expected a number or a Retry",
        hint='write retry=3, or sl.Retry(3, backoff="1s")',
    )
