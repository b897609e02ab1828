"""Savepoints made of other snapshots, with rows of some states changed, or given anew by DataFrames."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from strandline.control.status import Savepoint
from strandline.format.manifest import OperatorInfo, StateInfo
from strandline.snapshot.opening.snapshot import pinned_snapshot, savepoint_place
from strandline.snapshot.savepoints.builder import SavepointBuilder, find_state
from strandline.snapshot.tools.patch import Edit, Patch, make_patched
from strandline.snapshot.tools.transform import transform
from strandline.spark.building.writing import Rows, check_columns, write_state
from strandline.spark.job.saving import savepoint_of
from strandline.storage.place import Place


def patch(
    url: str | Path,
    to_url: str | Path,
    edits: Mapping[str, Edit | Rows | str] | None = None,
    *,
    drop: Collection[str] = (),
    rename: Mapping[str, str] | None = None,
    max_parallelism: int | Mapping[str, int] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Savepoint:
    """Make a savepoint of a savepoint or checkpoint, whose rows are other ones where `edits` says so.

    `edits` has by "uid.state" a function, which is given Arrow record batches of the state's rows and returns what is
    there instead (a batch or table, or None for nothing); or a SELECT … FROM rows, of DuckDB's SQL; or else all rows
    that the state is to have, as for `write`. `drop` names operators, by uid, and states, as "uid.state", that are to
    be gone; `rename` what they are called now. `max_parallelism` is what all operators have from now on, or by uid
    some: their state is put into other key groups, and a program that wants this max_parallelism can go on from it.
    All else is taken over as it is, the place in the sources too, and the snapshot at `url` is not touched.

    Raises as `write` does, UserCodeError with what a function raises, and as `state.read` for what is at `url`.

    >>> state.patch("sp/friday", "sp/repaired", {"detect.seen": lambda rows: rows.filter(pc.field("value") >= 0)})
    """
    started = time.monotonic()
    options = dict(storage_options or {})
    with pinned_snapshot(str(url), options) as snapshot:
        operators = snapshot.manifest.operators
        target = savepoint_place(str(to_url), options)
        given = dict(edits or {})
        selects = {name: edit for name, edit in given.items() if isinstance(edit, str)}
        rows = {name: edit for name, edit in given.items() if not callable(edit) and name not in selects}
        for name, replaced in rows.items():
            check_columns(*find_state(operators, name), replaced, name)
        made = make_patched(
            snapshot.manifest, snapshot.folder.place(options), target,
            Patch(
                edits={name: edit for name, edit in given.items() if callable(edit)},
                sources={name: transform(snapshot, name, sql, options) for name, sql in selects.items()},
                writes={name: partial(_write, target, replaced) for name, replaced in rows.items()},
                drop=drop, rename=rename or {}, max_parallelism=max_parallelism,
            ),
        )  # fmt: skip
    return savepoint_of(made, target, started)


def _write(target: Place, rows: Any, builder: SavepointBuilder, operator: OperatorInfo, state: StateInfo) -> None:
    write_state(builder, target, operator, state, rows)
