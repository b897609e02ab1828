"""What the tests on real Spark share: a job with its input and oracle, a reader that looks on, processes of ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import strandline as sl
from strandline.spark.lower.reduction import BY_TASK, OFF, Reduction
from tests import jvm
from tests.soak import MODE, SMALL_LOG
from tests.spark import pipeline

_ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 120.0
Rows = tuple[Counter[tuple[Any, ...]], Counter[tuple[Any, ...]]]


def eventually(condition: Callable[[], Any], what: str, timeout_s: float = TIMEOUT_S, every_s: float = 0.02) -> Any:
    """Wait until the condition holds; return its value. One that costs something is asked for less often."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"after {timeout_s} s still not: {what}"
        time.sleep(every_s)


class Case:
    """One job of the two-operator pipeline: where it lies, what it has read, and what its sinks must show."""

    def __init__(self, root: Path, local_dir: Path, seed: int = 1) -> None:
        self.root = root
        self.local_dir = local_dir
        self.seed = seed
        self.events: list[dict[str, Any]] = []
        self._expected: tuple[int, Rows] | None = None
        self.files = 0
        self.out = root / "out"
        self.short = False
        """Without the operator behind the first: an epoch costs half as much."""
        self.apps: list[App] = []

    def add(self, files: int = 1, rows: int = 40) -> None:
        """Add input files; each is an epoch of its own."""
        for _ in range(files):
            # Known before it is there, so that a reader that looks on never sees a row that nobody expects.
            self.events += pipeline.events_of(self.seed, self.files, rows)
            pipeline.write_file(self.root / "in", self.seed, self.files, rows)
            self.files += 1

    def job(self, spark: Any, *, settings: dict[str, Any] | None = None, **given: Any) -> sl.Job:
        """Return the job, checkpointed often and restarted soon unless given otherwise."""
        (self.root / "in").mkdir(exist_ok=True)
        given.setdefault("checkpoints", self.checkpoints())
        given.setdefault("restart", sl.Restart(attempts=10, delay="50ms"))
        return pipeline.build(
            spark,
            self.root / "in",
            self.out,
            short=self.short,
            settings=sl.Settings(
                **{"parallelism": 2, "local_dir": self.local_dir, "state_memory": "128MB", **(settings or {})}
            ),
            **given,
        )

    def job_of(self, name: str, *outputs: Any, restart: sl.Restart | None = None, trigger: str | None = None) -> sl.Job:
        """Return a job of other outputs, checkpointed when asked or when it stops; it is not restarted unless told to."""
        return sl.Job(
            name,
            sinks=list(outputs),
            settings=sl.Settings(parallelism=2, local_dir=self.local_dir, state_memory="128MB"),
            checkpoints=sl.Checkpoints(self.root / "ck", retain=2),
            restart=restart or sl.Restart.never(),
            trigger=trigger,
        )

    def checkpoints(self, every: str | None = "400ms", retain: int = 2, **given: Any) -> sl.Checkpoints:
        """Return where and when to take checkpoints."""
        return sl.Checkpoints(
            self.root / "ck", every=every, retain=retain, **{"mode": MODE, "changelog": SMALL_LOG, **given}
        )

    @property
    def directory(self) -> Path:
        """The job's folder in the checkpoint directory."""
        return self.root / "ck" / "pipeline"

    def expected(self) -> Rows:
        """Return what the sinks must show when everything is processed and committed."""
        events = list(self.events)
        if self._expected is None or self._expected[0] != len(events):
            profiles, kinds = pipeline.oracle(events)
            self._expected = len(events), (profiles, Counter() if self.short else kinds)
        return self._expected[1]

    def is_complete(self) -> bool:
        """Whether the sinks show exactly what they must."""
        return pipeline.visible(self.out) == self.expected()

    def check(self) -> None:
        """Assert that the sinks show exactly what they must."""
        for name, seen, wanted in zip(("profiles", "kinds"), pipeline.visible(self.out), self.expected(), strict=True):
            assert not seen - wanted, f"{name}: rows that must not be there: {list((seen - wanted).items())[:5]}"
            assert not wanted - seen, f"{name}: rows that are missing: {list((wanted - seen).items())[:5]}"

    def finish(self, run: sl.Run) -> None:
        """Have everything processed and committed, check it, and stop."""
        settle(run)
        self.check()
        run.stop()

    def logs(self) -> str:
        """Return what the keepers have logged."""
        return "".join(p.read_text() for p in sorted((self.local_dir / "logs" / "pipeline").glob("*.log")))


def settle(run: sl.Run) -> sl.Status:
    """Process everything there is and take a checkpoint after it, through restarts."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        run.process_all_available(TIMEOUT_S)
        try:
            done = run.checkpoint(TIMEOUT_S)
        except sl.errors.StrandlineError:
            # A restart came between; a run that has ended for good says why.
            run.await_termination(0.05)
            assert time.monotonic() < deadline, "no checkpoint could be completed"
            continue
        # A restart in between may have made the checkpoint one of an earlier epoch.
        status = run.status()
        if status.state == "running" and done.epoch == status.epoch:
            return status


class Reader:
    """Looks at both sinks all the time: every row it sees must be right, and stay."""

    def __init__(self, case: Case, *, may_vanish: bool = False) -> None:
        self._case = case
        self._may_vanish = may_vanish
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="test-reader")
        self.looks = 0
        self.error: AssertionError | None = None

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self.error is not None:
            raise self.error
        assert self.looks > 0

    def _look_on(self) -> None:
        before: Rows = (Counter(), Counter())
        while not self._over.is_set():
            try:
                seen = pipeline.visible(self._case.out)
            except FileNotFoundError:
                # Taken back between listing and reading.
                assert self._may_vanish
                continue
            except json.JSONDecodeError as error:
                self.error = AssertionError(f"a row was visible in part: {error}")
                return
            expected = self._case.expected()
            for now, wanted, earlier in zip(seen, expected, before, strict=True):
                if now - wanted:
                    self.error = AssertionError(f"rows too many were visible: {list((now - wanted).items())[:5]}")
                    return
                if earlier - now and not self._may_vanish:
                    self.error = AssertionError(f"visible rows vanished: {list((earlier - now).items())[:5]}")
                    return
            before = seen
            self.looks += 1
            self._over.wait(0.03)


@contextmanager
def keepers_armed(spark: Any, directory: Path, failpoints: str) -> Iterator[None]:
    """Arm failpoints in keepers that start meanwhile, each to fire once among all of them."""
    directory.mkdir(exist_ok=True)
    environment = spark.sparkContext.environment
    environment.update(STRANDLINE_FAILPOINTS=failpoints, STRANDLINE_FAILPOINTS_DIR=str(directory))
    try:
        yield
    finally:
        del environment["STRANDLINE_FAILPOINTS"], environment["STRANDLINE_FAILPOINTS_DIR"]


def fired(directory: Path) -> set[str]:
    """Return the failpoints that fired in the group of this directory."""
    return {path.name for path in directory.iterdir()}


def processes(*needles: str) -> dict[int, str]:
    """Return the processes whose command line or environment names all of these, this one excluded."""
    found = {}
    for pid, command in _commands().items():
        left = [needle for needle in needles if needle not in command]
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace") if left else ""
        except OSError:
            continue
        if all(needle in environment for needle in left):
            found[pid] = command
    return found


def keepers(local_dir: Path) -> dict[int, str]:
    """Return the keepers that work below this directory."""
    # Without the environment of each process, which takes long to read.
    return {
        pid: command
        for pid, command in _commands().items()
        if "strandline.keeper.process" in command and str(local_dir) in command
    }


def _commands() -> dict[int, str]:
    """Return the command lines of all other processes that have one."""
    commands = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if command and int(path.parent.name) != os.getpid():
                commands[int(path.parent.name)] = command
    return commands


class App:
    """A driver in a process of its own. Its JVM, workers and keepers can be told by the directory in their environment."""

    def __init__(self, case: Case, failpoints: str = "", local_dir: Path | None = None, **given: str) -> None:
        self._case = case
        case.apps.append(self)
        self.temporary = case.root / "tmp"
        self.temporary.mkdir(exist_ok=True)
        (case.root / "in").mkdir(exist_ok=True)
        for name in ("stop", "status.json"):
            (case.root / name).unlink(missing_ok=True)
        environment = {
            **os.environ,
            "STRANDLINE_FAILPOINTS": failpoints,
            "TMPDIR": str(self.temporary),
            "SPARK_LOCAL_DIRS": str(self.temporary),
            "SPARK_HOME": str(jvm.spark_home(case.root / "home")),
        }
        environment.pop("STRANDLINE_FAILPOINTS_DIR", None)
        command = [sys.executable, "-m", "tests.spark.app", str(case.root), str(local_dir or case.local_dir)]
        self._output = (case.root / "app.log").open("ab")
        self._process = subprocess.Popen(
            [*command, *(f"{name}={value}" for name, value in given.items())],
            env=environment, cwd=_ROOT, stdout=self._output, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        """Return what the driver last said; nothing before it has said anything."""
        assert self._process.poll() is None, f"the driver ended with {self._process.returncode}: {self.output()}"
        try:
            found: dict[str, Any] = json.loads((self._case.root / "status.json").read_text())
        except FileNotFoundError:
            return {}
        return found

    def output(self) -> str:
        """Return the end of what all drivers of this job printed."""
        return (self._case.root / "app.log").read_text(errors="replace")[-3000:]

    def wait_killed(self) -> None:
        """Wait until a failpoint has killed the driver."""
        assert self._wait() == -signal.SIGKILL, self.output()

    def ended(self) -> bool:
        """Whether the driver is dead."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kill the driver now."""
        self._process.kill()
        self._wait()

    def finish(self) -> dict[str, Any]:
        """Have the driver process everything, take a last checkpoint and end; return its last status."""
        (self._case.root / "stop").touch()
        assert self._wait() == 0, self.output()
        said: dict[str, Any] = json.loads((self._case.root / "status.json").read_text())
        return said

    def relatives(self) -> dict[int, str]:
        """Return the processes that this driver and its predecessors brought into being and that are alive."""
        return processes(f"SPARK_LOCAL_DIRS={self.temporary}")

    def _wait(self) -> int:
        try:
            return self._process.wait(TIMEOUT_S)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._output.close()


def begin_reducing(monkeypatch: Any, on: bool) -> None:
    """Have aggregations begin with their input aggregated before it is sent, or not."""

    class Begun(Reduction):
        def __init__(self, *, possible: bool) -> None:
            super().__init__(possible=possible)
            self.level = BY_TASK if on and possible else OFF

    monkeypatch.setattr("strandline.spark.lower.plan.Reduction", Begun)
