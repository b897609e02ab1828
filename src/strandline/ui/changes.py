"""Each change of a key, found by `strandline history` in a process of its own: the job's program runs recorded epochs.

One runs at a time, for at most `_LIMIT_S`. Its checkpoint is pinned meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from strandline.core.errors import ConfigurationError, NotFoundError, UnavailableError
from strandline.core.settings import default_local_dir
from strandline.snapshot.opening.snapshot import pinned_snapshot
from strandline.snapshot.rows.keys import key_from_text
from strandline.ui.browse import key_text
from strandline.ui.child import TIME_IS_UP
from strandline.ui.jobs import Job
from strandline.ui.steps import step_of

_LIMIT_S = 900.0
_MOST_STEPS = 200
"""The newest changes are kept."""
_MOST_LINES = 40
"""Of what the process says."""

RunState = Literal["running", "done", "cancelled", "failed"]


@dataclass
class Run:
    """One run, in progress or ended."""

    job: str
    name: str
    operator: str
    key: list[str]
    start: int
    """The number of the checkpoint with which it begins."""
    first_epoch: int
    process: subprocess.Popen[str]
    state: RunState = "running"
    done: int = 0
    total: int | None = None
    """Epochs that have run, and those that are to; None until the first begins."""
    changes: int = 0
    """All that were found; not all are kept."""
    steps: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_MOST_STEPS))
    error: str = ""
    hint: str = ""

    def to_page(self) -> dict[str, Any]:
        """Return its data for the page; the steps once it has ended."""
        return {
            "operator": self.operator, "key": self.key, "start": self.start, "first_epoch": self.first_epoch,
            "state": self.state, "done": self.done, "total": self.total, "changes": self.changes,
            "error": self.error, "hint": self.hint, "steps": [*self.steps] if self.state == "done" else [],
        }  # fmt: skip


@dataclass
class Changes:
    """Runs one history at a time, and keeps the last. Thread-safe."""

    local_dir: Path
    options: Mapping[str, str]
    may_run: bool
    """Whether the page shows values, and has buttons."""
    limit_s: float = _LIMIT_S
    _run: Run | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _starting: threading.Lock = field(default_factory=threading.Lock, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def plan(self, job: Job, uid: str, key: str) -> dict[str, Any]:
        """Return what a run would do, or why there can be none; and the command that does it in a terminal.

        The command has CHECKPOINT in place of the snapshot with which it begins.
        """
        program = job.record.program if job.record is not None else None
        why, has_changed = "", False
        if program is None or job.record is None:
            why = "its program is not known here: it was started elsewhere, or by no program file"
        elif not (Path(program.path).is_file() and Path(program.folder).is_dir()):
            why = f"its program {program.path}, or the directory {program.folder}, is not there any more"
        else:
            has_changed = Path(program.path).stat().st_mtime * 1000 > job.record.since_ms
        local_dir = [] if why or self.local_dir == default_local_dir() else ["--local-dir", str(self.local_dir)]
        # Else a key with a minus is taken for an option.
        separated = ["--", key] if key.startswith("-") else [key, "--"] if why else [key]
        names = ["PROGRAM", uid, *separated, "ARGUMENTS"] if why else [job.name, uid, *separated]
        command = shlex.join(["strandline", "history", "--from", "CHECKPOINT", *local_dir, *names])
        if not why and not self.may_run:
            why = "the page is read-only, and runs no program"
        return {
            "program": program.path if program is not None else "", "has_changed": has_changed, "why_not": why,
            "command": command, "limit_minutes": self.limit_s / 60, "is_running": job.driver is not None,
        }  # fmt: skip

    def start(self, job: Job, uid: str, texts: Sequence[str], start: int, to: int | None = None) -> None:
        """Begin a run, up to an epoch or the last that is recorded.

        Raises UnavailableError while another is in progress, and the errors of the checkpoint.
        """
        if not self._starting.acquire(blocking=False):
            raise UnavailableError("another history is about to be made", hint="try again when it has ended")
        try:
            self._start(job, uid, texts, start, to)
        finally:
            self._starting.release()

    def _start(self, job: Job, uid: str, texts: Sequence[str], start: int, to: int | None) -> None:
        last = self._run
        if last is not None and last.state == "running":
            raise UnavailableError(
                f"another history is being made: of the key {', '.join(last.key)} of job '{last.name}'",
                hint="wait until it has ended, or cancel it there",
            )
        with ExitStack() as until_end:
            snapshot = until_end.enter_context(pinned_snapshot(f"{job.url}/chk-{start}", self.options))
            operator = next((each for each in snapshot.manifest.operators if each.uid == uid), None)
            if operator is None:
                raise NotFoundError(f"{snapshot.url}: there is no operator '{uid}'", hint="look up the key again")
            key = key_text(key_from_text(operator, texts), len(texts))
            plan = self.plan(job, uid, key)
            if plan["why_not"] or job.record is None:
                hint = f"in a terminal: {plan['command'].replace('CHECKPOINT', str(start))}"
                raise ConfigurationError(f"job '{job.name}' is not run again: {plan['why_not']}", hint=hint)
            command = [
                sys.executable, "-m", "strandline.cli.main", "history", "--json", "--progress", "--last",
                str(_MOST_STEPS), "--from", snapshot.reading_url, "--directory", job.record.directory, "--local-dir",
                str(self.local_dir), *([] if to is None else ["--to", str(to)]), "--", job.name, uid, key,
            ]  # fmt: skip
            # In a group of its own: a terminal sends Ctrl-C to the server's, and this process is to end behind it.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "strandline.ui.child", str(self.limit_s), *command], env=_environment(),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                process_group=0,
            )  # fmt: skip
            run = Run(job.id, job.name, uid, [*texts], start, snapshot.manifest.epoch + 1, process)
            self._thread = threading.Thread(
                target=self._follow, args=(run, until_end.pop_all()), name="strandline-ui-history"
            )
            with self._lock:
                self._run = run
            self._thread.start()

    def look(self, job: Job) -> dict[str, Any] | None:
        """Return the last run, if it is one of a job."""
        with self._lock:
            return self._run.to_page() if self._run is not None and self._run.job == job.id else None

    def cancel(self, job: Job | None = None) -> None:
        """End the run in progress, if it is one of a job, or of any; return when it is gone."""
        with self._lock:
            run, thread = self._run, self._thread
            if run is None or thread is None or (job is not None and run.job != job.id):
                return
            if run.state == "running":
                run.state = "cancelled"
        assert run.process.stdin is not None
        with contextlib.suppress(OSError):
            run.process.stdin.close()
        thread.join()

    def _follow(self, run: Run, until_end: ExitStack) -> None:
        """Read what the process says, to its end."""
        messages: deque[str] = deque(maxlen=_MOST_LINES)
        process = run.process
        assert process.stdout is not None
        assert process.stderr is not None
        listening = threading.Thread(target=messages.extend, args=(process.stderr,), name="strandline-ui-listen")
        code = 1
        try:
            with until_end, process:
                listening.start()
                for line in process.stdout:
                    self._take(run, line)
                listening.join()
                code = process.wait()
        finally:
            # Also if a line is none of ours: another run can begin.
            with self._lock:
                self._end(run, code, messages)

    def _end(self, run: Run, code: int, messages: Sequence[str]) -> None:
        if run.state != "running":
            return
        if code == 0:
            run.state = "done"
            return
        run.state = "failed"
        run.error, run.hint = self._why(code, messages)

    def _take(self, run: Run, line: str) -> None:
        data = _decoded(line)
        progress = data.get("progress")
        if isinstance(progress, dict):
            with self._lock:
                run.done, run.total, run.changes = progress["done"], progress["total"], progress["changes"]
        elif {"call", "before", "after"} <= data.keys():
            run.steps.append(step_of(data))

    def _why(self, code: int, messages: Sequence[str]) -> tuple[str, str]:
        """Return the reason of a failure, and the next step."""
        if code == TIME_IS_UP:
            minutes = self.limit_s / 60
            return f"it was ended after {minutes:.2g} minutes", "begin with a newer checkpoint, or run it in a terminal"
        _, marker, error = "".join(messages).rstrip().rpartition("error: ")
        if not marker or "\nTraceback " in error:
            # The last line of a traceback says what it is.
            last = error.rpartition("\n")[2]
            return f"its process ended with code {code}: {last}", "run it in a terminal, which shows all that it says"
        error, _, hint = error.partition("\n  next step: ")
        return error, hint.partition("\n")[0]


def _environment() -> dict[str, str]:
    """Return the environment of the process, which works in another directory."""
    paths = [str(Path(each).absolute()) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _decoded(line: str) -> dict[str, Any]:
    """Return the JSON object of a line; other lines are a program's own."""
    try:
        data = json.loads(line)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
