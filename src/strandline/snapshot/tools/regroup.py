"""Rows of state under another max_parallelism: the same keys, in other key groups.

Key groups follow from keys, so that rows of keys need only be put in order anew. A mark of panes is different: it is a
promise about all keys of its key group, that windows up to then were given.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from strandline.format.manifest import OperatorInfo, StateInfo
from strandline.snapshot.rows.codecs import rows_of
from strandline.snapshot.rows.columns import KEY_GROUP, WINDOW_END
from strandline.snapshot.rows.keys import key_columns
from strandline.snapshot.rows.panemarks import mark_rows


def regrouped(
    operator: OperatorInfo, state: StateInfo, most: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Return the rows of a state, in any order, as they are when its operator's max_parallelism is `most`.

    Key groups are left out of rows that have a key: they follow from it.
    """
    if state.kind == "broadcast" or not (keys := key_columns(operator)):
        yield from batches
        return
    marks: dict[int, int] = {}
    filled: set[int] = set()
    for batch in batches:
        rows = batch
        if state.kind == "panes":
            is_mark = pc.is_null(rows.column(keys[0].name))
            found = rows.filter(is_mark)
            times = found.column(WINDOW_END).view(pa.int64()).to_pylist()
            marks.update(zip(found.column(KEY_GROUP).to_pylist(), times, strict=True))
            rows = rows.filter(pc.invert(is_mark))
            filled.update(pc.unique(rows.column(KEY_GROUP)).to_pylist())
        if rows.num_rows:
            yield rows.drop_columns([KEY_GROUP])
    if marks:
        moved = regrouped_marks(marks, filled, operator.max_parallelism, most)
        yield mark_rows(rows_of(operator, state).schema, moved)


def regrouped_marks(marks: Mapping[int, int], filled: Collection[int], before: int, after: int) -> dict[int, int]:
    """Return the marks that key groups have after a change of max_parallelism, by key group.

    A key's old group and its new one are the same modulo what divides both numbers, and nothing else is known of
    them. So a new key group may promise only what every old one has promised whose keys can be in it now: the least of
    their marks, and nothing if one of them has keys (it is one of `filled`) and no mark. A job gives all the same one.
    """
    common = math.gcd(before, after)
    least: dict[int, int] = {}
    for group, mark in marks.items():
        least[group % common] = min(mark, least.get(group % common, mark))
    for group in set(filled) - marks.keys():
        least.pop(group % common, None)
    return {group: least[group % common] for group in range(after) if group % common in least}
