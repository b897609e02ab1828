"""The dashboard: what its page shows of the payments job, and what its buttons do. `server` serves both.

Everything that it knows comes from Strandline's public API (`status`, look-ups, snapshots), from the sink's files, and
from the books, which count the payments again without an engine.
"""

from __future__ import annotations

import inspect
import logging
import os
import signal
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import strandline as sl
from examples.payments.audit import Audit, AuditedJob, sums
from examples.payments.books import Books
from examples.payments.job import RETAINED, build
from examples.payments.model import KINDS, Alert, Rules
from examples.payments.monitor import Monitor

PATIENCE_S = 60.0
_SAMPLE_S = 0.25
_POINT_S = 1.0
_POINTS = 180
_CARDS = 8
_STEPS = 400
_LISTED = 8
_MARGIN = timedelta(seconds=1)
"""Payments are in order of time, but for some milliseconds."""
_NEVER = datetime.min.replace(tzinfo=UTC)


class ActionError(Exception):
    """What a button was to do is not possible now, or did not happen."""


class Journal(logging.Handler):
    """What has happened, in words; also the place of the engine's warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.started = time.monotonic()
        self.messages: list[str] = []

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.started

    def say(self, text: str) -> None:
        """Add a message."""
        self.messages.append(f"{self.elapsed_s:5.1f} s  {text}")

    def emit(self, record: logging.LogRecord) -> None:
        """Show a warning of the engine's as a message."""
        if record.name.startswith("strandline"):
            self.say(record.getMessage().splitlines()[0])


@dataclass
class CardPath:
    """The way of one card through the state, as far as a page has looked."""

    steps: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_STEPS))
    payments: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """Amounts by time, of the payments that the state remembers or has remembered."""


class Dashboard:
    """The job, perhaps a fork of it, and what is known of both. Thread-safe."""

    def __init__(self, home: Path, journal: Journal) -> None:
        self.home = home
        self.journal = journal
        self.main = AuditedJob("demo", Monitor(home / "alerts"), Books(home / "payments"))
        self.fork: AuditedJob | None = None
        self.doing = ""
        """What is being done now, for a button or for the demo."""
        self.passed = ""
        """What was compared at the end of the demo's story."""
        self.outcome = ""
        """How all ended; the page shows it when nothing comes any more."""
        self.recovered_s = 0.0
        """How long the newest recovery took."""
        self.savepoints: list[dict[str, Any]] = []
        self._spark: Any = None
        self._failure: Exception | None = None
        self._points: deque[list[float]] = deque(maxlen=_POINTS)
        self._marks: deque[tuple[float, str]] = deque(maxlen=30)
        self._paths: OrderedDict[str, CardPath] = OrderedDict()
        self._number = 0
        self._acting = threading.RLock()
        self._looking = threading.Lock()
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(work,), name=f"dashboard-{name}", daemon=True)
            for name, work in (("sample", self._sample), ("count", self._count))
        ]
        for thread in self._threads:
            thread.start()

    # --- the job

    @property
    def run(self) -> sl.Run:
        """The run of the job; another one after it went back to a savepoint."""
        if self.main.run is None:
            raise ActionError("the job has not been started yet")
        return self.main.run

    def start(self, spark: Any = None) -> None:
        """Start the job, or go on with it in the same session."""
        self._spark = spark or self._spark
        self._start(self.main, build(self._spark, self.home))

    def finish(self) -> None:
        """Process what has arrived, and stop the job with a last checkpoint; end the fork."""
        with self.at_work("the end"):
            if self.fork is not None:
                self.end_fork()
            self.run.process_all_available(2 * PATIENCE_S)
            self.journal.say("taking the final checkpoint: it makes the last alerts visible")
            self.run.stop(checkpoint=True, timeout=PATIENCE_S)
            self.main.monitor.sample()

    def end_jobs(self) -> None:
        """Stop the jobs as they are. What a button has begun ends first, or fails."""
        self._closed.set()
        has_ended = self._acting.acquire(timeout=PATIENCE_S)
        for audited in filter(None, (self.fork, self.main)):
            if audited.run is not None:
                with suppress(sl.errors.StrandlineError):
                    audited.run.stop(timeout=15.0)
        if has_ended:
            self._acting.release()

    def close(self) -> None:
        """End all threads. The jobs have ended."""
        self._closed.set()
        for thread in self._threads:
            thread.join(10)

    def wait_for(self, condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
        """Wait for a condition while the job lives; time in which a button has it do something else does not count."""
        deadline = time.monotonic() + patience_s
        while not condition():
            run, asked = self.run, time.monotonic()
            if self._failure is not None:
                raise self._failure
            has_ended = run.await_termination(0.1)
            with self._acting:
                deadline += max(0.0, time.monotonic() - asked - 0.2)
                if has_ended and run is self.run:
                    raise ActionError(f"the job ended while waiting for {what}")
            if self._closed.is_set() or time.monotonic() > deadline:
                raise ActionError(f"waited {patience_s:.0f} s for {what}, in vain; the job is {run.glance().state}")

    @contextmanager
    def at_work(self, what: str, *, waits: bool = True) -> Iterator[None]:
        """Keep others from changing the jobs in the block. Raises ActionError if they do, and it is not to wait."""
        if not self._acting.acquire(blocking=waits):
            raise ActionError(f"wait a moment: the dashboard is busy with '{self.doing}'")
        self.doing = what
        try:
            yield
        finally:
            self.doing = ""
            self.main.audit_due = True
            self._acting.release()

    def _start(self, audited: AuditedJob, job: sl.Job, **restore: Any) -> sl.Run:
        if self._closed.is_set():
            raise ActionError("the demo ends")
        run = audited.run = job.start(self._spark, **restore)
        audited.monitor.watch(run)
        return run

    # --- what the buttons do; each returns a sentence

    def act(self, action: str, wanted: dict[str, Any]) -> str:
        """Do what a button says. Raises ActionError, also while something else is being done."""
        known: dict[str, Callable[..., str]] = {
            "kill": self.kill, "rescale": self.rescale, "savepoint": self.savepoint, "back": self.go_back,
            "fork": self.start_fork, "end_fork": self.end_fork,
        }  # fmt: skip
        if action not in known:
            raise ActionError(f"there is no action '{action}'; there are {', '.join(known)}")
        try:
            inspect.signature(known[action]).bind(**wanted)
        except TypeError as error:
            raise ActionError(f"'{action}' has other arguments: {error}") from None
        with self.at_work(action, waits=False):
            if self._closed.is_set() or self.run.glance().state not in ("running", "restarting"):
                raise ActionError("the job does not run now")
            try:
                return known[action](**wanted)
            except sl.errors.StrandlineError as error:
                raise ActionError(str(error)) from error

    def kill(self, partition: int = 0) -> str:
        """Kill the keeper of a partition with SIGKILL, and wait for the first new epoch."""
        run = self.run
        before = run.status()
        victim = next((keeper for keeper in before.keepers if keeper.partition == partition), None)
        if victim is None:
            raise ActionError(f"there is no partition {partition}, or its keeper is just being started")
        killed = time.monotonic()
        try:
            if b"strandline.keeper.process" not in Path(f"/proc/{victim.pid}/cmdline").read_bytes():
                raise ActionError(f"process {victim.pid} is no keeper")
            os.kill(victim.pid, signal.SIGKILL)
        except OSError as error:
            raise ActionError(f"process {victim.pid} has just ended by itself") from error
        self._note(
            "kill -9",
            f"kill -9 {victim.pid}: the keeper of partition {victim.partition} is gone, in epoch {before.epoch}",
        )

        def is_back() -> bool:
            now = run.glance()
            # A keeper that had done nothing since it was restored is replaced alone.
            is_replaced = now.generation == before.generation and now.replaced_keepers > before.replaced_keepers
            return now.state == "running" and (
                (now.restarts > before.restarts and now.epochs > 0) or (is_replaced and now.epoch > before.epoch)
            )

        self.wait_for(is_back, "recovery")
        self.recovered_s = time.monotonic() - killed
        after = run.status()
        if after.restarts > before.restarts:
            how = f"generation {after.generation} went on from checkpoint {after.restored_from}"
        else:
            how = "the keeper was replaced alone, since it had done nothing yet"
        return self._note("", f"recovered: {how}; first new epoch after {self.recovered_s:.1f} s")

    def rescale(self, parallelism: int) -> str:
        """Go on with another number of partitions."""
        if not isinstance(parallelism, int) or not 1 <= parallelism <= 8:
            raise ActionError(f"{parallelism!r} partitions are not possible here: 1 to 8 are")
        began = time.monotonic()
        self.run.rescale(parallelism)
        took_s = time.monotonic() - began
        return self._note(f"{parallelism} partitions", f"rescaled to {parallelism} partitions in {took_s:.1f} s")

    def savepoint(self) -> str:
        """Take a savepoint, to which the job can go back later."""
        taken = self._take("savepoint")
        said = f"savepoint {taken['name']} has the state of {taken['payments']:,} payments"
        return self._note(taken["name"], f"{said}: {taken['bytes'] / 1e6:.1f} MB of Parquet tables")

    def go_back(self, checkpoint: int | None = None, savepoint: str | None = None) -> str:
        """Go back to a checkpoint that is kept, or to a savepoint, and on from there."""
        began = time.monotonic()
        monitor = self.main.monitor
        if isinstance(checkpoint, int):
            epoch = next((each.epoch for each in monitor.completed() if each.checkpoint == checkpoint), 0)
            self.run.rollback(checkpoint)
            monitor.forget_after(checkpoint)
            where = f"checkpoint {checkpoint}"
        else:
            taken = next((each for each in self.savepoints if each["name"] == savepoint), None)
            if taken is None:
                raise ActionError(f"there is no savepoint {savepoint!r} to go back to")
            parallelism = self.run.glance().parallelism
            self.run.stop(timeout=PATIENCE_S)
            self._number += 1
            restore = {"restore": taken["url"], "again": f"back {self._number}"}
            try:
                self._start(self.main, build(self._spark, self.home, parallelism=parallelism), **restore)
            except sl.errors.StrandlineError:
                # It goes on from where it was.
                self._start(self.main, build(self._spark, self.home, parallelism=parallelism))
                raise
            monitor.forget_after(0)
            epoch, where = taken["epoch"], taken["name"]
        # The job cannot go forward to what it has undone; another job could.
        self.savepoints = [each for each in self.savepoints if each["epoch"] <= epoch]
        self.main.audit = None
        took_s = time.monotonic() - began
        return self._note(
            f"back to {where}",
            f"went back to {where} in {took_s:.1f} s: later alerts are taken back, and payments since then read again",
        )

    def start_fork(self, tests: int, deviations: int) -> str:
        """Start a second job from a savepoint of the first, with other rules, over the same payments."""
        if not (isinstance(tests, int) and isinstance(deviations, int) and 1 <= tests <= 10 and 1 <= deviations <= 20):
            raise ActionError(f"rules of {tests!r} tests and {deviations!r} deviations: expected 1 to 10, and 1 to 20")
        if self.fork is not None:
            raise ActionError("there is a fork already: end it first")
        rules = Rules(tests, deviations)
        taken = self._take("fork")
        self.wait_for(lambda: self.main.books.payments >= taken["payments"], "the books")
        name = f"demo-{taken['name']}"
        folder = f"alerts-{taken['name']}"
        audited = AuditedJob(name, Monitor(self.home / folder), Books(self.home / "payments", rules), taken["payments"])
        self._start(audited, build(self._spark, self.home, name=name, alerts=folder, rules=rules), restore=taken["url"])
        self.fork = audited
        return self._note(
            "fork",
            f"job '{name}' goes on from payment {audited.since:,} with {tests} tests and {deviations} deviations",
        )

    def end_fork(self) -> str:
        """End the fork; its alerts stay where they are."""
        fork = self.fork
        if fork is None or fork.run is None:
            raise ActionError("there is no fork")
        # One that has failed is ended, too.
        self.fork = None
        fork.run.stop(timeout=PATIENCE_S)
        return self._note("fork ends", f"job '{fork.name}' was stopped")

    def _take(self, kind: str) -> dict[str, Any]:
        self._number += 1
        name = f"{kind}-{self._number}"
        taken = self.run.savepoint(self.home / "savepoints" / name)
        payments, _ = sums(taken.url)
        made = {
            "name": name, "url": taken.url, "epoch": taken.epoch, "payments": payments, "bytes": taken.total_bytes,
        }  # fmt: skip
        self.savepoints.append(made)
        return made

    def _note(self, mark: str, text: str) -> str:
        if mark:
            self._marks.append((time.time(), mark))
        self.journal.say(text)
        return text

    # --- what is known

    def _work(self, work: Callable[[], None]) -> None:
        """Do a thread's work; its error is one of the dashboard."""
        try:
            work()
        except Exception as error:
            logging.getLogger("strandline.dashboard").warning("the dashboard fails: %r", error, exc_info=True)
            self._failure = error

    def _sample(self) -> None:
        """Sample both jobs until the end, and add a point to the charts each second."""
        due = 0.0
        while not self._closed.wait(_SAMPLE_S):
            for audited in filter(None, (self.main, self.fork)):
                audited.monitor.sample()
            if time.monotonic() >= due:
                due = time.monotonic() + _POINT_S
                status = self.main.monitor.status
                self._points.append([
                    time.time(), self.main.books.payments, status.rows_in if status else 0,
                    self.main.monitor.alerts.total(), self.main.monitor.rate,
                ])  # fmt: skip

    def _count(self) -> None:
        """Keep the books, and compare them with checkpoints."""
        while not self._closed.is_set():
            is_behind = False
            for audited in filter(None, (self.main, self.fork)):
                if audited.books.read():
                    is_behind = True
                elif audited.is_due():
                    audited.compare(self.home / "checkpoints", lambda: self.doing)
            if not is_behind:
                self._closed.wait(0.1)

    def view(self, card: str = "") -> dict[str, Any]:
        """Return all that the page shows, and the path of one card: by default, that of the newest alert."""
        main, status = self.main.monitor, self.main.monitor.status
        completed = main.completed()
        card = card or (main.newest_alerts[0].card if main.newest_alerts else "")
        return {
            "at": time.time(),
            "state": status.state if status else "starting",
            "outcome": self.outcome,
            "passed": self.passed,
            "doing": self.doing,
            "arrived": self.main.books.payments,
            "processed": status.rows_in if status else 0,
            "rate": main.rate,
            "epoch": status.epoch if status else 0,
            "restarts": status.restarts if status else 0,
            "parallelism": status.parallelism if status else 0,
            "alerts": {kind: main.alerts[kind] for kind in KINDS},
            "newest_alerts": [alert._asdict() for alert in main.newest_alerts],
            "newest_payments": [payment._asdict() for payment in [*self.main.books.newest][::-1]],
            "points": [*self._points],
            "marks": [*self._marks],
            "checkpoints": [_figures(stats) for stats in completed[-_LISTED:]],
            "kept": [_figures(stats) for stats in completed[-RETAINED:-1]],
            "savepoints": [
                {"name": s["name"], "epoch": s["epoch"], "payments": s["payments"]} for s in self.savepoints
            ],
            "keepers": [vars(keeper) for keeper in main.keepers],
            "audit": _audit_view(self.main.audit),
            "fork": self._fork_view(),
            "card": self._card_view(card) if card else None,
            "messages": self.journal.messages[-_LISTED:],
            "local_dir": str(self.home / "local"),
        }

    def _fork_view(self) -> dict[str, Any] | None:
        """Return both jobs' alerts since the fork, up to the time to which both have given theirs."""
        fork = self.fork
        if fork is None:
            return None
        ours = self.main.monitor.visible() - self.main.books.expected(fork.since)
        theirs = fork.monitor.visible()
        until = min(max((alert.ts for alert in some), default=_NEVER) for some in (ours, theirs))
        ours, theirs = (
            Counter({alert: n for alert, n in some.items() if alert.ts + _MARGIN <= until}) for some in (ours, theirs)
        )
        status = fork.monitor.status
        return {
            "name": fork.name, "rules": fork.books.rules._asdict(), "usual": self.main.books.rules._asdict(),
            "since": fork.since, "state": status.state if status else "starting",
            "until": None if until == _NEVER else until,
            "processed": fork.since + (status.rows_in if status else 0), "audit": _audit_view(fork.audit),
            "ours": _by_kind(ours), "theirs": _by_kind(theirs),
            "only_ours": _listed(ours - theirs), "only_theirs": _listed(theirs - ours),
        }  # fmt: skip

    def _card_view(self, card: str) -> dict[str, Any]:
        """Look up a card's state in the running job, and add it to the card's path."""
        with self._looking:
            path = self._paths.setdefault(card, CardPath())
            self._paths.move_to_end(card)
            while len(self._paths) > _CARDS:
                self._paths.popitem(last=False)
            try:
                now = {name: self.run.lookup(f"fraud.{name}", card) for name in ("spent", "last_place", "recent")}
            except (sl.errors.UnavailableError, ActionError):
                now = {}
            if now and now["spent"].value is not None:
                count, total, squares = now["spent"].value
                mean = total / count
                deviation = max(0.0, squares / count - mean * mean) ** 0.5
                place = now["last_place"].value
                step = {
                    "epoch": now["spent"].epoch, "count": count, "total": total, "mean": mean, "deviation": deviation,
                    "country": place[0] if place else "", "at": time.time(),
                }  # fmt: skip
                if not path.steps or (path.steps[-1]["count"], path.steps[-1]["total"]) != (count, total):
                    path.steps.append(step)
                for ts, cents in now["recent"].value or ():
                    path.payments[ts.isoformat()] = cents
                while len(path.payments) > _STEPS:
                    path.payments.popitem(last=False)
            return {
                "card": card, "steps": [*path.steps], "payments": [*path.payments.items()],
                "alerts": [alert._asdict() for alert in self.main.monitor.visible() if alert.card == card],
            }  # fmt: skip


def _figures(stats: Any) -> dict[str, Any]:
    pause_ms = max((part.sync_ms for part in stats.partitions), default=0.0)
    return {
        "checkpoint": stats.checkpoint, "epoch": stats.epoch, "took_ms": stats.end_to_end_ms, "pause_ms": pause_ms,
        "at_s": stats.completed_ms / 1000,
        "new_bytes": stats.uploaded_bytes, "bytes": stats.total_bytes,
    }  # fmt: skip


def _audit_view(audit: Audit | None) -> dict[str, Any] | None:
    return None if audit is None else {**vars(audit), "agrees": audit.agrees}


def _by_kind(alerts: Counter[Alert]) -> dict[str, int]:
    return {kind: sum(n for alert, n in alerts.items() if alert.kind == kind) for kind in KINDS}


def _listed(alerts: Counter[Alert]) -> list[dict[str, Any]]:
    newest = sorted(alerts, key=lambda alert: alert.ts, reverse=True)[:_LISTED]
    return [alert._asdict() for alert in newest]
