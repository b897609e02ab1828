"""A relation: rows of a node of the pipeline, and the linear steps behind it, which Spark computes.

Linear steps give what the rows of one epoch give, whatever came before: projections, filters, generators. They stay the
nodes of Spark's plan, with one column more, the weight. So what they compute is what Spark computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from pyspark.sql import DataFrame

from strandline.plan.graph import Node
from strandline.runtime.operators.views.bags import WEIGHT
from strandline.spark.streams.frames import FrameStep, unchecked_step
from strandline.spark.views.catalyst import Attribute, Catalyst, Expression, Plan, id_of
from strandline.spark.views.keys import KEY, names_in
from strandline.spark.views.meaning import short
from strandline.spark.views.times import Times

Linear = Callable[[Plan], Plan]
FOR_EVER = "kept for ever"


@dataclass(frozen=True)
class Part:
    """An operator of a view, for people."""

    uid: str
    what: str
    keeps: str
    """What its state holds."""
    gives: str
    """What it gives: rows that stay, or changes."""
    reads: tuple[str, ...] = ()
    """What its rows are made of: tables, conditions, and what the operators before it do."""
    bound: str = FOR_EVER
    """What bounds the state."""


@dataclass(frozen=True)
class Relation:
    """Rows with weights: what was added in an epoch, and what was taken back."""

    node: Node
    names: tuple[str, ...]
    """The names of the node's columns."""
    attributes: tuple[Attribute, ...]
    """Those columns in Spark's plan."""
    output: tuple[Attribute, ...]
    """The columns behind the steps."""
    columns: Mapping[int, str]
    """What each column means, by Spark's id."""
    rows: str
    """What the rows mean, whichever columns are taken of them: the same text is the same rows, in each process."""
    steps: tuple[Linear, ...] = ()
    above: Relation | None = None
    """The relation without the last step."""
    appends: bool = True
    """Whether nothing is ever taken back."""
    unique: frozenset[int] | None = None
    """The ids of columns of which no two rows have equal values, if it is known that there are some."""
    is_netted: bool = False
    """Whether no row of the node is added and taken back in one epoch."""
    hidden: tuple[Attribute, ...] = ()
    """The hidden columns of a stream with a watermark; as the weights, they are in the rows of each step."""
    times: Times = field(default_factory=dict)
    """The columns of event time, if the rows have hidden columns."""
    ttl_ms: int | None = None
    """After how long without changes state of these rows may be forgotten, if it may."""
    weighted: bool = True
    """Whether the node has the column WEIGHT; else each row is added."""
    leaves: frozenset[tuple[str, Node]] = frozenset()
    """The tables that it reads: their names, and the nodes that they stand for."""
    parts: tuple[Part, ...] = ()
    """What keeps state above, in the order of the rows."""
    clauses: tuple[str, ...] = ()
    """The steps that leave out rows or make several of one, for people."""

    @cached_property
    def meaning(self) -> str:
        """The meaning of the rows with their columns."""
        return short(f"[{', '.join(self.columns[id_of(each)] for each in self.output)}]({self.rows})")

    @property
    def is_net(self) -> bool:
        """Whether no row is added and taken back in one epoch: if the node's rows are not, and none are alike now."""
        if self.appends or not self.is_netted:
            return self.appends
        means = {self.columns[id_of(each)] for each in self.output}
        return all(self.columns.get(id_of(each)) in means for each in self.attributes)

    def then(
        self,
        step: Linear,
        output: Sequence[Attribute],
        meaning: str = "",
        columns: Mapping[int, str] | None = None,
        *,
        unique: frozenset[int] | None = None,
        times: Times | None = None,
        clause: str = "",
    ) -> Relation:
        """Return the relation with one step more.

        Without a `meaning`, it gives one row for each; without `times`, columns of event time stay what they are.
        """
        ids = {id_of(attribute) for attribute in output}
        if unique is not None and not unique <= ids:
            unique = None
        return replace(
            self,
            steps=(*self.steps, step),
            output=once(output),
            columns={**self.columns, **(columns or {})},
            rows=short(f"{meaning}({self.rows})") if meaning else self.rows,
            unique=unique,
            times=self.times if times is None else times,
            above=self,
            clauses=(*self.clauses, clause) if clause else self.clauses,
        )


@dataclass(frozen=True)
class Static:
    """A table that Spark reads in each epoch."""

    plan: Plan
    meaning: str
    is_literal: bool
    """Whether its rows are in the query, as VALUES; others may change while the job runs."""


@dataclass(frozen=True)
class Rows:
    """Makes the node of a relation's rows, with computed columns."""

    catalyst: Catalyst
    relation: Relation
    columns: tuple[tuple[str, Expression], ...]
    seed: tuple[Expression, ...] = ()
    """If each epoch has one row more, of weight 0: its columns."""
    is_weighted: bool = True
    """Whether the node has the column WEIGHT."""
    is_timed: bool = False
    """Whether the node has the hidden columns, too."""

    @property
    def key_names(self) -> list[str] | None:
        """Names of the key's values in the query; None without a key, or if an operator above has made it."""
        name, key = self.columns[0]
        names = names_in(self.catalyst, key, self.relation.columns) if name == KEY else None
        return None if names is None else [*unlike(names)]

    def node(self) -> FrameStep:
        """Return the node."""
        return unchecked_step(self.relation.node, self)

    def __call__(self, df: DataFrame) -> DataFrame:
        catalyst, relation = self.catalyst, self.relation
        plan = self.base(catalyst.plan_of(df))
        for step in relation.steps:
            plan = step(plan)
        columns = [catalyst.alias(expression, name) for name, expression in self.columns]
        columns += [catalyst.attribute("bigint", WEIGHT, weight_id(catalyst))] if self.is_weighted else []
        plan = catalyst.project([*columns, *(relation.hidden if self.is_timed else ())], plan)
        if self.seed:
            nulls = [catalyst.alias(value, name) for value, (name, _) in zip(self.seed, self.columns, strict=True)]
            if self.is_weighted:
                nulls.append(catalyst.alias(catalyst.sql("0L"), WEIGHT))
            plan = catalyst.union([plan, catalyst.project(nulls, catalyst.one_row())])
        return catalyst.frame(plan, df.sparkSession)

    def base(self, plan: Plan) -> Plan:
        """Return the rows of the node under the ids of the relation's columns."""
        catalyst, relation = self.catalyst, self.relation
        by_name = {each.name(): each for each in catalyst.items(plan.output())}
        columns = [
            catalyst.alias(by_name[name], attribute.name(), attribute.exprId(), attribute.metadata())
            for name, attribute in zip(relation.names, relation.attributes, strict=True)
        ]
        weight = by_name[WEIGHT] if relation.weighted else catalyst.sql("1L")
        hidden = [catalyst.alias(by_name[each.name()], each.name(), each.exprId()) for each in relation.hidden]
        return catalyst.project([*columns, catalyst.alias(weight, WEIGHT, weight_id(catalyst)), *hidden], plan)


def weight_id(catalyst: Catalyst) -> object:
    """Return Spark's id of the column WEIGHT, the same in all plans of a JVM: a view may read another one."""
    return catalyst.id_for(WEIGHT)


def named(rows: Relation, uid: str) -> Relation:
    """Return what an operator with the user's uid gives: its rows and columns mean the same for its life."""
    meanings = {id_of(each): f"{at} {each.name()}@uid {uid}" for at, each in enumerate(rows.output)}
    return replace(rows, rows=f"uid {uid}", columns={**rows.columns, **meanings})


def once(columns: Iterable[Attribute]) -> tuple[Attribute, ...]:
    """Return columns without those that come again: SELECT a, a."""
    return tuple({id_of(each): each for each in columns}.values())


def unlike(names: Sequence[str]) -> tuple[str, ...]:
    """Return names for columns, of which no two are equal when upper and lower case are."""
    used: set[str] = set()
    result = []
    for name in names:
        number, new = 1, name
        while new.lower() in used or new.lower().startswith("__strandline"):
            number += 1
            new = f"{name.removeprefix('__strandline')}_{number}"
        used.add(new.lower())
        result.append(new)
    return tuple(result)
