"""Calls of other systems: a Python function of each row, of which several run at once.

Coroutines run in one event loop, in a thread of its own that lives as long as the process: what a function keeps open
between rows, a session of HTTP or a pool of connections, stays usable, also for Spark's next task in this process.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from strandline.api.retries import NEVER, Retry
from strandline.core.errors import StrandlineError, UnavailableError, UserCodeError
from strandline.runtime.task.outputs import RawOutput
from strandline.runtime.task.rowfunction import BadRows, RowFunction
from strandline.runtime.task.usererrors import step_error

_MOST_HUNG = 200
"""So many calls may hold a thread each that nobody waits for any more: rows behind them would not be asked about."""


class NoAnswer(TimeoutError):
    """A call took too long."""


@dataclass(frozen=True)
class Fallback:
    """What stands for the answer of a call that failed for good."""

    value: Any = None
    function: Callable[[Any, Exception], Any] | None = None
    """Of the row and the error; in place of the value."""

    def of(self, record: Any, error: Exception) -> Any:
        """Return what a function would have returned."""
        return self.value if self.function is None else self.function(record, error)


@dataclass(frozen=True)
class Calls:
    """How a function is called that waits for others."""

    concurrency: int
    """How many calls are under way at once, in each task."""
    timeout_ms: int | None = None
    """How long an answer may take."""
    ordered: bool = True
    """Whether results come in the order of the rows, or of the answers."""
    retry: Retry = NEVER
    fallback: Fallback | None = None


@dataclass(frozen=True)
class AsyncRowFunction(RowFunction):
    """Calls a function for several rows at once: a coroutine function in the loop, another one in threads."""

    calls: Calls = Calls(1)

    def _run(self, records: Sequence[Any], outputs: RawOutput, bad: BadRows | None) -> tuple[list[Any], list[int]]:
        # A thread is made where none is idle: more than calls are waited for, if some hang.
        threads = ThreadPoolExecutor(self.calls.concurrency + _MOST_HUNG, "strandline-map-async")
        # As they are now: the function's other calls go on. Where rows may fail, each is looked at alone.
        taken = outputs.main.taken if bad is None else outputs.main.fitting
        answers = self._answers(records, threads, taken, bad)
        under_way = asyncio.run_coroutine_threadsafe(answers, _loop(os.getpid()))
        try:
            given = under_way.result()
        finally:
            # Also when the task is ended: what hangs must not hold it up.
            under_way.cancel()
            threads.shutdown(wait=False, cancel_futures=True)
        rows = [(row, at) for at, found in given for row in found]
        return [row for row, _ in rows], [at for _, at in rows]

    async def _answers(
        self,
        records: Sequence[Any],
        threads: ThreadPoolExecutor,
        taken: Callable[[Any], Any],
        bad: BadRows | None,
    ) -> list[tuple[int, list[Any]]]:
        """Return what the function gives for each record, by its place; when one fails, give up the others."""
        found: list[tuple[int, list[Any]]] = []
        waiting = iter(enumerate(records))

        async def work() -> None:
            for at, record in waiting:
                try:
                    out = await self._answer(record, threads)
                    found.append((at, [taken(row) for row in ([] if out is None else out)]))
                except asyncio.CancelledError:
                    raise
                except BaseException as error:
                    if bad is None:
                        raise self._said(error, record) from error
                    bad.bear(TimeoutError(str(error)) if isinstance(error, NoAnswer) else error, record, at)

        workers = [asyncio.ensure_future(work()) for _ in range(min(self.calls.concurrency, len(records)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*workers, return_exceptions=True)
        return sorted(found, key=lambda each: each[0]) if self.calls.ordered else found

    async def _answer(self, record: Any, threads: ThreadPoolExecutor) -> list[Any] | None:
        """Return what the function gives for a row in the end, or what stands for it."""
        calls, tried = self.calls, 0
        while True:
            try:
                out = await self._called(record, threads)
                break
            except Exception as error:
                may_work = isinstance(error, calls.retry.on) and not isinstance(error, StrandlineError)
                if tried < calls.retry.times and may_work:
                    await asyncio.sleep(_pause_s(calls.retry, tried))
                    tried += 1
                elif calls.fallback is None:
                    raise
                else:
                    out = calls.fallback.of(record, error)
                    break
        return out if out is None or isinstance(out, list) else [out]

    async def _called(self, record: Any, threads: ThreadPoolExecutor) -> Any:
        seconds = None if self.calls.timeout_ms is None else self.calls.timeout_ms / 1000
        try:
            async with asyncio.timeout(seconds) as limit:
                if inspect.iscoroutinefunction(self.function):
                    return await self.function(record)
                out = await asyncio.get_running_loop().run_in_executor(threads, self._in_thread, record)
                return await out if inspect.isawaitable(out) else out
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Nobody has cancelled this call: something that the function has waited for was.
            raise RuntimeError("what the function has waited for was cancelled") from error
        except Exception as error:
            if limit.expired():
                raise NoAnswer(f"no answer within {seconds:g} s") from error
            raise

    def _in_thread(self, record: Any) -> Any:
        try:
            return self.function(record)
        except StopIteration as error:
            # No future of asyncio's takes it: before Python 3.12, whoever waits for the answer would wait for ever.
            raise RuntimeError("the function raised StopIteration") from error

    def _said(self, error: BaseException, record: Any) -> BaseException:
        """Return what the user is told of a call that failed."""
        if isinstance(error, NoAnswer):
            return UnavailableError(
                f"map_async: {error} for the row {record!r}",
                hint="the job goes back to its last checkpoint and asks again; for an answer of your own, give "
                "fallback=; to leave the row out, on_error=",
            )
        return error if isinstance(error, UserCodeError) else step_error(self.step, error, record)


def _pause_s(retry: Retry, tried: int) -> float:
    """Return how long to wait before the next call."""
    longest = min(retry.backoff_ms * 2.0**tried, retry.longest_ms) / 1000
    return longest * random.uniform(0.5, 1)


@cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """Return this process's event loop: one that was forked has no threads of its parent's."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=_run, args=(loop,), name="strandline-map-async", daemon=True).start()
    return loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        # A task of the function's own that exits would take the loop along, and all who wait for it.
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
