"""`strandline top`: the graph of a running job in a terminal, as it works; without a terminal, once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import typer

from strandline.cli.jobs import request_status, running_jobs
from strandline.cli.keyboard import keys
from strandline.cli.output import console
from strandline.cli.stores import LocalDir, StorageOptions, jobs_of
from strandline.cli.topview import Look, Place, render
from strandline.control.figures import Figures, FigureSeries, ask
from strandline.core.errors import StrandlineError
from strandline.ui.jobs import Job, Jobs
from strandline.ui.past import read_past

_LOOK_S = 1.0
_KEY_S = 0.25
_RATES_S, _MOST_RATES_S = 3.0, 20.0
"""How long a look that is printed once waits for the ends of two epochs, without which there are no rates."""
_PAST_S = 30.0
"""How long what a job has left counts: object storage charges for each list of a folder."""
_JOIN_S = 0.5


def top(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB | DIRECTORY]",
            help="A job's name, or a directory of checkpoints; without it, all jobs of this machine.",
            show_default=False,
            autocompletion=running_jobs,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print it once, and end.")] = False,
    local_dir: LocalDir = None,
    option: StorageOptions = None,
) -> None:
    """Show a running job's graph in the terminal, live.

    It is what `strandline ui` shows first: sources, operators and sinks with rows a second, busy share, state, late
    rows and failed events; checkpoints and restarts above. q or Ctrl-C ends it, the arrow keys (or j and k) choose an
    operator, enter shows its partitions, escape goes back. Of several jobs, it shows a list first. Where standard
    output is no terminal, and with --once, it prints the figures once, with the rates of one epoch.
    """
    jobs = jobs_of((what,) if what else (), local_dir, option)
    known = jobs.all()
    place = Place(known[0].id) if len(known) == 1 else Place()
    screen = console()
    if once or not screen.is_terminal or screen.is_dumb_terminal:
        screen.print(render(_first_look(Looker(jobs), place.job), place, screen, keys=False))
        return
    looks = Looks(Looker(jobs), place)
    with looks.renewing():
        while _show(looks):
            # As the terminal does it; without a shell that could continue it, nothing is suspended.
            os.kill(0, signal.SIGTSTP)


@dataclass
class Looker:
    """Looks at jobs, and remembers for each what rates are computed from."""

    jobs: Jobs
    _series: dict[str, FigureSeries] = field(default_factory=dict, init=False)
    _past: dict[str, tuple[float, dict[str, Any] | None]] = field(default_factory=dict, init=False)

    def look(self, job_id: str = "") -> Look:
        """Return the jobs; with an id, the figures of this one."""
        try:
            jobs = self.jobs.all()
            if not job_id:
                return Look([(job, request_status(job.driver)[0] if job.driver else None) for job in jobs])
            look = Look([(job, None) for job in jobs])
            return self._look_at(look, self.jobs.get(job_id))
        except StrandlineError as error:
            return Look(problem=error.message)

    def begin_anew(self, job_id: str, figures: Figures) -> None:
        """Forget all looks at a job but this one."""
        series = self._series[job_id] = FigureSeries()
        series.add(figures.status, figures.recent)

    def _look_at(self, look: Look, job: Job) -> Look:
        look = replace(look, job=job)
        try:
            if job.driver is None:
                return replace(look, newest=self._newest(job))
            return replace(look, figures=self._series.setdefault(job.id, FigureSeries()).add(*ask(job.driver)))
        except StrandlineError as error:
            return replace(look, problem=error.message)

    def _newest(self, job: Job) -> dict[str, Any] | None:
        """Return the newest checkpoint of a job that does not run."""
        read_s, newest = self._past.get(job.id, (0.0, None))
        if not read_s or time.monotonic() - read_s > _PAST_S:
            newest = read_past(self.jobs.directory_of(job))["newest"]
            self._past[job.id] = time.monotonic(), newest
        return newest


def _first_look(looker: Looker, job_id: str) -> Look:
    """Return a look with rates: from the end of one epoch to that of the next one, if these come soon."""
    look = looker.look(job_id)
    ends, deadline = 0, time.monotonic() + _wait_s(look)
    while look.figures is not None and ends < 2 and time.monotonic() < deadline:
        time.sleep(_KEY_S)
        before, look = look.figures, looker.look(job_id)
        if look.figures is not None and look.figures.status.epoch != before.status.epoch:
            ends += 1
            if ends == 1:
                looker.begin_anew(job_id, look.figures)
    if look.figures is not None and ends < 2 and look.figures.status.rows_per_s:
        # Less than an epoch says nothing of its rates.
        look = replace(look, figures=replace(look.figures, rates=[]))
    return look


def _wait_s(look: Look) -> float:
    epoch_ms = look.figures.status.last_epoch_ms if look.figures is not None else 0.0
    return min(_MOST_RATES_S, max(_RATES_S, 3 * epoch_ms / 1000))


@dataclass
class Looks:
    """The newest look, renewed in a thread: a driver that is slow to answer does not delay keys."""

    looker: Looker
    place: Place
    newest: Look = field(default_factory=Look)
    _due: threading.Event = field(default_factory=threading.Event, init=False)
    _is_over: bool = field(default=False, init=False)

    @contextlib.contextmanager
    def renewing(self) -> Iterator[None]:
        """Renew the look in the block."""
        thread = threading.Thread(target=self._renew, name="strandline-top", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over = True
            self._due.set()
            thread.join(_JOIN_S)

    def press(self, key: str) -> None:
        """Go to where a key leads."""
        before = self.place.job
        self.place = self.place.after(key, self.newest)
        if self.place.job != before:
            self.newest = Look(self.newest.jobs)
            self._due.set()

    def _renew(self) -> None:
        while not self._is_over:
            job_id = self.place.job
            look = self.looker.look(job_id)
            if look.problem and look.figures is None and self.newest.figures is not None and look.job is not None:
                # The last figures are better than none.
                look = replace(look, figures=self.newest.figures)
            if job_id == self.place.job:
                self.newest = look
            self._due.wait(_LOOK_S)
            self._due.clear()


def _show(looks: Looks) -> bool:
    """Show looks until a key ends that; return whether we are to be suspended."""
    from rich.live import Live

    screen = console()
    with keys() as read, Live(console=screen, screen=True, auto_refresh=False, redirect_stdout=False,
                              redirect_stderr=False) as live:  # fmt: skip
        painted: tuple[object, ...] = ()
        while True:
            now = looks.newest, looks.place, screen.size
            if now != painted:
                live.update(render(looks.newest, looks.place, screen), refresh=True)
                painted = now
            if read is None:
                time.sleep(_KEY_S)
                continue
            for key in read(_KEY_S):
                if key in ("q", "Q", "suspend"):
                    return key == "suspend"
                looks.press(key)
