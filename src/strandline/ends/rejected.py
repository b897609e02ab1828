"""Rows that a target refuses: they end the job, are left out, or are kept as dead letters in a place of their own."""

from __future__ import annotations

import json
from dataclasses import dataclass

from strandline.api.badrecords import Then
from strandline.core.errors import StrandlineError
from strandline.core.failure import shortened
from strandline.ends.target import Rows, Target, Writer
from strandline.storage.place import Place
from strandline.types.columns import readable_rows
from strandline.types.jsonforms import to_json


@dataclass(frozen=True)
class RejectedRows:
    """What becomes of rows that a target refuses."""

    then: Then
    place: Place | None = None
    """Where dead letters go: JSON files, a row in each, with the columns of all dead letters."""

    def takes(self, target: Target, error: Exception) -> bool:
        """Whether the job goes on without the row that this error is for."""
        # Of ours, those that a target names: others tell of drivers, tasks and storage.
        is_refused = isinstance(error, (UnicodeDecodeError, *target.refusing))
        if isinstance(error, StrandlineError):
            is_refused = type(error) in target.refusing
        return self.then != "fail" and is_refused and not target.may_pass(error)

    def put(self, writer: Writer, rows: Rows, error: Exception) -> None:
        """Keep a row, before the target's record says that it is done: under one name, however often it comes."""
        if self.place is None:
            return
        (row,), (name,) = (row for batch in rows.batches for row in readable_rows(batch)), rows.ids
        letter = {
            "operator": writer.name,
            "step": "deliver",
            "reason": shortened(f"{type(error).__name__}: {error}".strip()),
            "key": None,
            "event": json.dumps(
                {column: to_json(value) for column, value in row.items()}, ensure_ascii=False, default=repr
            ),
            "event_time": None,
            "traceback": "",
        }
        path = f"{self.place.path}/{name}.json".lstrip("/")
        self.place.store().put(path, (json.dumps(letter, ensure_ascii=False) + "\n").encode(errors="backslashreplace"))
