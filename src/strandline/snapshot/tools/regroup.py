"""Rows of state with another max_parallelism: the same keys, in other key groups.

Key groups follow from keys, so that rows with keys need only another sort. A mark of panes instead belongs to all keys
of its key group: their windows up to its time have fired.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from strandline.format.manifest import OperatorInfo, StateInfo
from strandline.snapshot.rows.codecs import rows_of
from strandline.snapshot.rows.columns import KEY_GROUP
from strandline.snapshot.rows.keys import key_columns
from strandline.snapshot.rows.panemarks import Marks, mark_rows


def regroup(
    operator: OperatorInfo, state: StateInfo, most: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a state, in any order, for the max_parallelism `most`.

    Rows with a key lack key groups, which follow from the key.
    """
    if state.kind == "broadcast" or not (keys := key_columns(operator)):
        yield from batches
        return
    marks = Marks(operator, state)
    filled: set[int] = set()
    for batch in marks.record(batches):
        rows = batch
        if marks.exist:
            rows = rows.filter(rows.column(keys[0].name).is_valid())
            filled.update(pc.unique(rows.column(KEY_GROUP)).to_pylist())
        if rows.num_rows:
            yield rows.drop_columns([KEY_GROUP])
    if marks.times:
        moved = regroup_marks(marks.times, filled, operator.max_parallelism, most)
        yield mark_rows(rows_of(operator, state).schema, moved)


def regroup_marks(marks: Mapping[int, int], filled: Collection[int], before: int, after: int) -> dict[int, int]:
    """Return the marks of key groups after a change of max_parallelism, by key group.

    A key's old and new groups are equal modulo the common divisor of both numbers. So the keys of a new group come from
    any old group of that remainder: its mark is the least of theirs, and it has none if one of them has keys (is in
    `filled`) and no mark. In a job, all marks are equal.
    """
    common = math.gcd(before, after)
    least: dict[int, int] = {}
    for group, mark in marks.items():
        least[group % common] = min(mark, least.get(group % common, mark))
    for group in set(filled) - marks.keys():
        least.pop(group % common, None)
    return {group: least[group % common] for group in range(after) if group % common in least}
