"""What reading every byte again has found, as `checkpoints verify` and `snapshots verify` say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import typer

from strandline.checkpoint.check import VerifyReport
from strandline.cli.output import add_row, console, print_json, say, size_text, table


class Reports:
    """Prints reports: as JSON each as it comes, else all of them at the end."""

    def __init__(self, *columns: str, right: tuple[str, ...] = (), json: bool) -> None:
        """`columns` name what was read."""
        self._json = json
        self._made = table(*columns, "files", "size", "result", right=(*right, "files", "size"))
        self._problems = table(*columns, "path", "problem", right=right)

    def add(self, read: Mapping[str, object], report: VerifyReport) -> None:
        """Take a report; `read` says of what, in the order of the columns, with JSON's names."""
        if self._json:
            print_json({**read, "ok": report.ok, **asdict(report)})
        result = "intact" if report.ok else f"problems: {len(report.problems)}"
        add_row(self._made, *read.values(), report.files, size_text(report.bytes), result)
        for problem in report.problems:
            add_row(self._problems, *read.values(), problem.path, problem.problem)

    def end(self, next_step: str) -> None:
        """Print what there is; if there are problems, say what to do, and exit with 1."""
        if not self._json:
            console().print(self._made)
            if self._problems.row_count:
                console().print(self._problems)
        if self._problems.row_count:
            say(f"next step: {next_step}")
            raise typer.Exit(1)
