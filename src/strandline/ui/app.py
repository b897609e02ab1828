"""The addresses of the page: its files, and JSON of jobs, checkpoints and state."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec
from anyio import to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from strandline.control.client import Driver
from strandline.control.driverlog import read_entries
from strandline.control.events import drivers_of
from strandline.core.errors import ConfigurationError, NotFoundError, StrandlineError, UnavailableError
from strandline.core.version import VERSION
from strandline.keeper.paths import Places
from strandline.ui.actions import Actions
from strandline.ui.browse import Browser
from strandline.ui.changes import Changes
from strandline.ui.guard import Guard
from strandline.ui.history import read_history
from strandline.ui.jobs import Job, Jobs, url_of
from strandline.ui.live import LiveJob, Viewer
from strandline.ui.living import tables_of
from strandline.ui.past import read_past

_STATIC = Path(__file__).with_name("static")
_EVENT_S = 1.0
_NOW = "now"
"""In place of a checkpoint: the state of the running job."""
_CODES: tuple[tuple[type[StrandlineError], int], ...] = (
    (NotFoundError, 404), (ConfigurationError, 400), (UnavailableError, 503),
)  # fmt: skip

B = TypeVar("B", bound=msgspec.Struct)
Handler = Callable[[Request, bytes], Any]
"""Returns what is answered as JSON. It runs in a thread, and may raise a StrandlineError."""


class _Query(msgspec.Struct, forbid_unknown_fields=True):
    sql: str


class _Difference(msgspec.Struct, forbid_unknown_fields=True):
    before: int
    after: int
    job: str = ""
    """Of the checkpoint `after`: the same, if it is empty."""
    sample: float = 1.0


class _Key(msgspec.Struct, forbid_unknown_fields=True):
    operator: str
    key: list[str]


class _Changes(msgspec.Struct, forbid_unknown_fields=True):
    operator: str
    key: list[str]
    start: int
    """The number of the checkpoint with which the replay begins."""
    to: int | None = None
    """The last epoch that runs; None: the last that is recorded."""


@dataclass
class Page:
    """The handlers, and what they share."""

    jobs: Jobs
    browser: Browser
    read_only: bool = False
    actions: Actions = field(default_factory=Actions)
    is_over: Callable[[], bool] = lambda: False
    """Whether the server ends, which waits for all answers, also those without an end."""
    _live: dict[str, LiveJob] = field(default_factory=dict)

    def __post_init__(self) -> None:
        may_run = self.browser.shows_values and not self.read_only
        self._changes = Changes(self.jobs.local_dir, self.browser.options, may_run)

    def close(self) -> None:
        """End what the server runs."""
        self._changes.cancel()

    def app(self, token: str, cookie: str) -> Starlette:
        """Return the application, which answers only browsers that came with the token."""
        job = "/api/jobs/{job}"
        return Starlette(
            routes=[
                Route("/", _index),
                Route("/api/jobs", _endpoint(self._jobs)),
                Route("/api/events", self._events(self._jobs, 2 * _EVENT_S)),
                Route(f"{job}/events", self._job_events),
                Route(f"{job}/past", _endpoint(self._past)),
                Route(f"{job}/history", _endpoint(self._history)),
                Route(f"{job}/log", _endpoint(self._log)),
                Route(f"{job}/tables", _endpoint(self._tables)),
                Route(f"{job}/rows", _endpoint(self._rows)),
                Route(f"{job}/query", _endpoint(self._query), methods=["POST"]),
                Route(f"{job}/difference", _endpoint(self._difference), methods=["POST"]),
                Route(f"{job}/key", _endpoint(self._key), methods=["POST"]),
                Route(f"{job}/changes", _endpoint(self._look_for_changes), methods=["GET"]),
                Route(f"{job}/changes", _endpoint(self._run_changes), methods=["POST"]),
                Route(f"{job}/changes/cancel", _endpoint(self._cancel_changes), methods=["POST"]),
                Route(f"{job}/actions/{{action}}", _endpoint(self._act), methods=["POST"]),
                Mount("/", StaticFiles(directory=_STATIC)),
            ],
            middleware=[Middleware(Guard, token=token, cookie=cookie)],
        )

    def _jobs(self, request: Request, _: bytes) -> Any:
        return {
            "version": VERSION,
            "values": self.browser.shows_values,
            "read_only": self.read_only,
            "local_dir": str(self.jobs.local_dir),
            "jobs": [_summary(job) for job in self.jobs.all()],
            "problem": self.jobs.problem,
        }

    async def _job_events(self, request: Request) -> Response:
        viewer: Viewer | None = None

        def look(request: Request, _: bytes) -> Any:
            nonlocal viewer
            job = self._job(request)
            viewer = viewer or Viewer(self._live.setdefault(job.id, LiveJob(shows_values=self.browser.shows_values)))
            figures = viewer.look(job.driver) if job.driver is not None else {}
            return {**_summary(job), **figures, "actions": self.actions.in_progress(job)}

        return await self._events(look, _EVENT_S)(request)

    def _events(self, handler: Handler, every_s: float) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that sends what a handler returns, again and again, as Server-Sent Events."""

        async def endpoint(request: Request) -> Response:
            async def events() -> AsyncIterator[bytes]:
                while not (self.is_over() or await request.is_disconnected()):
                    value, _ = await _outcome(handler, request, b"")
                    yield b"data: " + msgspec.json.encode(value) + b"\n\n"
                    await anyio.sleep(every_s)

            return StreamingResponse(events(), media_type="text/event-stream")

        return endpoint

    def _past(self, request: Request, _: bytes) -> Any:
        return read_past(self.jobs.directory_of(self._job(request)))

    def _history(self, request: Request, _: bytes) -> Any:
        job, hours = self._job(request), request.query_params.get("hours", "0")
        if not hours.isdecimal():
            raise ConfigurationError(f"'{hours}' is no number of hours")
        return read_history(self._places(job).event_log, _is_of(job), int(hours))

    def _log(self, request: Request, _: bytes) -> Any:
        job = self._job(request)
        places, is_its = self._places(job), _is_of(job)
        # Jobs of one name and other directories have the same log.
        drivers = drivers_of(places.event_log)
        others = {pid for pid, directories in drivers.items() if not any(map(is_its, directories))}
        return [each for each in read_entries(places.driver_log) if each.pid not in others]

    def _places(self, job: Job) -> Places:
        return Places(self.jobs.local_dir, "", job.name)

    def _tables(self, request: Request, _: bytes) -> Any:
        if request.query_params.get("checkpoint") == _NOW:
            return tables_of(self._driver(request))
        return self.browser.tables(self._snapshot(request))

    def _rows(self, request: Request, _: bytes) -> Any:
        wanted = request.query_params
        table = wanted.get("table", "")
        if wanted.get("checkpoint") == _NOW:
            key, partition = wanted.getlist("key"), wanted.get("partition", "")
            return self.browser.living_rows(self._driver(request), table, partition, key)
        return self.browser.rows(self._snapshot(request), table)

    def _query(self, request: Request, body: bytes) -> Any:
        return self.browser.query(self._snapshot(request), _decode(body, _Query).sql)

    def _difference(self, request: Request, body: bytes) -> Any:
        wanted, job = _decode(body, _Difference), self._job(request)
        other = self.jobs.get(wanted.job) if wanted.job else job
        before, after = f"{job.url}/chk-{wanted.before}", f"{other.url}/chk-{wanted.after}"
        return self.browser.difference(before, after, wanted.sample)

    def _key(self, request: Request, body: bytes) -> Any:
        wanted, job = _decode(body, _Key), self._job(request)
        checkpoints = read_past(self.jobs.directory_of(job))["checkpoints"]
        complete = [each["checkpoint"] for each in checkpoints if each["state"] == "complete"]
        state = self.browser.key(job, complete, wanted.operator, wanted.key)
        return state | {"changes": self._changes.plan(job, wanted.operator, state["text"])}

    def _look_for_changes(self, request: Request, _: bytes) -> Any:
        return {"run": self._changes.look(self._job(request))}

    def _run_changes(self, request: Request, body: bytes) -> Any:
        self.browser.check()
        wanted, job = _decode(body, _Changes), self._job(request)
        self._changes.start(job, wanted.operator, wanted.key, wanted.start, wanted.to)
        return {"run": self._changes.look(job)}

    def _cancel_changes(self, request: Request, _: bytes) -> Any:
        job = self._job(request)
        self._changes.cancel(job)
        return {"run": self._changes.look(job)}

    def _act(self, request: Request, body: bytes) -> Any:
        return self.actions.act(self._job(request), request.path_params["action"], body, read_only=self.read_only)

    def _job(self, request: Request) -> Job:
        return self.jobs.get(request.path_params["job"])

    def _driver(self, request: Request) -> Driver:
        job = self._job(request)
        if job.driver is None:
            raise UnavailableError(f"job '{job.name}' does not run here", hint="its checkpoints can be read")
        return job.driver

    def _snapshot(self, request: Request) -> str:
        """Return the url of the checkpoint that a request names, or the job's folder: its newest one."""
        job, number = self._job(request), request.query_params.get("checkpoint", "")
        if number and not number.isdecimal():
            raise ConfigurationError(f"'{number}' is no number of a checkpoint")
        return f"{job.url}/chk-{number}" if number else job.url


def _is_of(job: Job) -> Callable[[str], bool]:
    """Return a check whether a checkpoint directory is the one of a job."""
    return cache(lambda directory: url_of(job.name, directory) == job.url)


def _summary(job: Job) -> dict[str, Any]:
    record, driver = job.record, job.driver
    has_ended = record is not None and driver is None and record.fate not in ("", "killed")
    return {
        "id": job.id, "name": job.name, "url": job.url, "state": job.state, "problem": job.problem,
        "pid": driver.pid if driver else record.pid if record else None,
        "since_ms": driver.since_ms if driver else record.since_ms if record else None,
        "ended_ms": record.at_ms if record and has_ended else None,
        "failure": record.failure if record else "", "failure_ms": record.failure_ms if record else None,
    }  # fmt: skip


async def _index(request: Request) -> Response:
    return FileResponse(_STATIC / "index.html")


def _endpoint(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that answers with what a handler returns, or with its error."""

    async def endpoint(request: Request) -> Response:
        value, code = await _outcome(handler, request, await request.body())
        return Response(msgspec.json.encode(value), code, media_type="application/json")

    return endpoint


async def _outcome(handler: Handler, request: Request, body: bytes) -> tuple[Any, int]:
    """Call a handler in a thread; return its value, or its error, and the code of the answer."""
    try:
        return await to_thread.run_sync(partial(handler, request, body)), 200
    except StrandlineError as error:
        code = next((code for kind, code in _CODES if isinstance(error, kind)), 500)
        return {"error": error.message, "hint": error.hint}, code


def _decode(body: bytes, kind: type[B]) -> B:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"this is no such request: {error}") from None
