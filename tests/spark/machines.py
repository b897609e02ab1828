"""A standalone cluster of Spark whose machines are processes with hosts and disks of their own, and a job for it.

    python -m tests.spark.machines ROOT MASTER      the driver: counts by key, until ROOT/stop appears, from Kafka to Kafka
                                                    or, where no servers are given, from ROOT/in to ROOT/out

The machines' addresses are of loopback: 127.0.0.1 has the master and drivers, 127.0.0.2 and .3 have a worker each. Where
this process is root, each worker has namespaces in which it has a name and `local_dir` is a disk of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

import strandline as sl
from tests import jvm, kafkaserver
from tests.servers import end_with_parent, free_ports
from tests.spark import small
from tests.spark.functions import Count
from tests.spark.harness import TIMEOUT_S, eventually, processes

_ROOT = Path(__file__).parent.parent.parent
_CORES, _MEMORY = 1, "1g"


class Machines:
    """The master, two workers, and the driver of a job whose checkpoints lie at `url`."""

    def __init__(self, root: Path, *, disk: str = "disk", **given: Any) -> None:
        self.root = root
        self.local_dir = root / disk
        for name in (disk, "tmp", "work"):
            (root / name).mkdir()
        (root / "given.json").touch(mode=0o600)
        (root / "given.json").write_text(json.dumps(given))
        self._environment = {
            **os.environ, "SPARK_LOCAL_DIRS": str(root / "tmp"), "TMPDIR": str(root / "tmp"),
            "SPARK_HOME": str(jvm.spark_home(root / "home")), "PYSPARK_PYTHON": sys.executable,
            # What Spark's own scripts say, which are not used here.
            "SPARK_SCALA_VERSION": "2.13",
        }  # fmt: skip
        self._environment.pop("STRANDLINE_FAILPOINTS_DIR", None)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        port = free_ports(1)[0]
        self.master = f"spark://127.0.0.1:{port}"
        self._start_jvm("master", "127.0.0.1", "master.Master", "--port", str(port), "--webui-port", "0")
        eventually(lambda: _listens("127.0.0.1", port), "the master listens", 60)
        for number in (2, 3):
            self.start_worker(number)

    def start_worker(self, number: int) -> None:
        """Start the worker of a machine."""
        self._start_jvm(
            f"worker-{number}", f"127.0.0.{number}", "worker.Worker", "--cores", str(_CORES), "--memory", _MEMORY,
            "--work-dir", str(self.root / "work" / str(number)), "--webui-port", "0", self.master,
        )  # fmt: skip

    def lose(self, number: int) -> None:
        """A machine is gone: its worker, executors, keepers, and its disk."""
        worker = self._running.pop(f"worker-{number}")
        for pid in [worker.pid, *_descendants(worker.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        worker.wait()

    def hang(self, number: int) -> None:
        """A machine stands still with all that is on it, and no connection of it ends."""
        for pid in self._on(number):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def resume(self, number: int) -> None:
        """A machine goes on that stood still."""
        for pid in self._on(number):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def keepers(self, number: int) -> list[int]:
        """Return the keepers on a machine."""
        found = []
        for pid in self._on(number):
            with contextlib.suppress(OSError):
                if b"strandline.keeper.process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def _on(self, number: int) -> list[int]:
        """Return the processes of a machine: keepers are no children of its worker."""
        disk = _disk_of(Path(f"/proc/{self._running[f'worker-{number}'].pid}"))
        return [int(each.name) for each in Path("/proc").glob("[0-9]*") if disk and _disk_of(each) == disk]

    def start_driver(self, **environment: str) -> None:
        """Start the driver, or start it again."""
        for name in ("stop", "status.json"):
            (self.root / name).unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.spark.machines", str(self.root), self.master]
        self._run("driver", command, {"SPARK_LOCAL_IP": "127.0.0.1", **environment})

    def kill_driver(self) -> None:
        driver = self._running.pop("driver")
        driver.kill()
        driver.wait()

    def status(self) -> dict[str, Any]:
        """Return what the driver said last."""
        driver = self._running["driver"]
        assert driver.poll() is None, f"the driver ended with {driver.returncode}: {self.output('driver')}"
        with contextlib.suppress(FileNotFoundError):
            found: dict[str, Any] = json.loads((self.root / "status.json").read_text())
            return found
        return {}

    def finish(self) -> None:
        """Have the driver take a last checkpoint, deliver everything and end."""
        (self.root / "stop").touch()
        driver = self._running.pop("driver")
        assert driver.wait(TIMEOUT_S) == 0, self.output("driver")

    def disk(self, number: int) -> Path:
        """Return the path of a machine's own `local_dir`, as others see it."""
        seen = Path(f"/proc/{self._running[f'worker-{number}'].pid}/root")
        return seen / self.local_dir.relative_to("/")

    def output(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text(errors="replace")[-3000:]

    def close(self) -> None:
        hung = [pid for name in self._running if name.startswith("worker") for pid in self._on(int(name[-1]))]
        for process in self._running.values():
            for pid in [*hung, *_descendants(process.pid), process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()

    def relatives(self) -> dict[int, str]:
        """Return the processes that any of them brought into being and that are alive."""
        return processes(f"SPARK_LOCAL_DIRS={self.root / 'tmp'}")

    def _start_jvm(self, name: str, host: str, kind: str, *given: str) -> None:
        home = self._environment["SPARK_HOME"]
        java = [shutil.which("java") or "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command = [*java, "-cp", f"{home}/jars/*", f"org.apache.spark.deploy.{kind}", "--host", host, *given]
        if name.startswith("worker") and os.geteuid() == 0:
            # A disk that nobody else sees, and that goes with the machine.
            made = f'mount -t tmpfs strandline-test "$0" && hostname machine-{name[-1]} && exec "$@"'
            command = ["unshare", "--mount", "--uts", "sh", "-c", made, str(self.local_dir), *command]
        self._run(name, command, {"SPARK_LOCAL_IP": host})

    def _run(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        with (self.root / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command, env={**self._environment, **environment}, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, preexec_fn=end_with_parent,
            )  # fmt: skip


def main() -> None:
    root, master = Path(sys.argv[1]), sys.argv[2]
    given = json.loads((root / "given.json").read_text())
    spark = sl.session(
        "machines", master,
        **{
            "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "1g",
            "spark.executor.memory": "512m", "spark.executor.cores": "1",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s", **jvm.executors(),
        },
    )  # fmt: skip
    job = (_of_kafka if "kafka" in given else _of_files)(spark, root, given)
    run = job.start(spark)
    while not (root / "stop").exists():
        run.await_termination(0.1)
        _write_status(root, run.glance())
    run.process_all_available(60)
    run.stop(checkpoint=True)
    spark.stop()


def _of_kafka(spark: Any, root: Path, given: dict[str, Any]) -> sl.Job:
    for jar in kafkaserver.connector():
        spark.sql(f"ADD JAR '{jar}'")
    read = sl.kafka.read(spark, given["kafka"], given["topics"][0], options={"maxOffsetsPerTrigger": "200"})
    event = F.from_json(F.col("value").cast("string"), "user string, kind string, v bigint").alias("e")
    return small.job(
        sl.stream(read.select(event).select("e.*")), root, root / "disk", process=Count(),
        sink=sl.sinks.kafka(given["kafka"], given["topics"][1], key="user"), restart=sl.Restart(delay="500ms"),
        checkpoints=sl.Checkpoints(given["url"], every="500ms", retain=2, storage_options=given["options"]),
    )  # fmt: skip


def _of_files(spark: Any, root: Path, given: dict[str, Any]) -> sl.Job:
    return small.job(
        sl.stream(small.source(spark, root / "in")), root, root / "disk", process=Count(),
        sink=sl.sinks.files(str(root / "out"), format="json"), restart=sl.Restart(delay="500ms"),
        checkpoints=sl.Checkpoints(root / "ck", every="500ms", retain=2, **given.get("checkpoints", {})),
    )  # fmt: skip


def _write_status(root: Path, status: sl.Status) -> None:
    said = {
        "state": status.state, "epoch": status.epoch, "restarts": status.restarts, "restored": status.restored_from,
        "hosts": sorted({keeper.host for keeper in status.keepers}), "failure": status.last_failure,
        "completed": status.checkpoints.get("completed", 0),
        "keepers": {f"{keeper.uid}/{keeper.partition}": keeper.host for keeper in status.keepers},
        "standbys": [asdict(each) for each in status.standbys],
        "newest": status.last_checkpoint.checkpoint if status.last_checkpoint else None,
        "is_covered": not status.uncovered_ms and not status.checkpoints.get("in_progress"),
    }  # fmt: skip
    (root / "status.tmp").write_text(json.dumps(said))
    (root / "status.tmp").rename(root / "status.json")


def _descendants(pid: int) -> Iterator[int]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, children.read_text().split()):
                yield from _descendants(child)
                yield child


def _disk_of(process: Path) -> str:
    """Return the name of the disks that a process sees; "" if it has ended."""
    with contextlib.suppress(OSError):
        return str((process / "ns" / "mnt").readlink())
    return ""


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1).close()
        return True
    except OSError:
        time.sleep(0.1)
        return False


if __name__ == "__main__":
    main()
