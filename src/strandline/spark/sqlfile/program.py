"""A program in SQL: its statements by name, and the arguments that their options are, checked without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

from strandline.checkpoint.jobdir import check_job_name
from strandline.core.errors import ConfigurationError
from strandline.spark import sinks
from strandline.spark.sinks.base import Sink
from strandline.spark.sqlfile import sparkoptions
from strandline.spark.sqlfile.options import Parameters, Secrets
from strandline.spark.sqlfile.parser import SINK_CONNECTORS, parse
from strandline.spark.sqlfile.settings import JobSettings, job_settings
from strandline.spark.sqlfile.sources import parameters_of
from strandline.spark.sqlfile.statements import (
    CreateSink,
    CreateStream,
    CreateTable,
    CreateView,
    Declaration,
    Explain,
    ExplainUpgrade,
    Insert,
    Name,
    Option,
    Query,
    Select,
    Set,
    Statement,
)
from strandline.spark.sqlfile.text import Script
from strandline.spark.sqlfile.tokens import tokens
from strandline.spark.views.names import nearest
from strandline.spark.views.view import sql

SINKS: dict[str, Callable[..., Sink]] = {name: getattr(sinks, name) for name in SINK_CONNECTORS}
_SINK_PARAMETERS = {
    name: Parameters.of(make, without=("name",), spark=sparkoptions.FILES if name == "files" else ())
    for name, make in SINKS.items()
}
_OF_VIEWS = Parameters({"uid": str, "was": str}, ())
_RESERVED = {*signature(sql).parameters}
"""Parameters of `sl.sql`, which gets tables by name."""
DEAD_LETTERS = "_dead_letters"
"""The suffix of the stream with the dead letters of another one."""


@dataclass(frozen=True)
class Entry:
    """A declaration with the text that it was read from, and the arguments of its connector."""

    declaration: Declaration
    script: Script
    arguments: dict[str, Any] = field(default_factory=dict, repr=False)
    reads: tuple[str, ...] = ()
    """The names of the relations that stood before a view, and stand in its query."""


class Program:
    """The statements of a program. Names are compared as Spark does it: without case."""

    def __init__(self, secrets: Secrets | None = None) -> None:
        self.secrets = secrets or Secrets()
        self.inserts: list[tuple[Insert, Script]] = []
        self._settings: list[tuple[Script, Option]] = []
        self._entries: dict[str, Entry] = {}

    @staticmethod
    def read(path: Path) -> tuple[Program, list[tuple[Explain | ExplainUpgrade | Select, Script]]]:
        """Return the program of a file, and its statements that declare nothing."""
        program, others = Program(), list[tuple[Explain | ExplainUpgrade | Select, Script]]()
        try:
            script = Script(path.read_text(encoding="utf-8-sig"), str(path))
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{path} is no text in UTF-8: {error.reason}") from None
        for statement in parse(script):
            program.add(statement, script)
            if isinstance(statement, Explain | ExplainUpgrade | Select):
                others.append((statement, script))
        return program, others

    def add(self, statement: Statement, script: Script, *, replaces: bool = False) -> None:
        """Add a statement, or check one that declares nothing: EXPLAIN or a query.

        With `replaces`, a declaration takes the place of another one with its name.
        """
        if isinstance(statement, Declaration):
            self._declare(statement, script, replaces=replaces)
        elif isinstance(statement, Set):
            settings = [*self._settings, (script, statement.option)]
            job_settings(settings, script.name, self.secrets)
            self._settings = settings
        elif isinstance(statement, Insert):
            self.check_insert(statement, script)
            if any(other.sink.text.lower() == statement.sink.text.lower() for other, _ in self.inserts):
                raise script.error(
                    f"a second INSERT INTO {statement.sink.text}", statement.sink.at,
                    hint="write one query with UNION ALL, or create a sink for each",
                )  # fmt: skip
            self.inserts.append((statement, script))
        elif not isinstance(statement, ExplainUpgrade):
            self.relations_in(statement.query, script)

    @property
    def names(self) -> list[str]:
        """The declared names, in their order."""
        return [entry.declaration.name.text for entry in self._entries.values()]

    def entry(self, name: str) -> Entry | None:
        """Return a declaration by its name."""
        return self._entries.get(name.lower())

    def put_back(self, name: str, before: Entry | None) -> None:
        """Undo a declaration: the one before is valid again."""
        if before is None:
            del self._entries[name.lower()]
        else:
            self._entries[name.lower()] = before

    def entries(self, *kinds: type[Declaration]) -> Iterator[Entry]:
        """Yield the declarations of some kinds."""
        return (entry for entry in self._entries.values() if isinstance(entry.declaration, kinds))

    def settings(self, script_name: str) -> JobSettings:
        """Return what SET statements say; the job's name is by default that of the file."""
        return job_settings(self._settings, script_name, self.secrets)

    @property
    def state_ttl(self) -> str | None:
        """The time to live of the state of views."""
        return self.settings("program.sql").state_ttl

    def relations(self) -> list[str]:
        """Return the names of what queries can read."""
        dead_letters = [
            entry.declaration.name.text + DEAD_LETTERS
            for entry in self.entries(CreateStream)
            if entry.arguments.get("on_error") == "dead-letter"
        ]
        relations = self.entries(CreateStream, CreateTable, CreateView)
        return [*(entry.declaration.name.text for entry in relations), *dead_letters]

    def relations_in(self, query: Query, script: Script) -> list[str]:
        """Return the names of streams, tables and views that stand in a query, in any place.

        Raise ConfigurationError for a query that is the name of one that is not there.
        """
        if query.relation:
            return [self._relation(query.relation, script)]
        words = {token.value.lower() for token in tokens(Script(query.text)) if token.kind in ("word", "name")}
        return [name for name in self.relations() if name.lower() in words]

    def check_job(self, name: str) -> None:
        """Raise ConfigurationError unless the program inserts into a sink, and all dead letters go into one.

        `name` is that of the file, from which the job has its own by default.
        """
        check_job_name(self.settings(name).name)
        if not self.inserts:
            raise ConfigurationError(f"{name} inserts nothing into a sink: there is no job", hint="write INSERT INTO …")
        used = {each for insert, script in self.inserts for each in self.relations_in(insert.query, script)}
        used |= {each for entry in self.entries(CreateView) for each in entry.reads}
        for entry in self.entries(CreateStream):
            stream = entry.declaration.name
            if entry.arguments.get("on_error") == "dead-letter" and stream.text + DEAD_LETTERS not in used:
                raise entry.script.error(
                    f"on_error is 'dead-letter', and {stream.text}{DEAD_LETTERS} goes into no sink", stream.at,
                    hint=f"write INSERT INTO … TABLE {stream.text}{DEAD_LETTERS}; a sink USING noop discards them",
                )  # fmt: skip

    def _relation(self, name: Name, script: Script) -> str:
        """Return the declared spelling of a name."""
        known = self.relations()
        for each in known:
            if each.lower() == name.text.lower():
                return each
        raise script.error(
            f"there is no stream, table or view '{name.text}'{nearest(name.text, known)}", name.at,
            hint="create it in a statement before this one",
        )  # fmt: skip

    def _declare(self, declaration: Declaration, script: Script, *, replaces: bool) -> None:
        name = declaration.name
        before = self.entry(name.text)
        if before and not replaces:
            raise script.error(
                f"'{name.text}' is created twice: first in {before.script.place(before.declaration.name.at)}", name.at,
                hint="give it another name",
            )  # fmt: skip
        if name.text in _RESERVED and not isinstance(declaration, CreateSink):
            raise script.error(f"'{name.text}' cannot be the name of a table", name.at, hint="give it another name")
        if isinstance(declaration, CreateView):
            others = [
                each for each in self.relations_in(declaration.query, script) if each.lower() != name.text.lower()
            ]
            if circle := next((each for each in others if self._reads(each, name.text)), None):
                raise script.error(f"view '{name.text}' would read itself: '{circle}' reads it", declaration.query.at)
            what = f"view '{name.text}'"
            arguments = _OF_VIEWS.arguments(script, what, name.at, declaration.options, self.secrets)
            if "was" in arguments and "uid" not in arguments:
                raise script.error(f"{what} has 'was', and no 'uid'", name.at, hint="write OPTIONS (uid '…', was '…')")
            entry = Entry(declaration, script, arguments, tuple(others))
        else:
            entry = Entry(declaration, script, self._arguments(declaration, script))
        self._entries[name.text.lower()] = entry

    def _reads(self, name: str, other: str) -> bool:
        """Whether a relation reads another one."""
        entry = self.entry(name)
        return entry is not None and any(
            each.lower() == other.lower() or self._reads(each, other) for each in entry.reads
        )

    def _arguments(self, declaration: CreateStream | CreateTable | CreateSink, script: Script) -> dict[str, Any]:
        connector = declaration.using.connector
        kind = {CreateStream: "stream", CreateTable: "table", CreateSink: "sink"}[type(declaration)]
        what = f"{kind} '{declaration.name.text}' ({connector.text})"
        if isinstance(declaration, CreateSink):
            parameters = _SINK_PARAMETERS[connector.text]
        else:
            parameters = parameters_of(declaration)
        arguments = parameters.arguments(script, what, connector.at, declaration.using.options, self.secrets)
        if isinstance(declaration, CreateStream):
            known = [column.name for column in declaration.columns]
            for option in declaration.using.options:
                if option.name.lower() in ("order_by", "deleted") and known and option.value not in known:
                    raise script.error(
                        f"{what}: '{option.name}' is no column of it{nearest(str(option.value), known)}",
                        option.value_at,
                        hint="give the name of a column",
                    )
            has_columns = connector.text == "delta" or arguments.get("format") == "raw"
            if not has_columns and not declaration.columns:
                raise script.error(
                    f"{what} declares no columns", declaration.name.at,
                    hint=f"write CREATE STREAM {declaration.name.text} (id BIGINT, …) USING …",
                )  # fmt: skip
            if has_columns and declaration.columns:
                raise script.error(
                    f"{what} declares columns, and has its own", declaration.columns[0].at,
                    hint="leave the columns out; a view can select and cast",
                )  # fmt: skip
        return arguments

    def check_insert(self, insert: Insert, script: Script) -> None:
        """Raise ConfigurationError if there is no such sink, or no such relation."""
        sink = self.entry(insert.sink.text)
        known = [entry.declaration.name.text for entry in self.entries(CreateSink)]
        if sink is None or not isinstance(sink.declaration, CreateSink):
            what = "there is no sink" if sink is None else "this is no sink:"
            raise script.error(
                f"{what} '{insert.sink.text}'{nearest(insert.sink.text, known)}", insert.sink.at,
                hint="create it before: CREATE SINK … USING …",
            )  # fmt: skip
        self.relations_in(insert.query, script)
