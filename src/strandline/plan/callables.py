"""Functions that a program gives: whether they can be called as they will be, and sent to where they will be."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any

import cloudpickle

from strandline.core.errors import ConfigurationError
from strandline.core.failure import as_exception


def check_function(what: str, function: Any, args: Sequence[str], example: str = "") -> None:
    """Refuse what cannot be called with these arguments, which are given by position; errors begin with `what`."""
    called = f"({', '.join(args)})"
    if not callable(function):
        raise ConfigurationError(
            f"{what} is {function!r:.200}, expected a function", hint=example or f"give a function of {called}"
        )
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"{what} is an async function, and calls are not awaited",
            hint="write it with def; other systems are asked before, by map_async(), many calls at once",
        )
    check_called_with(what, function, args)


def check_called_with(what: str, function: Any, args: Sequence[str]) -> None:
    """Refuse a function, be it async, that cannot be called with these arguments."""
    called = f"({', '.join(args)})"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Of functions written in C, that is not known.
        return
    try:
        signature.bind(*args)
    except TypeError as error:
        raise ConfigurationError(
            f"{what} is called with {called}, and it takes {signature}: {error}",
            hint=f"write it for {called}",
        ) from None


def check_shippable(what: str, function: Any) -> None:
    """Refuse a function that cannot be sent to other processes; errors begin with `what`."""
    try:
        cloudpickle.dumps(function)
    except Exception as error:
        raise ConfigurationError(
            f"{what} cannot be sent to other processes: {_why(error)}",
            hint="let it use no connection, lock, open file, session or DataFrame of the program: make those where it "
            "runs: at its first call, or in open() of a KeyedProcess",
        ) from None


def name_of(function: Any) -> str:
    """Return what a function is called."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def call(what: str, function: Callable[..., Any], *args: Any) -> None:
    """Call a function for what it does: nobody looks at what it gives.

    Raises ConfigurationError if that has yet to run: nobody would run it. What the function raises is an Exception: a
    Rust library's panic, which is none, comes as one.
    """
    try:
        given = function(*args)
    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise as_exception(error) from error
    # What clients give to be awaited need be no coroutine of Python's own.
    if given is not None and isinstance(given, Coroutine | Generator | AsyncGenerator | map):
        if isinstance(given, Coroutine | Generator):
            given.close()
        raise ConfigurationError(
            f"{what} gave a {type(given).__name__}, which nobody runs: it has done nothing",
            hint="let it do all before it returns: without yield, and with asyncio.run(…) for what is async",
        )


def _why(error: Exception) -> str:
    """Return why something cannot be pickled, in one line: Spark raises pages."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
