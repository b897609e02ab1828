"""Errors of a query in Spark's words, with the place in the text."""

from __future__ import annotations

import re

from pyspark.errors import PySparkException

from strandline.core.errors import ConfigurationError

_PLACE = re.compile(r"\(line (\d+), pos (\d+)\)|;? line (\d+) pos (\d+);?")
_NOISE = re.compile(r"\s*SQLSTATE: \w+;?")


def refuse_query(query: str, error: PySparkException) -> ConfigurationError:
    """Return the error of a query that Spark refuses."""
    text = str(error)
    words = _NOISE.sub("", _PLACE.split(text.strip().splitlines()[0])[0]).strip().rstrip(";")
    words = re.sub(r"^\[[\w.]+\]\s*", "", words)
    place = _PLACE.search(text)
    if place is None:
        return ConfigurationError(f"the query is refused by Spark: {words}")
    line, column = (int(number) for number in place.groups() if number is not None)
    return ConfigurationError(f"the query is refused by Spark: {words}\n{marked(query, line, column)}")


def marked(text: str, line: int, column: int) -> str:
    """Return a line of a text with a caret under a column, which counts from 0."""
    lines = text.splitlines()
    its_line = lines[line - 1] if 0 < line <= len(lines) else ""
    return f"  line {line}, column {column + 1}:\n    {its_line}\n    {' ' * column}^"
