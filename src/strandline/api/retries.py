"""Whether a call of another system is made again when it fails."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from strandline.core.errors import ConfigurationError
from strandline.core.settings import parse_duration_ms

_MOST = 100


@dataclass(frozen=True, slots=True)
class Retry:
    """How a call that fails is made again: `retry=` of map_async().

    At most `times` more, after a pause of `backoff`, which doubles with each call up to `longest`, and is shortened by
    up to half by chance, lest all rows come again at once. A call that has no answer in time is one that failed. With
    `on`, only exceptions of these types are tried again.

    >>> patient = Retry(3, backoff="200ms", on=(ConnectionError, TimeoutError))
    """

    times: int
    backoff: str = "500ms"
    longest: str = "30s"
    on: type[Exception] | tuple[type[Exception], ...] = Exception

    def __post_init__(self) -> None:
        if type(self.times) is not int or not 0 <= self.times <= _MOST:
            raise ConfigurationError(
                f"Retry: times is {self.times!r}, expected a number from 0 to {_MOST}",
                hint="say how often a call that failed is made again: Retry(3)",
            )
        if not self.backoff_ms:
            raise ConfigurationError(f"Retry: backoff is {self.backoff!r}, expected more than 0")
        if self.longest_ms < self.backoff_ms:
            raise ConfigurationError(
                f"Retry: longest is {self.longest!r}, and backoff, with which pauses begin, is {self.backoff!r}"
            )
        given = self.on if isinstance(self.on, tuple) else (self.on,)
        if not given or not all(inspect.isclass(each) and issubclass(each, Exception) for each in given):
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


def retry_of(given: Any) -> Retry:
    """Return what somebody said about retries: a number of them, or a Retry."""
    if isinstance(given, Retry):
        return given
    if type(given) is int:
        return Retry(given)
    raise ConfigurationError(
        f"map_async: retry is {given!r}, expected a number or a Retry",
        hint='write retry=3, or sl.Retry(3, backoff="1s")',
    )
