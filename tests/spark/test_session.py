"""What a session is given that the user has not said: only what costs time and is read by nobody."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark import SparkConf

from strandline.spark.base import session


def test_plans_are_written_in_full_for_those_who_ask(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert spark.conf.get("spark.sql.ui.explainMode") == "simple"
    spark.range(3).explain(mode="formatted")
    assert "(1) Range" in capsys.readouterr().out


def test_what_the_user_says_counts(spark: Any) -> None:
    # So the tests' session was made.
    assert spark.conf.get("spark.sql.streaming.pollingDelay") == "40ms"
    assert session.polling_delay_ms(spark) == 40
    given = SparkConf(loadDefaults=False).set("said", "true")
    for name in ("said", "unsaid"):
        session._suggest(given, name, "false")
    assert (given.get("said"), given.get("unsaid")) == ("true", "false")
    assert [session._is_true(given, name) for name in ("said", "unsaid", "other")] == [True, False, False]
