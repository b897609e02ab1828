"""Programs that are SQL files, for `strandline run totals.sql`: starts their job."""

from __future__ import annotations

from pathlib import Path

SUFFIX = ".sql"


def run_file(path: Path) -> None:
    """Run the job of an SQL file to its end. Raise ConfigurationError for a wrong one, often before Spark starts."""
    from strandline.spark.sqlfile.build import Build, make_sinks, start_session
    from strandline.spark.sqlfile.program import Program
    from strandline.spark.sqlfile.statements import Explain, ExplainUpgrade

    program, others = Program.read(path)
    for statement, script in others:
        if isinstance(statement, ExplainUpgrade):
            raise script.error(
                "EXPLAIN UPGRADE is for the shell",
                statement.old.at,
                hint=f"write strandline explain {path} --upgrade …",
            )
        if not isinstance(statement, Explain):
            raise script.error(
                "a query alone shows its rows only in the shell",
                statement.query.at,
                hint=f"write INSERT INTO a sink before it; or preview it: strandline sql {path}",
            )
    program.check_job(str(path))
    settings, sinks = program.settings(str(path)), make_sinks(program)
    spark = start_session(program, settings)
    build = Build(program, spark)
    job = build.job(settings, sinks)
    for statement, script in others:
        assert isinstance(statement, Explain)
        print(build.explain(statement.query, script, "query"))
    job.start(spark).await_termination()
