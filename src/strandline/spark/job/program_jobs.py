"""Hooks for the jobs of a program: the command line sets what they restore, or inspects them without a start."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from strandline.control.status import Savepoint
from strandline.core.errors import ConfigurationError
from strandline.spark.job.attempt import StartOptions

if TYPE_CHECKING:
    from strandline.spark.job.run import Run

ONLY = ""
"""Stands for the name of a program's job if it has but one."""


class NamedJob(Protocol):
    """A job, of which only the name is needed."""

    name: str


class Interceptor(Protocol):
    """Receives each job of this process when it is created, started or bootstrapped."""

    def add(self, job: NamedJob) -> None:
        """Receive a new job."""

    def start(self, job: NamedJob, options: StartOptions) -> StartOptions | Run:
        """Return the options with which to start a job, or what the program receives in place of a run."""
        ...

    def bootstrap(self, job: NamedJob) -> Savepoint | None:
        """Return what the program receives in place of a savepoint; None to run the bootstrap."""
        ...


_interceptor: Interceptor | None = None


@contextlib.contextmanager
def intercept_jobs(interceptor: Interceptor) -> Iterator[None]:
    """Pass the jobs of this process to an interceptor meanwhile."""
    global _interceptor
    before, _interceptor = _interceptor, interceptor
    try:
        yield
    finally:
        _interceptor = before


def intercept_job(job: NamedJob) -> None:
    """Pass a new job to the interceptor, if there is one."""
    if _interceptor is not None:
        _interceptor.add(job)


def intercept_start(job: NamedJob, options: StartOptions) -> StartOptions | Run:
    """Return the options with which to start a job, or what the program receives in place of a run."""
    return options if _interceptor is None else _interceptor.start(job, options)


def intercept_bootstrap(job: NamedJob) -> Savepoint | None:
    """Return what the program receives in place of a savepoint; None to run the bootstrap."""
    return None if _interceptor is None else _interceptor.bootstrap(job)


class StartOverrides:
    """Replaces the program's options for the start of jobs with those of the command line, by job."""

    def __init__(
        self,
        restore: Mapping[str, str],
        drop: Mapping[str, Sequence[str]],
        *,
        claim: bool = False,
        again: str = "",
        reopen: bool = False,
        from_now: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`restore`, `drop`, `from_now` are by job name or ONLY; the others are for all jobs that restore a snapshot.

        `reopen` is for all jobs.
        """
        self._restore = restore
        self._drop, self._from_now = drop, from_now or {}
        self._claim = claim
        self._again = again
        self._reopen = reopen
        self._names: set[str] = set()
        self._started: set[str] = set()

    @property
    def unused(self) -> list[str]:
        """The names that have options and whose jobs were never started."""
        names = {*self._restore, *self._drop, *self._from_now}
        return sorted(name for name in names if name not in self._started and not (name == ONLY and self._started))

    def add(self, job: NamedJob) -> None:
        """Receive a new job."""
        self._names.add(job.name)

    def start(self, job: NamedJob, options: StartOptions) -> StartOptions:
        """Return the options with which to start a job. Raises ConfigurationError if they name none of several jobs."""
        self._names.add(job.name)
        check_named({*self._restore, *self._drop, *self._from_now}, self._names)
        self._started.add(job.name)
        url = self._restore.get(job.name) or self._restore.get(ONLY)
        drop = _with(options.drop, self._drop, job.name)
        from_now = _with(options.from_now, self._from_now, job.name)
        options = replace(options, drop=drop, reopen=options.reopen or self._reopen, from_now=from_now)
        return options if url is None else replace(options, url=url, claim=self._claim, again=self._again)

    def bootstrap(self, job: NamedJob) -> None:
        """Let the job run its bootstrap."""


def _with(names: Sequence[str], more: Mapping[str, Sequence[str]], job: str) -> tuple[str, ...]:
    """Return the program's own names, and those of the command line for a job."""
    return tuple(dict.fromkeys([*names, *more.get(job, ()), *more.get(ONLY, ())]))


def check_named(names: set[str], jobs: set[str]) -> None:
    """Raise ConfigurationError if an option names no job and the program has several."""
    if ONLY in names and len(jobs) > 1:
        raise ConfigurationError(
            f"the program has {len(jobs)} jobs: {', '.join(sorted(jobs))}; the options do not say which one to restore",
            hint="write --restore JOB=URL, and --drop JOB=uid.state",
        )
