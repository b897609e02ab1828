"""Copies snapshots to savepoints, with the rows of some states edited or replaced by DataFrames."""

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
    """Copy a savepoint or checkpoint to a new savepoint, with the changes that the arguments define.

    `edits` has for "uid.state" a function, which gets Arrow record batches of the state's rows and returns their
    replacement (a batch or table, or None for no rows); or a SELECT … FROM rows, in DuckDB's SQL; or else all rows of
    the new state, as for `write`. `drop` names operators, by uid, and states, as "uid.state", to remove; `rename` maps
    old names to new ones. `max_parallelism` is a new value for all operators, or for some by uid: their state moves to
    other key groups, and a program with this max_parallelism can start from the savepoint. All else is copied,
    including the positions in the sources. The snapshot at `url` does not change.

    Raises the errors of `write`, UserCodeError for an error of a function, and those of `state.read` for `url`.

    >>> state.patch("sp/friday", "sp/repaired", {"detect.seen": lambda rows: rows.filter(pc.field("value") >= 0)})
    """
    start = time.monotonic()
    options = dict(storage_options or {})
    with pinned_snapshot(str(url), options) as snapshot:
        operators = snapshot.manifest.operators
        target = savepoint_place(str(to_url), options)
        edits = dict(edits or {})
        selects = {name: edit for name, edit in edits.items() if isinstance(edit, str)}
        rows = {name: edit for name, edit in edits.items() if not callable(edit) and name not in selects}
        for name, replacement in rows.items():
            check_columns(*find_state(operators, name), replacement, name)
        manifest = make_patched(
            snapshot.manifest, snapshot.folder.place(options), target,
            Patch(
                edits={name: edit for name, edit in edits.items() if callable(edit)},
                sources={name: transform(snapshot, name, sql, options) for name, sql in selects.items()},
                writes={name: partial(_write, target, replacement) for name, replacement in rows.items()},
                drop=drop, rename=rename or {}, max_parallelism=max_parallelism,
            ),
        )  # fmt: skip
    return savepoint_of(manifest, target, start)


def _write(target: Place, rows: Any, builder: SavepointBuilder, operator: OperatorInfo, state: StateInfo) -> None:
    write_state(builder, target, operator, state, rows)
