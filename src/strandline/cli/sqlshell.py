"""`strandline sql` and `explain`: a shell on the statements of SQL files, without a job, and what keeps their views."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.lineediting import line_editing
from strandline.cli.orders import Drop, FromNow, by_job
from strandline.cli.output import Table, say
from strandline.cli.stores import AsJson
from strandline.core.errors import StrandlineError

if TYPE_CHECKING:
    from strandline.spark.sqlfile.build import Build
    from strandline.spark.sqlfile.preview import Preview
    from strandline.spark.sqlfile.program import Program
    from strandline.spark.sqlfile.statements import ExplainUpgrade, Insert, Name, Option, Query, Statement
    from strandline.spark.sqlfile.text import Script

ROWS = 100
"""The rows of a preview that are shown at most."""
_PROMPT, _CONTINUED = "sql> ", "  -> "
_KEYWORDS = (
    "CREATE STREAM TABLE VIEW SINK PRIMARY KEY WATERMARK FOR DELAY USING OPTIONS AS INSERT INTO CHANGES UPSERTS OF SET "
    "EXPLAIN UPGRADE TO RESTORE "
    "SELECT DISTINCT FROM JOIN LEFT RIGHT FULL ON WHERE GROUP BY HAVING ORDER LIMIT UNION ALL WITH CASE WHEN "
    "THEN ELSE END CAST AND OR NOT NULL IN BETWEEN LIKE exit help"
)
_HELP = """\
Statements end with a semicolon: CREATE STREAM, TABLE, VIEW and SINK, SET, and
  SELECT …;              a preview: the rows of the query over the first rows that its sources have now
  EXPLAIN view;          what would keep the view up to date
  EXPLAIN UPGRADE 'old.sql' [TO 'new.sql'] [RESTORE 'snapshot'];
                         what becomes of the state of old.sql in new.sql, or in what is declared here
  INSERT INTO sink …;    checked; the job of a file is started by: strandline run FILE.SQL
`exit` or Ctrl-D ends the shell."""


def sql(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE.SQL]",
            exists=True,
            dir_okay=False,
            readable=True,
            help="Statements to begin with.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Preview queries in a shell, without starting a job.

    It takes the statements of SQL files, from the terminal or from standard input. With a file, its streams, tables,
    views and sinks are there. A preview reads at most 10,000 rows of each stream, as they are now.
    """
    from strandline.cli.driver import prepare

    prepare(file or Path.cwd() / "shell.sql", [])
    shell = Shell()
    try:
        if file is not None:
            shell.load(file)
        if sys.stdin.isatty():
            shell.converse()
        else:
            shell.run_text(sys.stdin.read(), "standard input")
    finally:
        shell.close()


def explain(
    program: Annotated[
        Path, typer.Argument(metavar="FILE.SQL", exists=True, dir_okay=False, readable=True, help="The SQL file.")
    ],
    upgrade: Annotated[
        Path | None,
        typer.Option(
            "--upgrade",
            metavar="OLD.SQL",
            exists=True,
            dir_okay=False,
            readable=True,
            show_default=False,
            help="Show instead what becomes of the state of the file as it was before.",
        ),
    ] = None,
    restore: Annotated[
        str,
        typer.Option(
            "--restore",
            metavar="URL",
            show_default=False,
            help="Show what becomes of the state in a snapshot: a savepoint, a checkpoint or a job's folder.",
        ),
    ] = "",
    drop: Drop = None,
    from_now: FromNow = None,
    json: AsJson = False,
) -> None:
    """Show what keeps each view of an SQL file up to date.

    That is each operator, what its state holds, and whether the rows of the view only come or change. With --upgrade or
    --restore, it is what becomes of each operator when the job of the old file goes on with this one: kept, extended
    (other aggregates of the same groups), rebuilt (computed anew from rows that are kept), new, refused or lost.
    Nothing starts, and nothing is written. Exit code 1 if the job cannot go on.
    """
    from strandline.cli.driver import prepare
    from strandline.spark.base.session import check_java
    from strandline.spark.sqlfile.build import Build, start_session
    from strandline.spark.sqlfile.program import Program
    from strandline.spark.sqlfile.statements import CreateView, Query

    read, _ = Program.read(program)
    if upgrade is not None or restore:
        prepare(program, [])
        shell = Shell(read)
        try:
            fits = shell.explain_upgrade((read, str(program)), upgrade, restore, drop or (), from_now or (), json=json)
        finally:
            shell.close()
        raise typer.Exit(0 if fits else 1)
    check_java()
    prepare(program, [])
    build = Build(read, start_session(read, read.settings(str(program))))
    for entry in read.entries(CreateView):
        name = entry.declaration.name
        print(build.explain(Query(name.text, name.at, name), entry.script, name.text))
    for insert, script in read.inserts:
        if not insert.query.relation:
            print(build.explain(insert.query, script, insert.sink.text))


class Shell:
    """The declarations so far, and Spark once a statement needs it."""

    def __init__(self, program: Program | None = None) -> None:
        from strandline.spark.sqlfile.program import Program

        self._program = program or Program()
        self._spark: Any = None
        self._build: Build | None = None
        self._preview: Preview | None = None

    def load(self, file: Path) -> None:
        """Take the declarations and settings of a file."""
        from strandline.spark.sqlfile.program import Program

        self._program, _ = Program.read(file)

    def converse(self) -> None:
        """Read statements from the terminal until its end."""
        say("Strandline SQL: `help` says what there is.")
        with line_editing(self.words):
            while (text := self._read()) is not None:
                try:
                    self.run_text(text, "input")
                except StrandlineError as error:
                    say(f"error: {error}")
                except KeyboardInterrupt:
                    say("stopped")

    def run_text(self, text: str, name: str) -> None:
        """Execute the statements of a text."""
        from strandline.spark.sqlfile.parser import parse
        from strandline.spark.sqlfile.text import Script

        script = Script(text, name)
        for statement in parse(script):
            self._execute(statement, script)

    def explain_upgrade(
        self,
        new: tuple[Program, str],
        old: Path | None,
        restore: str,
        drop: Sequence[str] = (),
        from_now: Sequence[str] = (),
        *,
        json: bool = False,
    ) -> bool:
        """Print what becomes of the state of an old file, or of a snapshot; return whether a job can go on.

        `new` is the new program, with the name of its file.
        """
        from strandline.cli.viewupgrades import print_changes, stored_operators
        from strandline.spark.sqlfile.program import Program
        from strandline.spark.sqlfile.upgrading import Version, compare_versions

        before = Program.read(old)[0] if old is not None else None
        checkpoints = new[0].settings(new[1]).arguments["checkpoints"]
        stored = stored_operators(restore, checkpoints.storage_options) if restore else None
        self._built()
        was = None if before is None else Version.of(before, str(old), self._spark)
        now = Version.of(*new, self._spark, stored or ())
        names, begin = ([name for some in by_job(each).values() for name in some] for each in (drop, from_now))
        return print_changes(*compare_versions(was, now, stored, names, begin), json=json)

    def words(self) -> list[str]:
        """Return what the input can be completed with."""
        from strandline.spark.sqlfile.settings import SETTINGS

        return [*_KEYWORDS.split(), *self._program.names, *SETTINGS]

    def close(self) -> None:
        """End Spark."""
        if self._spark is not None:
            with contextlib.suppress(Exception):
                self._spark.stop()

    def _read(self) -> str | None:
        """Return the lines up to a semicolon; None at the end of the input."""
        from strandline.spark.sqlfile.tokens import is_complete

        lines: list[str] = []
        while True:
            try:
                line = input(_CONTINUED if lines else _PROMPT)
            except EOFError:
                print()
                return None
            except KeyboardInterrupt:
                print()
                lines.clear()
                continue
            word = line.strip().rstrip(";").lower()
            if not lines and word in ("exit", "quit"):
                return None
            if not lines and word == "help":
                print(_HELP)
                continue
            lines.append(line)
            if is_complete(text := "\n".join(lines)):
                return text

    def _execute(self, statement: Statement, script: Script) -> None:
        from strandline.spark.sqlfile.statements import (
            CreateSink,
            CreateStream,
            CreateView,
            Explain,
            ExplainUpgrade,
            Insert,
            Select,
            Set,
        )

        if isinstance(statement, ExplainUpgrade):
            self._explain_upgrade(statement, script)
            return

        if isinstance(statement, Insert):
            self._check_insert(statement, script)
            return
        before = None if isinstance(statement, Set | Explain | Select) else self._program.entry(statement.name.text)
        self._program.add(statement, script, replaces=True)
        if isinstance(statement, Select):
            self._show(statement.query, script)
        elif isinstance(statement, Explain):
            print(self._built().explain(statement.query, script, "query"))
        elif isinstance(statement, Set):
            self._set(statement.option, script)
        else:
            if self._build is not None:
                self._build.forget()
                if isinstance(statement, CreateStream) and statement.using.connector.text == "kafka":
                    say("Spark runs already: without its connector for Kafka, begin a new shell with this statement")
            try:
                if isinstance(statement, CreateView):
                    self._describe(statement.name, script)
                elif isinstance(statement, CreateSink):
                    self._sinks()
            except StrandlineError:
                self._program.put_back(statement.name.text, before)
                raise

    def _explain_upgrade(self, statement: ExplainUpgrade, script: Script) -> None:
        """Print what becomes of the state of an old file in a new one, or in what is declared here."""
        from strandline.spark.sqlfile.program import Program

        for option in filter(None, (statement.old, statement.new)):
            if not Path(str(option.text)).is_file():
                raise script.error(f"there is no file '{option.text}'", option.at, hint="give the path of an SQL file")
        new = self._program, script.name
        if statement.new is not None:
            new = Program.read(Path(statement.new.text))[0], statement.new.text
        self.explain_upgrade(new, Path(statement.old.text), statement.restore)

    def _describe(self, name: Name, script: Script) -> None:
        """Build a view; say which columns it has, and whether its rows change."""
        from strandline.spark.sqlfile.statements import Query

        build = self._built()
        text = build.explain(Query(name.text, name.at, name), script, name.text)
        columns = ", ".join(f"{column.name} {column.dataType.simpleString()}" for column in build.columns(name.text))
        say(f"{text.splitlines()[0]}; {columns}")

    def _set(self, option: Option, script: Script) -> None:
        """Change a setting of Spark, if it runs."""
        if self._spark is None or not option.name.startswith("spark."):
            return
        from pyspark.errors import PySparkException

        try:
            self._spark.conf.set(option.name, self._program.settings(script.name).spark[option.name])
        except PySparkException:
            raise script.error(
                f"Spark runs, and does not change {option.name} any more",
                option.at,
                hint="begin a new shell, with this statement before the first query",
            ) from None
        self._preview = None

    def _check_insert(self, insert: Insert, script: Script) -> None:
        self._program.check_insert(insert, script)
        self._built().output(insert, script, self._sinks()[insert.sink.text.lower()])
        say(f"INSERT INTO {insert.sink.text} is checked; a file with it is run by: strandline run FILE.SQL")

    def _show(self, query: Query, script: Script) -> None:
        """Print the first rows of a query."""
        from strandline.spark.sqlfile.preview import Preview

        if self._preview is None:
            self._built()
            self._preview = Preview(self._program, self._spark)
        answer = self._preview.answer(query, script, ROWS + 1)
        columns, rows = answer.columns, answer.rows
        numbers = [
            name for at, name in enumerate(columns)
            if all(isinstance(row[at], int | float) or row[at] is None for row in rows)
        ]  # fmt: skip
        output = Table(*columns, right=numbers, is_data=True)
        for row in rows[:ROWS]:
            output.add(*map(_cell_text, row))
        output.print()
        if len(rows) > ROWS:
            say(f"the first {ROWS} rows; write LIMIT or WHERE to see others")
        else:
            say(f"{len(rows)} row{'s' if len(rows) != 1 else ''}")
        if answer.has_matches:
            say("matches are those of the rows that were read: a job gives one when no row that may come can change it")

    def _sinks(self) -> Any:
        from strandline.spark.sqlfile.build import make_sinks

        return make_sinks(self._program)

    def _built(self) -> Build:
        """Return what makes views; start Spark before, if it does not run."""
        if self._build is None:
            from strandline.spark.base.session import check_java
            from strandline.spark.sqlfile.build import Build, start_session

            check_java()
            if sys.stdin.isatty():
                say("starting Spark")
            self._spark = start_session(self._program, self._program.settings("shell.sql"))
            self._build = Build(self._program, self._spark)
        return self._build


def _cell_text(value: Any) -> str:
    if value is None:
        return "NULL"
    return str(value.asDict(recursive=True) if hasattr(value, "asDict") else value)
