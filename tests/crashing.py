"""A process that is dead at a failpoint, in tests that go on as its successor."""

from __future__ import annotations


class Crash(BaseException):
    """The process is gone: nothing catches this."""


def crash() -> None:
    raise Crash
