"""The statements of an SQL program as data. Positions are those of the program's text, for errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Emit = Literal["final", "changes"]
Form = Literal["rows", "changes", "upserts"]
OptionValue = str | int | float | bool


@dataclass(frozen=True)
class Name:
    """A name, and its position."""

    text: str
    at: int


@dataclass(frozen=True)
class Option:
    """An option, and the positions of its name and value."""

    name: str
    value: OptionValue
    at: int
    value_at: int


@dataclass(frozen=True)
class Column:
    """A column with its type as Spark DDL."""

    name: str
    type: str
    at: int


@dataclass(frozen=True)
class Watermark:
    """The parameters of `Stream.watermark()`."""

    column: str
    delay: str = "0s"
    per: str | None = None
    idle: str | None = None


@dataclass(frozen=True)
class Using:
    """The connector of a stream, table or sink, with its options."""

    connector: Name
    options: Sequence[Option]


@dataclass(frozen=True)
class CreateStream:
    """CREATE STREAM: a source, whose rows are events, or with a primary key new versions of rows."""

    name: Name
    columns: Sequence[Column]
    key: Sequence[str]
    watermark: Watermark | None
    using: Using


@dataclass(frozen=True)
class CreateTable:
    """CREATE TABLE: a table that does not change while the job runs."""

    name: Name
    columns: Sequence[Column]
    using: Using


@dataclass(frozen=True)
class Query:
    """The text of a query, which Spark analyses, or the name of a stream, table or view alone."""

    text: str
    at: int
    relation: Name | None = None
    emit: Emit = "final"
    """When windows of event time come: once, or with each epoch."""

    @property
    def sql(self) -> str:
        """The query for Spark."""
        return f"SELECT * FROM {self.relation.text}" if self.relation else self.text


@dataclass(frozen=True)
class CreateView:
    """CREATE VIEW: a query by name."""

    name: Name
    query: Query
    options: Sequence[Option] = ()
    """`uid` names the last operator of the query for life, and `was` is its former uid."""


@dataclass(frozen=True)
class CreateSink:
    """CREATE SINK: the destination of results."""

    name: Name
    using: Using


@dataclass(frozen=True)
class Insert:
    """INSERT INTO: the rows of a query go into a sink, or its changes, or the newest row of each key."""

    sink: Name
    query: Query
    form: Form = "rows"


@dataclass(frozen=True)
class Set:
    """SET: a setting of the job, of its checkpoints or of Spark."""

    option: Option


@dataclass(frozen=True)
class Explain:
    """EXPLAIN: the plan of a query or view."""

    query: Query


@dataclass(frozen=True)
class ExplainUpgrade:
    """EXPLAIN UPGRADE: what becomes of the state of an old file in a new one; for the shell."""

    old: Name
    new: Name | None = None
    """None for the declarations of the shell."""
    restore: str = ""
    """The URL of a snapshot, whose state it is then."""


@dataclass(frozen=True)
class Select:
    """A query alone: a preview of its rows."""

    query: Query


Declaration = CreateStream | CreateTable | CreateView | CreateSink
Statement = Declaration | Insert | Set | Explain | ExplainUpgrade | Select
