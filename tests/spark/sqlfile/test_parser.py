"""Statements of SQL programs: what they are, and that any text is either read or refused in words."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.core.errors import ConfigurationError
from strandline.spark.sqlfile.options import Secrets
from strandline.spark.sqlfile.parser import parse
from strandline.spark.sqlfile.program import Program
from strandline.spark.sqlfile.statements import (
    CreateSink,
    CreateStream,
    CreateView,
    Explain,
    ExplainUpgrade,
    Insert,
    Select,
    Watermark,
)
from strandline.spark.sqlfile.text import Script
from strandline.spark.sqlfile.tokens import is_complete, statements, tokens

T = TypeVar("T")


def read(text: str, **environment: str) -> Program:
    """Return the program of a text."""
    program, script = Program(Secrets(environment)), Script(text)
    for statement in parse(script):
        program.add(statement, script)
    return program


def arguments(text: str, **environment: str) -> dict[str, Any]:
    """Return the arguments of a program's last declaration."""
    program = read(text, **environment)
    entry = program.entry(program.names[-1])
    return entry.arguments


def refused(reading: Callable[[], T]) -> tuple[str, T]:
    """Return the message with which a text is refused, "" if it is not, and what was read."""
    try:
        return "", reading()
    except ConfigurationError as error:
        return error.message, cast(T, None)


def test_a_stream() -> None:
    (found,) = parse(
        Script("""
        create stream orders (
          id BIGINT, amount decimal(10, 2) COMMENT 'in; euros',
          `its tags` ARRAY<STRUCT<a: INT, b: MAP<STRING, INT>>>, -- a comment; with a semicolon
          at TIMESTAMP, zone STRING,
          PRIMARY KEY (id, `its tags`), WATERMARK FOR at DELAY '5 seconds' PER zone IDLE '1 min'
        ) using FILES options (path 'in/', "multiLine" = TRUE, max_files_per_epoch -3, a.`b c`.d 1.5);
        """)
    )
    assert isinstance(found, CreateStream)
    assert [(column.name, column.type) for column in found.columns] == [
        ("id", "BIGINT"),
        ("amount", "decimal(10, 2)"),
        ("its tags", "ARRAY<STRUCT<a: INT, b: MAP<STRING, INT>>>"),
        ("at", "TIMESTAMP"),
        ("zone", "STRING"),
    ]
    assert found.key == ["id", "its tags"]
    assert found.watermark == Watermark("at", "5 seconds", "zone", "1 min")
    assert found.using.connector.text == "files"
    assert [(option.name, option.value) for option in found.using.options] == [
        ("path", "in/"), ("multiLine", True), ("max_files_per_epoch", -3), ("a.b c.d", 1.5),
    ]  # fmt: skip


def test_queries_are_left_as_they_are() -> None:
    text = """
    CREATE VIEW v AS
      -- kept by Spark
      SELECT /*+ BROADCAST(r) */ ';' AS `a;b`, r'\\' FROM orders /* ; */;
    INSERT INTO out WITH x AS (SELECT 1) SELECT * FROM x ; INSERT INTO out (SELECT 1) UNION (SELECT 2);
    INSERT INTO out TABLE v; INSERT INTO out FROM v; INSERT INTO out FROM v SELECT a;
    INSERT INTO out CHANGES OF v; INSERT INTO out UPSERTS OF SELECT 1; EXPLAIN v; EXPLAIN SELECT 1; (SELECT 1); VALUES (1), (2)
    """
    view, *others = parse(Script(text))
    assert isinstance(view, CreateView)
    assert view.query.text == "SELECT /*+ BROADCAST(r) */ ';' AS `a;b`, r'\\' FROM orders"
    assert [each.form for each in others if isinstance(each, Insert)] == ["rows"] * 5 + ["changes", "upserts"]
    queries = [(type(each), each.query.text, each.query.relation and each.query.relation.text) for each in others]  # type: ignore[union-attr]
    assert queries == [
        (Insert, "WITH x AS (SELECT 1) SELECT * FROM x", None),
        (Insert, "(SELECT 1) UNION (SELECT 2)", None),
        (Insert, "TABLE v", "v"),
        (Insert, "FROM v", "v"),
        (Insert, "FROM v SELECT a", None),
        (Insert, "v", "v"),
        (Insert, "SELECT 1", None),
        (Explain, "v", "v"),
        (Explain, "SELECT 1", None),
        (Select, "(SELECT 1)", None),
        (Select, "VALUES (1), (2)", None),
    ]


def test_upgrades_of_views() -> None:
    (view,) = parse(Script("CREATE VIEW v OPTIONS (uid 'totals', was 'sums') AS SELECT 1;"))
    assert isinstance(view, CreateView)
    assert arguments("CREATE VIEW v OPTIONS (uid 'totals', was 'sums') AS SELECT 1;") == {
        "uid": "totals",
        "was": "sums",
    }
    (short, full, named) = parse(
        Script("EXPLAIN UPGRADE 'a.sql'; explain upgrade 'a.sql' to 'b.sql' restore 's3://c/d'; EXPLAIN upgrade;")
    )
    assert isinstance(short, ExplainUpgrade)
    assert (short.old.text, short.new, short.restore) == ("a.sql", None, "")
    assert isinstance(full, ExplainUpgrade)
    assert (full.new and full.new.text, full.restore) == ("b.sql", "s3://c/d")
    assert isinstance(named, Explain), "a view may have this name"


def test_when_windows_come_is_no_part_of_the_query() -> None:
    text = "INSERT INTO out SELECT 1 EMIT changes; INSERT INTO out SELECT emit FROM t EMIT FINAL;"
    queries = [
        each.query for each in parse(Script(text + "SELECT emit changes FROM t")) if isinstance(each, Insert | Select)
    ]
    assert [(query.text, query.emit, query.relation is not None) for query in queries] == [
        ("SELECT 1", "changes", False), ("SELECT emit FROM t", "final", False), ("SELECT emit changes FROM t", "final", False),
    ]  # fmt: skip


def test_empty_statements_are_none() -> None:
    assert list(parse(Script(";; -- nothing\n /* at /* all */ */ ;"))) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'it''s'", "it's"), (r"'it\'s'", "it's"), ('"a""b\'\'c"', "a\"b''c"), (r"'\t\\d\u00e9'", "\t\\dé"), (r"r'\d+\'", "\\d+\\"),
        ("'a\nb'", "a\nb"), ("`a``b`", "a`b"), ("''", ""), (r"'100\%'", r"100\%"),
    ],
)  # fmt: skip
def test_texts(text: str, value: str) -> None:
    token, end = tokens(Script(text))
    assert (token.value, end.kind) == (value, "end")


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("SELECT 1", False), ("SELECT 1;", True), ("SELECT 1; -- done", True), ("SELECT ';", False), ("SELECT ';'", False),
        ("SELECT 1 /* ;", False), ("", True), ("-- nothing", True), ("SELECT 1; SELECT", False),
    ],
)  # fmt: skip
def test_the_shell_knows_when_a_statement_is_complete(text: str, complete: bool) -> None:
    assert is_complete(text) == complete


_PIECES = st.sampled_from(
    ["'a;b'", '"a;b"', "`a;b`", "r'\\'", "'it''s;'", "'\\';'", "/* ; */", "/* a /* ; */ ; */", "-- ;\n", "-- ;\\\n;\n", "x", "1.5", "(", "<>"]
)  # fmt: skip


@given(st.lists(st.lists(_PIECES, min_size=1), min_size=1))
def test_a_semicolon_in_quotes_and_comments_ends_no_statement(parts: list[list[str]]) -> None:
    script = Script(";".join(f"w {' '.join(pieces)}" for pieces in parts))
    assert len(list(statements(script))) == len(parts)


def test_a_semicolon_in_dollar_quotes_ends_no_statement() -> None:
    found = list(statements(Script("SELECT $$a;b$$; SELECT $of$ $$; 'x $of$ AS n")))
    assert [[token.value for token in statement[:-1]] for statement in found] == [
        ["SELECT", "a;b"], ["SELECT", " $$; 'x ", "AS", "n"],
    ]  # fmt: skip


@given(st.text(alphabet=st.sampled_from("ab;\\'\"`-/*\n r1."), max_size=30))
@example("'\\")
@example("/*/")
def test_tokens_leave_only_space_and_comments_out(text: str) -> None:
    """Any text is refused, or its tokens are in their order, and what is between them is no part of a statement."""
    refusal, found = refused(lambda: list(tokens(Script(text))))
    if refusal:
        assert "has no end" in refusal
        return
    at = 0
    for token in found:
        between = text[at : token.start].strip()
        assert not between or between.startswith(("--", "/*"))
        assert token.text == text[token.start : token.end]
        at = token.end
    assert at == len(text)


@given(st.text())
def test_a_quoted_text_is_what_was_quoted(text: str) -> None:
    quoted = "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
    assert [token.value for token in tokens(Script(quoted))] == [text, ""]


_WORDS = st.sampled_from(
    [
        "CREATE", "STREAM", "TABLE", "VIEW", "SINK", "s", "out", "(", ")", "id", "BIGINT", "ARRAY", "<", ">", ",", "PRIMARY", "KEY",
        "WATERMARK", "FOR", "DELAY", "'5 s'", "USING", "files", "kafka", "console", "OPTIONS", "path", "=", "-", "1", "2.5", "TRUE", ".",
        "AS", "SELECT", "INSERT", "INTO", "SET", "EXPLAIN", "FROM", ";", "`q`", "parallelism", "COMMENT", "NOT", "EMIT", "CHANGES", "OF",
    ]
)  # fmt: skip


@given(st.lists(_WORDS, max_size=25))
@example(["CREATE", "STREAM", "s", "(", "id", "BIGINT"])
def test_any_order_of_words_is_read_or_refused_at_a_place(words: list[str]) -> None:
    text = " ".join(words)
    refusal, _ = refused(lambda: read(text))
    if refusal:
        first, line, caret = refusal.splitlines()[:3]
        assert first.startswith("input, line 1, column ")
        assert line.strip()
        assert caret.strip() == "^"
        assert len(caret) - 4 <= len(text) + 1


def test_values_become_what_the_parameter_takes() -> None:
    sink = (
        "CREATE SINK s USING postgres OPTIONS (dsn 'postgresql://u:${PG}@h/d', table t, key 'a, b', create TRUE, "
        "writers '4', timeout 30s, storage_options.endpoint 'http://h', storage_options.`allow.http` TRUE)"
    )
    assert arguments(sink, PG="p;w") == {
        "dsn": "postgresql://u:p;w@h/d", "table": "t", "key": ["a", "b"], "create": True, "writers": 4, "timeout": "30s",
        "storage_options": {"endpoint": "http://h", "allow.http": "true"},
    }  # fmt: skip
    kafka = (
        "CREATE STREAM s (id INT) USING kafka OPTIONS (servers 'h:1', topic 'a, b', kafka.security.protocol SSL, "
        "FAILONDATALOSS false, timestampFormat 'yyyy', options.new 1)"
    )
    assert arguments(kafka) == {
        "servers": "h:1", "topic": ["a", "b"],
        "options": {"kafka.security.protocol": "SSL", "failOnDataLoss": "false", "timestampFormat": "yyyy", "new": "1"},
    }  # fmt: skip
    assert arguments("CREATE SINK s USING iceberg OPTIONS (catalog.type 'sql', catalog.uri 'x', table 'a.b')") == {
        "catalog": {"type": "sql", "uri": "x"}, "table": "a.b",
    }  # fmt: skip


def test_settings() -> None:
    program = read(
        "SET parallelism = 4; SET max_parallelism = 512; SET checkpoints.every = '2s'; SET checkpoints.directory = '${WHERE}/ck'; SET drain = true;"
        "SET trigger = 'available-now'; SET spark.sql.ansi.enabled = TRUE; SET parallelism = 8; SET restart.attempts = 3;"
        "SET checkpoints.mode = changelog; SET checkpoints.changelog.limit = '1GB'; SET checkpoints.storage_options.a = 'b'",
        WHERE="/data",
    )
    found = program.settings("jobs/totals.sql")
    assert (found.name, found.spark) == ("totals", {"spark.sql.ansi.enabled": "true"})
    checkpoints = found.arguments["checkpoints"]
    assert (checkpoints.directory, checkpoints.every, checkpoints.mode) == ("/data/ck", "2s", "changelog")
    assert (checkpoints.changelog.limit, checkpoints.storage_options) == ("1GB", {"a": "b"})
    assert (found.arguments["settings"].parallelism, found.arguments["settings"].max_parallelism) == (8, 512)
    assert (found.arguments["trigger"], found.arguments["drain"]) == ("available-now", True)
    assert found.arguments["restart"].attempts == 3
    assert read("SET name = other").settings("totals.sql").name == "other"


def test_a_program_has_checkpoints_without_settings() -> None:
    checkpoints = read("").settings("totals.sql").arguments["checkpoints"]
    assert (checkpoints.directory, checkpoints.every) == ("checkpoints", "10s")


def test_secrets_are_in_no_error_and_in_no_text_of_the_program() -> None:
    program = read(
        "CREATE SINK s USING kafka OPTIONS (servers '${SERVERS}', topic 't', options.sasl.password '${PASSWORD}');",
        SERVERS="hidden", PASSWORD="secret word",
    )  # fmt: skip
    error = ConfigurationError("hidden cannot be reached with secret word", hint="is secret word right?", at="x")
    located = program.secrets.located(error, Script("CREATE SINK s"), 12)
    assert located.message.splitlines()[0] == "input, line 1, column 13: ${SERVERS} cannot be reached with ${PASSWORD}"
    assert (located.hint, located.at) == ("is ${PASSWORD} right?", "x")
    assert "secret word" not in repr((program.entry("s"), program.secrets))


def test_names_in_a_query_are_found_in_any_spelling() -> None:
    program = read(
        "CREATE STREAM orders (id INT) USING files OPTIONS (path 'x', on_error 'dead-letter');"
        "CREATE TABLE rates (a INT) USING csv OPTIONS (path 'y'); CREATE VIEW totals AS SELECT 1;"
    )
    script = Script("SELECT 'totals' /* totals */ FROM ORDERS JOIN `Rates` JOIN orders_dead_letters")
    (statement,) = parse(script)
    assert isinstance(statement, Select)
    assert program.relations_in(statement.query, script) == ["orders", "rates", "orders_dead_letters"]


def test_a_declaration_replaces_another_one_in_the_shell() -> None:
    program = Program()
    for text in ("CREATE VIEW v AS SELECT 1", "CREATE VIEW V AS SELECT 2", "CREATE SINK s USING console"):
        script = Script(text)
        (statement,) = parse(script)
        program.add(statement, script, replaces=True)
    assert program.names == ["V", "s"]
    assert isinstance(program.entry("s") and program.entry("s").declaration, CreateSink)  # type: ignore[union-attr]


def test_a_view_reads_what_stands_before_it_and_never_itself() -> None:
    orders = "CREATE STREAM orders (amount INT) USING files OPTIONS (path 'x');"
    views = (
        "CREATE VIEW amount AS SELECT sum(amount) AS amount, 1 AS late FROM orders; CREATE VIEW late AS TABLE amount;"
    )
    program = read(orders + views)
    reads = {name: entry.reads for name in program.names if (entry := program.entry(name))}
    assert reads == {"orders": (), "amount": ("orders",), "late": ("amount",)}
    script = Script("CREATE VIEW Amount AS SELECT * FROM late")
    (statement,) = parse(script)
    with pytest.raises(ConfigurationError, match="view 'Amount' would read itself: 'late' reads it"):
        program.add(statement, script, replaces=True)


def test_a_wrong_setting_in_the_shell_is_not_kept() -> None:
    program = read("SET parallelism = 2")
    script = Script("SET parallelism = 0")
    with pytest.raises(ConfigurationError):
        program.add(*parse(script), script)
    assert program.settings("x.sql").arguments["settings"].parallelism == 2


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_bytes(b"SELECT '\xff'")
    with pytest.raises(ConfigurationError, match=r"a\.sql is no text in UTF-8"):
        Program.read(tmp_path / "a.sql")


def test_what_the_page_shows_is_right() -> None:
    page = (Path(__file__).parents[3] / "docs" / "sql-files.md").read_text()
    blocks = re.findall(r"^```sql\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    program = read("".join(blocks), PG_PASSWORD="x", KAFKA_PASSWORD="y")
    program.check_job("page")
    assert len(program.names) > 10


def test_a_long_line_is_shown_around_the_place() -> None:
    text = "SELECT " + "1, " * 100 + "`a"
    with pytest.raises(ConfigurationError) as caught:
        list(parse(Script(text)))
    _, line, caret = caught.value.message.splitlines()
    assert len(line) <= 104
    assert line[caret.index("^") :] == "`a"
