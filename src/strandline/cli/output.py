"""Output of the command line: tables for people, JSON for programs, messages on standard error."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

_TIME_FIELDS = frozenset(["since_ms", "created_ms", "triggered_ms", "completed_ms", "last_failure_ms", "ended_ms"])
# Wide enough that no cell of a table in a file or a pipe is wrapped.
_FILE_WIDTH = 400
_CONTROLS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], "\ufffd") | {ord("\n"): "\n", ord("\t"): "\t"}


@contextlib.contextmanager
def programs_on_stderr() -> Iterator[TextIO]:
    """Yield standard output, which is for the command's result: what programs write there goes to standard error.

    Also what is written past Python, by libraries and processes that start meanwhile.
    """
    output = sys.stdout
    with contextlib.ExitStack() as at_end:
        # Else it has been replaced already, as by a test.
        if isinstance(output, TextIOWrapper) and output is sys.__stdout__:
            output.flush()
            saved = os.dup(1)
            at_end.callback(os.close, saved)
            at_end.callback(os.dup2, saved, 1)
            output = at_end.enter_context(os.fdopen(os.dup(1), "w", encoding=output.encoding, errors=output.errors))
            os.dup2(2, 1)
        at_end.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield output


def console(*, stderr: bool = False) -> Console:
    """Return a rich console: colours and line breaks only for a terminal."""
    from rich.console import Console

    file = sys.stderr if stderr else sys.stdout
    if file.isatty():
        return Console(file=file, highlight=False)
    return Console(file=file, highlight=False, force_terminal=False, no_color=True, width=_FILE_WIDTH)


class Table:
    """A table as wide as the terminal at most, without the columns in which no row has a value."""

    def __init__(
        self,
        *columns: str,
        right: Sequence[str] = (),
        whole: Sequence[str] = (),
        spare: Sequence[str] = (),
        is_data: bool = False,
    ) -> None:
        """Make an empty table; `right` are the columns of numbers, and `whole` others that stay on one line.

        A narrow terminal goes without the columns in `spare`, the first ones first. With `is_data`, every column is
        there, and numbers may be broken, too: there may be any number of them.
        """
        self.rows: list[list[Text]] = []
        self._columns, self._right, self._spare, self._is_data = columns, right, spare, is_data
        self._whole = () if is_data else (*right, *whole)

    def add(self, *values: object) -> None:
        """Add a row of plain text, without markup; "" and "-" are no values."""
        from rich.text import Text

        cells = [value if isinstance(value, Text) else Text(str(value)) for value in values]
        for cell in cells:
            cell.plain = printable(cell.plain)
        self.rows.append(cells)

    def print(self) -> None:
        """Print the table to standard output."""
        screen = console()
        screen.print(self.fitted(screen))

    def fitted(self, screen: Console) -> RichTable:
        """Return the table as it fits the width of a console."""
        wide = screen.options.update(max_width=_FILE_WIDTH)
        left_out: set[str] = set()
        if not self._is_data:
            left_out.update(
                name
                for name, cells in zip(self._columns, zip(*self.rows, strict=True), strict=bool(self.rows))
                if all(cell.plain in ("", "-") for cell in cells)
            )
        for name in self._spare:
            if screen.measure(self._rendered(left_out), options=wide).maximum > screen.width:
                left_out.add(name)
        return self._rendered(left_out)

    def _rendered(self, left_out: Collection[str]) -> RichTable:
        from rich import box
        from rich.table import Table as RichTable

        output = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        numbers = [number for number, name in enumerate(self._columns) if name not in left_out]
        for name in (self._columns[number] for number in numbers):
            justify: Literal["right", "left"] = "right" if name in self._right else "left"
            output.add_column(name, justify=justify, overflow="fold", no_wrap=name in self._whole)
        for row in self.rows:
            output.add_row(*(row[number] for number in numbers))
        return output


def printable(text: str) -> str:
    """Return text with a sign in place of each control character: a terminal would obey it."""
    return text.translate(_CONTROLS)


def say(message: str) -> None:
    """Print a message on standard error: standard output is for data."""
    print(message, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Print one JSON value as one line."""
    sys.stdout.write(json_text(value) + "\n")
    sys.stdout.flush()


def print_result(data: Any, text: str, *, json: bool) -> None:
    """Print what a command has done: as JSON, or as text."""
    if json:
        print_json(data)
    else:
        print(text)


def with_times(data: Any) -> Any:
    """Return data with each time in ms, such as `created_ms`, also in ISO 8601 with an offset, as `created_at`."""
    if isinstance(data, Mapping):
        result = {}
        for name, value in data.items():
            result[name] = with_times(value)
            if name in _TIME_FIELDS:
                result[name.removesuffix("_ms") + "_at"] = iso_text(value) if value else None
        return result
    if isinstance(data, list | tuple):
        return [with_times(value) for value in data]
    return data


def json_text(value: Any) -> str:
    """Return a JSON value as one line."""
    return json.dumps(value, separators=(", ", ": "))


def iso_text(ms: int) -> str:
    """Return a time in this machine's time zone, in ISO 8601 with its offset, for programs."""
    return datetime.fromtimestamp(ms // 1000).astimezone().isoformat()
