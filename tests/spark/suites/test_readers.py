"""Suites of others become cases: what the readers make of a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.spark.suites import arroyo, flink
from tests.spark.suites.cases import Case
from tests.spark.suites.run import with_own_names


def _table(kind: str, name: str, *schema: str, **of: Any) -> dict[str, Any]:
    return {"kind": kind, "name": name, "schema": schema, "options": {}, "before": [], "after": [], **of}


SOURCE = _table("SourceTestStep", "t", "a INT", "b BIGINT")


def _queries(case: Case) -> list[str]:
    return [" ".join(query.split()) for _, query in case.views]


@pytest.mark.parametrize(
    ("insert", "query"),
    [
        ("INSERT INTO s SELECT a, b, 1 FROM t", "SELECT `x`, `y`, `z` FROM ( SELECT a, b, 1 FROM t ) AS s_0(`x`, `y`, `z`)"),
        ("INSERT OVERWRITE s SELECT a, b, 1 FROM t", "SELECT `x`, `y`, `z` FROM ( SELECT a, b, 1 FROM t ) AS s_0(`x`, `y`, `z`)"),
        ("INSERT INTO s (z, x) SELECT a, b FROM t", "SELECT `x`, NULL AS `y`, `z` FROM ( SELECT a, b FROM t ) AS s_0(`z`, `x`)"),
        ("INSERT INTO s PARTITION (y=2) SELECT a, b FROM t", "SELECT `x`, 2 AS `y`, `z` FROM ( SELECT a, b FROM t ) AS s_0(`x`, `z`)"),
    ],
)  # fmt: skip
def test_an_insert_of_flink_is_a_query_of_its_sinks_columns(insert: str, query: str) -> None:
    sink = _table("SinkTestStep", "s", "x INT", "y INT", "z BIGINT")
    case = flink._case("one", [SOURCE, sink, {"kind": "SqlTestStep", "sql": insert}])
    assert _queries(case) == [query]


def test_a_set_of_statements_of_flink_is_several_views() -> None:
    sinks = [_table("SinkTestStep", name, "x INT") for name in ("one", "two")]
    statements = ["INSERT INTO one SELECT a FROM t", "INSERT INTO two SELECT b FROM t"]
    case = flink._case("set", [SOURCE, *sinks, {"kind": "StatementSetTestStep", "statements": statements}])
    assert [name for name, _ in case.views] == ["one_0", "two_2"]


def test_metadata_of_flink_is_behind_the_columns_in_the_connectors_order() -> None:
    schema = ("k STRING PRIMARY KEY NOT ENFORCED", "m BIGINT METADATA", "v INT", "n STRING METADATA FROM 'name'")
    sink = _table("SinkTestStep", "s", *schema, options={"writable-metadata": "n:STRING,m:BIGINT"}, before=["+I[a, 1, x, 2]", "+U[a, 3, y, 4]"])  # fmt: skip
    case = flink._case("one", [SOURCE, sink, {"kind": "SqlTestStep", "sql": "INSERT INTO s SELECT b, a, a, b FROM t"}])
    assert _queries(case)[0].startswith("SELECT `k`, `v`, `n`, `m` FROM")
    assert case.checks[0].expected == ["a,3,y,4"], "by the key, the newest row counts"


def test_a_named_key_of_flink_is_a_key() -> None:
    assert flink._key(["a INT", "b INT", "CONSTRAINT `PRIMARY` PRIMARY KEY (`b`, `a`) NOT ENFORCED"]) == ["b", "a"]


def test_names_in_hints_are_those_of_the_cases_tables() -> None:
    sink = _table("SinkTestStep", "s", "x INT")
    query = "INSERT INTO s SELECT /*+ STATE_TTL('t'='1d') */ a FROM t WHERE 't' = 't'"
    case = with_own_names(flink._case("one", [SOURCE, sink, {"kind": "SqlTestStep", "sql": query}]), 7)
    assert "STATE_TTL('t_c7'='1d') */ a FROM t_c7 WHERE 't' = 't'" in _queries(case)[0]


CARS = """\
CREATE TABLE cars (at TIMESTAMP, id BIGINT UNSIGNED NOT NULL, WATERMARK FOR at AS (at - INTERVAL '1 minute')) WITH (
  connector = 'single_file', path = '$input_dir/cars.json', format = 'json', type = 'source');
CREATE TABLE result (start TIMESTAMP, n BIGINT,) WITH (
  connector = 'single_file', path = '$output_path', format = 'FORMAT', type = 'sink');
INSERT INTO result SELECT window.start, n FROM (
  SELECT WINDOW as window, CAST(count(*) AS BIGINT UNSIGNED) AS n FROM cars GROUP BY 1);
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(arroyo, "ROOT", tmp_path)
    for each in ("src/test/queries", "inputs", "golden_outputs"):
        (tmp_path / each).mkdir(parents=True)
    rows = [{"at": f"2024-01-01T00:00:0{id}Z", "id": id} for id in range(5)]
    (tmp_path / "inputs" / "cars.json").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def _only_case(suite: Path, text: str, golden: list[Any] | None) -> Case:
    (suite / "src" / "test" / "queries" / "hourly.sql").write_text(text)
    if golden is not None:
        (suite / "golden_outputs" / "hourly.json").write_text("\n".join(map(json.dumps, golden)))
    ((name, case),) = arroyo.programs()
    assert name == "cars/hourly"
    assert isinstance(case, Case), case
    return case


@pytest.mark.parametrize(
    ("window", "of_spark"),
    [
        ("tumble(INTERVAL '1' HOUR)", "window(`at`, '1 HOUR')"),
        ("hop(interval '2 second', interval '10 seconds' )", "window(`at`, '10 seconds', '2 second')"),
        ("SESSION(interval '20 seconds')", "session_window(`at`, '20 seconds')"),
    ],
)
def test_a_query_of_arroyo_is_a_case(suite: Path, window: str, of_spark: str) -> None:
    case = _only_case(suite, CARS.replace("WINDOW", window).replace("FORMAT", "json"), [{"n": 5, "start": "2024-01-01T00:00:00"}])  # fmt: skip
    (cars,) = case.inputs
    assert (cars.columns, cars.watermark) == ([("at", "timestamp"), ("id", "bigint")], ("at", "1 minute"))
    assert [len(rows) for rows in cars.epochs] == [2, 2, 1, 0]
    assert f"SELECT {of_spark} as window, CAST(count(*) AS bigint)" in _queries(case)[0]
    assert [case.read(text) for text in case.checks[-1].expected or ()] == ["2024-01-01T00:00:00,5"]


def test_changes_of_arroyo_are_added_up(suite: Path) -> None:
    one, two = {"start": None, "n": 1}, {"start": None, "n": 2}
    changes = [
        {"op": "c", "before": None, "after": one},
        {"op": "u", "before": one, "after": two},
        {"op": "c", "before": None, "after": one},
        {"op": "d", "before": one, "after": None},
    ]
    text = CARS.replace("WINDOW", "tumble(INTERVAL '1' HOUR)").replace("FORMAT", "debezium_json")
    case = _only_case(suite, text, changes)
    assert [case.read(text) for text in case.checks[-1].expected or ()] == ["null,2"]


def test_without_an_output_of_arroyo_spark_alone_is_asked(suite: Path) -> None:
    case = _only_case(suite, CARS.replace("WINDOW", "tumble(INTERVAL '1' HOUR)").replace("FORMAT", "json"), None)
    assert all(check.expected is None for check in case.checks)
