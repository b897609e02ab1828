"""A program's jobs, heard of by whoever runs it: what they are to restore is said from outside, or only looked at."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from strandline.control.status import Savepoint
from strandline.core.errors import ConfigurationError
from strandline.spark.job.attempt import Wanted

if TYPE_CHECKING:
    from strandline.spark.job.run import Run

ONLY = ""
"""Stands for the name of a program's job if it has but one."""


class Named(Protocol):
    """A job."""

    name: str


class Watcher(Protocol):
    """Hears of each job that is made in this process, and of each that is to start."""

    def made(self, job: Named) -> None:
        """Hear of a job."""

    def start(self, job: Named, wanted: Wanted) -> Wanted | Run:
        """Return what a job is to begin with; or what its program gets instead of a run."""
        ...

    def bootstrap(self, job: Named) -> Savepoint | None:
        """Return what a job's program gets instead of a savepoint made of history; None: it is to be made."""
        ...


_watcher: Watcher | None = None


@contextlib.contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Have a watcher hear of this process's jobs."""
    global _watcher
    before, _watcher = _watcher, watcher
    try:
        yield
    finally:
        _watcher = before


def made(job: Named) -> None:
    """Tell whoever watches that there is a job."""
    if _watcher is not None:
        _watcher.made(job)


def about_to_start(job: Named, wanted: Wanted) -> Wanted | Run:
    """Return what a job is to begin with, as whoever watches wants it; or what its program gets instead of a run."""
    return wanted if _watcher is None else _watcher.start(job, wanted)


def about_to_bootstrap(job: Named) -> Savepoint | None:
    """Return what a job's program gets instead of a savepoint made of history; None: it is to be made."""
    return None if _watcher is None else _watcher.bootstrap(job)


class Orders:
    """Has jobs begin with what the command line says, by their names: it goes before what the program says."""

    def __init__(
        self,
        restore: Mapping[str, str],
        drop: Mapping[str, Sequence[str]],
        *,
        claim: bool = False,
        again: str = "",
        reopen: bool = False,
    ) -> None:
        """`restore` and `drop` are by job, or of ONLY; `claim` and `again` of all snapshots that are restored.

        `reopen` is of all jobs.
        """
        self._restore = restore
        self._drop = drop
        self._claim = claim
        self._again = again
        self._reopen = reopen
        self._names: set[str] = set()
        self._started: set[str] = set()

    @property
    def unmet(self) -> list[str]:
        """The jobs that orders are for and that were never started."""
        named = {*self._restore, *self._drop}
        return sorted(name for name in named if name not in self._started and not (name == ONLY and self._started))

    def made(self, job: Named) -> None:
        """Hear of a job."""
        self._names.add(job.name)

    def start(self, job: Named, wanted: Wanted) -> Wanted:
        """Return what a job is to begin with. Raises ConfigurationError if orders do not say which job they are for."""
        self._names.add(job.name)
        check_named({*self._restore, *self._drop}, self._names)
        self._started.add(job.name)
        url = self._restore.get(job.name) or self._restore.get(ONLY)
        drop = [*wanted.drop, *self._drop.get(job.name, ()), *self._drop.get(ONLY, ())]
        wanted = replace(wanted, drop=tuple(dict.fromkeys(drop)), reopen=wanted.reopen or self._reopen)
        return wanted if url is None else replace(wanted, url=url, claim=self._claim, again=self._again)

    def bootstrap(self, job: Named) -> None:
        """Let a job make its state of history."""


def check_named(named: set[str], jobs: set[str]) -> None:
    """Raise ConfigurationError if something is said of a program's only job, and it has several."""
    if ONLY in named and len(jobs) > 1:
        raise ConfigurationError(
            f"the program has {len(jobs)} jobs: {', '.join(sorted(jobs))}; which one is to be restored is not said",
            hint="write --restore JOB=URL, and --drop JOB=uid.state",
        )
