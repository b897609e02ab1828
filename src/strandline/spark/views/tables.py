"""Streams of versions as tables that change: `sl.table(stream, key=…)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.types import StructType as Schema

from strandline.core.errors import ConfigurationError
from strandline.ends.arguments import check_columns
from strandline.plan.checks import check_uid
from strandline.plan.graph import Keyed, Node, WatermarkNode
from strandline.plan.operators import movers_above
from strandline.runtime.operators.views.versions import Versions
from strandline.spark.streams.frames import unchecked_step
from strandline.spark.streams.html import stream_html
from strandline.spark.streams.stream import Stream
from strandline.spark.views.catalyst import Attribute, id_of
from strandline.spark.views.keys import KEY, key_of
from strandline.spark.views.meaning import short
from strandline.spark.views.operators import Operators, hash_of, parts_of, struct_of
from strandline.spark.views.relations import Part, Relation, Rows
from strandline.spark.views.times import WHOLE, Time

_DELETED = "__strandline_deleted"
GONE = "__strandline_gone"
"""The hidden column of versions that only end the one before."""


@dataclass(frozen=True)
class Table:
    """A stream of new versions of rows, as a table that queries read. Made by `table`."""

    stream: Stream
    key: tuple[str, ...]
    order_by: str | None = None
    deleted: str | None = None
    uid: str = ""

    @property
    def schema(self) -> Schema:
        """The Spark schema of the rows."""
        return Schema([each for each in self.stream.schema.fields if each.name != self.deleted])

    @property
    def time(self) -> str | None:
        """The column that says since when a version is valid, and that has a watermark."""
        return self.order_by if self.order_by is not None and self.order_by == watermarked(self.stream._node) else None

    def _repr_html_(self) -> str:
        more = {"key": ", ".join(self.key), "ordered by": self.order_by, "deleted if": self.deleted}
        return stream_html("a table, of the newest row of each key", self.stream._node, more)

    def versions(self, ops: Operators, name: str, columns: Sequence[Attribute]) -> Relation:
        """Return the relation of all versions, under these columns of a plan."""
        node, hidden = self.stream._node, ops.hidden_of(self.stream._node.columns.hidden)
        if self.deleted is not None:
            deleted = self.deleted
            node = unchecked_step(node, lambda df: df.withColumnRenamed(deleted, GONE))
            hidden = (*hidden, ops.catalyst.attribute("boolean", GONE, ops.catalyst.id_for(GONE)))
        names = tuple(each.name() for each in columns)
        return Relation(
            node, names, tuple(columns), tuple(columns), {id_of(each): f"{name}.{each.name()}" for each in columns},
            short(f"versions of {name}, deleted by {self.deleted}"), weighted=False, hidden=hidden,
            times={(id_of(each), WHOLE): Time(0) for each in columns if each.name() == self.time},
            leaves=frozenset({(name, self.stream._node)}),
        )  # fmt: skip

    def relation(self, ops: Operators, name: str, columns: Sequence[Attribute]) -> Relation:
        """Return the relation of the newest versions, under these columns of a plan."""
        node, names = self.stream._node, self.stream.columns
        by_name = {each.name(): each for each in columns}
        deleted = None if self.deleted is None else ops.catalyst.attribute("boolean", _DELETED, ops.catalyst.new_id())
        attributes = [by_name.get(each, deleted) for each in names]
        meanings = {id_of(each): f"{name}.{each.name()}" for each in columns}
        order = "" if self.order_by is None else f" in order of {self.order_by}"
        meaning = short(f"table {name} by {', '.join(self.key)}{order}, deleted by {self.deleted}")
        rows = Relation(
            node, tuple(names), tuple(attributes), tuple(columns), meanings, name,
            weighted=False, leaves=frozenset({(name, node)}),
        )  # fmt: skip

        def make() -> tuple[Node, tuple[str, ...], Part]:
            catalyst = ops.catalyst
            gone = catalyst.sql("false") if deleted is None else deleted
            kept = [(each.name(), each) for each in columns]
            pairs = ((KEY, key_of(catalyst, [by_name[each] for each in self.key])), *kept, (_DELETED, gone))
            step = Rows(catalyst, rows, pairs, is_weighted=False).node()
            kind = struct_of(step, [each.name() for each in columns])
            at = None if self.order_by is None else kind.names.index(self.order_by)
            keyed = Keyed(step, (KEY,))
            uid = self.uid or f"table-{name}-{hash_of(meaning)[:6]}"
            operator = ops.operator(keyed, uid, Versions(struct_of(step, [KEY]), kind, at), kind, f"table {name}")
            what = f"table {name} by {', '.join(self.key)}"
            part = Part(operator.uid, what, "the newest version of each key", "", bound="deletions alone")
            return operator, tuple(kind.names), part

        operator, kept_names, part = ops.once(f"{meaning}, {self.uid}", make, rows)
        return Relation(
            operator,
            kept_names,
            tuple(columns),
            tuple(columns),
            meanings,
            meaning,
            appends=False,
            unique=frozenset(id_of(by_name[each]) for each in self.key),
            is_netted=True,
            leaves=rows.leaves,
            parts=parts_of(part=part, appends=False),
        )


def watermarked(node: Node) -> str | None:
    """Return the column of a stream that its watermark is of."""
    mover = movers_above(node)
    return mover.spec.column if isinstance(mover, WatermarkNode) else None


def table(
    stream: Stream,
    *,
    key: str | Sequence[str],
    order_by: str | None = None,
    deleted: str | None = None,
    uid: str = "",
) -> Table:
    """Return a stream of new versions of rows as a table for `sl.sql`: the newest version of each key is in it.

    Without `order_by`, of two versions the one that arrives last counts; with it, the one with the greater value, also
    if it arrives first. A version whose boolean column `deleted` is true deletes the row; queries do not see it.

    Its rows are found in checkpoints by the name that queries have for it, or by `uid` if that is given.

    >>> customers = table(changes, key="customer_id", order_by="updated_at", deleted="is_deleted")
    """
    if not isinstance(stream, Stream):
        raise ConfigurationError(
            f"table() was given a {type(stream).__name__}, expected a Stream", hint="begin one with sl.stream(df)"
        )
    names = check_columns("table()", "key", key)
    for what, name in [*(("key", each) for each in names), ("order_by", order_by), ("deleted", deleted)]:
        if name is not None and name not in stream.columns:
            raise ConfigurationError(
                f"table(): {what}={name!r} is no column; the stream has {', '.join(stream.columns)}"
            )
    if not names:
        raise ConfigurationError(
            "table() has no key", hint='say which columns identify a row: sl.table(stream, key="id")'
        )
    if deleted is not None and stream.types[deleted] != "boolean":
        raise ConfigurationError(
            f"table(): deleted='{deleted}' is {stream.types[deleted]}, expected a boolean",
            hint="make one: stream.with_column('gone', F.expr(\"op = 'd'\")), and deleted='gone'",
        )
    if deleted is not None and deleted in (*names, order_by):
        raise ConfigurationError(f"table(): '{deleted}' is deleted=, and also in key= or order_by=")
    if uid:
        check_uid("table()", uid)
    return Table(stream, names, order_by, deleted, uid)
