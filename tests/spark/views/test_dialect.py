"""Queries of other systems, rewritten to Spark's SQL: the text, and the places in the user's text."""

from __future__ import annotations

import re

import pytest

from strandline.core.errors import ConfigurationError
from strandline.spark.views.dialect import rewritten
from strandline.spark.views.intervals import NoInterval, duration, microseconds, seconds
from strandline.spark.views.tokens import tokens

MS = "INTERVAL '0.001' SECOND"
MIN = 60_000_000
SAME = [
    "SELECT a, b FROM t WHERE c = 'TUMBLE(at, 1)' -- SELECT STREAM\n",
    "SELECT /* SELECT STREAM */ `stream` FROM t",
    "SELECT stream FROM t",
    "SELECT stream, id FROM t",
    "SELECT stream.id FROM t stream",
    "SELECT stream + 1 FROM t",
    "SELECT stream IS NULL FROM t",
    "SELECT id FROM t QUALIFY row_number() OVER (PARTITION BY room ORDER BY id) = 1",
    "SELECT id::int, room ILIKE 'a%' FROM t",
    "SELECT tumble, hop AS session FROM t GROUP BY tumble, hop",
    "SELECT tumble(id) FROM t",
    "SELECT t.tumble_end(at, 1) FROM t",
    "SELECT hop(a, b, c) FROM t WHERE hop(a, b, c) > 1 AND f(x, hop(a, b, c)) = 1",
    "SELECT * FROM f(a, hop(a, b, c)) x",
    "SELECT window(at, '1 hour'), session_window(at, CASE WHEN a THEN INTERVAL '1' HOUR END) FROM t",
    "SELECT * FROM t FOR SYSTEM_TIME AS OF TIMESTAMP '2026-01-01'",
    "SELECT * FROM t FOR SYSTEM_TIME AS OF '2026-01-01'",
    "SELECT * FROM t FOR SYSTEM_TIME AS OF to_timestamp('2026-01-01')",
    "SELECT * FROM o LEFT ASOF JOIN r MATCH_CONDITION (o.at >= r.at) ON o.k = r.k",
    "SELECT * FROM o ASOF JOIN r MATCH_CONDITION (o.at > r.at) USING (k)",
    "SELECT count(DISTINCT on) FROM t",
    "WITH x AS (SELECT 1), y(n) AS (SELECT 2) SELECT x AS delete FROM y",
    "(SELECT 1) UNION (SELECT 2)",
    "FROM t |> WHERE id > 1 |> SELECT id",
    "VALUES (1)",
    "SELECT 'it''s', \"a\\\"b\", r'\\', $$TUMBLE(at, 1)$$ FROM t",
    "SELECT 'open FROM t",
    "SELECT id AS varchar, CAST(id AS VARCHAR(3)), id::varchar(3), (SELECT a AS varchar) FROM t",
    "SELECT * FROM UNNEST(array(1, 2)) u, t CROSS JOIN UNNEST(array(1)) JOIN LATERAL UNNEST(tags)",
    "SELECT a, unnest, t.unnest(tags) FROM t RIGHT JOIN UNNEST(tags) RIGHT OUTER JOIN UNNEST(tags)",
    "SELECT id AS text, text, CAST(text AS INT), f(a AS text), text('x'), t::text(3), 'a::TEXT' FROM text",
    "SELECT (SELECT max(v) FROM UNNEST(array(1)) u(v)) FROM t WHERE unnest(tags) > 1 GROUP BY unnest(tags)",
    "SELECT string_agg(a, ','), f(a ORDER BY b), first_value(a) IGNORE NULLS OVER w FROM t",
]
REWRITTEN = [
    ("SELECT CAST(a AS VARCHAR), try_cast(b as varchar), c::VARCHAR || 'x' FROM t",
     "SELECT CAST(a AS STRING), try_cast(b as STRING), c::STRING || 'x' FROM t"),
    ("SELECT CAST(a AS TEXT), TRY_CAST(b + 1 AS text), (c)::text::INT FROM t",
     "SELECT CAST(a AS STRING), TRY_CAST(b + 1 AS STRING), (c)::STRING::INT FROM t"),
    ("SELECT id, UNNEST(tags) AS tag FROM t, UNNEST(tags) u UNION ALL (SELECT 1, unnest(split(a::TEXT, ',')))",
     "SELECT id, explode(tags) AS tag FROM t, LATERAL UNNEST(tags) u UNION ALL (SELECT 1, explode(split(a::STRING, ',')))"),
    ("FROM t |> SELECT unnest(tags) AS tag", "FROM t |> SELECT explode(tags) AS tag"),
    ("SELECT tag FROM t CROSS JOIN UNNEST(t.tags) AS u(tag)", "SELECT tag FROM t CROSS JOIN LATERAL UNNEST(t.tags) AS u(tag)"),
    ("SELECT tag FROM t LEFT OUTER JOIN UNNEST(tags) u(tag) ON TRUE, unnest(f(more)) v",
     "SELECT tag FROM t LEFT OUTER JOIN LATERAL UNNEST(tags) u(tag) ON TRUE, LATERAL unnest(f(more)) v"),
    ("SELECT string_agg(DISTINCT a, ',' ORDER BY a DESC) FILTER (WHERE b) FROM t",
     "SELECT string_agg(DISTINCT a, ',' ) WITHIN GROUP (ORDER BY a DESC) FILTER (WHERE b) FROM t"),
    ("SELECT first_value(a ignore nulls) over (ORDER BY (SELECT max(b) FROM u)), lag(a, 1 RESPECT NULLS) OVER w FROM t",
     "SELECT first_value(a ) ignore nulls over (ORDER BY (SELECT max(b) FROM u)), lag(a, 1 ) RESPECT NULLS OVER w FROM t"),
    # -- GROUP BY
    (
        "SELECT STREAM room, TUMBLE_END(rowtime, INTERVAL '1' HOUR), AVG(temperature) FROM sensors "
        "GROUP BY TUMBLE(rowtime, INTERVAL '1' HOUR), room",
        "SELECT room, window.end, AVG(temperature) FROM sensors GROUP BY window(rowtime, '1 hour'), room",
    ),
    (
        "select tumble_start(at, interval '60' minute) s from t group by room, Tumble(at, INTERVAL '1' HOUR)",
        "select window.start s from t group by room, window(at, '1 hour')",
    ),
    (
        "SELECT TUMBLE_ROWTIME(t.at, INTERVAL '1' DAY) FROM t GROUP BY TUMBLE(t.at, INTERVAL '1' DAY)",
        f"SELECT (window.end - {MS}) FROM t GROUP BY window(t.at, '24 hours')",
    ),
    (
        "SELECT HOP_START(at, INTERVAL '5' MINUTE, INTERVAL '1' HOUR) FROM t "
        "GROUP BY HOP(at, INTERVAL '5' MINUTE, INTERVAL '1' HOUR)",
        "SELECT window.start FROM t GROUP BY window(at, '1 hour', '5 minutes')",
    ),
    (
        "SELECT SESSION_END(at, INTERVAL '30' SECOND) FROM t GROUP BY ROLLUP(SESSION(at, INTERVAL '30' SECOND), room)",
        "SELECT session_window.end FROM t GROUP BY ROLLUP(session_window(at, '30 seconds'), room)",
    ),
    (
        "SELECT n FROM (SELECT TUMBLE_ROWTIME(at, INTERVAL '1' HOUR) r, count(*) n FROM t "
        "GROUP BY TUMBLE(at, INTERVAL '1' HOUR)) GROUP BY TUMBLE(r, INTERVAL '1' DAY), n",
        f"SELECT n FROM (SELECT (window.end - {MS}) r, count(*) n FROM t "
        "GROUP BY window(at, '1 hour')) GROUP BY window(r, '24 hours'), n",
    ),
    (
        "SELECT TUMBLE_END(at, INTERVAL '1' HOUR) FROM a GROUP BY TUMBLE(at, INTERVAL '1' HOUR) UNION ALL "
        "SELECT TUMBLE_END(at, INTERVAL '2' HOUR) FROM b GROUP BY TUMBLE(at, INTERVAL '2' HOUR)",
        "SELECT window.end FROM a GROUP BY window(at, '1 hour') UNION ALL "
        "SELECT window.end FROM b GROUP BY window(at, '2 hours')",
    ),
    (
        "SELECT offset FROM t GROUP BY offset, TUMBLE(at, INTERVAL '1' HOUR) "
        "HAVING TUMBLE_END(at, INTERVAL '1' HOUR) IS DISTINCT FROM x",
        "SELECT offset FROM t GROUP BY offset, window(at, '1 hour') HAVING window.end IS DISTINCT FROM x",
    ),
    ("SELECT window(at, INTERVAL '1' HOUR) FROM t", "SELECT window(at, '1 hour') FROM t"),
    (
        "SELECT session_window(at, INTERVAL 1 DAY), window(at, INTERVAL 1 HOUR, INTERVAL '90' SECOND) FROM t",
        "SELECT session_window(at, '24 hours'), window(at, '1 hour', '90 seconds') FROM t",
    ),
    # -- FROM
    (
        "SELECT * FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(at), INTERVAL '10' MINUTES)) AS w",
        "SELECT * FROM (SELECT *, window(at, '10 minutes').start AS window_start, window(at, '10 minutes').end AS "
        f"window_end, window(at, '10 minutes').end - {MS} AS window_time FROM t) AS w",
    ),
    (
        "SELECT * FROM TABLE(HOP(DATA => TABLE a.t, TIMECOL => DESCRIPTOR(`at`), SLIDE => INTERVAL '5' MINUTES, "
        "SIZE => INTERVAL '1' HOUR, OFFSET => INTERVAL '-8' MINUTES))",
        "SELECT * FROM (SELECT *, window(`at`, '1 hour', '5 minutes', '2 minutes').start AS window_start, "
        "window(`at`, '1 hour', '5 minutes', '2 minutes').end AS window_end, "
        f"window(`at`, '1 hour', '5 minutes', '2 minutes').end - {MS} AS window_time FROM a.t)",
    ),
    (
        "SELECT * FROM o JOIN TUMBLE(TABLE (SELECT STREAM * FROM t), DESCRIPTOR(at), INTERVAL '1' HOUR) w ON o.k = w.k",
        "SELECT * FROM o JOIN (SELECT *, window(at, '1 hour').start AS window_start, window(at, '1 hour').end AS "
        f"window_end, window(at, '1 hour').end - {MS} AS window_time FROM (SELECT * FROM t)) w ON o.k = w.k",
    ),
    (
        "SELECT * FROM TABLE(CUMULATE(TABLE t, DESCRIPTOR(at), INTERVAL '10' MINUTES, INTERVAL '1' HOUR))",
        "SELECT * FROM (SELECT * EXCEPT (__window, __first, window_end), __window.start AS window_start, window_end, "
        f"window_end - {MS} AS window_time FROM (SELECT *, window(at, '10 minutes').end AS __first FROM "
        "(SELECT *, window(at, '1 hour') AS __window FROM t)) "
        "LATERAL VIEW explode(sequence(__first, __window.end, INTERVAL '600' SECOND)) AS window_end)",
    ),
    (
        "SELECT * FROM TABLE(CUMULATE(TABLE t, DESCRIPTOR(at), INTERVAL '10' MINUTES, INTERVAL '1' HOUR, "
        "INTERVAL '-8' MINUTES))",
        "SELECT * FROM (SELECT * EXCEPT (__window, __first, window_end), __window.start AS window_start, window_end, "
        f"window_end - {MS} AS window_time FROM (SELECT *, window(at, '10 minutes', '10 minutes', '2 minutes').end AS "
        "__first FROM (SELECT *, window(at, '1 hour', '1 hour', '52 minutes') AS __window FROM t)) "
        "LATERAL VIEW explode(sequence(__first, __window.end, INTERVAL '600' SECOND)) AS window_end)",
    ),
    (
        "SELECT * FROM TABLE(SESSION(TABLE t PARTITION BY (a, b), DESCRIPTOR(at), INTERVAL '1' MINUTE))",
        "SELECT * FROM (SELECT l.*, s.__window.start AS window_start, s.__window.end AS window_end, "
        f"s.__window.end - {MS} AS window_time FROM t AS l JOIN (SELECT a, b, session_window(at, '1 minute') AS "
        "__window FROM t GROUP BY a, b, session_window(at, '1 minute')) AS s ON l.a <=> s.a AND l.b <=> s.b AND "
        "l.at >= s.__window.start AND l.at < s.__window.end)",
    ),
    (
        "SELECT * FROM a, tumble(t, at, INTERVAL '1 MINUTE', interval '10 seconds') w",
        "SELECT * FROM a, (SELECT *, window(at, '1 minute', '1 minute', '10 seconds').start AS window_start, "
        "window(at, '1 minute', '1 minute', '10 seconds').end AS window_end FROM t) w",
    ),
    (
        "SELECT * FROM hop(t, at, INTERVAL '1' MINUTE, '5 minutes')",
        "SELECT * FROM (SELECT *, window(at, '5 minutes', '1 minute').start AS window_start, "
        "window(at, '5 minutes', '1 minute').end AS window_end FROM t)",
    ),
    # -- joins, and the rest
    (
        "SELECT * FROM o ASOF LEFT JOIN r ON o.k = r.k AND o.at >= r.at WHERE o.id > 3",
        "SELECT * FROM o LEFT ASOF JOIN r MATCH_CONDITION (o.at >= r.at) ON o.k = r.k WHERE o.id > 3",
    ),
    (
        "SELECT * FROM (SELECT * FROM o ASOF JOIN r ON r.at < o.at) JOIN x ON id > n",
        "SELECT * FROM (SELECT * FROM o ASOF JOIN r MATCH_CONDITION (r.at < o.at)) JOIN x ON id > n",
    ),
    (
        "SELECT * FROM o ASOF JOIN r ON o.at > r.at AND o.k = r.k AND (o.j < 3) = r.j LEFT JOIN x ON o.id > x.id",
        "SELECT * FROM o ASOF JOIN r MATCH_CONDITION (o.at > r.at) ON o.k = r.k AND (o.j < 3) = r.j "
        "LEFT JOIN x ON o.id > x.id",
    ),
    (
        "SELECT DISTINCT ON (room, lower(a)) * FROM t WHERE id > 3 ORDER BY room, lower(a), offset DESC;",
        "SELECT * FROM t WHERE id > 3 "
        "QUALIFY row_number() OVER (PARTITION BY room, lower(a) ORDER BY room, lower(a), offset DESC) = 1;",
    ),
    (
        "SELECT * FROM (SELECT DISTINCT ON (room) * FROM t ORDER BY room, at DESC LIMIT 3) x",
        "SELECT * FROM (SELECT * FROM t "
        "QUALIFY row_number() OVER (PARTITION BY room ORDER BY room, at DESC) = 1 ORDER BY room, at DESC LIMIT 3) x",
    ),
]  # fmt: skip


@pytest.mark.parametrize("text", SAME)
def test_what_spark_parses_is_left_as_it_is(text: str) -> None:
    assert rewritten(text).text == text


@pytest.mark.parametrize(("text", "spark"), REWRITTEN)
def test_rewritten(text: str, spark: str) -> None:
    assert rewritten(text).text == spark


def test_stream_stays_a_column_if_a_table_has_it() -> None:
    text = "SELECT STREAM room FROM t"
    assert rewritten(text, ["id", "Stream"]).text == text
    assert rewritten(text, ["id"]).text == "SELECT room FROM t"


@pytest.mark.parametrize(("text", "spark"), [*REWRITTEN, *((same, same) for same in SAME)])
def test_names_that_are_copied_have_their_places(text: str, spark: str) -> None:
    rewriting = rewritten(text)
    for token in tokens(spark):
        before = [each for each in tokens(text) if each.text == token.text]
        is_name = token.kind in ("word", "name") and token.text.islower()
        if len(before) == 1 and is_name and token.text not in ("window", "l", "s"):
            assert rewriting.place(token.start) == before[0].start
            assert rewriting.place(token.end - 1) == before[0].end - 1
    places = [rewriting.place(at) for at in range(len(spark) + 1)]
    assert all(0 <= place <= len(text) for place in places)
    assert places[-1] == len(text)


@pytest.mark.parametrize(
    ("text", "part", "place"),
    [
        ("SELECT TUMBLE_END(at, INTERVAL '1' DAY) FROM t GROUP BY TUMBLE(at, INTERVAL '1' DAY)", "window.end", "TUMBLE_END"),
        ("SELECT TUMBLE_END(at, INTERVAL '1' DAY) FROM t GROUP BY TUMBLE(at, INTERVAL '1' DAY)", "24 hours", "TUMBLE(at"),
        ("SELECT TUMBLE_END(x, INTERVAL '1' DAY) FROM t GROUP BY TUMBLE(x, INTERVAL '1' DAY)", "x, '24", "x, INTERVAL '1' DAY)"),
        ("SELECT * FROM tumble(t, at, INTERVAL '1' DAY) w", "window_end", "tumble"),
        ("SELECT * FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ab), INTERVAL '1' DAY)) w", "ab, '24", "ab)"),
        ("SELECT * FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ab), INTERVAL '1' DAY)) w", "window_time", "TABLE(TUMBLE"),
        ("SELECT window(at, INTERVAL '1' DAY) FROM t", "'24 hours'", "INTERVAL"),
        ("SELECT DISTINCT ON (kk) * FROM t ORDER BY kk, n", "kk ORDER", "kk) *"),
        ("SELECT * FROM o ASOF JOIN r ON o.k = r.k AND o.at >= r.at", "o.at >=", "o.at >="),
    ],
)  # fmt: skip
def test_what_is_put_in_stands_for_a_place(text: str, part: str, place: str) -> None:
    rewriting = rewritten(text)
    assert rewriting.place(rewriting.text.index(part)) == (
        text.rindex(place) if place.startswith("x") else text.index(place)
    )


def test_lines_and_columns_of_the_new_text() -> None:
    text = "SELECT STREAM a,\n  TUMBLE_END(at,\n    INTERVAL '1' HOUR), nope\nFROM t\nGROUP BY TUMBLE(at, INTERVAL '1' HOUR), a"
    rewriting = rewritten(text)
    assert rewriting.text == "SELECT a,\n  window.end, nope\nFROM t\nGROUP BY window(at, '1 hour'), a"
    assert rewriting.place_of(2, 14) == text.index("nope")
    error = rewriting.refused("there is no such column", text.index("nope"), "look")
    assert str(error) == (
        "there is no such column\n  line 3, column 25:\n        INTERVAL '1' HOUR), nope\n"
        "                            ^\n  next step: look"
    )


def test_of_a_long_line_the_part_around_the_place_is_shown() -> None:
    text = "SELECT " + "a, " * 100 + "nope" + ", b" * 100 + " FROM t"
    line, caret = rewritten(text).marked("", text.index("nope")).split("\n")[2:]
    assert len(line) == 104
    assert line[caret.index("^") :].startswith("nope")


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("INTERVAL '1' HOUR", 60 * MIN),
        ("interval '10' minutes", 10 * MIN),
        ("INTERVAL '1 day'", 1440 * MIN),
        ("INTERVAL '1 MINUTE'", MIN),
        ("INTERVAL '1 hour 30 minutes'", 90 * MIN),
        ("INTERVAL 1 HOUR 30 MINUTES", 90 * MIN),
        ("INTERVAL '1:30' HOUR TO MINUTE", 90 * MIN),
        ("INTERVAL '1 02:03:04.5' DAY TO SECOND", 1563 * MIN + 4_500_000),
        ("INTERVAL '-1:30' MINUTE TO SECOND", -MIN * 3 // 2),
        ("INTERVAL '1.5' SECOND", 1_500_000),
        ("INTERVAL '0.000001' SECOND", 1),
        ("INTERVAL '10' SECOND(3)", 10_000_000),
        ("INTERVAL '250' MILLISECOND", 250_000),
        ("INTERVAL '2' WEEKS", 20160 * MIN),
        ("INTERVAL -'8' HOURS", -480 * MIN),
        ("- INTERVAL '8' HOURS", -480 * MIN),
        ("- INTERVAL '-8' HOURS", 480 * MIN),
        ("'10 minutes'", 10 * MIN),
        ("'interval 10 minutes'", 10 * MIN),
    ],
)
def test_lengths_of_intervals(text: str, length: int) -> None:
    assert microseconds(tokens(text)) == length
    if length > 0:
        assert microseconds(tokens(f"'{duration(length)}'")) == length
        assert microseconds(tokens(seconds(length))) == length


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("INTERVAL '1' MONTH", "a month has no fixed length"),
        ("INTERVAL '1 year'", "a year has no fixed length"),
        ("INTERVAL '1-2' YEAR TO MONTH", "a year has no fixed length"),
        ("INTERVAL '1 fortnight'", "'fortnight' is no unit of time"),
        ("INTERVAL 'an hour'", "it is not a number and a unit"),
        ("INTERVAL 'x' HOUR", "'x' is no number"),
        ("INTERVAL '1.5' HOUR", "1.5 hours are not a whole number of them"),
        ("INTERVAL '0.0000001' SECOND", "0.0000001 seconds are not a whole number of them"),
        ("INTERVAL '1:30' DAY TO HOUR", "it has not the form of DAY TO HOUR"),
        ("INTERVAL '1' HOUR '2'", "it is no literal"),
        ("size", "it is no literal"),
        ("3600", "it is no literal"),
    ],
)
def test_what_is_no_length(text: str, why: str) -> None:
    with pytest.raises(NoInterval, match=re.escape(why)):
        microseconds(tokens(text))


@pytest.mark.parametrize(
    "text",
    [
        "DROP TABLE t",
        "(INSERT INTO t SELECT 1)",
        "WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x",
        "WITH x AS (SELECT 1) DELETE FROM t",
        "FROM t INSERT INTO u SELECT *",
        "-- nothing",
        "EXPLAIN SELECT 1",
        "SET x = 1",
    ],
)
def test_statements_that_spark_would_execute_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sql\(\) was given"):
        rewritten(text)


def test_matches_are_not_spark_s() -> None:
    with pytest.raises(ConfigurationError, match=r"MATCH_RECOGNIZE is of rows of a stream .*\n  line 1, column 17:"):
        rewritten("SELECT * FROM t MATCH_RECOGNIZE (ORDER BY at PATTERN (a b))")
    assert rewritten("SELECT match_recognize FROM t").text == "SELECT match_recognize FROM t"
