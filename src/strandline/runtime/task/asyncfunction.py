"""Calls a Python function for each row, several at once, for functions that wait for other systems.

Coroutines run in one event loop, in a thread that lives as long as the process: an HTTP session or a connection pool
that a function keeps open between rows stays usable, also for Spark's next task in this process.
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
"""The number of threads beyond `concurrency`, for calls that timed out and still hold theirs, so later rows get one."""


class NoAnswer(TimeoutError):
    """A call took too long."""


@dataclass(frozen=True)
class Fallback:
    """The replacement for the answer of a call that failed for good."""

    value: Any = None
    function: Callable[[Any, Exception], Any] | None = None
    """Of the row and the error; in place of the value."""

    def of(self, record: Any, error: Exception) -> Any:
        """Return the replacement for a row."""
        return self.value if self.function is None else self.function(record, error)


@dataclass(frozen=True)
class Calls:
    """The options of calls of other systems."""

    concurrency: int
    """The number of calls in progress at once, in each task."""
    timeout_ms: int | None = None
    """How long an answer may take."""
    ordered: bool = True
    """Whether results come in the order of the rows, or of the answers."""
    retry: Retry = NEVER
    fallback: Fallback | None = None


@dataclass(frozen=True)
class AsyncRowFunction(RowFunction):
    """Calls a function for several rows at once: a coroutine function in the loop, any other in threads."""

    calls: Calls = Calls(1)

    def _run(self, records: Sequence[Any], outputs: RawOutput, bad: BadRows | None) -> tuple[list[Any], list[int]]:
        # A thread is started if none is idle: there are more than `concurrency` only if some calls hang.
        threads = ThreadPoolExecutor(self.calls.concurrency + _MOST_HUNG, "strandline-map-async")
        # Copied at once: other calls of the function may change them. Where errors are tolerated, each row is checked.
        copy = outputs.main.copied if bad is None else outputs.main.fitting
        answers = self._answers(records, threads, copy, bad)
        under_way = asyncio.run_coroutine_threadsafe(answers, _loop(os.getpid()))
        try:
            outcomes = under_way.result()
        finally:
            # Also when the task is cancelled: calls that hang must not hold it up.
            under_way.cancel()
            threads.shutdown(wait=False, cancel_futures=True)
        rows = [(row, at) for at, outputs_of in outcomes for row in outputs_of]
        return [row for row, _ in rows], [at for _, at in rows]

    async def _answers(
        self,
        records: Sequence[Any],
        threads: ThreadPoolExecutor,
        copy: Callable[[Any], Any],
        bad: BadRows | None,
    ) -> list[tuple[int, list[Any]]]:
        """Return the function's rows for each record, by its index; if one call fails, cancel the others."""
        results: list[tuple[int, list[Any]]] = []
        waiting = iter(enumerate(records))

        async def work() -> None:
            for at, record in waiting:
                try:
                    out = await self._answer(record, threads)
                    results.append((at, [copy(row) for row in ([] if out is None else out)]))
                except asyncio.CancelledError:
                    raise
                except BaseException as error:
                    if bad is None:
                        raise self._call_error(error, record) from error
                    bad.record(TimeoutError(str(error)) if isinstance(error, NoAnswer) else error, record, at)

        workers = [asyncio.ensure_future(work()) for _ in range(min(self.calls.concurrency, len(records)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*workers, return_exceptions=True)
        return sorted(results, key=lambda each: each[0]) if self.calls.ordered else results

    async def _answer(self, record: Any, threads: ThreadPoolExecutor) -> list[Any] | None:
        """Return the function's result for a row after retries, or the fallback."""
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
            # This call was not cancelled: something that the function has waited for was.
            raise RuntimeError("what the function has waited for was cancelled") from error
        except Exception as error:
            if limit.expired():
                raise NoAnswer(f"no answer within {seconds:g} s") from error
            raise

    def _in_thread(self, record: Any) -> Any:
        try:
            return self.function(record)
        except StopIteration as error:
            # An asyncio future does not accept it: before Python 3.12, a caller would wait for the answer for ever.
            raise RuntimeError("the function raised StopIteration") from error

    def _call_error(self, error: BaseException, record: Any) -> BaseException:
        """Return the error to raise for a call that failed."""
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
    """Return this process's event loop: a forked process has no threads of its parent."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=_run, args=(loop,), name="strandline-map-async", daemon=True).start()
    return loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        # A task of the user's function that exits would end the loop, and all calls that wait for it.
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
