"""Creates Spark sessions with the settings that Strandline needs, and checks sessions and Java."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from strandline.control.announcements import tell, tell_always
from strandline.core.errors import ConfigurationError
from strandline.core.settings import default_local_dir
from strandline.spark.base.class_archive import archive_of, class_options
from strandline.spark.base.jvm_cache import cache_classes
from strandline.spark.base.quiet import (
    ignore_lost_updates,
    java_options,
    log_refused_calls_once,
    new_log_file,
    spark_log,
    start_jvm,
)

log = logging.getLogger(__name__)

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOG_VALUES = "spark.strandline.log.values"
_DAEMON = "spark.python.daemon.module"
_OLDEST_JAVA = 17
_BATCHES_TO_RETAIN = "spark.sql.streaming.minBatchesToRetain"
_MIN_BATCHES = 3
_TIMESTAMP = "spark.sql.timestampType"
_WORKER_MEMORY = "spark.executor.pyspark.memory"
_WAIT = "spark.locality.wait.process"
_LOG_WRITER = "spark.sql.streaming.checkpointFileManagerClass"
_POLLING_DELAY = "spark.sql.streaming.pollingDelay"
"""The pause of a query that has found no rows. Spark's 10 ms would cost a sixth of a core."""
_UI_PLANS = "spark.sql.ui.explainMode"
"""The format in which Spark writes each epoch's plan, twice, for its UI and its event log, even without both."""
_HEARTBEATS = "spark.executor.heartbeat.maxFailures"
"""After this number of failed heartbeats, one each ten seconds, Spark ends the JVM. In a local driver, each fails after
the first shuffle file that could not be read: Spark takes its blocks for lost, and asks a scheduler that only clusters
have whether the executor is alive."""
_PLAIN_WRITER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def spark_settings() -> dict[str, str]:
    """Return the core settings that a session must be created with.

    `session()` sets them; use this only for a session that you create yourself.
    """
    return {
        # Tasks must follow the executor that caches their anchor, not the shuffle files.
        "spark.shuffle.reduceLocality.enabled": "false",
        # They must wait while it is busy: after 3 s, Spark would run them on another executor, without the keeper.
        _WAIT: "1h",
        "spark.sql.streaming.stopTimeout": "30s",
        # Over TCP, a Python worker gets its first rows 40 ms late, in each stage of each epoch: one kernel delays small
        # packets (Nagle's algorithm), the other one their acknowledgement.
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
    """Return a classic SparkSession with the settings that jobs need and a quiet log.

    `master` defaults to that of spark-submit or the environment, else to all local cores with task retries.
    Pass further settings with `_` for `.`: `spark_driver_memory="4g"`; or as a dict: `**{"spark.driver.memory": "4g"}`.

    `ui`, True or a port, starts Spark's web UI; with a local master, it listens on loopback only. A warning names its
    address.

    Spark's log goes to a file with the session's name and this process' id, in `log_dir`, or else in `spark-logs` of
    the default directory of jobs. It has Spark's warnings, and more with `spark_log_level="INFO"`; the last 40 MB are
    kept. For errors it has types and stacks, but no messages, which may quote rows:
    `spark_strandline_log_values="true"` adds them.

    A query that finds no rows polls again after 50 ms. `**{"spark.sql.streaming.pollingDelay": "10ms"}`, Spark's
    default, costs a part of a core.

    After `strandline warm-up` was run once on a machine, its jobs start in about 60 % of the time.
    """
    java = check_java()
    # Spark would start its workers with the first python3 of the PATH, which may not have this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = master or os.environ.get("MASTER") or f"local[{os.cpu_count() or 2},4]"
    settings = {}
    if master.startswith("local"):
        # On one machine, Spark needs only the loopback interface.
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
        # The UI listens on SPARK_LOCAL_IP, all other ports of Spark on the driver's address.
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    log_file = new_log_file(Path(log_dir) if log_dir else default_local_dir() / "spark-logs", app_name)
    log_values = settings.get(_LOG_VALUES, "false").lower() == "true"
    options = settings.get(_JAVA_OPTIONS, "")
    settings[_JAVA_OPTIONS] = " ".join(
        filter(None, [class_options(java, options), java_options(options, log_file, log_values=log_values)])
    )
    spark_conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    start, is_new = time.monotonic(), SparkContext._active_spark_context is None
    if is_new:
        tell("starting Spark")
    is_new_jvm = start_jvm(spark_conf, log_file)
    # On other machines, Python may not find strandline before Spark has sent it.
    if master.startswith("local") and is_this_python(os.environ["PYSPARK_PYTHON"]):
        _set_default(spark_conf, _DAEMON, "strandline.spark.keepers.daemon")
    if is_new:
        if has_one_process(master):
            _set_default(spark_conf, _HEARTBEATS, str(2**31 - 1))
        _set_default(spark_conf, _POLLING_DELAY, "50ms")
        if not ui and not _is_true(spark_conf, "spark.eventLog.enabled"):
            _set_default(spark_conf, _UI_PLANS, "simple")
    spark = SparkSession.builder.appName(app_name).master(master).config(conf=spark_conf).getOrCreate()
    log.info("Spark's log is %s", spark_log())
    cache_classes(spark)
    ignore_lost_updates(spark.sparkContext)
    if is_new:
        _remove_socket_at_exit(spark.sparkContext)
    _set_log_writer(spark)
    if ui and (address := spark.sparkContext.uiWebUrl):
        tell_always(f"Spark's UI is at {address}")
    if is_new:
        tell(f"Spark {spark.version} started in {time.monotonic() - start:.1f} s")
        if is_new_jvm and has_one_process(master) and not archive_of(java).exists():
            tell("`strandline warm-up`, run once, would shorten this machine's starts")
    return spark


def _remove_socket_at_exit(context: Any) -> None:
    """Remove the socket of PySpark's accumulators at the end of this process: PySpark does it only in `stop()`."""
    address = context._accumulatorServer.server_address
    if isinstance(address, str):
        atexit.register(_remove_socket_of, os.getpid(), Path(address))


def _remove_socket_of(pid: int, path: Path) -> None:
    # Forked processes may run this, too.
    if os.getpid() == pid:
        path.unlink(missing_ok=True)


def _set_default(conf: SparkConf, name: str, value: str) -> None:
    """Set what the user has set neither here nor in Spark's files."""
    if not conf.contains(name) and not SparkConf().contains(name):
        conf.set(name, value)


def _is_true(conf: SparkConf, name: str) -> bool:
    return (conf.get(name, None) or SparkConf().get(name, None) or "").lower() == "true"


def _set_log_writer(spark: SparkSession) -> None:
    """Let queries write their logs through the file system API, as in a bucket, unless the user has chosen a writer.

    On a local disk, the default writer starts eight `readlink` processes a file: 24 an epoch. Both writers only rename
    a file to a name that does not exist.
    """
    jvm: Any = spark._jvm
    # Another version of Spark may have another name for the class: its default is slower, but works.
    with contextlib.suppress(Py4JError):
        if spark.conf.get(_LOG_WRITER, None) is None and jvm.java.lang.Class.forName(_PLAIN_WRITER):
            spark.conf.set(_LOG_WRITER, _PLAIN_WRITER)


def has_one_process(master: str) -> bool:
    """Whether a session with this master runs all its tasks in the driver's JVM."""
    return master.startswith("local[") or master == "local"


def is_this_python(command: str) -> bool:
    """Whether a command starts the Python of this process."""
    return shutil.which(command) == sys.executable


def check_session(spark: Any, caller: str = "start()") -> None:
    """Raise ConfigurationError for sessions that cannot run keepers."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise ConfigurationError(
            "this is a Spark Connect session, which Strandline does not support: it needs the driver's JVM",
            hint="create a classic session: strandline.session(), or SparkSession.builder.master(…) without remote(…)",
        )
    if not isinstance(spark, SparkSession):
        raise ConfigurationError(f"{caller} was given {spark!r:.200}, expected a SparkSession")
    if core_setting(spark, "spark.speculation").lower() == "true":
        raise ConfigurationError(
            "spark.speculation is true: a second attempt of a running task would end the first one's connection to "
            "its keeper",
            hint="create the session without it: an epoch's tasks are bound to their keepers",
        )
    if limit := core_setting(spark, _WORKER_MEMORY):
        raise ConfigurationError(
            f"{_WORKER_MEMORY} is {limit}: Spark limits the address space of its Python workers by it. Keepers inherit "
            "the limit, and hang or end when threads and mapped files exceed it",
            hint="create the session without it: state_memory in Settings bounds the memory of keepers; in a "
            "container, add that and the workers' memory to spark.executor.memoryOverhead",
        )
    retained = retained_batches(spark)
    if retained < _MIN_BATCHES:
        raise ConfigurationError(
            f"{_BATCHES_TO_RETAIN} is {retained}, expected {_MIN_BATCHES} or more: a checkpoint copies Spark's log of "
            "its last two batches, while Spark already plans the next one",
            hint=f"leave it at Spark's default of 100: spark.conf.unset('{_BATCHES_TO_RETAIN}')",
        )
    timestamp = str(spark.conf.get(_TIMESTAMP)).upper()
    if timestamp != "TIMESTAMP_LTZ":
        raise ConfigurationError(
            f"{_TIMESTAMP} is {timestamp}, expected TIMESTAMP_LTZ: in Strandline, `timestamp` is an instant, and Spark "
            "would read timestamps of state and results as local times in UTC",
            hint=f"spark.conf.unset('{_TIMESTAMP}'), and use timestamp_ntz for local times",
        )


def session_warnings(spark: SparkSession) -> list[str]:
    """Return warnings about settings with which a job works, but not well."""
    is_cluster = not has_one_process(spark.sparkContext.master or "")
    warnings = []
    if is_cluster and core_setting(spark, "spark.shuffle.reduceLocality.enabled").lower() != "false":
        warnings.append(
            "spark.shuffle.reduceLocality.enabled is not false: with few executors, tasks will move away from their "
            "state and the job will be restored often"
        )
    if is_cluster and not core_setting(spark, _WAIT):
        warnings.append(
            f"{_WAIT} is not set: tasks that wait 3 s for a busy executor run on another one without their state, and "
            "the job is restored"
        )
    if core_setting(spark, "spark.python.unix.domain.socket.enabled").lower() != "true":
        warnings.append(
            "spark.python.unix.domain.socket.enabled is not true: each operator makes an epoch 40 ms longer"
        )
    hint = "Create the session with strandline.session(), or with the settings that strandline.spark_settings() returns"
    return [f"{warning}. {hint}" for warning in warnings]


@contextlib.contextmanager
def restored_settings(spark: SparkSession) -> Iterator[None]:
    """Restore the session's settings at the end."""
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


def keep_accepting_calls(spark: SparkSession) -> None:
    """Have Spark's calls of Python functions accepted again, if the thread for that has ended.

    Py4J's thread ends with the first error, as where no file descriptor is free for a moment: then each call, as of an
    epoch, would wait for ever. Calls that wait already are accepted.
    """
    server: Any = vars(spark.sparkContext._gateway).get("_callback_server")
    if server is None or server.is_shutdown:
        return
    is_accepting = server.thread.is_alive()
    log_refused_calls_once(are_accepted=is_accepting)
    if not is_accepting:
        server.thread = threading.Thread(target=server.run, name="strandline-calls", daemon=True)
        server.thread.start()


def core_setting(spark: SparkSession, name: str) -> str:
    """Return a core setting that the session was created with, "" if it is not set.

    `getConf()` would copy all settings, one by one, in a hundred and fifty calls.
    """
    sc: Any = spark.sparkContext
    return str(sc._conf.get(name, ""))


def local_dirs(spark: SparkSession) -> list[Path]:
    """Return the directories in which Spark's driver keeps blocks, among them those of shuffles."""
    sc: Any = spark.sparkContext
    blocks = sc._jsc.sc().env()
    # As fields: py4j cannot call these methods, since not all classes of their signatures can be loaded.
    for name in ("blockManager", "diskBlockManager"):
        blocks = sc._jvm.org.apache.commons.lang3.reflect.FieldUtils.readField(blocks, name, True)
    return list(map(Path, blocks.localDirsString()))


def make_local_dirs(spark: SparkSession) -> None:
    """Make these directories again if clean-up of /tmp has removed them: Spark does not, and fails each epoch."""
    # Another version of Spark may have other fields: then they are not made.
    with contextlib.suppress(Exception):
        for directory in local_dirs(spark):
            for number in range(int(core_setting(spark, "spark.diskStore.subDirectories") or 64)):
                (directory / f"{number:02x}").mkdir(mode=0o700, parents=True, exist_ok=True)


def task_slots(spark: SparkSession) -> int:
    """Return how many tasks the session's executors run at once: 0 without executors."""
    sc: Any = spark.sparkContext
    core = sc._jsc.sc()
    return int(core.maxNumConcurrentTasks(core.resourceProfileManager().defaultResourceProfile()))


def _executors(spark: SparkSession) -> list[Any]:
    """Return Spark's records of the executors that it takes for alive; the driver is none."""
    sc: Any = spark.sparkContext
    infos = sc._jsc.sc().statusStore().executorList(True)
    return [each for each in (infos.apply(at) for at in range(infos.size())) if each.id() != "driver"]


def has_free_slots(spark: SparkSession) -> bool:
    """Whether there are executors, and each has a free task slot."""
    executors = _executors(spark)
    return bool(executors) and all(each.activeTasks() < each.maxTasks() for each in executors)


def executor_hosts(spark: SparkSession, lost: Collection[str]) -> Counter[str]:
    """Return the hosts of executors, as Spark names them, each with the number of its executors that are not lost."""
    return Counter(str(each.hostPort()).rpartition(":")[0] for each in _executors(spark) if each.id() not in lost)


def await_executors(spark: SparkSession) -> None:
    """Run a task: Spark first waits for its minimum number of executors."""
    if not has_one_process(spark.sparkContext.master or ""):
        spark.range(1).count()


def polling_delay_ms(spark: SparkSession) -> int:
    """Return the pause of a query that has found no rows."""
    internal: Any = spark._jsparkSession
    return int(internal.sessionState().conf().streamingPollingDelay())


def has_log_cache(spark: SparkSession) -> bool:
    """Whether Spark keeps the newest parts of its logs in memory."""
    return str(spark.conf.get("spark.sql.streaming.metadataCache.enabled", "true")).lower() == "true"


def retained_batches(spark: SparkSession) -> int:
    """Return the number of batches in the log that Spark keeps."""
    return int(spark.conf.get(_BATCHES_TO_RETAIN) or 0)


def check_java() -> str:
    """Return the path of a Java that Spark supports, or raise ConfigurationError."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    hint = "install Java 17 or 21 (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
    if not java or not Path(java).exists():
        reason = f"JAVA_HOME is {home}, and there is no bin/java in it" if home else "there is no 'java' on the PATH"
        raise ConfigurationError(f"Spark needs Java, and none was found: {reason}", hint=hint)
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', output)
    if not version or int(version[1]) < _OLDEST_JAVA:
        first = output.strip().splitlines()[0] if output.strip() else "unknown, 'java -version' printed nothing"
        raise ConfigurationError(f"Spark needs Java {_OLDEST_JAVA} or newer; {java} is: {first}", hint=hint)
    return java
