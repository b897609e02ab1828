"""Parses the statements of an SQL program. Queries stay text: Spark analyses them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from strandline.core.errors import ConfigurationError
from strandline.core.settings import parse_duration_ms
from strandline.spark.sqlfile.cursor import Cursor, text_of
from strandline.spark.sqlfile.statements import (
    Column,
    CreateSink,
    CreateStream,
    CreateTable,
    CreateView,
    Explain,
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
    Watermark,
)
from strandline.spark.sqlfile.text import Script, nearest
from strandline.spark.sqlfile.tokens import Token, statements
from strandline.types.datatypes import parse_type

STREAM_CONNECTORS = ("delta", "files", "kafka")
TABLE_CONNECTORS = ("csv", "delta", "json", "orc", "parquet", "text")
SINK_CONNECTORS = ("console", "delta", "files", "iceberg", "kafka", "noop", "postgres", "sqlite")
_QUERIES = ("SELECT", "WITH", "VALUES", "TABLE", "FROM")
_BEGINNINGS = ("CREATE", "INSERT", "SET", "EXPLAIN", *_QUERIES)
_OBJECTS = ("STREAM", "TABLE", "VIEW", "SINK")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_BRACKETS = {"(": ")", "<": ">"}


def parse(script: Script) -> Iterator[Statement]:
    """Yield the statements of a program, in their order. Raise ConfigurationError at the first that is wrong."""
    for statement in statements(script):
        yield _Parser(script, statement).statement()


class _Parser(Cursor):
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
            self.expect("AS", f"after the view's name, as in: CREATE VIEW {name.text} AS SELECT …")
            return CreateView(name, self._query())
        if kind.word == "SINK":
            if self.peek().text == "(":
                self.fail("a sink has no list of columns: they are those of the query", hint="leave it out")
            return CreateSink(name, self._using(SINK_CONNECTORS))
        columns, key, watermark = self._columns(name, is_stream=kind.word == "STREAM")
        using = self._using(STREAM_CONNECTORS if kind.word == "STREAM" else TABLE_CONNECTORS)
        if kind.word == "TABLE":
            return CreateTable(name, columns, using)
        return CreateStream(name, columns, key, watermark, using)

    def _columns(self, of: Name, *, is_stream: bool) -> tuple[list[Column], list[str], Watermark | None]:
        """Parse the columns, and what stands among them: a primary key and a watermark."""
        columns: list[Column] = []
        keys: list[Name] = []
        times: list[Name] = []
        watermark: Watermark | None = None
        if self.peek().text != "(":
            return columns, [], None
        self.next += 1
        while True:
            item = self.peek()
            if self.accept("PRIMARY", "KEY"):
                self._refuse_for_table(item, is_stream=is_stream)
                if keys:
                    self.fail("a second PRIMARY KEY", item.start, hint=f"write one: PRIMARY KEY ({keys[0].text}, …)")
                keys = self._names("PRIMARY KEY")
            elif self.accept("WATERMARK"):
                self._refuse_for_table(item, is_stream=is_stream)
                if watermark:
                    self.fail("a second WATERMARK", item.start, hint="a stream has one event time")
                watermark, times = self._watermark()
            else:
                column = self._column()
                if any(column.name.lower() == other.name.lower() for other in columns):
                    self.fail(f"a second column is called '{column.name}'", column.at)
                columns.append(column)
                if self.accept("PRIMARY", "KEY"):
                    self.fail(
                        "the primary key stands after the columns", self.before().start,
                        hint=f"write …, PRIMARY KEY ({column.name}))",
                    )  # fmt: skip
            if not self.accept_sign(","):
                break
        self.expect_sign(")", "after the columns, or ',' before the next one")
        for name in (*keys, *times):
            self._check_column(name, columns, of)
        return columns, [name.text for name in keys], watermark

    def _refuse_for_table(self, item: Token, *, is_stream: bool) -> None:
        if not is_stream:
            self.fail(f"a table has no {item.word}: it is read once", item.start, hint="leave it out, or CREATE STREAM")

    def _check_column(self, name: Name, columns: Sequence[Column], of: Name) -> None:
        known = [column.name for column in columns]
        if known and name.text not in known:
            self.fail(f"'{of.text}' has no column '{name.text}'{nearest(name.text, known)}", name.at)

    def _column(self) -> Column:
        name = self.peek()
        if name.kind not in ("word", "name"):
            self.fail(f"expected a column, found {text_of(name)}", hint="write columns like: id BIGINT, name STRING")
        self.next += 1
        first = self.peek()
        depth: list[str] = []
        while True:
            token = self.peek()
            if token.kind == "end" or (not depth and token.text in (",", ")")):
                break
            if not depth and token.word in ("NOT", "COMMENT", "PRIMARY", "DEFAULT", "GENERATED"):
                break
            if token.text in _BRACKETS:
                depth.append(_BRACKETS[token.text])
            elif depth and token.text == depth[-1]:
                depth.pop()
            self.next += 1
        if first is self.peek():
            self.fail(f"expected the type of column '{name.value}', found {text_of(first)}", hint="as in: id BIGINT")
        text = self.script.text[first.start : self.before().end]
        try:
            parse_type(text)
        except ConfigurationError as error:
            reason = error.message.splitlines()[0]
            self.fail(f"the type of column '{name.value}': {reason}", first.start, hint=error.hint)
        if self.peek().word in ("NOT", "DEFAULT", "GENERATED"):
            self.fail(
                f"{self.peek().word} of a column is not supported", hint="leave it out; a view can filter and compute"
            )
        if self.accept("COMMENT"):
            self.text("the comment")
        return Column(name.value, text, name.start)

    def _watermark(self) -> tuple[Watermark, list[Name]]:
        self.expect("FOR", "after WATERMARK, as in: WATERMARK FOR at DELAY '5 seconds'")
        column = self.name("the watermark's column")
        delay = self._duration("DELAY") if self.accept("DELAY") else "0s"
        per = self.name("the column after PER") if self.accept("PER") else None
        idle = self._duration("IDLE") if self.accept("IDLE") else None
        if self.peek().word == "AS":
            self.fail("expected DELAY, found AS", hint=f"write WATERMARK FOR {column.text} DELAY '5 seconds'")
        names = [column, *([per] if per else [])]
        return Watermark(column.text, delay, per.text if per else None, idle), names

    def _duration(self, what: str) -> str:
        token = self.text(f"a duration after {what}, as '5 seconds'")
        try:
            parse_duration_ms(token.value, what)
        except ConfigurationError as error:
            self.fail(error.message, token.start, hint=error.hint)
        return token.value

    def _using(self, known: Sequence[str]) -> Using:
        self.expect("USING", f"and one of {', '.join(known)}")
        token = self.peek()
        if token.word.lower() not in known:
            self.fail(f"expected one of {', '.join(known)}, found {text_of(token)}{nearest(token.text, known)}")
        self.next += 1
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
        return Using(Name(token.word.lower(), token.start), options)

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

    def _explain(self) -> Explain:
        return Explain(self._view_or_query())

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
        last = self.tokens[-2]
        alone = None
        if first.word in ("TABLE", "FROM"):
            self.next += 1
            if self.peek().kind == "end":
                self.fail(f"expected the name of a view after {first.word}, found {text_of(self.peek())}")
            if self.peek(1).kind == "end":
                alone = self.name(f"the name of a view after {first.word}")
        self.next = len(self.tokens) - 1
        return Query(self.script.text[first.start : last.end], first.start, alone)

    def _names(self, what: str) -> list[Name]:
        self.expect_sign("(", f"after {what}")
        names = [self.name("a column")]
        while self.accept_sign(","):
            names.append(self.name("a column"))
        self.expect_sign(")", f"after the columns of {what}")
        return names
