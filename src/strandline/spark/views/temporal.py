"""As-of joins whose times have watermarks, and `JOIN t FOR SYSTEM_TIME AS OF o.at`, which becomes one."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.plan.graph import Node
from strandline.runtime.operators.views.asof import AsOfHow, AsOfJoining
from strandline.spark.views.asof import keys_of, right_conditions
from strandline.spark.views.catalyst import Plan, kind_of
from strandline.spark.views.keys import KEY, join_key_of
from strandline.spark.views.meaning import short
from strandline.spark.views.nearjoins import timed_rows
from strandline.spark.views.operators import Operators, hash_of, made_of, struct_of
from strandline.spark.views.pairs import paired
from strandline.spark.views.relations import Part, Relation
from strandline.spark.views.rewriting import Edits, Piece
from strandline.spark.views.structure import Query, Span
from strandline.spark.views.times import TimeReader, of_result

_HOWS: Mapping[str, AsOfHow] = {"Inner": "inner", "LeftOuter": "left"}
_STRICT = {"GreaterThan": True, "GreaterThanOrEqual": False}
VERSIONS = "__versions_of_"
"""The name of a table's versions begins with it."""


def as_of_join(ops: Operators, plan: Plan, left: Relation, right: Relation) -> Relation | None:
    """Join rows with the versions that were valid at their times; None if no watermark says when that is known."""
    catalyst, match, reader = ops.catalyst, plan.asOfCondition(), TimeReader(ops.catalyst)
    at, version_at = reader.time(match.left(), left.times), reader.time(match.right(), right.times)
    how = _HOWS.get(kind_of(plan.joinType()))
    if kind_of(match) not in _STRICT or how is None or at is None or version_at is None:
        return None
    if not (left.appends and right.appends):
        return None
    lags, is_strict, final = (at.lag_us, version_at.lag_us), _STRICT[kind_of(match)], ops.is_final
    keys, other_keys = keys_of(catalyst, plan)
    for condition in (*right_conditions(catalyst, plan), *map(catalyst.not_null, other_keys)):
        right = ops.filtered(right, condition)
    halves = ((left, keys, match.left()), (right, other_keys, match.right()))
    texts = [", ".join(ops.meanings.of(key, rows.columns) for key in (*some, at)) for rows, some, at in halves]
    what = f"as of {how} {is_strict} {lags} {'final' if final else 'changes'}"
    meaning = short(f"{what}[{texts[0]}|{texts[1]}]({left.meaning}|{right.meaning})")
    output = [*left.output, *right.output]

    def make() -> tuple[Node, tuple[str, ...], Part]:
        nodes = [
            timed_rows(ops, rows, rows.output, join_key_of(catalyst, some, number), at)
            for number, (rows, some, at) in enumerate(halves, 1)
        ]
        pairs, key = paired(nodes, (left, right)), struct_of(nodes[0][0], [KEY])
        process = AsOfJoining(key, how, *pairs.kinds, pairs.result, lags, final=final, is_strict=is_strict)
        operator = ops.operator(pairs.rows, f"asof-{hash_of(meaning)}", process, pairs.result, "as-of join")
        keeps = "rows, and of each key the versions that a row can still ask for"
        bound = "rows until the watermark has passed them; the newest version of each key stays"
        return operator, pairs.read, Part(operator.uid, f"{how} join as of {texts[0]}", keeps, "", bound=bound)

    node, names, part = ops.once(meaning, make, left, right)
    return made_of(
        left, right, node=node, names=names, output=output, meaning=meaning, part=part, appends=final,
        unique=left.unique, hidden=ops.hidden_of(node.columns.hidden), ttl_ms=left.ttl_ms,
        times=of_result(left.times, left.output, at, version_at.lag_us),
    )  # fmt: skip


# -- FOR SYSTEM_TIME AS OF o.at

_BEFORE_JOIN = frozenset({"LEFT", "OUTER", "INNER", "RIGHT", "FULL", "CROSS", "SEMI", "ANTI"})
_ENDS_OF_ALIAS = frozenset({"ON", "USING", "WHERE", "JOIN", "LEFT", "INNER", "GROUP", "ORDER", "LIMIT"})


def rewrite_versions(query: Query, edits: Edits, at: int, times: Mapping[str, tuple[str, bool]]) -> bool:
    """Rewrite `JOIN t FOR SYSTEM_TIME AS OF o.at AS v ON …` to an ASOF JOIN; return whether the table is known.

    `times`: by the name of a table, the column that says since when a row is valid, and whether its rows are versions.
    """
    token = query.tokens[at]
    name = query.tokens[at - 1].value if at else ""
    known = {table.lower(): (table, *time) for table, time in times.items()}.get(name.lower())
    if known is None:
        return False
    table, column, is_versions = known
    end = at + 4
    while query.text_of(end + 1) == ".":
        end += 2
    join = at - 2
    first = join
    while query.word(first - 1) in _BEFORE_JOIN:
        first -= 1
    kinds = {query.word(each) for each in range(first, join)}
    if query.word(join) != "JOIN" or kinds - {"LEFT", "OUTER", "INNER"}:
        raise edits.refused(
            "FOR SYSTEM_TIME AS OF a column needs JOIN or LEFT JOIN before the table", token.start,
            "write o LEFT JOIN rates FOR SYSTEM_TIME AS OF o.at AS r ON o.currency = r.currency",
        )  # fmt: skip
    alias, last = table, end
    if query.words(end + 1, "AS") or (
        query.tokens[end + 1 : end + 2]
        and query.tokens[end + 1].kind in ("word", "name")
        and query.word(end + 1) not in _ENDS_OF_ALIAS
    ):
        last = end + 1 + query.words(end + 1, "AS")
        alias = query.tokens[last].text if last < len(query.tokens) else table
    start = query.tokens[first].start
    edits.replace(start, query.tokens[join].end, Piece("LEFT " * ("LEFT" in kinds) + "ASOF JOIN", start))
    if is_versions:
        name_token = query.tokens[at - 1]
        edits.replace(name_token.start, name_token.end, Piece(f"`{VERSIONS}{table}`", name_token.start))
    edits.replace(
        token.start, query.tokens[last].end,
        Piece(f"AS {alias} MATCH_CONDITION (", token.start), edits.copy(*query.place(Span(at + 4, end + 1))),
        Piece(f" >= {alias}.`{column}`)", token.start),
    )  # fmt: skip
    return True
