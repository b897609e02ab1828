"""What a session is given that the user has not said: only what costs time and is read by nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkConf

from strandline.spark.base import quiet, session


def test_plans_are_written_in_full_for_those_who_ask(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert spark.conf.get("spark.sql.ui.explainMode") == "simple"
    spark.range(3).explain(mode="formatted")
    assert "(1) Range" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "C.UTF-8"),
        ({"LC_ALL": "C", "LANG": "de_DE.UTF-8"}, "C.UTF-8"),
        ({"LANG": "POSIX"}, "C.UTF-8"),
        ({"LANG": "de_DE.UTF-8"}, None),
        ({"LC_ALL": "en_US.UTF-8", "LANG": "C"}, "en_US.UTF-8"),
    ],
)
def test_the_jvm_has_file_names_in_utf8(
    given: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the locale C, Java lists directories without the files whose names are not ASCII."""
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with quiet._utf8_locale():
        assert os.environ.get("LC_ALL") == expected
    assert {name: os.environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if name in os.environ} == given


def test_what_a_killed_jvm_leaves_goes_with_the_tests(spark: Any) -> None:
    directory = Path(spark._jvm.System.getProperty("java.io.tmpdir"))
    assert directory.name.startswith("jvm-")
    assert any(directory.glob("blockmgr-*"))


def test_what_the_user_says_counts(spark: Any) -> None:
    # So the tests' session was made.
    assert spark.conf.get("spark.sql.streaming.pollingDelay") == "40ms"
    assert session.polling_delay_ms(spark) == 40
    given = SparkConf(loadDefaults=False).set("said", "true")
    for name in ("said", "unsaid"):
        session._set_default(given, name, "false")
    assert (given.get("said"), given.get("unsaid")) == ("true", "false")
    assert [session._is_true(given, name) for name in ("said", "unsaid", "other")] == [True, False, False]


_LOST_FILE = """
import sys, time, pathlib, strandline as sl
conf = {"spark.local.dir": sys.argv[1], "spark.executor.heartbeatInterval": "50ms"}
sc = sl.session("lost", "local[2,4]", **conf).sparkContext
pairs = sc.parallelize([(0, 1), (1, 2)], 2).groupByKey(2)
pairs.count()
for file in pathlib.Path(sys.argv[1]).rglob("shuffle_*.data"):
    file.unlink()
pairs.count()
time.sleep(20)
print(pairs.count())
"""


@pytest.mark.soak
def test_a_driver_outlives_a_shuffle_file_that_is_lost(tmp_path: Path) -> None:
    """From then on each heartbeat fails: 60 of them ended the JVM, after ten minutes."""
    command = [sys.executable, "-c", _LOST_FILE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "2", done.stderr[-2000:]


_UNSTOPPED = """
import sys, strandline as sl
spark = sl.session("unstopped", "local[1]", **{"spark.python.unix.domain.socket.dir": sys.argv[1]})
spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()
"""


@pytest.mark.long
def test_a_program_that_does_not_stop_its_session_leaves_no_socket() -> None:
    # Not tmp_path, which may be too long for a socket's path.
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([sys.executable, "-c", _UNSTOPPED, directory], check=True)
        deadline = time.monotonic() + 30
        # The JVM and its workers end after the program.
        while (left := [*Path(directory).iterdir()]) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left
