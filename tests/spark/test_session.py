"""What a session is given that the user has not said: only what costs time and is read by nobody."""

from __future__ import annotations

import os
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


def test_what_the_user_says_counts(spark: Any) -> None:
    # So the tests' session was made.
    assert spark.conf.get("spark.sql.streaming.pollingDelay") == "40ms"
    assert session.polling_delay_ms(spark) == 40
    given = SparkConf(loadDefaults=False).set("said", "true")
    for name in ("said", "unsaid"):
        session._suggest(given, name, "false")
    assert (given.get("said"), given.get("unsaid")) == ("true", "false")
    assert [session._is_true(given, name) for name in ("said", "unsaid", "other")] == [True, False, False]
