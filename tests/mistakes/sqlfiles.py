"""Programs in SQL that are wrong: the place is where the text has the mark, and the caret stands below it."""

from __future__ import annotations

from typing import Any

from strandline.spark.sqlfile.options import Secrets
from strandline.spark.sqlfile.parser import parse
from strandline.spark.sqlfile.program import Program
from strandline.spark.sqlfile.text import Script
from tests.mistakes.table import Mistake, Stage, mistake

MARK = "‸"
ORDERS = "CREATE STREAM orders (id BIGINT, at TIMESTAMP) USING files OPTIONS (path 'in');\n"
OUT = "CREATE SINK out USING files OPTIONS (path 'out');\n"


def wrong(name: str, marked: str, *said: str, **environment: str) -> Mistake:
    """Return the mistake of a text, at its mark."""
    assert marked.count(MARK) == 1, name
    before = marked.partition(MARK)[0]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    caret = f"\n    {' ' * (column - 1)}^"

    def program(stage: Stage) -> Any:
        script, read = Script(marked.replace(MARK, ""), "totals.sql"), Program(Secrets(environment))
        for statement in parse(script):
            read.add(statement, script)
        read.check_job(script.name)

    return mistake(name, "declaration", program, f"totals.sql, line {line}, column {column}: ", caret, *said)


MISTAKES = [
    # -- tokens
    wrong("a text without its end", "SET name = ‸'totals;\n", "this text has no end", "end it with '"),
    wrong("a text in double quotes without its end", 'SELECT ‸"a FROM t', "this text has no end", 'end it with "'),
    wrong("a quoted name without its end", "SELECT ‸`a FROM t;", "this name has no end", "end it with `"),
    wrong("a comment without its end", "SELECT 1;\n‸/* /* inner */ SELECT 2;", "this comment has no end", "*/"),
    # -- statements
    wrong("a misspelt statement", "‸CRAETE VIEW v AS SELECT 1;", "no statement begins with 'CRAETE': did you mean 'CREATE'?"),
    wrong("a statement of another system", "‸DROP VIEW v;", "no statement begins with 'DROP'", "statements are CREATE"),
    wrong("a statement that begins with a sign", "‸) SELECT 1;", "no statement begins with ')'"),
    wrong("an object that is not there", "CREATE ‸STERAM s USING files;", "found 'STERAM': did you mean 'STREAM'?"),
    wrong("CREATE OR REPLACE", "CREATE ‸OR REPLACE VIEW v AS SELECT 1;", "leave OR REPLACE out"),
    wrong("a view without AS", "CREATE VIEW v ‸SELECT 1;", "expected AS after the view's name", "found 'SELECT'"),
    wrong("a view of what is no query", "CREATE VIEW v AS ‸UPDATE t SET a = 1;", "expected a query, found 'UPDATE'"),
    wrong("a view without a query", "CREATE VIEW v AS‸;", "expected a query, found the end of the statement"),
    wrong("a statement that goes on", "SET parallelism = 4 ‸SET name = 'x';", "expected ';', found 'SET'", "semicolon"),
    wrong("a query without its semicolon", f"{ORDERS}{OUT}CREATE VIEW v AS SELECT id FROM orders\n‸INSERT INTO out TABLE v;", "INSERT INTO stands in a query", "end the statement before with ';'"),
    wrong("an insert without its semicolon", f"{ORDERS}{OUT}INSERT INTO out TABLE orders\n‸CREATE VIEW v AS SELECT 1;", "CREATE VIEW stands in a query"),
    wrong("a name that no table can have", "CREATE VIEW ‸emit AS SELECT 1;", "'emit' cannot be the name of a table"),
    wrong("an EMIT of what is not there", "CREATE VIEW v AS SELECT 1 EMIT ‸DELTAS;", "expected CHANGES or FINAL after EMIT, found 'DELTAS'"),
    wrong("an EMIT at the name of a view", f"{ORDERS}{OUT}INSERT INTO out TABLE orders ‸EMIT CHANGES;", "a view's name has no EMIT"),
    wrong("a name of two parts", "CREATE VIEW ‸shop.v AS SELECT 1;", "names here have one part"),
    wrong("a name with a space", "CREATE VIEW ‸`a view` AS SELECT 1;", "cannot be a name here"),
    # -- columns
    wrong("a column without a type", "CREATE STREAM s (id‸, at TIMESTAMP) USING files;", "expected the type of column 'id', found ','"),
    wrong("the type of another system", "CREATE STREAM s (\n  id BIGINT,\n  body ‸JSONB\n) USING files;", "the type of column 'body'", "'jsonb' is no type that Strandline knows"),
    wrong("a type without its bracket", "CREATE STREAM s (tags ‸ARRAY<STRING, id BIGINT) USING files;", "the type of column 'tags'"),
    wrong("a column twice", "CREATE STREAM s (id BIGINT, ‸ID INT) USING files;", "a second column is called 'ID'"),
    wrong("columns without a comma", "CREATE STREAM s (id ‸BIGINT at TIMESTAMP) USING files;", "the type of column 'id'"),
    wrong("a comma too many", "CREATE STREAM s (id BIGINT, ‸) USING files;", "expected a column, found ')'"),
    wrong("columns without their end", "CREATE STREAM s (id BIGINT ‸", "found the end of the file"),
    wrong("NOT NULL", "CREATE STREAM s (id BIGINT ‸NOT NULL) USING files;", "NOT of a column is not supported", "leave it out"),
    wrong("a primary key at its column", "CREATE STREAM s (id BIGINT PRIMARY ‸KEY) USING files;", "write …, PRIMARY KEY (id)"),
    wrong("a primary key of another column", "CREATE STREAM s (id BIGINT, PRIMARY KEY (‸ident)) USING files;", "'s' has no column 'ident'"),
    wrong("two primary keys", "CREATE STREAM s (a INT, b INT, PRIMARY KEY (a), ‸PRIMARY KEY (b)) USING files;", "a second PRIMARY KEY"),
    wrong("a primary key without brackets", "CREATE STREAM s (id INT, PRIMARY KEY ‸id) USING files;", "expected '(' after PRIMARY KEY, found 'id'"),
    wrong("a table with a watermark", "CREATE TABLE t (at TIMESTAMP, ‸WATERMARK FOR at) USING csv;", "a table has no WATERMARK"),
    wrong("a watermark of another column", "CREATE STREAM s (at TIMESTAMP, WATERMARK FOR ‸time DELAY '5s') USING files;", "'s' has no column 'time'"),
    wrong("a watermark as Flink writes it", "CREATE STREAM s (at TIMESTAMP, WATERMARK FOR at ‸AS at - INTERVAL 5 SECONDS) USING files;", "expected DELAY, found AS", "DELAY '5 seconds'"),
    wrong("a delay without quotes", "CREATE STREAM s (at TIMESTAMP, WATERMARK FOR at DELAY ‸5 seconds) USING files;", "expected a duration after DELAY", "write it in quotes"),
    wrong("a delay without a unit", "CREATE STREAM s (at TIMESTAMP, WATERMARK FOR at DELAY ‸'5') USING files;", "DELAY is '5', expected a duration", "write it like '500ms'"),
    # -- connectors and options
    wrong("a stream without a connector", "CREATE STREAM s (id BIGINT)‸;", "expected USING and one of delta, files, kafka"),
    wrong("a connector that is not there", "CREATE STREAM s (id BIGINT) USING ‸kafak;", "found 'kafak': did you mean 'kafka'?"),
    wrong("a sink into a format", "CREATE SINK s USING ‸parquet OPTIONS (path 'x');", "expected one of console, delta, files"),
    wrong("a sink with columns", "CREATE SINK s ‸(id BIGINT) USING files;", "a sink has no list of columns"),
    wrong("options as Flink writes them", "CREATE SINK s USING files ‸WITH ('path' = 'x');", "expected OPTIONS, found WITH"),
    wrong("a view's option that is not there", "CREATE VIEW v OPTIONS (‸name 'x') AS SELECT 1;", "view 'v' has no option 'name'", "uid"),
    wrong("a former uid without a uid", "CREATE VIEW ‸v OPTIONS (was 'x') AS SELECT 1;", "view 'v' has 'was', and no 'uid'"),
    wrong("an upgrade from what is no text", "EXPLAIN UPGRADE ‸old TO 'new.sql';", "expected the path of the old file", "found 'old'"),
    wrong("an option twice", "CREATE SINK s USING files OPTIONS (path 'x', ‸PATH 'y');", "the option 'PATH' stands here twice"),
    wrong("an option without a value", "CREATE SINK s USING files OPTIONS (path‸);", "expected the value of 'path', found ')'"),
    wrong("options without a comma", "CREATE SINK s USING files OPTIONS (path 'x' ‸format 'json');", "or ',' before the next one", "found 'format'"),
    wrong("an option that is not there", "CREATE SINK s USING files OPTIONS (path 'x', ‸fromat 'json');", "sink 's' (files) has no option 'fromat': did you mean 'format'?"),
    wrong("an option of Spark that is not there", "CREATE STREAM s (id INT) USING files OPTIONS (path 'x', format 'csv', ‸heeder TRUE);", "did you mean 'header'?", "options.heeder is passed on as it is"),
    wrong("an option that is missing", "CREATE STREAM s (id INT) USING ‸kafka OPTIONS (topic 'x');", "stream 's' (kafka) needs the option 'servers'"),
    wrong("a number that is none", "CREATE SINK s USING console OPTIONS (rows ‸'many');", "wrong value of 'rows', expected a number"),
    wrong("a word that is none of those", "CREATE SINK s USING files OPTIONS (path 'x', visibility ‸'checkpoints');", "did you mean 'checkpoint'?"),
    wrong("a boolean that is none", "CREATE SINK s USING postgres OPTIONS (dsn 'x', table 't', create ‸'perhaps');", "expected TRUE or FALSE"),
    wrong("a mapping as one text", "CREATE SINK s USING files OPTIONS (path 'x', storage_options ‸'http://h');", "expected its entries one by one, as storage_options.name '…'"),
    wrong("an environment without the variable", "CREATE SINK s USING postgres OPTIONS (dsn ‸'postgresql://u:${PG_PASS}@h/d', table 't');", "no variable 'PG_PASS': did you mean 'PG_PASSWORD'?", "export PG_PASS=", PG_PASSWORD="secret"),
    wrong("a secret in the line", "CREATE SINK s USING kafka OPTIONS (servers 'h:1', options.sasl.password 'secret', ‸tpoic 'x');", "did you mean 'topic'?", "options.sasl.password '******'"),
    wrong("a secret in the words of libpq", "CREATE SINK s USING postgres OPTIONS (dsn 'host=h password=secret user=u', ‸tabel 't');", "password=****** user=u"),
    wrong("a secret in a url", "CREATE SINK s USING postgres OPTIONS (dsn 'postgresql://u:secret@h/d', ‸tabel 't');", "'postgresql://********@h/d'"),
    wrong("a stream of files without columns", "CREATE STREAM ‸s USING files OPTIONS (path 'x');", "declares no columns"),
    wrong("a Delta table with columns", "CREATE STREAM s (‸id INT) USING delta OPTIONS (path 'x');", "declares columns, and has its own"),
    wrong("an order without a key", "CREATE STREAM s (id INT, at TIMESTAMP) USING files OPTIONS (path 'x', ‸order_by 'at');", "has no option 'order_by'"),
    wrong("a trigger that is none", "SET trigger = ‸'often';", "trigger is 'often', expected a duration"),
    wrong("an order by what is no column", "CREATE STREAM s (id INT, at TIMESTAMP, PRIMARY KEY (id)) USING files\nOPTIONS (path 'x', order_by ‸'att');", "'order_by' is no column of it: did you mean 'at'?"),
    # -- settings
    wrong("a time to live that is none", "SET state_ttl = ‸'ever';", "state_ttl is 'ever', expected a duration"),
    wrong("a setting that is not there", "SET ‸paralelism = 4;", "there is no setting 'paralelism': did you mean 'parallelism'?"),
    wrong("a setting of checkpoints that is not there", "SET ‸checkpoint.interval = '1s';", "there is no setting 'checkpoint.interval'"),
    wrong("a setting without its sign", "SET parallelism ‸4;", "expected '=' after parallelism, found '4'"),
    wrong("a setting without a value", "SET parallelism = ‸;", "expected the value of 'parallelism', found the end of the statement"),
    wrong("a wrong value of a setting", "SET parallelism = ‸0;", "parallelism is 0, expected a positive number"),
    wrong("a wrong mode", "SET checkpoints.mode = ‸'incremantal';", "did you mean 'incremental'?"),
    wrong("an interval without a unit", "SET checkpoints.every = ‸10;", "expected a duration"),
    wrong("a job that cannot be called so", "SET name = ‸'a/b';", "'a/b'"),
    # -- names among statements
    wrong("a name that is there", f"{ORDERS}CREATE VIEW ‸Orders AS SELECT 1;", "'Orders' is created twice: first in totals.sql, line 1, column 15"),
    wrong("a sink that is not there", f"{ORDERS}{OUT}INSERT INTO ‸outt SELECT * FROM orders;", "there is no sink 'outt': did you mean 'out'?"),
    wrong("a view as a sink", f"{ORDERS}INSERT INTO ‸orders SELECT 1;", "this is no sink: 'orders'"),
    wrong("a view that is not there", f"{ORDERS}{OUT}INSERT INTO out TABLE ‸oders;", "there is no stream, table or view 'oders': did you mean 'orders'?"),
    wrong("two queries into a sink", f"{ORDERS}{OUT}INSERT INTO out TABLE orders;\nINSERT INTO ‸out FROM orders;", "a second INSERT INTO out", "UNION ALL"),
    wrong("an insert without INTO", f"{OUT}INSERT ‸out SELECT 1;", "expected INTO"),
    wrong("an insert that overwrites", f"{OUT}INSERT ‸OVERWRITE out SELECT 1;", "expected INTO after INSERT: rows are added to a sink"),
    wrong("an insert with columns", f"{OUT}INSERT INTO out ‸(id) SELECT 1;", "INSERT INTO has no list of columns"),
    wrong("an insert of values alone", f"{OUT}INSERT INTO out ‸1;", "expected a query, found '1'"),
    wrong(
        "dead letters without a sink",
        f"{OUT}CREATE STREAM ‸s (id INT) USING files OPTIONS (path 'x', on_error 'dead-letter');\nINSERT INTO out TABLE s;",
        "s_dead_letters goes into no sink", "INSERT INTO … TABLE s_dead_letters",
    ),
    wrong("an explanation of what is not there", "EXPLAIN ‸totals;", "there is no stream, table or view 'totals'"),
    wrong("TABLE without a name", f"{OUT}INSERT INTO out TABLE‸;", "expected the name of a view after TABLE"),
]  # fmt: skip
