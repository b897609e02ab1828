"""The operators with state of a query's plan, as nodes of the pipeline."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from strandline.core.errors import ConfigurationError
from strandline.plan.columns import Columns, quoted
from strandline.plan.graph import Cut, Keyed, Node, OperatorNode, PartialNode
from strandline.plan.joins import connect
from strandline.plan.operators import make_operator
from strandline.plan.unions import union
from strandline.runtime.operators.views.bags import WEIGHT
from strandline.runtime.operators.views.joins import PAIRED, How, Joining
from strandline.runtime.operators.views.recomputing import Collecting, Comparing
from strandline.runtime.operators.views.totals import Totals
from strandline.runtime.rowlayout import ROWS
from strandline.spark.views.catalyst import Attribute, Catalyst, Expression, Plan, id_of, kind_of, meaning_of
from strandline.spark.views.keys import KEY, is_key, key_of
from strandline.spark.views.relations import Part, Relation, Rows, Static, short, unlike
from strandline.spark.views.totals import SumPlanner
from strandline.types.datatypes import BooleanType, Field, StructType

_HOWS: Mapping[str, How] = {
    "Inner": "inner", "Cross": "inner", "LeftOuter": "left", "RightOuter": "right", "FullOuter": "full",
    "LeftSemi": "semi", "LeftAnti": "anti", "ExistenceJoin": "existence",
}  # fmt: skip
_ONE = "one"
"""A column for rows that have no other."""
Fragment = Callable[[Plan], Plan]


@dataclass
class Operators:
    """Makes operators. Equal ones are made once."""

    catalyst: Catalyst
    source: Node
    """A source of the query."""
    by_meaning: dict[Any, tuple[Any, ...]] = field(default_factory=dict)
    """By meaning, and by the streams that tables stand for."""

    @cached_property
    def weight_id(self) -> Any:
        """Spark's id of the column WEIGHT, in all plans of a JVM: a view may read another one."""
        return self.catalyst.id_for(WEIGHT)

    @cached_property
    def weight(self) -> Attribute:
        """The column WEIGHT in plans."""
        return self.catalyst.alias(self.catalyst.sql("1L"), WEIGHT, self.weight_id).toAttribute()

    # -- joins

    def any_join(
        self,
        kind: str,
        left: Relation,
        left_keys: Sequence[Expression],
        right: Relation,
        right_keys: Sequence[Expression],
        rest: Expression | None,
        exists: Attribute | None,
    ) -> Relation:
        """Join relations by keys that must be equal, and the rest of a condition, which Spark evaluates of pairs."""
        if kind not in _HOWS:
            raise ConfigurationError(f"the query has a join that Spark calls {kind}: it cannot be kept up to date")
        how = _HOWS[kind]
        if rest is None or how == "inner":
            joined = self.join(how, left, left_keys, right, right_keys, exists)
            return joined if rest is None else self._filtered(joined, rest)
        # The rows that have a partner are those of the pairs: all others are those without.
        pairs = self._filtered(self.join("inner", left, left_keys, right, right_keys), rest)
        if how in ("semi", "anti", "existence"):
            return self._matched(how, left, pairs, exists)
        parts = [(pairs, [*left.output, *right.output])]
        if how in ("left", "full"):
            alone = self._matched("anti", left, pairs)
            parts.append((alone, [*alone.output, *map(self.catalyst.null_like, right.output)]))
        if how in ("right", "full"):
            alone = self._matched("anti", right, pairs)
            parts.append((alone, [*map(self.catalyst.null_like, left.output), *alone.output]))
        return replace(self._united(parts, [*left.output, *right.output]), appends=False)

    def _matched(self, how: How, rows: Relation, pairs: Relation, exists: Attribute | None = None) -> Relation:
        """Compare rows with those that pairs have."""
        return self.join(how, rows, rows.output, pairs, rows.output, exists, null_safe=True)

    def _filtered(self, rows: Relation, condition: Expression) -> Relation:
        return rows.then(
            lambda plan: self.catalyst.filter(condition, plan),
            rows.output,
            f"Filter[{meaning_of(condition, rows.columns)}]",
            unique=rows.unique,
        )

    def join(
        self,
        how: How,
        left: Relation,
        left_keys: Sequence[Expression],
        right: Relation,
        right_keys: Sequence[Expression],
        exists: Attribute | None = None,
        *,
        null_safe: bool = False,
    ) -> Relation:
        """Join relations by equal keys. Null equals nothing, unless `null_safe`: then it equals null."""
        catalyst, is_paired = self.catalyst, how in PAIRED
        texts = [
            ", ".join(meaning_of(key, rows.columns) for key in keys)
            for rows, keys in ((left, left_keys), (right, right_keys))
        ]
        meaning = short(f"join {how} {null_safe}[{texts[0]}|{texts[1]}]({left.meaning}|{right.meaning})")
        output = [*left.output, *(right.output if is_paired else ()), *([exists] if exists is not None else [])]

        def make() -> tuple[Node, tuple[str, ...], Part]:
            outer = how in ("left", "full", "anti", "existence"), how in ("right", "full")
            halves = []
            for number, (rows, keys, is_kept) in enumerate(
                ((left, left_keys, outer[0]), (right, right_keys, outer[1]))
            ):
                if not null_safe and not is_kept:
                    for key in keys:
                        rows = self._filtered(rows, catalyst.not_null(key)) if key.nullable() else rows
                key = key_of(catalyst, keys, None if null_safe else (number + 1) * is_kept)
                columns = rows.output if is_paired or number == 0 else ()
                halves.append(self._rows(rows, columns, key))
            names = unlike(
                [
                    *halves[0][1],
                    *(halves[1][1] if is_paired else ()),
                    *(["exists"] if exists is not None else []),
                ]
            )
            # A side without columns has one that no operator reads.
            unread = {0} if not left.output else set()
            unread |= {len(halves[0][1])} if is_paired and not right.output else set()
            kinds = [self._struct(node, names_) for node, names_ in halves]
            fields = [each for kind in kinds[: 1 + is_paired] for each in kind.fields]
            fields += [Field("exists", BooleanType())] if exists is not None else []
            result = StructType(tuple(Field(name, each.type) for name, each in zip(names, fields, strict=True)))
            pairs = connect(Keyed(halves[0][0], (KEY,)), Keyed(halves[1][0], (KEY,)))
            process = Joining(how, kinds[0], kinds[1], result)
            operator = self._operator(pairs, f"join-{_hash(meaning)}", process, result, f"{how} join")
            by = f"equal {texts[0]}" if left_keys else "no key: one partition does all of it"
            part = Part(operator.uid, f"{how} join by {by}", "the rows of both sides", "")
            return operator, tuple(name for at, name in enumerate(names) if at not in unread), part

        node, names, part = self._once(meaning, make, left, right)
        appends = left.appends and right.appends and how in ("inner", "semi")
        return Relation(
            node,
            names,
            tuple(output),
            tuple(output),
            {
                **left.columns,
                **right.columns,
                **({} if exists is None else {id_of(exists): short(f"exists@{meaning}")}),
            }
            if how == "inner"
            else _columns_of(output, meaning),
            meaning,
            appends=appends,
            unique=_unique_pairs(how, left, left_keys, right, right_keys),
            leaves=_leaves(left, right),
            parts=_parts(left, right, part=part, appends=appends),
        )

    # -- unions and tables

    def union(self, children: Sequence[Relation], output: Sequence[Attribute]) -> Relation:
        """Return the rows of several relations under the columns of the first one."""
        return self._united([(child, list(child.output)) for child in children], output)

    def _united(self, parts: Sequence[tuple[Relation, Sequence[Expression]]], output: Sequence[Attribute]) -> Relation:
        texts = [
            short(f"{', '.join(meaning_of(each, rows.columns) for each in columns)}({rows.meaning})")
            for rows, columns in parts
        ]
        meaning = short(f"union[{' | '.join(texts)}]")

        def make() -> tuple[Node, tuple[str, ...], None]:
            names = unlike([each.name() for each in output] or [_ONE])
            nodes = []
            for rows, columns in parts:
                values = [self.catalyst.cast_to(value, to) for value, to in zip(columns, output, strict=True)]
                pairs = list(zip(names, values or [self.catalyst.sql("true")], strict=True))
                nodes.append(Rows(self.catalyst, rows, tuple(pairs), self.weight_id).node())
            return union(nodes[0], nodes[1:]), names, None

        node, names, _ = self._once(meaning, make, *(rows for rows, _ in parts))
        return Relation(
            node,
            names[: len(output)],
            tuple(output),
            tuple(output),
            _columns_of(output, meaning),
            meaning,
            appends=all(rows.appends for rows, _ in parts),
            leaves=_leaves(*(rows for rows, _ in parts)),
            parts=_parts(*(rows for rows, _ in parts)),
        )

    def constant(self, table: Static) -> Relation:
        """Return the rows of a table that stays as it is: all of them come in the first epoch."""
        output = self.catalyst.items(table.plan.output())
        source = Relation(self.source, (), (), tuple(output), {}, "", weighted=False)

        def all_rows(plan: Plan) -> Plan:
            del plan
            return self.catalyst.project(
                [*output, self.catalyst.alias(self.catalyst.sql("1L"), WEIGHT, self.weight_id)], table.plan
            )

        rows = replace(
            source,
            steps=(all_rows,),
            meaning=short(f"table({table.meaning})"),
            columns=_columns_of(output, table.meaning),
        )
        return replace(self._compared(rows, (), rows.meaning), appends=True)

    # -- aggregates

    def aggregate(self, plan: Plan, child: Relation) -> Relation:
        """Return the results of an aggregation."""
        groups = self.catalyst.items(plan.groupingExpressions())
        results = self.catalyst.items(plan.aggregateExpressions())
        same = {id_of(of): id_of(each) for each in results if kind_of(of := _unaliased(each)) == "AttributeReference"}
        unique = frozenset(same.get(id_of(each), -1) for each in groups)
        summed = self._summed(plan, child, groups, results) if all(map(is_key, groups)) else None
        result = summed or self._computed_anew(plan, child, groups, results)
        return replace(result, unique=None if -1 in unique else unique)

    def _summed(
        self, plan: Plan, child: Relation, groups: Sequence[Attribute], results: Sequence[Expression]
    ) -> Relation | None:
        """Return the results of an aggregation of sums; None if it needs more."""
        catalyst = self.catalyst
        distinct = self._distinct(child, groups, results)
        if distinct is not None:
            child, results = distinct
        is_strict = catalyst.spark.conf.get("spark.sql.ansi.enabled") == "true"
        planner = SumPlanner(catalyst, self.weight, child.columns, appends=child.appends, is_strict=is_strict)
        sums = planner.plan(results)
        if sums is None:
            return None
        names = [each.name for each in sums.addends]
        by = ", ".join(child.columns[id_of(key)] for key in groups)
        meaning = short(f"totals[{len(groups)}: {by}; {', '.join(sorted(names))}]({child.meaning})")

        def make() -> tuple[Node, Part]:
            pairs = ((KEY, key_of(catalyst, groups)), *((each.name, each.value) for each in sums.addends))
            nothing = [
                catalyst.sql("0L" if at == 0 else f"cast(null as {each.kind.ddl})")
                for at, each in enumerate(sums.addends)
            ]
            seed = (key_of(catalyst, ()), *nothing) if not groups else ()
            node = Rows(catalyst, child, pairs, self.weight_id, seed, is_weighted=False).node()
            key = self._struct(node, [KEY])
            types = (
                (KEY, node.columns.ddl_of(KEY)),
                (ROWS, "bigint"),
                *((each.name, each.kind.ddl) for each in sums.addends),
            )
            parts = {each.name: each.part for each in sums.addends}
            partial = PartialNode(Columns(types), node, (KEY,), Cut(), parts)
            fields = [each.field for each in sums.addends]
            process = Totals(key, fields, [each.counted for each in sums.addends[1:]], is_whole=not groups)
            result = StructType((*key.fields, *(Field(each.name, each.kind) for each in sums.addends[1:])))
            uid = f"totals-{_hash(f'{by} {child.meaning}')[:6]}-{_hash(meaning)[:6]}"
            what = f"aggregate by {_names(groups)}" if groups else "aggregate of all rows"
            operator = self._operator(Keyed(partial, (KEY,)), uid, process, result, what)
            return operator, Part(uid, what, "sums and counts of each group", "")

        node, part = self._once(meaning, make, child)
        key = catalyst.attribute(node.columns.ddl_of(KEY), KEY, catalyst.new_id())
        columns = [(addend, attribute) for addend, attribute, _ in sums.columns]
        stored = [catalyst.attribute(each.kind.ddl, each.name, catalyst.new_id()) for each, _ in columns]
        output = catalyst.items(plan.output())

        def step(rows: Plan) -> Plan:
            keys = [
                catalyst.alias(catalyst.field(key, at), each.name(), each.exprId(), each.metadata())
                for at, each in enumerate(groups)
            ]
            buffers = [
                catalyst.alias(make_(column), attribute.name(), attribute.exprId())
                for column, (_, attribute, make_) in zip(stored, sums.columns, strict=True)
            ]
            rows = catalyst.project([*keys, *buffers, self.weight], rows)
            return catalyst.project([*sums.results, self.weight], rows)

        text = ", ".join(meaning_of(each, child.columns) for each in results)
        appends = child.appends and not sums.columns and bool(groups)
        return Relation(
            node,
            (KEY, *(each.name for each, _ in columns)),
            (key, *stored),
            tuple(output),
            _columns_of(output, short(f"{text}@{meaning}")),
            short(f"{text}@{meaning}"),
            steps=(step,),
            appends=appends,
            leaves=child.leaves,
            parts=_parts(child, part=part, appends=appends),
        )

    def _distinct(
        self, child: Relation, groups: Sequence[Attribute], results: Sequence[Expression]
    ) -> tuple[Relation, list[Expression]] | None:
        """Return distinct rows, and aggregates of these, if all functions are of the same distinct values."""
        catalyst = self.catalyst
        functions = [
            each for result in results for each in catalyst.parts(result) if kind_of(each) == "AggregateExpression"
        ]
        if not functions or not all(each.isDistinct() and not each.filter().isDefined() for each in functions):
            return None
        values = catalyst.items(functions[0].aggregateFunction().children())
        texts = [each.canonicalized().toString() for each in values]
        if any(
            [part.canonicalized().toString() for part in catalyst.items(each.aggregateFunction().children())] != texts
            for each in functions
        ):
            return None
        if not all(kind_of(each) == "AttributeReference" and is_key(each) for each in values):
            return None
        columns = list({id_of(each): each for each in (*groups, *values)}.values())
        distinct = self._summed(catalyst.aggregation(columns, columns), child, columns, columns)
        assert distinct is not None
        return distinct, [catalyst.replaced(each, catalyst.plain_aggregate) for each in results]

    # -- what Spark computes anew of each key that changed

    def _computed_anew(
        self, plan: Plan, child: Relation, groups: Sequence[Attribute], results: Sequence[Expression]
    ) -> Relation:
        catalyst = self.catalyst
        sessions = [each for each in groups if each.metadata().contains("spark.sessionWindow")] if groups else []
        keys = [each for each in groups if each not in sessions]
        is_row = catalyst.equal_to(self.weight, catalyst.sql("1L"))

        def only_rows(expression: Expression) -> Expression | None:
            return catalyst.filtered(expression, is_row) if kind_of(expression) == "AggregateExpression" else None

        def fragment(rows: Plan, key: Attribute) -> Plan:
            computed = [catalyst.replaced(each, only_rows) for each in results]
            count = catalyst.max(self.weight) if keys else catalyst.sql("1L")
            computed += [key, catalyst.alias(count, WEIGHT, self.weight_id)]
            return catalyst.aggregate(plan, [*groups, key], computed, rows)

        text = ", ".join(meaning_of(each, child.columns) for each in (*groups, *results))
        output = catalyst.items(plan.output())
        meaning = short(f"aggregate[{len(groups)}: {text}]({child.meaning})")
        what = f"aggregate by {_names(groups)}" if groups else "aggregate of all rows"
        return self._recomputed(child, keys, output, fragment, meaning, what, seeded=not groups)

    def window(self, plan: Plan, child: Relation) -> Relation:
        """Return the rows with the results of window functions."""
        catalyst = self.catalyst
        keys = catalyst.items(plan.partitionSpec())
        text = ", ".join(meaning_of(each, child.columns) for each in catalyst.items(plan.expressions()))
        output = catalyst.items(plan.output())

        def fragment(rows: Plan, key: Attribute) -> Plan:
            del key
            return catalyst.with_children(plan, [rows])

        what = f"window functions by {_names(keys)}" if keys else "window functions over all rows"
        result = self._recomputed(child, keys, output, fragment, short(f"window[{text}]({child.meaning})"), what)
        # The rows' own columns mean what they meant.
        columns = {**result.columns, **{id_of(each): child.columns[id_of(each)] for each in child.output}}
        return replace(result, unique=child.unique, columns=columns)

    def limit(self, child: Relation, order: Sequence[Expression], limit: int | None, offset: int) -> Relation:
        """Return the first rows in an order."""
        catalyst = self.catalyst
        text = ", ".join(meaning_of(each, child.columns) for each in order)

        def fragment(rows: Plan, key: Attribute) -> Plan:
            numbered = catalyst.numbered(_NUMBER, [key], order or [key], rows)
            rank = numbered.output().last()
            wanted = catalyst.within(rank, offset + 1, None if limit is None else offset + limit)
            first = catalyst.equal_to(rank, catalyst.sql("1"))
            kept = catalyst.filter(catalyst.either(wanted, first), numbered)
            weight = catalyst.alias(catalyst.if_(wanted, self.weight, catalyst.sql("0L")), WEIGHT, self.weight_id)
            return catalyst.project([*child.output, key, weight], kept)

        what = f"rows {offset + 1} to {'the last' if limit is None else offset + limit} in order"
        meaning = short(f"limit[{text}: {limit}, {offset}]({child.meaning})")
        result = self._recomputed(child, [], child.output, fragment, meaning, what)
        return replace(result, unique=child.unique, columns=child.columns)

    def _recomputed(
        self,
        child: Relation,
        keys: Sequence[Attribute],
        output: Sequence[Attribute],
        fragment: Callable[[Plan, Attribute], Plan],
        meaning: str,
        what: str,
        *,
        seeded: bool = False,
    ) -> Relation:
        """Collect rows by key, let Spark compute all results of a key that changed, and compare them with the last."""
        catalyst = self.catalyst
        by = ", ".join(child.columns[id_of(key)] for key in keys)
        collected = short(
            f"rows by[{by}; {', '.join(child.columns[id_of(each)] for each in child.output)}]({child.meaning})"
        )
        collected += "+" if seeded else ""

        def collect() -> tuple[Node, tuple[str, ...], Part]:
            node, names = self._rows(child, child.output, key_of(catalyst, keys), seeded=seeded)
            rows, key = self._struct(node, names), self._struct(node, [KEY])
            uid = f"rows-{_hash(collected)}"
            process = Collecting(key, rows)
            result = StructType((*key.fields, *rows.fields))
            operator = self._operator(Keyed(node, (KEY,)), uid, process, result, "rows")
            return (
                operator,
                names,
                Part(uid, f"rows by {_names(keys)}" if keys else "all rows", "all rows of each key", ""),
            )

        node, names, part = self._once(collected, collect, child)
        key_id = catalyst.new_id()
        key = catalyst.attribute(node.columns.ddl_of(KEY), KEY, key_id)
        rows = Relation(
            node,
            (KEY, *names[: len(child.output)]),
            (key, *child.output),
            tuple(output),
            _columns_of([*child.output, *output], meaning),
            short(f"computed({meaning})"),
            steps=(lambda plan: fragment(plan, key),),
            leaves=child.leaves,
            parts=_parts(child, part=part, appends=False),
        )
        return self._compared(rows, [key], meaning, what)

    def _compared(self, rows: Relation, key: Sequence[Attribute], meaning: str, what: str = "a table") -> Relation:
        """Return the changes of rows of which each epoch gives all that a key has now."""

        def make() -> tuple[Node, tuple[str, ...], Part]:
            by = key[0] if key else key_of(self.catalyst, [])
            node, names = self._rows(rows, rows.output, by)
            uid = f"results-{_hash(meaning)}"
            kind = self._struct(node, names)
            process = Comparing(self._struct(node, [KEY]), kind)
            operator = self._operator(Keyed(node, (KEY,)), uid, process, kind, what)
            return operator, names, Part(uid, what, "the last results of each key", "")

        node, names, part = self._once(short(f"results {meaning}"), make, rows)
        return Relation(
            node,
            names[: len(rows.output)],
            rows.output,
            rows.output,
            _columns_of(rows.output, meaning),
            meaning,
            appends=False,
            leaves=rows.leaves,
            parts=_parts(rows, part=part, appends=False),
        )

    # -- nodes

    def _rows(
        self, rows: Relation, columns: Sequence[Attribute], key: Expression, *, seeded: bool = False
    ) -> tuple[Node, tuple[str, ...]]:
        """Return the node of rows with their key, and the names of the columns; rows without any get one."""
        catalyst = self.catalyst
        names = unlike([each.name() for each in columns] or [_ONE])
        values = list(columns) or [catalyst.sql("true")]
        pairs = ((KEY, key), *zip(names, values, strict=True))
        seed = (key, *map(catalyst.null_like, columns)) if columns else (key, catalyst.sql("true"))
        node = Rows(catalyst, rows, pairs, self.weight_id, seed if seeded else ()).node()
        return node, names

    def _struct(self, node: Node, names: Sequence[str]) -> StructType:
        return StructType(tuple(Field(name, node.columns.type_of(name)) for name in names))

    def _operator(self, keyed: Keyed, uid: str, process: Any, result: StructType, name: str) -> OperatorNode:
        ddl = ", ".join([*(f"{quoted(each.name)} {each.type.ddl}" for each in result.fields), f"{WEIGHT} bigint"])
        return make_operator(keyed.node, uid, Columns.of(ddl).ddl, process=process, name=name, keys=(KEY,))

    def _once(self, meaning: str, make: Callable[[], tuple[Any, ...]], *above: Relation) -> tuple[Any, ...]:
        key = meaning, _leaves(*above)
        if key not in self.by_meaning:
            self.by_meaning[key] = make()
        return self.by_meaning[key]


_NUMBER = "__strandline_number"


def _columns_of(columns: Sequence[Attribute], meaning: str) -> dict[int, str]:
    return {id_of(each): short(f"{at}@{meaning}") for at, each in enumerate(columns)}


def _parts(*above: Relation, part: Part | None = None, appends: bool = True) -> tuple[Part, ...]:
    parts = dict.fromkeys(each for relation in above for each in relation.parts)
    if part is not None:
        parts[replace(part, gives="rows that stay" if appends else "changes")] = None
    return tuple(parts)


def _leaves(*above: Relation) -> frozenset[tuple[str, Node]]:
    return frozenset().union(*(relation.leaves for relation in above))


def _unique_pairs(
    how: How, left: Relation, left_keys: Sequence[Expression], right: Relation, right_keys: Sequence[Expression]
) -> frozenset[int] | None:
    """Return columns that identify a row of a join."""
    if how not in PAIRED:
        return left.unique
    if how in ("inner", "left") and left.unique is not None and _covers(right_keys, right):
        return left.unique
    if how in ("inner", "right") and right.unique is not None and _covers(left_keys, left):
        return right.unique
    if left.unique is None or right.unique is None or how != "inner":
        return None
    return left.unique | right.unique


def _covers(keys: Sequence[Expression], rows: Relation) -> bool:
    ids = {id_of(key) for key in keys if kind_of(key) == "AttributeReference"}
    return rows.unique is not None and rows.unique <= ids


def _unaliased(expression: Expression) -> Expression:
    return expression.child() if kind_of(expression) == "Alias" else expression


def _names(columns: Sequence[Attribute]) -> str:
    return ", ".join(each.name() for each in columns)


def _hash(meaning: str) -> str:
    return hashlib.sha256(meaning.encode()).hexdigest()[:12]
