"""Random queries of Spark's SQL with one result: ties are broken, and nothing depends on the order of equal rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

T = TypeVar("T")
KINDS = ["number", "decimal", "double", "text", "time", "date", "truth", "texts", "pair"]
NUMBER, DECIMAL, DOUBLE, TEXT, TIME, DATE, TRUTH, TEXTS, PAIR = KINDS

_COMPARED = (NUMBER, DECIMAL, DOUBLE, TEXT, TIME, DATE)
_LITERALS = {
    NUMBER: ("0L", "1L", "3L"), DECIMAL: ("2.00BD", "5.50BD"), DOUBLE: ("0.0D", "1.5D", "double('NaN')"),
    TEXT: ("''", "'a'", "'b#7'", "'é'"), TIME: ("timestamp'2026-01-01 02:00:00'",), DATE: ("date'2026-01-02'",),
    TRUTH: ("true", "false"), TEXTS: ("array('x', null)",), PAIR: ("named_struct('a', 1, 'b', 'p')",),
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """A column: how an expression names it, and the kind of its values."""

    name: str
    kind: str

    @property
    def short(self) -> str:
        """The name without that of its table."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class Query:
    """A query, and what it gives."""

    sql: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class From:
    """What FROM says, with the columns that can be used behind it."""

    sql: str
    columns: tuple[Column, ...]


TABLES = {
    "orders": (
        Column("id", NUMBER), Column("customer", NUMBER), Column("shop", TEXT), Column("amount", DECIMAL),
        Column("at", TIME), Column("day", DATE), Column("x", DOUBLE), Column("tags", TEXTS), Column("pair", PAIR),
    ),
    "customers": (Column("customer", NUMBER), Column("country", TEXT), Column("name", TEXT), Column("score", DOUBLE)),
    "items": (Column("number", NUMBER), Column("id", NUMBER), Column("price", DECIMAL), Column("what", TEXT)),
}  # fmt: skip


class Grammar:
    """Makes queries by chance."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)
        self._names = 0

    def query(self, depth: int = 2) -> Query:
        """Return a query; deeper ones have more queries in it."""
        kinds: list[tuple[Callable[[int], Query], int]] = [
            (self._select, 4), (self._grouped, 4), (self._set, 2), (self._windowed, 2), (self._first, 2),
            (self._twice, 1), (self._exploded, 1), (self._total, 1), (self._ranked, 1), (self._distinct, 1),
        ]  # fmt: skip
        make = self._random.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
        return make(depth)

    # -- queries

    def _select(self, depth: int) -> Query:
        source = self._from(depth)
        columns, texts = self._outputs(source, depth)
        return Query(f"SELECT {', '.join(texts)} FROM {source.sql}{self._where(source, depth)}", columns)

    def _distinct(self, depth: int) -> Query:
        inner = self._select(depth)
        return replace(inner, sql=inner.sql.replace("SELECT", "SELECT DISTINCT", 1))

    def _grouped(self, depth: int) -> Query:
        source = self._from(depth)
        kinds = [self._pick((NUMBER, TEXT, DATE, DOUBLE, TIME, TEXTS, PAIR))]
        kinds += [self._pick((NUMBER, TEXT))] * self._chance(0.4)
        found = {self.expression(kind, source.columns, 1): kind for kind in kinds}
        # A number would be the place of a column.
        found = {key: kind for key, kind in found.items() if not self._is_literal(key)}
        found = found or {source.columns[0].name: source.columns[0].kind}
        keys, kinds = list(found), list(found.values())
        columns = [Column(f"k{at}", kind) for at, kind in enumerate(kinds)]
        texts = [f"{key} AS k{at}" for at, key in enumerate(keys)]
        for at in range(self._random.randint(1, 3)):
            text, kind = self._aggregate(source.columns)
            texts.append(f"{text} AS v{at}")
            columns.append(Column(f"v{at}", kind))
        by = ", ".join(keys)
        if all(kind in _COMPARED for kind in kinds) and self._chance(0.3):
            by = self._pick((f"ROLLUP({by})", f"CUBE({by})", f"GROUPING SETS(({by}), ({keys[0]}), ())"))
        having = f" HAVING {self._aggregate_condition(source.columns)}" if self._chance(0.3) else ""
        where = self._where(source, depth)
        return Query(f"SELECT {', '.join(texts)} FROM {source.sql}{where} GROUP BY {by}{having}", tuple(columns))

    def _total(self, depth: int) -> Query:
        source = self._from(depth)
        found = [self._aggregate(source.columns) for _ in range(self._random.randint(1, 3))]
        texts = ", ".join(f"{text} AS v{at}" for at, (text, _) in enumerate(found))
        columns = tuple(Column(f"v{at}", kind) for at, (_, kind) in enumerate(found))
        having = f" HAVING {self._aggregate_condition(source.columns)}" if self._chance(0.2) else ""
        return Query(f"SELECT {texts} FROM {source.sql}{self._where(source, depth)}{having}", columns)

    def _set(self, depth: int) -> Query:
        kinds = [self._pick(_COMPARED) for _ in range(self._random.randint(1, 2))]
        sides = [self._of_kinds(kinds, depth - 1) for _ in range(self._random.choice([2, 2, 2, 3]))]
        if self._chance(0.15):
            values = ", ".join(f"({', '.join(self._pick(_LITERALS[kind]) for kind in kinds)})" for _ in range(2))
            sides[-1] = f"SELECT * FROM VALUES {values}"
        words = ("UNION", "UNION ALL", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL")
        text = sides[0]
        for side in sides[1:]:
            text = f"({text}) {self._pick(words)} ({side})"
        return Query(text, tuple(Column(f"c{at}", kind) for at, kind in enumerate(kinds)))

    def _of_kinds(self, kinds: Sequence[str], depth: int) -> str:
        source = self._from(depth)
        texts = ", ".join(f"{self.expression(kind, source.columns, 1)} AS c{at}" for at, kind in enumerate(kinds))
        return f"SELECT {texts} FROM {source.sql}{self._where(source, 0)}"

    def _windowed(self, depth: int) -> Query:
        source = self._from(depth)
        columns, texts = self._outputs(source, 0)
        order = self._total_order(source)
        for at in range(self._random.randint(1, 2)):
            key = self._pick([each.name for each in source.columns])
            by = f"PARTITION BY {key} " if self._chance(0.8) else ""
            text, kind = self._window_function(source, by, order)
            texts.append(f"{text} AS w{at}")
            columns = (*columns, Column(f"w{at}", kind))
        return Query(f"SELECT {', '.join(texts)} FROM {source.sql}{self._where(source, 0)}", columns)

    def _window_function(self, source: From, by: str, order: str) -> tuple[str, str]:
        one = self._pick([each for each in source.columns if each.kind in _COMPARED])
        number = self.expression(NUMBER, source.columns, 0)
        way = self._pick(("", " DESC", " DESC NULLS LAST", " NULLS LAST"))
        frame = self._pick(
            ("", " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING", " ROWS UNBOUNDED PRECEDING", " ROWS BETWEEN 2 PRECEDING "
             "AND 1 PRECEDING", " ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING")
        )  # fmt: skip
        nulls = self._pick(("", " IGNORE NULLS"))
        ranged = [each.name for each in source.columns if each.kind == NUMBER]
        choices = [
            (f"row_number() OVER ({by}ORDER BY {one.name}{way}, {order})", NUMBER),
            (f"{self._pick(('rank', 'dense_rank'))}() OVER ({by}ORDER BY {one.name}{way})", NUMBER),
            (f"ntile(3) OVER ({by}ORDER BY {one.name}{way}, {order})", NUMBER),
            (f"percent_rank() OVER ({by}ORDER BY {one.name}{way})", DOUBLE),
            (f"sum({number}) OVER ({by}ORDER BY {one.name}{way}, {order}{frame})", NUMBER),
            (f"count({one.name}) OVER ({by.strip()})", NUMBER),
            (f"max({one.name}) OVER ({by.strip()})", one.kind),
            (f"{self._pick(('lag', 'lead'))}({one.name}){nulls} OVER ({by}ORDER BY {order})", one.kind),
            (f"first_value({one.name}){nulls} OVER ({by}ORDER BY {order})", one.kind),
            (f"nth_value({one.name}, 2){nulls} OVER ({by}ORDER BY {order}{frame})", one.kind),
        ]
        if ranged:
            at = self._pick(ranged)
            choices.append(
                (
                    f"count(*) OVER ({by}ORDER BY {at} RANGE BETWEEN 1 PRECEDING AND {self._pick('01')} FOLLOWING)",
                    NUMBER,
                )
            )
        return self._pick(choices)

    def _ranked(self, depth: int) -> Query:
        """The first rows of each key."""
        source = self._from(depth)
        columns, texts = self._outputs(source, 0)
        key = self._pick([each.name for each in source.columns])
        function = self._pick(("row_number", "rank"))
        order = ", ".join([*[each.name for each in source.columns if self._chance(0.3)], self._total_order(source)])
        inner = (
            f"SELECT {', '.join(texts)}, {function}() OVER (PARTITION BY {key} ORDER BY {order}) AS n FROM {source.sql}"
        )
        name = self._name()
        outer = ", ".join(f"{name}.{each.name}" for each in columns)
        return Query(f"SELECT {outer} FROM ({inner}) {name} WHERE n <= {self._random.randint(1, 2)}", columns)

    def _first(self, depth: int) -> Query:
        inner = self.query(depth - 1) if depth > 0 and self._chance(0.5) else self._select(depth - 1)
        name = self._name()
        order = [f"{each.name}{self._pick(('', ' DESC', ' NULLS LAST'))}" for each in inner.columns]
        self._random.shuffle(order)
        text = f"SELECT * FROM ({inner.sql}) {name} ORDER BY {', '.join(order)}"
        limit, offset = f" LIMIT {self._random.randint(1, 5)}", f" OFFSET {self._random.randint(1, 3)}"
        return replace(inner, sql=text + self._pick((limit, limit, offset, limit + offset)))

    def _twice(self, depth: int) -> Query:
        inner = self.query(depth - 1)
        name, a, b = self._name(), self._name(), self._name()
        one = self._pick([each for each in inner.columns if each.kind in _COMPARED] or [inner.columns[0]])
        outputs = ", ".join(f"{a}.{each.name} AS a{at}" for at, each in enumerate(inner.columns))
        columns = tuple(Column(f"a{at}", each.kind) for at, each in enumerate(inner.columns))
        tail = self._pick(
            (
                f"SELECT {outputs} FROM {name} {a} WHERE {a}.{one.name} = (SELECT max({one.name}) FROM {name} {b})",
                f"SELECT {outputs} FROM {name} {a} LEFT JOIN {name} {b} ON {a}.{one.name} < {b}.{one.name}",
                f"SELECT {outputs} FROM {name} {a} JOIN {name} {b} ON {a}.{one.name} = {b}.{one.name}",
                f"SELECT {outputs} FROM {name} {a} UNION ALL SELECT * FROM {name} {b}",
            )
        )
        return Query(f"WITH {name} AS ({inner.sql}) {tail}", columns)

    def _exploded(self, depth: int) -> Query:
        name, each = self._name(), self._name()
        columns = [Column(f"{name}.{column.name}", column.kind) for column in TABLES["orders"]]
        text = self.expression(TEXT, columns, 0)
        values = self._pick((f"{name}.tags", f"split({text}, '')", f"array({name}.shop, {text})"))
        outer = self._pick(("", "OUTER "))
        source = f"orders {name} LATERAL VIEW {outer}explode({values}) {each} AS e"
        of = From(source, (*columns, Column(f"{each}.e", TEXT)))
        if self._chance(0.5):
            return Query(f"SELECT {name}.id AS c0, {each}.e AS c1 FROM {source}{self._where(of, depth)}",
                         (Column("c0", NUMBER), Column("c1", TEXT)))  # fmt: skip
        return Query(f"SELECT {each}.e AS c0, count(*) AS c1 FROM {source}{self._where(of, 0)} GROUP BY {each}.e",
                     (Column("c0", TEXT), Column("c1", NUMBER)))  # fmt: skip

    # -- parts of queries

    def _outputs(self, source: From, depth: int) -> tuple[tuple[Column, ...], list[str]]:
        columns, texts = [], []
        for at in range(self._random.randint(1, 4)):
            one = self._pick(source.columns)
            kind = one.kind
            text = one.name if self._chance(0.6) else self.expression(kind, source.columns, 2)
            if depth > 1 and self._chance(0.12):
                text, kind = self._scalar(source.columns)
            texts.append(f"{text} AS c{at}")
            columns.append(Column(f"c{at}", kind))
        return tuple(columns), texts

    def _from(self, depth: int) -> From:
        """Return one table, or a join of two."""
        left = self._table(depth)
        if depth < 1 or self._chance(0.5):
            return left
        right = self._table(depth - 1)
        kind = self._pick(("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"))
        both = (*left.columns, *right.columns)
        equal = self._equal(left.columns, right.columns)
        condition = equal if self._chance(0.85) else self.condition(both, 0)
        if self._chance(0.3):
            condition += f" AND {self.condition(both, 0)}"
        columns = left.columns if "SEMI" in kind or "ANTI" in kind else both
        return From(f"{left.sql} {kind} {right.sql} ON {condition}", columns)

    def _equal(self, left: Sequence[Column], right: Sequence[Column]) -> str:
        pairs = [(a, b) for a in left for b in right if a.kind == b.kind and a.kind != TRUTH]
        if not pairs:
            return f"{self._pick(left).name} IS NOT NULL"
        # Names that are equal are those that meet.
        a, b = self._pick([pair for pair in pairs if pair[0].short == pair[1].short] * 3 + pairs)
        return f"{a.name} {self._pick(('=', '=', '=', '<=>'))} {b.name}"

    def _table(self, depth: int) -> From:
        name = self._name()
        if depth > 0 and self._chance(0.3):
            inner = self.query(depth - 1)
            return From(f"({inner.sql}) {name}", tuple(Column(f"{name}.{c.name}", c.kind) for c in inner.columns))
        if depth > 0 and self._chance(0.07):
            columns = Column(f"{name}.customer", NUMBER), Column(f"{name}.label", TEXT)
            label = self._pick(("one", "uno"))
            return From(f"(SELECT * FROM VALUES (1L, '{label}'), (3L, null) v(customer, label)) {name}", columns)
        table = self._random.choices(list(TABLES), [3, 2, 2])[0]
        return From(f"{table} {name}", tuple(Column(f"{name}.{c.name}", c.kind) for c in TABLES[table]))

    def _where(self, source: From, depth: int) -> str:
        if self._chance(0.4):
            return ""
        parts = [self.condition(source.columns, 1)]
        if depth > 0 and self._chance(0.5):
            parts.append(self._subquery(source.columns))
        return f" WHERE {self._pick((' AND ', ' AND ', ' OR ')).join(parts)}"

    def _subquery(self, outer: Sequence[Column]) -> str:
        name = self._name()
        table = self._pick(list(TABLES))
        inner = [Column(f"{name}.{c.name}", c.kind) for c in TABLES[table]]
        where = f" WHERE {self.condition(inner, 0)}" if self._chance(0.5) else ""
        pairs = [(a, b) for a in outer for b in inner if a.kind == b.kind and a.kind in (NUMBER, TEXT, DOUBLE, DECIMAL)]
        if pairs and self._chance(0.5):
            a, b = self._pick(pairs)
            return f"{a.name} {self._pick(('IN', 'IN', 'NOT IN'))} (SELECT {b.name} FROM {table} {name}{where})"
        if self._chance(0.4):
            text, kind = self._scalar(outer)
            return f"{text} {self._pick(('<', '>=', '='))} {self.expression(kind, outer, 0)}"
        tie = self._equal(outer, inner)
        if self._chance(0.2):
            tie += f" AND {self.condition([*outer, *inner], 0)}"
        return f"{self._pick(('', 'NOT '))}EXISTS (SELECT 1 FROM {table} {name} WHERE {tie})"

    def _scalar(self, outer: Sequence[Column]) -> tuple[str, str]:
        name = self._name()
        table = self._pick(list(TABLES))
        inner = [Column(f"{name}.{c.name}", c.kind) for c in TABLES[table]]
        text, kind = self._aggregate(inner)
        where = ""
        if self._chance(0.6):
            tie = self._equal(outer, inner)
            where = f" WHERE {tie}" + (f" AND {self.condition(inner, 0)}" if self._chance(0.3) else "")
        return f"(SELECT {text} FROM {table} {name}{where})", kind

    def _aggregate(self, columns: Sequence[Column]) -> tuple[str, str]:
        number = self.expression(NUMBER, columns, 1)
        double = self.expression(DOUBLE, columns, 1)
        decimal = self.expression(DECIMAL, columns, 0)
        text = self.expression(TEXT, columns, 1)
        one = self._pick([each for each in columns if each.kind in _COMPARED] or [Column(number, NUMBER)])
        distinct = self._pick(("", "", "DISTINCT "))
        # Equal greatest rows have equal values.
        last = f"max_by({one.name}, struct({', '.join(c.name for c in columns if c.kind in _COMPARED) or number}))"
        made, kind = self._pick(
            (
                ("count(*)", NUMBER), (f"count({distinct}{one.name})", NUMBER), (f"sum({distinct}{number})", NUMBER),
                (f"sum({distinct}{decimal})", DECIMAL), (f"avg({double})", DOUBLE), (f"sum({double})", DOUBLE),
                (f"min({one.name})", one.kind), (f"max({one.name})", one.kind), (f"stddev({number})", DOUBLE),
                (f"bool_or({self.condition(columns, 0)})", TRUTH), (f"avg({decimal})", DECIMAL), (last, one.kind),
                (f"array_join(sort_array(collect_list({text})), '|')", TEXT), (f"percentile({number}, 0.5)", DOUBLE),
                (f"size(collect_set({text}))", NUMBER), (f"count_if({self.condition(columns, 0)})", NUMBER),
                (f"var_pop({double})", DOUBLE), (f"count({distinct}{text}, {number})", NUMBER),
            )
        )  # fmt: skip
        if self._chance(0.2) and made.count("(") == 1 and not made.startswith(("array", "size")):
            made += f" FILTER (WHERE {self.condition(columns, 0)})"
        return made, kind

    def _aggregate_condition(self, columns: Sequence[Column]) -> str:
        text, kind = self._aggregate(columns)
        return f"{text} IS NOT NULL" if kind not in _COMPARED else f"{text} >= {self._pick(_LITERALS[kind])}"

    def _total_order(self, source: From) -> str:
        """All columns: what is equal in them is equal."""
        return ", ".join(each.name for each in source.columns)

    # -- expressions

    def condition(self, columns: Sequence[Column], depth: int) -> str:
        """Return a condition."""
        return self.expression(TRUTH, columns, depth, plain=False)

    def expression(self, kind: str, columns: Sequence[Column], depth: int, *, plain: bool = True) -> str:
        """Return an expression of a kind."""
        names = [each.name for each in columns if each.kind == kind]
        if plain and names and self._chance(0.4 if depth > 0 else 0.85):
            return self._pick(names)
        if depth < 1 and (kind != TRUTH or not columns):
            return self._pick(names or _LITERALS[kind])

        def of(other: str) -> str:
            return self.expression(other, columns, depth - 1)

        if kind == TRUTH:
            return self._truth(columns, depth, of)
        condition = self.expression(TRUTH, columns, 0, plain=False)
        a, b = of(kind), of(kind)
        common = [f"CASE WHEN {condition} THEN {a} ELSE {b} END", f"coalesce({a}, {b})", f"if({condition}, {a}, NULL)"]
        made = {
            NUMBER: [f"{a} + {b}", f"pmod({a}, 3L)", f"length({of(TEXT)})", f"abs({a})", f"greatest({a}, {b}, 1L)",
                     f"cast(hour({of(TIME)}) AS bigint)", f"cast({of(DECIMAL)} AS bigint)", f"{a} - 1L", f"-{a}",
                     f"cast(coalesce(size({of(TEXTS)}), 0) AS bigint)"],
            DECIMAL: [f"cast({of(NUMBER)} AS decimal(10,2))", f"cast({a} + 0.50BD AS decimal(10,2))", f"abs({a})"],
            DOUBLE: [f"cast({of(NUMBER)} AS double)", f"nanvl({a}, 2D)", f"{a} * 0.5D", f"try_divide({a}, 2D)"],
            TEXT: [f"upper({a})", f"concat({a}, {b})", f"substr({a}, 1, 1)", f"cast({of(NUMBER)} AS string)",
                   f"nullif({a}, 'a')", f"date_format({of(TIME)}, 'HH')", f"try_element_at({of(TEXTS)}, 1)",
                   f"{of(PAIR)}.b"],
            TIME: [f"date_trunc('hour', {a})", f"{a} + interval 90 minutes", f"cast({of(DATE)} AS timestamp)"],
            DATE: [f"to_date({of(TIME)})", f"date_add({a}, 1)"],
            TEXTS: [f"array({of(TEXT)}, {of(TEXT)})", f"reverse({a})", f"transform({a}, t -> concat(t, '!'))"],
            PAIR: [f"named_struct('a', cast({of(NUMBER)} AS int), 'b', {of(TEXT)})"],
        }[kind]  # fmt: skip
        return self._pick([*made, *made, *common])

    def _truth(self, columns: Sequence[Column], depth: int, of: Callable[[str], str]) -> str:
        one = self._pick(columns)
        kind = one.kind if one.kind in _COMPARED else NUMBER
        inner = depth - 1
        a, b = (self.expression(kind, columns, inner) for _ in range(2))
        literal = self._pick(_LITERALS[kind])
        choices = [
            f"{a} {self._pick(('<', '>', '=', '<>', '<=', '<=>'))} {b}", f"{a} {self._pick(('<', '>=', '='))} {literal}",
            f"{a} IN ({literal}, {b})", f"{a} BETWEEN {literal} AND {b}", f"{one.name} IS {self._pick(('', 'NOT '))}NULL",
            f"isnan({of(DOUBLE)})", f"{of(TEXT)} LIKE '%a%'",
        ]  # fmt: skip
        if depth > 0:
            c, d = self.condition(columns, inner), self.condition(columns, inner)
            choices += [f"({c} AND {d})", f"({c} OR {d})", f"NOT ({c})"]
        return self._pick(choices)

    # -- chance

    def _pick(self, choices: Sequence[T]) -> T:
        return self._random.choice(choices)

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _name(self) -> str:
        self._names += 1
        return f"t{self._names}"

    def _is_literal(self, text: str) -> bool:
        return any(text in each for each in _LITERALS.values())
