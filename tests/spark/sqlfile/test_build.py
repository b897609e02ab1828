"""What SQL programs make, on real Spark: jobs whose sinks have what Spark's batch answers, and previews."""

from __future__ import annotations

import datetime as dt
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from strandline.core.errors import ConfigurationError, StrandlineError
from strandline.spark.sqlfile.build import Build, make_sinks
from strandline.spark.sqlfile.parser import parse
from strandline.spark.sqlfile.preview import Preview
from strandline.spark.sqlfile.program import Program
from strandline.spark.sqlfile.statements import Name, Query, Select
from strandline.spark.sqlfile.text import Script
from strandline.spark.views.view import View
from tests import kafkaserver
from tests.kafkaserver import Kafka
from tests.spark.pipeline import read_json

pytestmark = pytest.mark.spark


class Place:
    """A directory with orders, and programs over them."""

    def __init__(self, spark: Any, directory: Path, local_dir: Path) -> None:
        self.spark, self.directory = spark, directory
        self._local_dir = local_dir
        self.orders = [
            {"id": id_, "shop": f"s{id_ % 4}", "amount": id_ % 7, "at": f"2026-01-01T00:00:{id_:02}Z"}
            for id_ in range(40)
        ]
        self.write("in/0.json", self.orders)
        (directory / "shops.csv").write_text("shop,city\ns0,Oslo\ns1,Riga\ns2,Oslo\n")

    def write(self, name: str, rows: list[dict[str, Any]], time_s: int = 1_790_000_000) -> None:
        """Write a file of JSON, with a time by which files are read in an order."""
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (time_s, time_s))

    def script(self, text: str) -> Script:
        """Return a text with its `@` as the directory."""
        return Script(text.replace("@", str(self.directory)), "totals.sql")

    def program(self, text: str) -> Program:
        """Return a program after the statements that all have."""
        begin = (
            f"SET parallelism = 2; SET trigger = 'available-now'; SET checkpoints.directory = '@/ck'; "
            f"SET local_dir = '{self._local_dir}'; SET state_memory = '128MB'; SET restart.attempts = 0;"
            "CREATE STREAM orders (id BIGINT, shop STRING, amount BIGINT, at TIMESTAMP, WATERMARK FOR at DELAY '5 s')"
            " USING files OPTIONS (path '@/in');"
            "CREATE TABLE shops (shop STRING, city STRING) USING csv OPTIONS (path '@/shops.csv', header TRUE);\n"
        )
        program, script = Program(), self.script(begin + text)
        for statement in parse(script):
            program.add(statement, script)
        return program

    def run(self, text: str) -> None:
        """Run the job of a program over what is there."""
        program = self.program(text)
        job = Build(program, self.spark).job(program.settings("totals.sql"), make_sinks(program))
        job.start(self.spark).await_termination(120)

    def preview(self, text: str, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query's preview."""
        script = self.script(query)
        (statement,) = parse(script)
        assert isinstance(statement, Select)
        answer = Preview(self.program(text), self.spark).answer(statement.query, script, 100)
        return [tuple(row) for row in answer.rows]


@pytest.fixture
def place(spark: Any, tmp_path: Path, local_dir: Path) -> Iterator[Place]:
    yield Place(spark, tmp_path, local_dir)
    for name in ("shops", "oslo"):
        spark.catalog.dropTempView(name)


VIEWS = """
CREATE VIEW large AS SELECT * FROM orders WHERE amount >= 3;
CREATE VIEW totals AS SELECT shop, count(*) AS n, sum(amount) AS total FROM Large GROUP BY shop;
CREATE VIEW cities AS SELECT city, sum(total) AS total FROM totals JOIN shops USING (shop) GROUP BY city;
"""


@pytest.mark.timeout(300)
@pytest.mark.long
def test_views_of_views_and_tables_into_sinks_over_two_runs(place: Place) -> None:
    text = VIEWS + (
        "CREATE SINK out USING files OPTIONS (path '@/out', format 'json');"
        "CREATE SINK log USING files OPTIONS (path '@/log', format 'json');"
        "CREATE SINK totals_table USING sqlite OPTIONS (path '@/t.db', table 'totals', key 'shop', create TRUE);"
        "INSERT INTO out TABLE large; INSERT INTO log CHANGES OF cities; INSERT INTO totals_table FROM totals;"
    )
    more = [{**order, "id": order["id"] + 100} for order in place.orders[::3]]
    for orders in (place.orders, place.orders + more):
        place.run(text)
        large = [order for order in orders if order["amount"] >= 3]
        assert sorted(row["id"] for row in read_json(place.directory / "out")) == [order["id"] for order in large]
        totals = {f"s{shop}": [o["amount"] for o in large if o["shop"] == f"s{shop}"] for shop in range(4)}
        with sqlite3.connect(place.directory / "t.db") as database:
            stored = database.execute("SELECT shop, n, total FROM totals ORDER BY shop").fetchall()
        database.close()
        assert stored == [(shop, len(amounts), sum(amounts)) for shop, amounts in totals.items()]
        cities: Counter[tuple[str, int]] = Counter()
        for row in read_json(place.directory / "log"):
            cities[row["city"], row["total"]] += row["_change"]
        assert +cities == {("Oslo", sum(totals["s0"] + totals["s2"])): 1, ("Riga", sum(totals["s1"])): 1}
        # The next run goes on from the checkpoint, with these.
        place.write("in/1.json", more, 1_790_000_001)


def test_a_preview_answers_over_what_is_there(place: Place) -> None:
    assert place.preview(VIEWS, "SELECT * FROM cities ORDER BY city") == [("Oslo", 49), ("Riga", 23)]
    assert place.preview(VIEWS, "FROM shops") == [("s0", "Oslo"), ("s1", "Riga"), ("s2", "Oslo")]
    assert place.preview("", "SELECT o.id FROM ORDERS o JOIN shops USING (shop) WHERE id > 36 LIMIT 5") == [
        (37,),
        (38,),
    ]


def test_a_preview_has_the_newest_version_of_each_row(place: Place) -> None:
    versions = [(1, "a", 1, False), (2, "b", 1, False), (1, "c", 3, False), (1, "x", 2, False), (2, "b", 2, True)]
    place.write("items/0.json", [dict(zip(("id", "name", "v", "gone"), row, strict=True)) for row in versions])
    items = (
        "CREATE STREAM items (id INT, name STRING, v INT, gone BOOLEAN, PRIMARY KEY (id)) USING files OPTIONS "
        "(path '@/items', order_by 'v', deleted 'gone');"
    )
    assert place.preview(items, "SELECT * FROM items") == [(1, "c", 3)]
    assert place.preview(items.replace(", order_by 'v', deleted 'gone'", ""), "SELECT id, name FROM items ORDER BY id") == [
        (1, "x"), (2, "b"),
    ]  # fmt: skip


RISES = """
CREATE VIEW rises AS SELECT * FROM orders MATCH_RECOGNIZE (
  PARTITION BY shop ORDER BY at
  MEASURES A.id AS first, LAST(B.id) AS last, LAST(B.at) - A.at AS took, sum(B.amount) AS more, count(*) AS n
  PATTERN (A B+) DEFINE B AS B.amount > PREV(B.amount));
"""


def rises(orders: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return what RISES finds in orders, whose numbers are the seconds of their times."""
    found = []
    for shop in sorted({order["shop"] for order in orders}):
        rows = sorted((order for order in orders if order["shop"] == shop), key=lambda order: order["id"])
        start = 0
        for end in range(1, len(rows) + 1):
            if end == len(rows) or rows[end]["amount"] <= rows[end - 1]["amount"]:
                if end - start >= 2:
                    first, *more = rows[start:end]
                    took = dt.timedelta(seconds=more[-1]["id"] - first["id"])
                    total = sum(order["amount"] for order in more)
                    found.append((shop, first["id"], more[-1]["id"], took, total, end - start))
                start = end
    return found


def test_a_preview_has_matches(place: Place) -> None:
    """What is open at the last row is decided: a preview has no more rows."""
    expected = rises(place.orders)
    assert any(row[2] >= 36 for row in expected)
    assert place.preview(RISES, "SELECT * FROM rises ORDER BY shop, first") == expected
    totals = "SELECT city, count(*) AS n FROM rises JOIN shops USING (shop) WHERE more > 5 GROUP BY city ORDER BY city"
    oslo, riga = (sum(row[0] in shops and row[4] > 5 for row in expected) for shops in (("s0", "s2"), ("s1",)))
    assert place.preview(RISES, totals) == [(city, n) for city, n in (("Oslo", oslo), ("Riga", riga)) if n]
    large = "SELECT * FROM orders MATCH_RECOGNIZE (ORDER BY at MEASURES A.id AS id PATTERN (A) DEFINE A AS A.id > 20)"
    both = f"SELECT r.shop, r.first FROM rises r JOIN ({large}) m ON r.first = m.id ORDER BY ALL"
    assert place.preview(RISES, both) == [row[:2] for row in expected if row[1] > 20]
    # In a query, of a query, with others before it; and of matches.
    text = (
        "WITH large AS (SELECT *, id % 2 = 0 AS even, shop AS `a.b` FROM orders WHERE amount > 1),\n"
        "pairs AS (SELECT * FROM (SELECT id, id AS again, amount, even, `a.b`, at FROM large) MATCH_RECOGNIZE (PARTITION BY even, `a.b` ORDER BY at, id DESC "
        "MEASURES A.id AS a, B.id AS b, B.at AS at PATTERN (A B) WITHIN INTERVAL '1' MINUTE DEFINE B AS B.amount < A.amount))\n"
        "SELECT a, d FROM pairs MATCH_RECOGNIZE (ORDER BY at, a MEASURES FIRST(X.a) AS a, X.b AS d PATTERN (X X)) AS m LIMIT 20"
    )
    found = place.preview("", text)
    assert 1 < len(found) < 20
    assert all(a < d for a, d in found)
    assert place.preview("", text.replace("FROM orders WHERE amount > 1", "FROM orders WHERE amount > 100")) == []


def test_a_job_gives_the_matches_of_a_preview(place: Place) -> None:
    place.run(
        "SET drain = TRUE;"
        + RISES
        + "CREATE SINK out USING files OPTIONS (path '@/out', format 'json'); INSERT INTO out SELECT shop, first, last, more, n FROM rises;"
    )
    rows = [
        tuple(row[name] for name in ("shop", "first", "last", "more", "n"))
        for row in read_json(place.directory / "out")
    ]
    assert sorted(rows) == place.preview(RISES, "SELECT shop, first, last, more, n FROM rises ORDER BY shop, first")


@pytest.mark.timeout(300)
@pytest.mark.long
def test_a_view_with_a_uid_goes_on_where_it_means_something_else(place: Place) -> None:
    """The uid of OPTIONS is that of the view's operator: rows that wait for the watermark are those of before."""
    named = RISES.replace("rises AS", "rises OPTIONS (uid 'rises') AS")
    out = (
        "CREATE SINK out USING files OPTIONS (path '@/out', format 'json');"
        "INSERT INTO out SELECT shop, first, last, more, n FROM rises;"
    )
    place.run(named + out)
    more = [
        {"id": id_, "shop": f"s{id_ % 4}", "amount": id_ % 7, "at": f"2026-01-01T00:00:{id_:02}Z"}
        for id_ in range(40, 60)
    ]
    place.write("in/1.json", more, 1_790_000_001)
    changed = "FROM (SELECT * FROM orders WHERE id <> 46)"
    with pytest.raises(StrandlineError, match="no operator with uid 'rises', which has state"):
        place.run(RISES.replace("FROM orders", changed) + out)
    place.run("SET drain = TRUE;" + named.replace("FROM orders", changed) + out)
    found = [
        tuple(row[name] for name in ("shop", "first", "last", "more", "n"))
        for row in read_json(place.directory / "out")
    ]
    expected = [(*row[:3], *row[4:]) for row in rises([order for order in place.orders + more if order["id"] != 46])]
    assert sorted(found) == expected


@pytest.mark.parametrize(
    ("query", "message", "line"),
    [
        ("SELECT id\nFROM orders MATCH_RECOGNIZE (ORDER BY id MEASURES A.id AS id PATTERN (A B))", "ORDER BY id, which has no watermark", 2),
        ("SELECT *\nFROM (SELECT *, TIMESTAMP '2026-01-01 00:00:00' AS later FROM orders) MATCH_RECOGNIZE (ORDER BY later PATTERN (A B))", "which has no watermark", 2),
        ("SELECT * FROM shops\nMATCH_RECOGNIZE (ORDER BY city PATTERN (A B))", "MATCH_RECOGNIZE is of rows of a stream with a watermark: tables alone", 2),
        ("SELECT * FROM (SELECT shop, max(at) AS at FROM orders GROUP BY shop)\n\nMATCH_RECOGNIZE (ORDER BY at PATTERN (A B))", "those of its table change", 3),
        ("SELECT idd FROM orders MATCH_RECOGNIZE\n(ORDER BY at MEASURES A.nothing AS x PATTERN (A B))", "nothing", 2),
        ("SELECT *,\n  idd FROM orders MATCH_RECOGNIZE (ORDER BY at MEASURES A.id AS x PATTERN (A B))", "idd", 2),
    ],
)  # fmt: skip
def test_a_preview_refuses_matches_that_a_job_refuses(place: Place, query: str, message: str, line: int) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        place.preview("", query)
    assert caught.value.message.startswith(f"totals.sql, line {line}, column ")


@pytest.mark.timeout(300)
@pytest.mark.long
def test_changes_of_a_job_add_up_to_what_a_preview_answers(place: Place) -> None:
    """With a table that changes: versions of its rows come in several epochs, late ones and deletions among them."""
    for file in range(3):
        place.write(
            f"shops/{file}.json",
            [
                {"shop": f"s{n}", "city": f"c{(n + file) % 3}", "v": v, "gone": n == file}
                for n, v in ((0, file), (1, 5 - file), (2, file), (3, 1))
            ],
            1_790_000_000 + file,
        )
    declared = (
        "CREATE STREAM places (shop STRING, city STRING, v INT, gone BOOLEAN, PRIMARY KEY (shop)) USING files OPTIONS "
        "(path '@/shops', order_by 'v', deleted 'gone', max_files_per_epoch 1);"
        "CREATE VIEW placed AS SELECT id, amount, city FROM orders JOIN places USING (shop);"
    )
    queries = {
        "versions": "SELECT * FROM places",
        "cities": "SELECT city, count(*) AS n, sum(amount) AS total FROM placed GROUP BY city",
        "missing": "SELECT id FROM orders LEFT ANTI JOIN places USING (shop)",
    }
    place.run(
        declared
        + "".join(
            f"CREATE SINK {name} USING files OPTIONS (path '@/{name}', format 'json'); INSERT INTO {name} CHANGES OF {query};"
            for name, query in queries.items()
        )
    )
    for name, query in queries.items():
        rows: Counter[tuple[Any, ...]] = Counter()
        for row in read_json(place.directory / name):
            change = row.pop("_change")
            rows[tuple(row.values())] += change
        assert +rows == Counter(place.preview(declared, query)), name
        assert min(rows.values()) >= 0
        assert rows


@pytest.fixture(params=["job", "preview"])
def refused(place: Place, request: pytest.FixtureRequest) -> Callable[[str, str], StrandlineError]:
    """A function that returns the error for a text with a relation of a name."""

    def refuse(text: str, name: str) -> StrandlineError:
        attempts: dict[str, Callable[[], object]] = {
            "job": lambda: Build(place.program(text), place.spark).relation(name),
            "preview": lambda: place.preview(text, f"SELECT * FROM {name}"),
        }
        with pytest.raises(StrandlineError) as caught:
            attempts[request.param]()
        return caught.value

    return refuse


def test_an_error_of_a_query_is_at_its_place_in_the_file(refused: Callable[[str, str], StrandlineError]) -> None:
    error = refused("CREATE VIEW v AS\n  SELECT id,\n    shopp FROM orders;\n", "v")
    first, line, caret, *_ = error.message.splitlines()
    assert first.startswith("totals.sql, line 4, column 5: the query is refused by Spark: ")
    assert (line.strip(), line[caret.index("^") :]) == ("shopp FROM orders;", "shopp FROM orders;")


def test_a_name_that_is_a_column_elsewhere_changes_nothing(place: Place) -> None:
    """Names are looked for in the whole text of a query: there may be more than Spark finds."""
    program = place.program(
        "CREATE STREAM amount (n BIGINT) USING files OPTIONS (path '@/in');"
        "CREATE VIEW total AS SELECT sum(amount) AS total FROM orders; CREATE VIEW shop AS FROM total SELECT total AS shop"
    )
    view = Build(program, place.spark).relation("shop")
    assert isinstance(view, View)
    assert (view.columns, view.key) == (["shop"], ())


@pytest.mark.parametrize("kind", ["job", "preview"])
def test_a_table_that_is_not_there(place: Place, kind: str) -> None:
    query = "SELECT *\n  FROM oders"
    attempts: dict[str, Callable[[], object]] = {
        "job": lambda: Build(place.program(f"CREATE VIEW v AS {query}"), place.spark).relation("v"),
        "preview": lambda: place.preview("", query),
    }
    with pytest.raises(ConfigurationError) as caught:
        attempts[kind]()
    assert "there is no table 'oders': did you mean 'orders'?\n      FROM oders\n           ^" in caught.value.message
    assert caught.value.hint == "create it in a statement before this one"


def test_a_view_of_tables_alone_does_not_change(place: Place) -> None:
    text = "CREATE VIEW oslo AS SELECT shop FROM shops WHERE city = 'Oslo'; CREATE VIEW v AS FROM orders JOIN oslo USING (shop) SELECT id;"
    program = place.program(text + "CREATE SINK out USING console;\nINSERT INTO out TABLE oslo;")
    build = Build(program, place.spark)
    views = {name: Query(name, 0, Name(name, 0)) for name in ("oslo", "v")}
    assert build.explain(views["oslo"], place.script(""), "oslo") == "'oslo': rows of tables, which do not change"
    assert build.explain(views["v"], place.script(""), "v") == "view 'v': rows that stay"
    assert [column.name for name in views for column in build.columns(name)] == ["shop", "id"]
    assert place.preview(text, "SELECT count(*) FROM v") == [(20,)]
    with pytest.raises(ConfigurationError, match="the query reads no stream") as caught:
        build.job(program.settings("totals.sql"), make_sinks(program))
    assert "    INSERT INTO out TABLE oslo;\n                    ^" in caught.value.message


def test_rows_that_change_are_refused_by_a_sink_without_a_key(place: Place) -> None:
    program = place.program(
        VIEWS + "CREATE SINK out USING files OPTIONS (path '@/out');\nINSERT INTO out TABLE totals;"
    )
    with pytest.raises(ConfigurationError) as caught:
        Build(program, place.spark).job(program.settings("totals.sql"), make_sinks(program))
    assert "    INSERT INTO out TABLE totals;\n                ^\n  next step: use a sink with a key" in str(
        caught.value
    )
    assert "CHANGES OF" in caught.value.hint


def test_a_directory_that_is_not_there(refused: Callable[[str, str], StrandlineError]) -> None:
    error = refused("CREATE STREAM other (id INT) USING files OPTIONS (path '@/nowhere');", "other")
    assert "nowhere" in str(error)
    assert "CREATE STREAM other (id INT)" in error.message


def test_delta_without_its_jar(refused: Callable[[str, str], StrandlineError]) -> None:
    error = refused("CREATE STREAM d (PRIMARY KEY (id)) USING delta OPTIONS (path '@/table');", "d")
    assert isinstance(error, ConfigurationError)
    assert "Failed to find the data source: delta" in error.message
    assert error.hint.startswith("load Delta's jar: SET spark.jars.packages")
    assert len(str(error).splitlines()) == 4


@pytest.mark.timeout(300)
@pytest.mark.long
def test_messages_of_kafka(place: Place, kafka: Kafka) -> None:
    """JSON in columns, of which malformed ones become dead letters; and raw messages."""
    kafkaserver.add_jars(place.spark, kafkaserver.connector)
    topic = kafka.create("sqlfile")
    rows = [json.dumps({"id": 1, "day": "24.12.2026"}), "no json", json.dumps({"id": 2, "day": None})]
    kafka.put(topic, [("k", row) for row in rows])
    streams = (
        f"CREATE STREAM events (id INT, day DATE) USING kafka OPTIONS (servers '{kafka.servers}', topic '{topic}', "
        "dateFormat 'dd.MM.yyyy', on_error 'dead-letter');"
        f"CREATE STREAM raw USING kafka OPTIONS (servers '{kafka.servers}', topic '{topic}', format raw);"
    )
    read = "SELECT CAST(id AS STRING) || coalesce(' ' || day, '') AS text FROM events WHERE id IS NOT NULL"
    raw = "SELECT CAST(value AS STRING) AS text FROM raw"
    gone = streams.replace(kafka.servers, "localhost:1").replace(
        "format raw", "kafka.default.api.timeout.ms 2000, format raw"
    )
    with pytest.raises(StrandlineError, match=r"totals.sql, line 1, column 1: Spark failed: ConfigException"):
        place.preview(gone, "SELECT * FROM raw")
    assert sorted(place.preview(streams, read)) == [("1 2026-12-24",), ("2",)]
    assert sorted(place.preview(streams, raw)) == sorted((row,) for row in rows)
    sinks = "".join(
        f"CREATE SINK {name} USING files OPTIONS (path '@/{name}', format 'json'); INSERT INTO {name} {query};"
        for name, query in (("good", read), ("bad", "TABLE events_dead_letters"), ("all_rows", raw))
    )
    place.run(streams + sinks)
    assert sorted(row["text"] for row in read_json(place.directory / "good")) == ["1 2026-12-24", "2"]
    assert [row["event"] for row in read_json(place.directory / "bad")] == ["no json"]
    assert sorted(row["text"] for row in read_json(place.directory / "all_rows")) == sorted(rows)


@pytest.mark.timeout(300)
@pytest.mark.long
def test_topics_by_key_in_and_out(place: Place, kafka: Kafka) -> None:
    """A message without a value deletes the row of its key; rows that are gone from a view become such messages."""
    kafkaserver.add_jars(place.spark, kafkaserver.connector)
    people, cities = kafka.create("people"), kafka.create("cities", cleanup_policy="compact")
    servers = f"servers '{kafka.servers}'"
    text = (
        f"CREATE STREAM people (id BIGINT, city STRING, version INT, PRIMARY KEY (id)) USING kafka "
        f"OPTIONS ({servers}, topic '{people}', order_by 'version');"
        "CREATE VIEW cities AS SELECT city, count(*) AS n FROM people WHERE city IS NOT NULL GROUP BY city;"
        f"CREATE SINK cities_topic USING kafka OPTIONS ({servers}, topic '{cities}', key 'city');"
        f"CREATE SINK lake USING delta OPTIONS (path '@/lake', key 'city');"
        "CREATE SINK other_lake USING iceberg OPTIONS (catalog.type 'sql', catalog.uri 'sqlite:///@/c.db', "
        "catalog.warehouse 'file://@/w', table 'a.cities', key 'city');"
        "INSERT INTO cities_topic TABLE cities; INSERT INTO lake FROM cities; INSERT INTO other_lake FROM cities;"
    ).replace("OPTIONS (path '@/lake'", "OPTIONS (url '@/lake'")
    again = f"CREATE STREAM counts (city STRING, n BIGINT, PRIMARY KEY (city)) USING kafka OPTIONS ({servers}, topic '{cities}');"

    def version(city: str, number: int) -> str:
        return json.dumps({"city": city, "version": number})

    def newest() -> dict[str, Any]:
        messages = {message.key().decode(): message.value() for message in kafka.messages(cities)}
        return {key: value and json.loads(value) for key, value in messages.items()}

    def check(**wanted: int) -> None:
        rows = sorted(wanted.items())
        assert place.preview(text, "SELECT city, n FROM cities ORDER BY city") == rows
        place.run(text)
        assert {key: value and value["n"] for key, value in newest().items() if value} == wanted
        assert sorted(place.preview(again, "SELECT city, n FROM counts")) == rows
        lake = DeltaTable(str(place.directory / "lake")).to_pyarrow_table().to_pylist()
        warehouse = {
            "type": "sql",
            "uri": f"sqlite:///{place.directory}/c.db",
            "warehouse": f"file://{place.directory}/w",
        }
        other_lake = load_catalog(**warehouse).load_table("a.cities").scan().to_arrow().to_pylist()
        assert sorted(map(tuple, map(dict.values, lake))) == sorted(map(tuple, map(dict.values, other_lake))) == rows

    kafka.put(
        people,
        [("1", version("Oslo", 5)), ("2", version("Riga", 1)), ("3", version("Oslo", 1)), ("1", version("no", 4))],
    )
    check(Oslo=2, Riga=1)
    kafka.put(people, [("1", None), ("2", version("Oslo", 2)), ("9", None), ('{"id": 3}', None), ("nobody", None)])
    check(Oslo=1)
    assert newest()["Riga"] is None
    # A deleted row begins anew.
    kafka.put(people, [("1", version("Riga", 1)), ("2", version("Oslo", 1)), ("2", None)])
    check(Riga=1)
    assert newest()["Oslo"] is None
