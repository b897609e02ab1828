"""Jobs of the page and of `strandline top`: those of this machine, and those with checkpoints in a directory."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from strandline.checkpoint.jobdir import JobDirectory
from strandline.control.client import Driver, find_drivers
from strandline.control.journal import JournalEntry, records
from strandline.core.errors import NotFoundError, StrandlineError
from strandline.snapshot.opening.snapshot import as_job, job_paths, open_folder, plain_url

_FIND_S = 1.0
_LIST_S = 10.0
"""How long a list of a directory counts: object storage charges for each."""
_LIST_WAIT_S = 1.0
"""How long a request waits for a new one, before it has the last one."""
_SILENT_S = 10.0
"""How long a list takes when the page says so: that of a large bucket takes a while."""
_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Job:
    """A job, wherever it is known from."""

    id: str
    """A short name for addresses."""
    name: str
    url: str
    """Its own folder in the checkpoint directory."""
    driver: Driver | None = None
    """The driver that runs it on this machine."""
    record: JournalEntry | None = None
    """The record of its newest driver on this machine."""
    problem: str = ""
    """Why its folder cannot be read."""

    @property
    def state(self) -> str:
        """The state without a request to its driver; "" if only its checkpoints are known."""
        if self.driver is not None:
            return "running" if self.driver.answers else "does not answer"
        return self.record.fate or "does not answer" if self.record is not None else ""


@dataclass
class Jobs:
    """Finds the jobs. Thread-safe."""

    local_dir: Path
    wanted: Sequence[str] = ()
    """Names of jobs, and directories of checkpoints. Without one, all jobs of this machine."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Settings of the storage client."""

    def __post_init__(self) -> None:
        self._directories = [each for each in self.wanted if is_directory(each)]
        self.names = [each for each in self.wanted if not is_directory(each)]
        self._lock = threading.Lock()
        self._newest: tuple[float, list[Job]] | None = None
        self._in_storage: list[Job] | None = None
        self._listed_s = 0.0
        """When the last list began, or ended."""
        self._listing: threading.Thread | None = None
        self._failure = ""
        """Of the last list."""

    @property
    def problem(self) -> str:
        """Why the directories cannot be listed now: their jobs are those of the last list."""
        is_silent = self._is_listing and time.monotonic() - self._listed_s > _SILENT_S
        return "their storage does not answer" if is_silent else self._failure

    @property
    def _is_listing(self) -> bool:
        return self._listing is not None and self._listing.is_alive()

    def all(self) -> list[Job]:
        """Return the jobs by name; those that run come first."""
        with self._lock:
            if self._newest is None or time.monotonic() - self._newest[0] > _FIND_S:
                self._newest = time.monotonic(), self._find()
            return self._newest[1]

    def get(self, job_id: str) -> Job:
        """Return a job by its id."""
        for job in self.all():
            if job.id == job_id:
                return job
        raise NotFoundError("there is no such job any more", hint="go back to the list of jobs")

    def directory_of(self, job: Job) -> JobDirectory:
        """Open a job's folder."""
        folder = open_folder(job.url, self.options, fsync=False)
        return JobDirectory(folder.store, job.name, folder=folder.path)

    def _find(self) -> list[Job]:
        jobs = {job.url: job for job in self._in_directories()}
        for record in reversed(records(self.local_dir)):
            job = _job(record.job, record.directory)
            if self._is_wanted(job, jobs):
                jobs[job.url] = replace(jobs.get(job.url, job), record=record)
        # Of two drivers of a job, the newer one has replaced the other.
        for driver in sorted(find_drivers(self.local_dir, _TIMEOUT_S), key=lambda driver: driver.since_ms):
            if driver.answers and self._is_wanted(job := _job(driver.job, driver.directory), jobs):
                jobs[job.url] = replace(jobs.get(job.url, job), driver=driver)
        return sorted(jobs.values(), key=lambda job: (job.driver is None, job.name, job.url))

    def _is_wanted(self, job: Job, in_storage: Mapping[str, Job]) -> bool:
        return not self.wanted or job.name in self.names or job.url in in_storage

    def _in_directories(self) -> list[Job]:
        """Return the jobs of the directories. Storage that hangs holds up only the first list."""
        if self._in_storage is None:
            self._in_storage = self._list()
        elif self._directories and not self._is_listing and time.monotonic() - self._listed_s > _LIST_S:
            self._listed_s = time.monotonic()
            self._listing = threading.Thread(target=self._list_again, name="strandline-ui-list", daemon=True)
            self._listing.start()
            self._listing.join(_LIST_WAIT_S)
        return self._in_storage

    def _list(self) -> list[Job]:
        jobs = [job for each in self._directories for job in self._in_directory(each)]
        self._listed_s = time.monotonic()
        return jobs

    def _list_again(self) -> None:
        try:
            self._in_storage, self._failure = self._list(), ""
        except StrandlineError as error:
            self._failure, self._listed_s = error.message, time.monotonic()

    def _in_directory(self, directory: str) -> list[Job]:
        folder = open_folder(directory, self.options, fsync=False)
        jobs = []
        for path in job_paths(info.path for info in folder.list()):
            here = open_folder(f"{folder.url}/{quote(path)}", self.options, fsync=False) if path else folder
            parent, _, name = here.url.rpartition("/")
            try:
                jobdir = as_job(here)
            except StrandlineError as error:
                jobs.append(replace(_job(unquote(name), parent), problem=error.message))
            else:
                jobs.append(replace(_job(unquote(name), parent), name=jobdir.job if jobdir else unquote(name)))
        return jobs


def is_directory(argument: str) -> bool:
    """Whether an argument is a directory of checkpoints, and not a job's name, which has no slash."""
    return "/" in argument or argument in (".", "..") or Path(argument).is_dir()


def url_of(name: str, directory: str) -> str:
    """Return the url of a job's own folder in a checkpoint directory, one and the same however that is written."""
    url = plain_url(f"{directory.rstrip('/')}/{quote(name)}")
    parts = urlsplit(url)
    path = unquote(parts.path)
    return Path(path).resolve().as_uri() if parts.scheme == "file" else f"{parts.scheme}://{parts.netloc}{quote(path)}"


def _job(name: str, directory: str) -> Job:
    url = url_of(name, directory)
    return Job(hashlib.sha256(url.encode()).hexdigest()[:12], name, url)
