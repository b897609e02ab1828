"""Calls of other systems: a Python function of each row, of which several run at once.

Coroutines run in one event loop, in a thread of its own that lives as long as the process: what a function keeps open
between rows, a session of HTTP or a pool of connections, stays usable, also for Spark's next task in this process.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from strandline.core.errors import UnavailableError, UserCodeError
from strandline.runtime.task.rowfunction import RowFunction, user_error


@dataclass(frozen=True)
class Calls:
    """How a function is called that waits for others."""

    concurrency: int
    """How many calls are under way at once, in each task."""
    timeout_ms: int | None = None
    """After so long without an answer, the job goes back to its last checkpoint."""
    ordered: bool = True
    """Whether results come in the order of the rows, or of the answers."""


@dataclass(frozen=True)
class AsyncRowFunction(RowFunction):
    """Calls a function for several rows at once: a coroutine function in the loop, another one in threads."""

    what: ClassVar[str] = "map_async"
    calls: Calls = Calls(1)

    def _run(self, records: Sequence[Any]) -> tuple[list[Any], list[int]]:
        threads = ThreadPoolExecutor(self.calls.concurrency, "strandline-map-async")
        under_way = asyncio.run_coroutine_threadsafe(self._answers(records, threads), _loop(os.getpid()))
        try:
            given = under_way.result()
        finally:
            # Also when the task is ended: what hangs must not hold it up.
            under_way.cancel()
            threads.shutdown(wait=False, cancel_futures=True)
        rows = [(row, at) for at, found in given for row in found]
        return [row for row, _ in rows], [at for _, at in rows]

    async def _answers(self, records: Sequence[Any], threads: ThreadPoolExecutor) -> list[tuple[int, list[Any]]]:
        """Return what the function gives for each record, by its place; when one fails, give up the others."""
        found: list[tuple[int, list[Any]]] = []
        waiting = iter(enumerate(records))

        async def work() -> None:
            for at, record in waiting:
                found.append((at, await self._answer(record, threads)))

        workers = [asyncio.ensure_future(work()) for _ in range(min(self.calls.concurrency, len(records)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*workers, return_exceptions=True)
        return sorted(found, key=lambda each: each[0]) if self.calls.ordered else found

    async def _answer(self, record: Any, threads: ThreadPoolExecutor) -> list[Any]:
        seconds = None if self.calls.timeout_ms is None else self.calls.timeout_ms / 1000
        try:
            async with asyncio.timeout(seconds) as limit:
                if inspect.iscoroutinefunction(self.function):
                    out = await self.function(record)
                else:
                    out = await asyncio.get_running_loop().run_in_executor(threads, self.function, record)
                    if inspect.isawaitable(out):
                        out = await out
        except UserCodeError:
            raise
        except Exception as error:
            if limit.expired():
                raise UnavailableError(
                    f"map_async: no answer within {seconds:g} s for the row {record!r}",
                    hint="the job goes back to its last checkpoint and asks again; for an answer of your own, catch "
                    "the time-out in the function: asyncio.wait_for",
                ) from error
            raise user_error(self.what, error, record) from error
        return [] if out is None else out if isinstance(out, list) else [out]


@cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """Return this process's event loop: one that was forked has no threads of its parent's."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="strandline-map-async", daemon=True).start()
    return loop
