"""Parses the columns of a stream or table, with what stands among them: a primary key and a watermark."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.core.errors import ConfigurationError
from strandline.core.settings import parse_duration_ms
from strandline.spark.sqlfile.cursor import Cursor, text_of
from strandline.spark.sqlfile.statements import Column, Name, Watermark
from strandline.spark.views.names import nearest
from strandline.spark.views.tokens import Token
from strandline.types.datatypes import parse_type

_BRACKETS = {"(": ")", "<": ">"}


class ColumnParser(Cursor):
    """Parses `(id BIGINT, …, PRIMARY KEY (id), WATERMARK FOR at DELAY '5 seconds')`."""

    def columns(self, of: Name, *, is_stream: bool) -> tuple[list[Column], list[str], Watermark | None]:
        """Take columns, if there is a bracket; return them with the primary key and the watermark."""
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

    def _names(self, what: str) -> list[Name]:
        self.expect_sign("(", f"after {what}")
        names = [self.name("a column")]
        while self.accept_sign(","):
            names.append(self.name("a column"))
        self.expect_sign(")", f"after the columns of {what}")
        return names
