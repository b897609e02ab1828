"""Output of `checkpoints verify` and `snapshots verify`: the results of reading every byte again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import typer

from strandline.checkpoint.check import VerifyReport
from strandline.cli.output import add_row, console, print_json, say, size_text, table


class Reports:
    """Prints reports: each at once as JSON, or all at the end as tables."""

    def __init__(self, *columns: str, right: tuple[str, ...] = (), json: bool) -> None:
        """`columns` name the parts of a snapshot's identity."""
        self._json = json
        self._summary = table(*columns, "files", "size", "result", right=(*right, "files", "size"))
        self._problems = table(*columns, "path", "problem", right=right)

    def add(self, read: Mapping[str, object], report: VerifyReport) -> None:
        """Add a report; `read` identifies the snapshot, in the order of the columns, by JSON's names."""
        if self._json:
            print_json({**read, "ok": report.ok, **asdict(report)})
        result = "intact" if report.ok else f"problems: {len(report.problems)}"
        add_row(self._summary, *read.values(), report.files, size_text(report.bytes), result)
        for problem in report.problems:
            add_row(self._problems, *read.values(), problem.path, problem.problem)

    def end(self, next_step: str) -> None:
        """Print the tables; if there are problems, print the next step, and exit with 1."""
        if not self._json:
            console().print(self._summary)
            if self._problems.row_count:
                console().print(self._problems)
        if self._problems.row_count:
            say(f"next step: {next_step}")
            raise typer.Exit(1)
