"""Checks of a program's functions: whether Strandline can call them, and send them to other processes."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any

import cloudpickle

from strandline.core.errors import ConfigurationError
from strandline.core.failure import as_exception
from strandline.runtime.program import pickling_error


def check_function(what: str, function: Any, args: Sequence[str], example: str = "") -> None:
    """Refuse a value that cannot be called with these positional arguments; errors begin with `what`."""
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
        # Functions written in C may have no signature.
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
        reason, hint = pickling_error(error)
        raise ConfigurationError(
            f"{what} cannot be sent to other processes: {reason}",
            hint=hint
            or "let it use no connection, lock or open file of the program: make those where it runs: at its "
            "first call, or in open() of a KeyedProcess",
        ) from None


def name_of(function: Any) -> str:
    """Return the name of a function."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def call(what: str, function: Callable[..., Any], *args: Any) -> None:
    """Call a function and ignore its result.

    Raises ConfigurationError if the result is a coroutine or a generator, which has not run yet. Converts the panic
    of a Rust library into an Exception.
    """
    try:
        result = function(*args)
    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise as_exception(error) from error
    # Coroutine is the abstract class: awaitables of clients need not be coroutines of Python.
    if result is not None and isinstance(result, Coroutine | Generator | AsyncGenerator | map):
        if isinstance(result, Coroutine | Generator):
            result.close()
        raise ConfigurationError(
            f"{what} gave a {type(result).__name__}, which has not run: it did nothing",
            hint="let it do all before it returns: without yield, and with asyncio.run(…) for what is async",
        )
