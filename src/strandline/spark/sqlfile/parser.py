"""Parses the statements of an SQL program. Queries stay text: Spark analyses them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from strandline.spark.sqlfile.columns import ColumnParser
from strandline.spark.sqlfile.cursor import text_of
from strandline.spark.sqlfile.statements import (
    CreateSink,
    CreateStream,
    CreateTable,
    CreateView,
    Emit,
    Explain,
    ExplainUpgrade,
    Form,
    Insert,
    Name,
    Option,
    OptionValue,
    Query,
    Select,
    Set,
    Statement,
    Using,
)
from strandline.spark.sqlfile.text import Script
from strandline.spark.sqlfile.tokens import statements
from strandline.spark.views.names import nearest

STREAM_CONNECTORS = ("delta", "files", "kafka")
TABLE_CONNECTORS = ("csv", "delta", "json", "orc", "parquet", "text")
SINK_CONNECTORS = ("console", "delta", "files", "iceberg", "kafka", "noop", "postgres", "sqlite")
_QUERIES = ("SELECT", "WITH", "VALUES", "TABLE", "FROM")
_BEGINNINGS = ("CREATE", "INSERT", "SET", "EXPLAIN", *_QUERIES)
_OBJECTS = ("STREAM", "TABLE", "VIEW", "SINK")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def parse(script: Script) -> Iterator[Statement]:
    """Yield the statements of a program, in their order. Raise ConfigurationError at the first that is wrong."""
    for statement in statements(script):
        yield _Parser(script, statement).statement()


class _Parser(ColumnParser):
    """A recursive descent parser of one statement."""

    def statement(self) -> Statement:
        kinds: dict[str, Callable[[], Statement]] = {
            "CREATE": self._create, "INSERT": self._insert, "SET": self._set, "EXPLAIN": self._explain,
        }  # fmt: skip
        first = self.peek()
        if self._begins_query():
            return Select(self._query())
        if first.word not in kinds:
            self.fail(
                f"no statement begins with {text_of(first)}{nearest(first.text, _BEGINNINGS)}",
                hint="statements are CREATE STREAM, TABLE, VIEW or SINK, INSERT INTO, SET, EXPLAIN and queries",
            )
        self.next += 1
        result = kinds[first.word]()
        if self.peek().kind != "end":
            self.fail(f"expected ';', found {text_of(self.peek())}", hint="end each statement with a semicolon")
        return result

    def _create(self) -> Statement:
        if self.peek().word == "OR":
            self.fail(
                "CREATE OR REPLACE is not supported",
                hint="leave OR REPLACE out: a file creates each name once, and in the shell a new one replaces the old",
            )
        kind = self.peek()
        if kind.word not in _OBJECTS:
            self.fail(f"expected STREAM, TABLE, VIEW or SINK, found {text_of(kind)}{nearest(kind.text, _OBJECTS)}")
        self.next += 1
        name = self.name(f"the {kind.word.lower()}'s name")
        if not _NAME.fullmatch(name.text):
            self.fail(f"{name.text!r} cannot be a name here, expected letters, digits and '_'", name.at)
        if kind.word == "VIEW":
            options = self._options()
            self.expect("AS", f"after the view's name, as in: CREATE VIEW {name.text} AS SELECT …")
            return CreateView(name, self._query(), options)
        if kind.word == "SINK":
            if self.peek().text == "(":
                self.fail("a sink has no list of columns: they are those of the query", hint="leave it out")
            return CreateSink(name, self._using(SINK_CONNECTORS))
        columns, key, watermark = self.columns(name, is_stream=kind.word == "STREAM")
        using = self._using(STREAM_CONNECTORS if kind.word == "STREAM" else TABLE_CONNECTORS)
        if kind.word == "TABLE":
            return CreateTable(name, columns, using)
        return CreateStream(name, columns, key, watermark, using)

    def _using(self, known: Sequence[str]) -> Using:
        self.expect("USING", f"and one of {', '.join(known)}")
        token = self.peek()
        if token.word.lower() not in known:
            self.fail(f"expected one of {', '.join(known)}, found {text_of(token)}{nearest(token.text, known)}")
        self.next += 1
        return Using(Name(token.word.lower(), token.start), self._options())

    def _options(self) -> list[Option]:
        options: list[Option] = []
        if self.peek().word == "WITH":
            self.fail("expected OPTIONS, found WITH", hint="write OPTIONS (name 'value', …)")
        if self.accept("OPTIONS"):
            self.expect_sign("(", "after OPTIONS")
            while True:
                option = self._option(self._option_name())
                if any(option.name.lower() == other.name.lower() for other in options):
                    self.fail(f"the option '{option.name}' stands here twice", option.at)
                options.append(option)
                if not self.accept_sign(","):
                    break
            self.expect_sign(")", "after the options, or ',' before the next one")
        return options

    def _option_name(self) -> Name:
        first = self.peek()
        if first.kind not in ("word", "name", "text"):
            self.fail(f"expected the name of an option, found {text_of(first)}", hint="write options like: path 'in/'")
        self.next += 1
        parts = [first.value]
        while first.kind != "text" and self.accept_sign("."):
            part = self.peek()
            if part.kind not in ("word", "name"):
                self.fail(f"expected the rest of the option's name after '.', found {text_of(part)}")
            self.next += 1
            parts.append(part.value)
        return Name(".".join(parts), first.start)

    def _option(self, name: Name) -> Option:
        self.accept_sign("=")
        at = self.peek().start
        return Option(name.text, self._value(f"the value of '{name.text}'"), name.at, at)

    def _value(self, what: str) -> OptionValue:
        is_negative = self.accept_sign("-")
        token = self.peek()
        if token.kind == "number":
            self.next += 1
            number = float(token.text) if re.search("[.eE]", token.text) else int(token.text)
            return -number if is_negative else number
        if is_negative or token.kind not in ("text", "word"):
            self.fail(
                f"expected {what}, found {text_of(token)}", hint="write a text in quotes, a number, TRUE or FALSE"
            )
        self.next += 1
        return token.word == "TRUE" if token.word in ("TRUE", "FALSE") else token.value

    def _insert(self) -> Insert:
        self.expect("INTO", "after INSERT: rows are added to a sink")
        sink = self.name("the sink's name")
        if self.peek().text == "(" and not self._begins_query():
            self.fail("INSERT INTO has no list of columns: they are those of the query", hint="leave it out")
        forms: dict[str, Form] = {"CHANGES": "changes", "UPSERTS": "upserts"}
        form = forms.get(self.peek().word)
        if form is None:
            return Insert(sink, self._query())
        self.next += 1
        self.expect("OF", f"after {self.before().word}, and a view")
        return Insert(sink, self._view_or_query(), form)

    def _set(self) -> Set:
        name = self._option_name()
        if not self.accept_sign("="):
            self.fail(
                f"expected '=' after {name.text}, found {text_of(self.peek())}", hint="as in: SET parallelism = 4"
            )
        at = self.peek().start
        return Set(Option(name.text, self._value(f"the value of '{name.text}'"), name.at, at))

    def _explain(self) -> Explain | ExplainUpgrade:
        if self.peek().word == "UPGRADE" and self.peek(1).kind != "end":
            self.next += 1
            old = self._path("the path of the old file, as in: EXPLAIN UPGRADE 'old.sql' TO 'new.sql'")
            new = self._path("the path of the new file") if self.accept("TO") else None
            restore = self._path("the path or url of a snapshot").text if self.accept("RESTORE") else ""
            return ExplainUpgrade(old, new, restore)
        return Explain(self._view_or_query())

    def _path(self, what: str) -> Name:
        token = self.peek()
        if token.kind != "text":
            self.fail(f"expected {what}, found {text_of(token)}", hint="write it in quotes")
        self.next += 1
        return Name(token.value, token.start)

    def _view_or_query(self) -> Query:
        """Take the name of a view, or a query."""
        if self.peek().kind in ("word", "name") and self.peek(1).kind == "end":
            name = self.name("the view's name")
            return Query(name.text, name.at, name)
        return self._query()

    def _begins_query(self) -> bool:
        """Whether the next tokens are a query: its first word, behind any number of brackets."""
        ahead = 0
        while self.peek(ahead).text == "(":
            ahead += 1
        return self.peek(ahead).word in _QUERIES

    def _query(self) -> Query:
        """Take the rest of the statement."""
        first = self.peek()
        if not self._begins_query():
            self.fail(f"expected a query, found {text_of(first)}", hint="write SELECT …, or TABLE and the view's name")
        for token, after in zip(self.tokens[self.next :], self.tokens[self.next + 1 :], strict=False):
            if (token.word == "CREATE" and after.word in _OBJECTS) or (token.word, after.word) == ("INSERT", "INTO"):
                self.fail(
                    f"{token.word} {after.word} stands in a query",
                    token.start,
                    hint="end the statement before with ';'",
                )
        end = len(self.tokens) - 1
        emit: Emit = "final"
        if self.tokens[end - 2].word == "EMIT":
            emits: dict[str, Emit] = {"CHANGES": "changes", "FINAL": "final"}
            word = self.tokens[end - 1]
            if word.word not in emits:
                self.fail(f"expected CHANGES or FINAL after EMIT, found {text_of(word)}", word.start)
            emit, end = emits[word.word], end - 2
        if end <= self.next:
            self.fail("expected a query before EMIT")
        last = self.tokens[end - 1]
        alone = None
        if first.word in ("TABLE", "FROM"):
            self.next += 1
            if self.peek().kind == "end":
                self.fail(f"expected the name of a view after {first.word}, found {text_of(self.peek())}")
            if self.next + 1 == end:
                if end < len(self.tokens) - 1:
                    self.fail("a view's name has no EMIT: its query has it", self.tokens[end].start)
                alone = self.name(f"the name of a view after {first.word}")
        self.next = len(self.tokens) - 1
        return Query(self.script.text[first.start : last.end], first.start, alone, emit)
