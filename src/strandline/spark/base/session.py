"""The settings a Spark session needs, a session that has them, and which sessions and Javas are refused, and why."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from strandline.control.announcements import tell, tell_always
from strandline.core.errors import ConfigurationError
from strandline.core.settings import default_local_dir
from strandline.spark.base import auto_warmup as behind
from strandline.spark.base.class_archive import class_options, may_be_archived
from strandline.spark.base.jvm_cache import remember_classes
from strandline.spark.base.quiet import ignore_lost_updates, java_options, new_log_file, spark_log, start_jvm

log = logging.getLogger(__name__)

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOG_VALUES = "spark.strandline.log.values"
_DAEMON = "spark.python.daemon.module"
_OLDEST_JAVA = 17
_BATCHES_TO_RETAIN = "spark.sql.streaming.minBatchesToRetain"
_LEAST_BATCHES = 3
_TIMESTAMP = "spark.sql.timestampType"
_WORKER_MEMORY = "spark.executor.pyspark.memory"
_WAIT = "spark.locality.wait.process"
_LOG_WRITER = "spark.sql.streaming.checkpointFileManagerClass"
_POLLING_DELAY = "spark.sql.streaming.pollingDelay"
"""How long a query rests that has found no rows: 10 ms with Spark, which makes looking a sixth of a core's work."""
_UI_PLANS = "spark.sql.ui.explainMode"
"""How Spark writes every epoch's plan, twice, for its UI and its event log, also where there is neither."""
_HEARTBEATS = "spark.executor.heartbeat.maxFailures"
"""After so many that failed, one each ten seconds, Spark ends the JVM. Where that is the driver's own, each fails from
the first shuffle file on that could not be read: Spark takes its blocks for lost, and asks a scheduler that only
clusters have whether it is alive."""
_PLAIN_WRITER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def spark_settings() -> dict[str, str]:
    """Return the core settings that must be there when a session is made.

    Only needed for a session of your own; `session()` has them.
    """
    return {
        # Tasks must follow the executor that caches their anchor, not the shuffle files.
        "spark.shuffle.reduceLocality.enabled": "false",
        # For as long as that executor is at work: after 3 s, Spark would have another one run them, without the keeper.
        _WAIT: "1h",
        "spark.sql.streaming.stopTimeout": "30s",
        # Over TCP, a Python worker gets its first rows some 40 ms late, in each stage of each epoch: the kernel of one
        # side holds small packets back, that of the other their acknowledgement.
        "spark.python.unix.domain.socket.enabled": "true",
    }


def session(
    app_name: str = "strandline",
    master: str | None = None,
    *,
    ui: bool | str = False,
    log_dir: str | Path | None = None,
    **conf: str,
) -> SparkSession:
    """Return a classic SparkSession with the right settings and a quiet log.

    `master` defaults to what spark-submit or the environment says, else to all local cores with task retries.
    Further settings are given with `_` for `.`: `spark_driver_memory="4g"`; or as a dict:
    `**{"spark.driver.memory": "4g"}`.

    With `ui`, True or a port, Spark's web UI listens, of a local master on loopback alone; a warning says where.

    Spark's own log goes to a file, of the session's name and this process' number: in `log_dir`, or in `spark-logs` of
    the directory that jobs use unless told otherwise. It has what Spark warns of, `spark_log_level="INFO"` more; the
    last 40 MB are kept. Of errors it has kinds and stacks, and not what they say, which may quote rows:
    `spark_strandline_log_values="true"` has it write that, too.

    A query that has found no rows looks for some again after 50 ms: `**{"spark.sql.streaming.pollingDelay": "10ms"}`
    is what Spark itself does, for a part of a core.

    The first driver with a local master has an archive of Spark's classes made in the background when it has ended,
    once, from which later ones start sooner; `spark_strandline_warmup="false"` turns that off.
    """
    java = check_java()
    # Spark would take the first python3 of the PATH for its workers, which need not be the one with this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = master or os.environ.get("MASTER") or f"local[{os.cpu_count() or 2},4]"
    settings = {}
    if master.startswith("local"):
        # On one machine, Spark needs no other interface than loopback.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    settings |= {
        "spark.ui.enabled": "true" if ui else "false",
        **({"spark.ui.port": ui} if isinstance(ui, str) else {}),
        "spark.ui.showConsoleProgress": "false",
        **spark_settings(),
        **{name if "." in name else name.replace("_", "."): value for name, value in conf.items()},
    }
    if ui and master.startswith("local"):
        # Whatever else Spark listens on, it does on the address of its driver.
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    log_file = new_log_file(Path(log_dir) if log_dir else default_local_dir() / "spark-logs", app_name)
    log_values = settings.get(_LOG_VALUES, "false").lower() == "true"
    options = settings.get(_JAVA_OPTIONS, "")
    own = java_options(options, log_file, log_values=log_values)
    of_classes = class_options(java, options)
    settings[_JAVA_OPTIONS] = " ".join(filter(None, [of_classes, own]))
    given = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    began, is_new = time.monotonic(), SparkContext._active_spark_context is None
    if is_new:
        tell("starting Spark")
    is_mine = start_jvm(given, log_file)
    # Elsewhere, Python may find strandline only once Spark has sent it there.
    if master.startswith("local") and is_this_python(os.environ["PYSPARK_PYTHON"]):
        _suggest(given, _DAEMON, "strandline.spark.keepers.daemon")
    if is_new:
        if has_one_process(master):
            _suggest(given, _HEARTBEATS, str(2**31 - 1))
        _suggest(given, _POLLING_DELAY, "50ms")
        if not ui and not _is_true(given, "spark.eventLog.enabled"):
            _suggest(given, _UI_PLANS, "simple")
    made = SparkSession.builder.appName(app_name).master(master).config(conf=given).getOrCreate()
    log.info("Spark's own log is %s", spark_log())
    is_wanted = (made.conf.get(behind.SETTING, None) or "true").lower() == "true"
    if is_wanted and is_mine and not of_classes and has_one_process(master) and may_be_archived(java, options):
        behind.remember(java)
    remember_classes(made)
    ignore_lost_updates(made.sparkContext)
    _write_logs_plainly(made)
    if ui and (address := made.sparkContext.uiWebUrl):
        tell_always(f"Spark's UI is at {address}")
    if is_new:
        tell(f"Spark {made.version} is there, after {time.monotonic() - began:.1f} s")
    return made


def _suggest(given: SparkConf, name: str, value: str) -> None:
    """Set what the user has not, here or in Spark's own files."""
    if not given.contains(name) and not SparkConf().contains(name):
        given.set(name, value)


def _is_true(given: SparkConf, name: str) -> bool:
    return (given.get(name, None) or SparkConf().get(name, None) or "").lower() == "true"


def _write_logs_plainly(spark: SparkSession) -> None:
    """Have queries rename the files of their logs as they would in a bucket, unless the user has said how.

    The other way asks `readlink`, a process each, eight times a file on a local disk: 24 processes an epoch. Neither
    is more than a rename of a file to a name that is not there.
    """
    jvm: Any = spark._jvm
    # Where another Spark has it under another name, it is only slower.
    with contextlib.suppress(Py4JError):
        if spark.conf.get(_LOG_WRITER, None) is None and jvm.java.lang.Class.forName(_PLAIN_WRITER):
            spark.conf.set(_LOG_WRITER, _PLAIN_WRITER)


def has_one_process(master: str) -> bool:
    """Whether a session with this master runs all its tasks in the driver's own JVM."""
    return master.startswith("local[") or master == "local"


def is_this_python(command: str) -> bool:
    """Whether a command is the Python that runs this."""
    return shutil.which(command) == sys.executable


def check_session(spark: Any, what: str = "start()") -> None:
    """Refuse sessions that cannot run keepers."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise ConfigurationError(
            "this is a Spark Connect session, which Strandline does not support: it needs the driver's own JVM",
            hint="make a classic session: strandline.session(), or SparkSession.builder.master(…) without remote(…)",
        )
    if not isinstance(spark, SparkSession):
        raise ConfigurationError(f"{what} was given {spark!r:.200}, expected a SparkSession")
    if core_setting(spark, "spark.speculation").lower() == "true":
        raise ConfigurationError(
            "spark.speculation is true: a second attempt of a running task would end the keeper's conversation with "
            "the first",
            hint="make the session without it: an epoch's tasks are bound to their keepers",
        )
    if limit := core_setting(spark, _WORKER_MEMORY):
        raise ConfigurationError(
            f"{_WORKER_MEMORY} is {limit}: Spark limits the addresses of its Python workers by it, and with them those "
            "of keepers that they start, which hang or end where threads and mapped files find no room",
            hint="make the session without it: state_memory in Settings bounds the memory of keepers; in a container, "
            "put that and the workers' into spark.executor.memoryOverhead",
        )
    retained = retained_batches(spark)
    if retained < _LEAST_BATCHES:
        raise ConfigurationError(
            f"{_BATCHES_TO_RETAIN} is {retained}, expected {_LEAST_BATCHES} or more: a checkpoint takes Spark's log of "
            "its last two batches along, while Spark already plans the next one",
            hint=f"leave it at Spark's default of 100: spark.conf.unset('{_BATCHES_TO_RETAIN}')",
        )
    timestamp = str(spark.conf.get(_TIMESTAMP)).upper()
    if timestamp != "TIMESTAMP_LTZ":
        raise ConfigurationError(
            f"{_TIMESTAMP} is {timestamp}, expected TIMESTAMP_LTZ: `timestamp` is a moment here, in whatever zone, and "
            "Spark would take those of state and of results for local times, in UTC",
            hint=f"spark.conf.unset('{_TIMESTAMP}'), and write timestamp_ntz where local times are meant",
        )


def session_warnings(spark: SparkSession) -> list[str]:
    """Return what is wrong with a session in which a job works, but not well."""
    several = not has_one_process(spark.sparkContext.master or "")
    found = []
    if several and core_setting(spark, "spark.shuffle.reduceLocality.enabled").lower() != "false":
        found.append(
            "spark.shuffle.reduceLocality.enabled is not false: with few executors, tasks will move away from their "
            "state and the job will be restored often"
        )
    if several and not core_setting(spark, _WAIT):
        found.append(
            f"{_WAIT} is not set: tasks that have waited 3 s for a busy executor run on another one, which has not got "
            "their state, and the job is restored"
        )
    if core_setting(spark, "spark.python.unix.domain.socket.enabled").lower() != "true":
        found.append("spark.python.unix.domain.socket.enabled is not true: each operator makes an epoch 40 ms longer")
    how = (
        "Set it when the session is made: strandline.session() does, and strandline.spark_settings() gives the settings"
    )
    return [f"{what}. {how}" for what in found]


@contextlib.contextmanager
def settings_kept(spark: SparkSession) -> Iterator[None]:
    """Take back what is set on a session meanwhile."""
    jvm_session: Any = spark._jsparkSession
    conf = jvm_session.sessionState().conf()
    before = conf.getAllConfs()
    try:
        yield
    finally:
        if not conf.getAllConfs().equals(before):
            conf.clear()
            settings = before.iterator()
            while settings.hasNext():
                setting = settings.next()
                conf.setConfString(setting._1(), setting._2())


def core_setting(spark: SparkSession, name: str) -> str:
    """Return a core setting as the session was made with it, "" if it was not given.

    Of all of them, as `getConf()` has them, PySpark asks one by one: a hundred and fifty calls.
    """
    sc: Any = spark.sparkContext
    return str(sc._conf.get(name, ""))


def room_of(spark: SparkSession) -> int:
    """Return how many tasks the session's executors run at once: 0 while there are none."""
    sc: Any = spark.sparkContext
    core = sc._jsc.sc()
    return int(core.maxNumConcurrentTasks(core.resourceProfileManager().defaultResourceProfile()))


def have_room(spark: SparkSession) -> bool:
    """Whether there are executors, and each would run another task."""
    sc: Any = spark.sparkContext
    found = sc._jsc.sc().statusStore().executorList(True)
    executors = [each for each in (found.apply(at) for at in range(found.size())) if each.id() != "driver"]
    return bool(executors) and all(each.activeTasks() < each.maxTasks() for each in executors)


def await_executors(spark: SparkSession) -> None:
    """Wait until Spark runs tasks: as many executors as it waits for have come then."""
    if not has_one_process(spark.sparkContext.master or ""):
        spark.range(1).count()


def polling_delay_ms(spark: SparkSession) -> int:
    """Return how long a query rests that has found no rows."""
    internal: Any = spark._jsparkSession
    return int(internal.sessionState().conf().streamingPollingDelay())


def retained_batches(spark: SparkSession) -> int:
    """Return of how many batches Spark keeps its log."""
    return int(spark.conf.get(_BATCHES_TO_RETAIN) or 0)


def check_java() -> str:
    """Return the path of a Java that Spark can use, or say what to install."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    hint = "install Java 17 or 21 (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
    if not java or not Path(java).exists():
        where = f"JAVA_HOME is {home}, and there is no bin/java in it" if home else "there is no 'java' on the PATH"
        raise ConfigurationError(f"Spark needs Java, and none was found: {where}", hint=hint)
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    if not found or int(found[1]) < _OLDEST_JAVA:
        first = said.strip().splitlines()[0] if said.strip() else "it says nothing"
        raise ConfigurationError(f"Spark needs Java {_OLDEST_JAVA} or newer; {java} is: {first}", hint=hint)
    return java
