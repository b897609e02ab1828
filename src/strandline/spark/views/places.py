"""Errors of a query in Spark's words, with the place in the user's text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from pyspark.errors import PySparkException

from strandline.core.errors import ConfigurationError
from strandline.spark.views.names import nearest
from strandline.spark.views.rewriting import Rewriting

_REST = re.compile(r"\s*(SQLSTATE: |\(line \d+, pos \d+\)|;? ?line \d+ pos \d+|\n== SQL|;\n)")
"""What comes after the words of a message: codes, places, the text and the plan."""
_PLACE = re.compile(r"\(line (\d+), pos (\d+)\)|line (\d+) pos (\d+)|== SQL \(line (\d+), position (\d+)\)")
_SENTENCE = re.compile(r"(?<=[^.]\.)\s+(?=[A-Z])")
_SEARCHED = re.compile(r"\s*(on search path|Search path:) \[[^\]]*\]\.?")
_SUGGESTED = re.compile(r"\s*Did you mean one of the following\? \[(.*?)\]\.?", re.DOTALL)
_NO_STEP = ("If necessary set", "Please, refer to", "If the issue persists", "You can reference")
_STEP = re.compile(
    r"(?:Please )?((?:Add|Change|Check|Consider|Correct|Ensure|Make|Provide|Remove|Rewrite|Set|Specify|Use|Verify) .*)",
    re.IGNORECASE | re.DOTALL,
)
_SUGGESTIONS = 5


class NodeError(Exception):
    """A plan has what no view can have, in these nodes, of which some know their place."""

    def __init__(self, message: str, hint: str, *nodes: Any) -> None:
        super().__init__(message)
        self.hint = hint
        self.nodes = nodes


def refuse_node(query: Rewriting, error: NodeError) -> ConfigurationError:
    """Return the error of a query of which Spark makes a plan that no view can have."""
    for node in error.nodes:
        origin = node.origin()
        text, at = origin.sqlText(), origin.startIndex()
        if text.isDefined() and at.isDefined() and text.get() == query.text:
            return query.refused(str(error), query.place(at.get()), error.hint)
    return ConfigurationError(str(error), hint=error.hint)


def refuse_query(
    query: Rewriting, error: PySparkException, tables: Iterable[str] = (), functions: Callable[[], list[str]] = list
) -> ConfigurationError:
    """Return the error of a query that Spark refuses.

    `tables` are the names of those that it was given, and `functions` returns the names of the session's.
    """
    words, hint = _words(str(error))
    parameters = error.getMessageParameters() or {}
    if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
        words, hint = _unknown_table(parameters["relationName"].replace("`", ""), [*tables])
    else:
        if error.getCondition() == "UNRESOLVED_ROUTINE":
            words += nearest(parameters["routineName"].replace("`", ""), functions())
        words = f"the query is refused by Spark: {words}"
    place = _place(query, error, parameters)
    return ConfigurationError(words, hint=hint) if place is None else query.refused(words, place, hint)


def _unknown_table(name: str, tables: list[str]) -> tuple[str, str]:
    return (
        f"there is no table '{name}'{nearest(name, tables)}",
        f"sql() was given {', '.join(tables)}; give it this one by its name, or create it in the Spark session",
    )


def _words(text: str) -> tuple[str, str]:
    """Return the message of an error, and what it says to do."""
    text = re.sub(r"^\[[\w.]+\]\s*", "", text.strip())
    end = _REST.search(text)
    text = _SEARCHED.sub("", text[: end.start() if end else None]).strip()
    suggested = _SUGGESTED.search(text)
    text = _SUGGESTED.sub("", text)
    words: list[str] = []
    steps: list[str] = []
    for sentence in _SENTENCE.split(" ".join(text.split())):
        step = _STEP.fullmatch(sentence)
        if step and words:
            steps.append(step[1][0].lower() + step[1][1:].strip(". "))
        elif not sentence.startswith(_NO_STEP):
            words.append(sentence.strip(".; "))
    if suggested:
        names = [each for each in suggested[1].split(", ") if not each.startswith("`__")]
        steps.append(f"did you mean {', '.join(names[:_SUGGESTIONS])}?")
    return ". ".join(words), "; ".join(steps)


def _place(query: Rewriting, error: PySparkException, parameters: dict[str, str]) -> int | None:
    """Return where the error is in the user's text."""
    for context in error.getQueryContext():
        if not context.objectType() and context.startIndex() >= 0:
            fragment = context.fragment()
            return query.place(context.startIndex() + _within(fragment, parameters))
    place = _PLACE.search(str(error))
    if place is not None:
        line, column = (int(number) for number in place.groups() if number is not None)
        return query.place_of(line, column - (place[0].startswith("==")))
    at = _within(query.text, parameters)
    return query.place(at) if at else None


def _within(fragment: str, parameters: dict[str, str]) -> int:
    """Return where a query that an error is of has the part that its parameters name; 0 if that is not clear."""
    if not re.match(r"\s*(SELECT|WITH|FROM)\b", fragment, re.IGNORECASE):
        return 0
    for value in parameters.values():
        part = re.sub(r"^\((.*)\)$", r"\1", value.strip('"').replace("`", ""))
        matches = [each.start() for each in re.finditer(rf"(?<!\w){re.escape(part)}(?!\w)", fragment, re.IGNORECASE)]
        if len(part) > 1 and len(matches) == 1:
            return matches[0]
    return 0
