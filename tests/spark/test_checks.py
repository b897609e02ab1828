"""What is said of sessions in which a job works, but not well. Without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from strandline.spark.base.session import session_warnings, spark_settings


def session(master: str, conf: dict[str, str]) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, _conf=conf))


@pytest.mark.parametrize("master", ["local[2,4]", "spark://host:7077", "local-cluster[2,1,1024]"])
def test_nothing_is_said_of_our_own_sessions(master: str) -> None:
    assert session_warnings(session(master, spark_settings())) == []


def test_what_a_session_of_somebodys_own_lacks_is_said() -> None:
    there, here = (session_warnings(session(master, {})) for master in ("spark://host:7077", "local[2]"))
    assert [warning.split()[0] for warning in there] == [
        "spark.shuffle.reduceLocality.enabled", "spark.locality.wait.process", "spark.python.unix.domain.socket.enabled",
    ]  # fmt: skip
    assert [warning.split()[0] for warning in here] == ["spark.python.unix.domain.socket.enabled"]
    assert all("with the settings that strandline.spark_settings() returns" in warning for warning in there)
