"""Commands of the page to a running job, and their progress."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import msgspec

from strandline.control.client import call
from strandline.control.commands import CHECKPOINT, PROFILE, RESCALE, ROLLBACK, SAVEPOINT, STOP, Command
from strandline.control.wire import ProgressMessage
from strandline.core.errors import ConfigurationError, NotFoundError
from strandline.ui.jobs import Job

_CHANGES = (CHECKPOINT, SAVEPOINT, RESCALE, ROLLBACK, STOP)
_ACTIONS: dict[str, Command[Any, Any]] = {command.name: command for command in (*_CHANGES, PROFILE)}


@dataclass
class Actions:
    """Sends commands, and remembers those in progress. Thread-safe."""

    _in_progress: dict[tuple[str, str], ProgressMessage] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def act(self, job: Job, name: str, body: bytes, *, read_only: bool = False) -> Any:
        """Send a command with JSON as its arguments, and wait for the result."""
        command = _ACTIONS.get(name)
        if read_only and command in _CHANGES:
            raise ConfigurationError("the page is read-only", hint="start it without --read-only")
        if command is None:
            raise NotFoundError(f"there is no action '{name}'", hint=f"there are {', '.join(_ACTIONS)}")
        if job.driver is None:
            raise ConfigurationError(f"job '{job.name}' does not run here", hint="start its program again")
        try:
            arguments = msgspec.json.decode(body, type=command.arguments)
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"the arguments of '{name}' are wrong: {error}") from None
        at = (job.id, name)
        with self._lock:
            if at in self._in_progress:
                raise ConfigurationError(f"job '{job.name}' is working on '{name}' already")
            self._in_progress[at] = ProgressMessage(name)
        try:
            return call(job.driver, command, arguments, on_progress=lambda news: self._note(at, news))
        finally:
            with self._lock:
                del self._in_progress[at]

    def in_progress(self, job: Job) -> list[dict[str, Any]]:
        """Return a job's commands in progress, and how far they are."""
        with self._lock:
            return [
                {"name": name, **msgspec.to_builtins(news)}
                for (job_id, name), news in self._in_progress.items()
                if job_id == job.id
            ]

    def _note(self, at: tuple[str, str], news: ProgressMessage) -> None:
        with self._lock:
            self._in_progress[at] = news
