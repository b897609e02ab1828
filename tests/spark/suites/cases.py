"""A case of a suite: tables, what comes into them in each epoch, views, and what these have to have after some epochs."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

Row = tuple[Any, ...]
Bag = Counter[str]
HIDDEN = "hidden_id"
"""The key of rows that have none of their own."""
GONE = "gone_row"


class UnreadableError(Exception):
    """A case says what this reader does not understand, or what is not about views."""


@dataclass
class Input:
    """A table: its stored columns, and the rows that come in each epoch. With a key, they are versions of rows."""

    name: str
    columns: list[tuple[str, str]]
    """Names and types of Spark's."""
    epochs: list[list[Row]]
    """Rows of a table with a key end with whether they delete the row."""
    key: list[str] = field(default_factory=list)
    computed: list[tuple[str, str]] = field(default_factory=list)
    """Names and expressions."""
    watermark: tuple[str, str] | None = None
    """A column, and a delay."""

    @property
    def ddl(self) -> str:
        """The columns of files."""
        gone = [(GONE, "boolean")] if self.key else []
        return ", ".join(f"`{name}` {kind}" for name, kind in [*self.columns, *gone])

    @property
    def visible(self) -> list[str]:
        """The columns that a query sees."""
        return [name for name, _ in [*self.columns, *self.computed] if name != HIDDEN]

    def until(self, epoch: int) -> list[Row]:
        """Return the rows after an epoch."""
        rows = [row for some in self.epochs[:epoch] for row in some]
        if not self.key:
            return rows
        names = [name for name, _ in self.columns]
        at = [names.index(name) for name in self.key]
        newest = {tuple(row[i] for i in at): row for row in rows}
        return [row[:-1] for row in newest.values() if not row[-1]]


@dataclass
class Check:
    """What a query over the views answers after an epoch, in the words of the suite; None: only Spark is asked."""

    epoch: int
    query: str
    expected: list[str] | None


@dataclass
class Case:
    """Tables, views and checks."""

    suite: str
    name: str
    inputs: list[Input]
    views: list[tuple[str, str]]
    """Names and queries, in an order in which a query reads those before."""
    checks: list[Check]
    restart_after: int | None = None
    """The epoch after which the job ends and is started again."""
    read: Callable[[str], str] = field(default=lambda text: normal(text))
    """Makes an expected row one that can be compared."""
    write: Callable[[Row], str] = field(default=lambda row: normal(", ".join(map(text_of, row))))
    """Does so with a row of a view."""

    @property
    def epochs(self) -> int:
        return max((len(each.epochs) for each in self.inputs), default=0)


def as_versions(epochs: Sequence[Sequence[tuple[str, Row]]]) -> list[list[Row]]:
    """Return changes, each a kind (+I, -U, +U, -D) and a row, as versions of rows with a hidden key in front."""
    there: dict[str, list[int]] = {}
    number = 0
    found = []
    for changes in epochs:
        rows: list[Row] = []
        for kind, row in changes:
            if kind in ("+I", "+U"):
                number += 1
                there.setdefault(repr(row), []).append(number)
                rows.append((number, *row, False))
            elif not there.get(repr(row)):
                raise UnreadableError(f"a row goes that is not there: {row}")
            else:
                rows.append((there[repr(row)].pop(), *row, True))
        found.append(rows)
    return found


_TOKEN = re.compile(r"[^,\[\]{}()=]+")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(:\d\d)?(\.\d+)?(Z|\+00:00)?$")


def normal(text: str) -> str:
    """Return the text of a row as one that can be compared: numbers and times have one form."""
    return _TOKEN.sub(lambda found: normal_token(found[0]), text).replace(", ", ",")


def normal_token(text: str) -> str:
    """Return a value's text in its one form."""
    token = text.strip()
    if time := _TIME.match(token):
        fraction = (time[4] or "").rstrip("0").rstrip(".")
        return f"{time[1]}T{time[2]}{time[3] or ':00'}{fraction}"
    if token.lower() in ("null", "none"):
        return "null"
    if token.lower() in ("t", "f", "true", "false"):
        return token.lower()[0]
    try:
        return f"{float(token):.6g}" if re.match(r"[-+.\dNI]", token) else token
    except ValueError:
        return token


def text_of(value: Any) -> str:
    """Return a value as Flink writes it."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float() | int() | Decimal():
            return str(value)
        case dt.datetime():
            return value.isoformat()
        case dict():
            return "{" + ", ".join(f"{text_of(k)}={text_of(v)}" for k, v in sorted(value.items(), key=repr)) + "}"
        case list():
            return "[" + ", ".join(map(text_of, value)) + "]"
        case tuple():
            return "[" + ", ".join(map(text_of, value)) + "]"
        case bytes() | bytearray():
            return "[" + ", ".join(map(str, value)) + "]"
    return str(value)
