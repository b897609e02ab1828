"""The handling of rows that a target refuses: they end the job, are skipped, or become dead letters."""

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
    """The policy for rows that a target refuses."""

    then: Then
    place: Place | None = None
    """The folder of dead letters: JSON files with one row each, in the columns that all dead letters have."""

    def accepts(self, target: Target, error: Exception) -> bool:
        """Whether the job goes on without the row that caused this error."""
        # A StrandlineError counts only if its very class is named: others are about drivers, tasks and storage.
        is_refused = isinstance(error, (UnicodeDecodeError, *target.refusing))
        if isinstance(error, StrandlineError):
            is_refused = type(error) in target.refusing
        return self.then != "fail" and is_refused and not target.may_pass(error)

    def put(self, writer: Writer, rows: Rows, error: Exception) -> None:
        """Write the row as a dead letter, under the same name at each attempt, before the lane's mark passes it."""
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
