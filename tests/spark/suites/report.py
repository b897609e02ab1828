"""Writes docs/sql-suites.md from build/suites/results: python -m tests.spark.suites.report"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from tests.spark.suites.fetching import HOME, REPOSITORIES
from tests.spark.suites.flinkjars import PROGRAMS, VERSION
from tests.spark.suites.run import READERS, SPARK_ALONE, read_results

PAGE = Path(__file__).parents[3] / "docs" / "sql-suites.md"
_HEAD = """\
# Suites that others wrote

Test programs of Flink, RisingWave and Arroyo, run as views by `python -m tests.spark.suites.run`. Their texts and rows are fetched
(`python -m tests.spark.suites.fetching`, or `--from DIR` without a network), and are no part of this repository. Each case is compared twice: with
what its suite expects, and with what Spark answers to the same queries over the same rows. In the middle, the job is stopped, and
started again from its checkpoint.

| word | meaning |
|---|---|
| passes | the view has the rows that the suite expects, and that Spark answers |
| differs | the view has the rows that Spark answers; the suite expects others, for the reason given |
| refused | `sl.sql` refuses the query, for the reason given |
| unread | the case is about something else than queries, or the reader does not know it |
| wrong, fails | a fault |
"""
_WHERE = {
    "Flink": f"`*TestPrograms` of Flink {VERSION}, all of them, from the jars that Flink publishes "
    f"(`flink-table-planner_2.12:{VERSION}:tests`). Rows before and after the restore are two epochs each.",
    "RisingWave": f"`e2e_test/streaming` and `e2e_test/over_window/templates` of {REPOSITORIES['risingwave'].url}. What is below was run on a copy of "
    "some files, without comments, types that DuckDB lacks, and some of their statements and checks; a case is a materialized view, an epoch a statement that changes a table.",
    "Arroyo": f"The golden queries of `crates/arroyo-sql-testing` of {REPOSITORIES['arroyo'].url}: a case is a query, named after its file of rows, which is cut into four epochs. "
    "What is below was run on a copy of all queries, and of the files of rows that are listed. Windows of Arroyo have no column, `tumble(interval '1 hour')`: the reader writes `window(timestamp, '1 hour')` "
    "or `session_window(…)`, and `bigint` for `bigint unsigned`.",
}
_WHY = (
    (r"time of processing|proc_?time|PROCTIME", "the time of processing: a restart would have another"),
    (r"SYSTEM_TIME AS OF", "FOR SYSTEM_TIME AS OF a column: ASOF JOIN has it for event time, and a plain join without it for the newest rows"),
    (r"present time|current_timestamp", "the present time"),
    (r"given no stream", "no stream is read: nothing changes"), (r"greater than a month", "windows of months"),
    (r"`timestamp` cannot be resolved", "windows of results whose time is no column"),
    (r"lower bound of a window frame", "window frames that end before they begin"),
    (r"CURRENT_WATERMARK", "CURRENT_WATERMARK"), (r"LIMIT without ORDER BY", "LIMIT without ORDER BY: which rows is not defined"),
    (r"at or near '='", "hints of Flink with values, as STATE_TTL"), (r"at or near 'order'", "array_agg(… ORDER BY …) and its like: not Spark's syntax"),
    (r"Cannot resolve routine `(\w+)`", r"functions that Spark does not have: \1"), (r"Syntax error", "not Spark's syntax"),
    (r"function in Java|functions in Java", "functions in Java"), (r"not about queries: (.*)", r"\1"),
)  # fmt: skip


def main() -> None:
    """Write the page."""
    lines = [_HEAD]
    for suite, where in _WHERE.items():
        results = read_results(suite)
        counts = Counter(each["result"] for each in results.values())
        lines += [f"## {suite}", "", where, ""]
        lines += ["| result | cases |", "|---|---|", *(f"| {word} | {n} |" for word, n in counts.most_common()), ""]
        copied = HOME / suite.lower() / "copied.json"
        if copied.exists():
            files = (f"{name} ({commit})" for name, commit in json.loads(copied.read_text()).items())
            lines += [f"Files, each as of the commit behind it: {', '.join(files)}.", ""]
        alone = sum(each["result"] == "passes" and each["detail"] == SPARK_ALONE for each in results.values())
        if alone:
            lines += [f"Of those that pass, {alone} have no rows that the suite expects: they are compared with Spark alone.", ""]  # fmt: skip
        if missing := _total(suite) - len(results):
            lines += [f"{missing} of {_total(suite)} have not been run.", ""]
        lines += ["| group | passes | differs | refused | unread | wrong, fails |", "|---|---|---|---|---|---|"]
        groups: dict[str, Counter[str]] = defaultdict(Counter)
        for name, each in results.items():
            groups[_group(suite, name)][each["result"]] += 1
        for group, of in sorted(groups.items()):
            cells = (of["passes"], of["differs"], of["refused"], of["unread"], of["wrong"] + of["fails"])
            lines.append(f"| {group} | {' | '.join(str(n or '') for n in cells)} |")
        lines += ["", "Why cases are refused or unread:", "", "| reason | cases |", "|---|---|"]
        reasons = Counter(
            _reason(each["detail"]) for each in results.values() if each["result"] in ("refused", "unread")
        )
        lines += [f"| {reason} | {n} |" for reason, n in reasons.most_common()]
        lines += ["", "What differs, or is at fault:", "", "| case | result | first difference |", "|---|---|---|"]
        lines += [
            f"| {name} | {each['result']} | {_cell(each['detail'])} |"
            for name, each in sorted(results.items()) if each["result"] in ("differs", "wrong", "fails")
        ]  # fmt: skip
        lines.append("")
    PAGE.write_text("\n".join(lines) + NOTES)


NOTES = """\
## Why results differ

- Flink's average of whole numbers is a whole number, and RisingWave's `7 / 2` is 3: Spark's are not.
- Windows: a view with `emit="changes"` has open windows as well, and rows that are late for Flink; Flink gives a window when
  its watermark has passed it.
- An order of rows with ties has no first row: Flink and RisingWave take the one that came first.
- Flink's UNNEST of an array of rows has their fields as columns; Spark's has one column. `inline(…)` has them.
- `MATCH_RECOGNIZE`: rows of equal times are in an order of values, and in Flink in that of arrival; a row is late by the watermark at the
  begin of its epoch, and Flink's moves with each row.
- A table with a primary key that Flink writes into keeps the newest row of each key; a view has all rows.
- A stream of changes that breaks its own table's key (a row of a key is added, another one too, and the second one deleted): Flink
  keeps the first one, `sl.table` has none.
- Flink's delta joins look rows up in sources that its test fills in another way; the view has all pairs, as Spark answers.
- Arroyo's `user_id != 123` compares texts; Spark casts the text to a number, and fails where it is none: so does the job.
- RisingWave's `ignore_nulls` expects a first value from outside of the frame after its first statement, and none after the second.
"""


def _total(suite: str) -> int:
    """Return how many cases a suite has."""
    if suite == "Flink":
        return len(json.loads(PROGRAMS.read_text())["programs"])
    return sum(1 for _ in READERS[suite.lower()]())


def _group(suite: str, name: str) -> str:
    parts = name.split("/")
    return "/".join(parts[:2]) if suite == "RisingWave" else parts[0]


def _reason(detail: str) -> str:
    for pattern, reason in _WHY:
        if found := re.search(pattern, detail, re.I):
            return found.expand(reason)
    return _cell(re.sub(r"^the query is refused by Spark: ", "", detail.splitlines()[0] if detail else ""))[:110]


def _cell(text: Any) -> str:
    line = str(text).splitlines()[0] if text else ""
    return re.sub(r"_c\d+\b", "", line).replace("|", "\\|")[:220]


if __name__ == "__main__":
    main()
