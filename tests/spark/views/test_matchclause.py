"""The text of MATCH_RECOGNIZE, taken apart: clauses, patterns, and what Spark parses of expressions."""

from __future__ import annotations

import pytest

from strandline.core.errors import ConfigurationError
from strandline.runtime.operators.patterns.pattern import Chain, Choice, Pattern, Repeat, Row
from strandline.spark.views.dialect import matches_in
from strandline.spark.views.matchclause import MatchClause
from strandline.spark.views.matchvalues import MatchExpressions

A, B, C = Row(0), Row(1), Row(2)


def clause_of(inside: str) -> MatchClause:
    (clause,) = matches_in(f"SELECT * FROM t MATCH_RECOGNIZE ({inside})").clauses
    return clause


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("A", A),
        ("A B+ C*", Chain((A, Repeat(B, 1, None), Repeat(C, 0, None)))),
        ("A?? B*? C+?", Chain((Repeat(A, 0, 1, False), Repeat(B, 0, None, False), Repeat(C, 1, None, False)))),
        ("A{2} B{2,} C{,3} a{1,2}?", Chain((Repeat(A, 2, 2), Repeat(B, 2, None), Repeat(C, 0, 3), Repeat(A, 1, 2, False)))),
        ("A | B C", Choice((A, Chain((B, C))))),
        ("(A | `b b`)+ C", Chain((Repeat(Choice((A, B)), 1, None), C))),
        ("((A) (B))", Chain((A, B))),
    ],
)  # fmt: skip
def test_patterns(text: str, pattern: Pattern) -> None:
    assert clause_of(f"ORDER BY at PATTERN ({text})").pattern == pattern


@pytest.mark.parametrize(
    ("inside", "message", "column"),
    [
        ("ORDER BY at PATTERN (A || B)", r"PATTERN: \|\| is not supported", 57),
        ("ORDER BY at PATTERN (A{3,2})", r"PATTERN: \{3,2\} is no number of rows", 56),
        ("ORDER BY at PATTERN (A{0})", r"PATTERN: \{0\} is no number of rows", 56),
        ("ORDER BY at PATTERN (A{1001})", "more than 1000 repetitions", 56),
        ("ORDER BY at PATTERN (A {- B -} C)", "a quantifier has not the form", 57),
        ("ORDER BY at PATTERN (^ A)", r"PATTERN: \^ is not supported", 55),
        ("ORDER BY at PATTERN (PERMUTE(A, B))", "PATTERN: PERMUTE is not supported", 55),
        ("ORDER BY at PATTERN ()", "a variable is missing", 55),
        ("ORDER BY at PATTERN (A) AND", "AND is not expected behind the pattern", 58),
        ("ORDER BY at PATTERN (A) WITHIN 3", "WITHIN: it is no literal of an interval", 58),
        ("ORDER BY at PATTERN (A) WITHIN INTERVAL '0' HOUR", "a match takes longer than 0", 58),
        ("ORDER BY at PATTERN (A) WITHIN INTERVAL '4000000' DAY", "and at most 10,000 years", 58),
        ("PATTERN (A) ORDER BY at", "MATCH_RECOGNIZE has no ORDER BY", 17),
        ("PARTITION BY k ORDER BY at MEASURES A.x AS x", "MATCH_RECOGNIZE has no PATTERN", 17),
        ("EMPTY ORDER BY at", "MATCH_RECOGNIZE begins with EMPTY", 34),
        ("ORDER BY at, PATTERN (A)", "ORDER BY has nothing behind it|has no PATTERN", 17),
        ("ORDER BY at + 1 PATTERN (A)", "ORDER BY has more than the name of a column", 43),
        ("ORDER BY at ONE ROW PER MATCH x PATTERN (A)", "ONE ROW PER MATCH has more behind it", 64),
        ("ORDER BY at AFTER MATCH SKIP ROW PATTERN (A)", "AFTER MATCH SKIP has not the form", 63),
        ("ORDER BY at PATTERN (A B) SUBSET U = A", "SUBSET has no variables", 67),
        ("ORDER BY at PATTERN (A B) SUBSET U = (A, D)", "D: the pattern has no such variable", 75),
        ("ORDER BY at PATTERN (A B) SUBSET A = (B)", "SUBSET A: the pattern has a variable of this name", 67),
        ("ORDER BY at PATTERN (A B) DEFINE A AS true, A AS false", "DEFINE A: it has a condition already", 78),
        ("ORDER BY at PATTERN (A B) DEFINE A", "a variable has no condition", 67),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(inside: str, message: str, column: int) -> None:
    with pytest.raises(ConfigurationError, match=f"({message})(.|\n)*line 1, column {column}:"):
        clause_of(inside)


def test_clauses_and_the_texts_around_them() -> None:
    """A table with its clause is a name for Spark. The clause's table is a query, with the WITH before it."""
    text = (
        "WITH x AS (SELECT 1), y AS (SELECT * FROM o MATCH_RECOGNIZE (ORDER BY at PATTERN (A)) m) "
        "SELECT id::VARCHAR FROM (SELECT CAST(a AS VARCHAR) FROM y) MATCH_RECOGNIZE (PARTITION BY k ORDER BY at, n DESC "
        "ONE ROW PER MATCH AFTER MATCH SKIP TO LAST U PATTERN (A B) WITHIN INTERVAL '1' HOUR SUBSET U = (A, B)) AS T"
    )
    matches = matches_in(text)
    inner, outer = matches.clauses
    assert matches.outer.text == (
        "WITH x AS (SELECT 1), y AS (SELECT * FROM `__match_1` m) SELECT id::STRING FROM `__match_2` AS T"
    )
    assert matches.table(inner).text == "WITH x AS (SELECT 1) SELECT * FROM o"
    assert matches.table(outer).text == (
        "WITH x AS (SELECT 1), y AS (SELECT * FROM `__match_1` m) SELECT * FROM (SELECT CAST(a AS STRING) FROM y)"
    )
    assert (outer.skip, outer.skip_to) == ("to row", (False, frozenset({0, 1})))
    assert (outer.within_us, len(outer.keys), [term.is_descending for term in outer.order]) == (
        3_600_000_000,
        1,
        [False, True],
    )
    assert matches_in("SELECT match_recognize, t.match_recognize(1) FROM t").clauses == []


@pytest.mark.parametrize(
    ("condition", "spark"),
    [
        ("B.x > 1 AND x < 2", "x > 1 AND x < 2"),
        ("B.x > A.x", "x > `A.x`"),
        ("LAST(B.x) > FIRST(B.x)", "(x) > `FIRST(B.x)`"),
        ("LAST(x) > LAST(x, 1)", "(x) > `LAST(x, 1)`"),
        ("PREV(B.x) > PREV(A.x, 2)", "`PREV(B.x)` > `PREV(A.x, 2)`"),
        ("SUM(U.x * 2) > count(*)", "`SUM(U.x * 2)` > `count(*)`"),
        ("s.x > 1 AND U.x = 3", "s.x > 1 AND x = 3"),
        ("RUNNING LAST(A.x) = CAST(x AS VARCHAR)", " `LAST(A.x)` = CAST(x AS STRING)"),
    ],
)
def test_what_spark_parses_of_conditions(condition: str, spark: str) -> None:
    text = f"SELECT * FROM t MATCH_RECOGNIZE (ORDER BY at PATTERN (A B) SUBSET U = (A, B) DEFINE B AS {condition})"
    matches = matches_in(text)
    expressions = MatchExpressions(matches, matches.clauses[0], frozenset({"x", "at", "s"}), "at")
    assert "".join(piece.text for piece in expressions.of_condition(1)) == spark


def test_what_spark_parses_of_measures() -> None:
    """All columns are those of a row of the match; equal values are one."""
    measures = "x AS a, A.x + LAST(A.x) AS b, MATCH_ROWTIME() - FIRST(at) AS c, CAST(x AS DATE) AS date, DATE '2026-01-01' AS e"
    matches = matches_in(f"SELECT * FROM t MATCH_RECOGNIZE (ORDER BY at MEASURES {measures} PATTERN (A B))")
    expressions = MatchExpressions(matches, matches.clauses[0], frozenset({"x", "at", "date"}), "at")
    texts = ["".join(piece.text for piece in expressions.of_measure(span)) for _, span in matches.clauses[0].measures]
    assert texts == [
        "`x'`", "`A.x` + `A.x`", "`MATCH_ROWTIME()` - `FIRST(at)`", "CAST(`x'` AS DATE)", "DATE '2026-01-01'",
    ]  # fmt: skip
