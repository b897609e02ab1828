"""The as-of join: joins each row of a stream with the version of its key that was valid at its time.

Rows wait in state, by their times, until the watermark says that no earlier version can come. Versions are kept by
their times: the last one up to the watermark, which is valid now, and those after it. The first timer of a key that
fires in an epoch joins all due rows of the key, with one read of its versions.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any, Literal

from strandline.api.states import Map
from strandline.runtime.operators.joins import JoinColumns, LateSides, Row, TimedJoin, insert, time_of
from strandline.runtime.state.maps import MapTable

AsOfHow = Literal["inner", "left"]
AS_OF_HOWS: tuple[AsOfHow, ...] = ("inner", "left")


class AsOfJoin(TimedJoin):
    """Joins left rows with right ones, which are versions: each is valid from its time until the next one's."""

    own_step = "as_of_join"

    def __init__(
        self,
        layout: JoinColumns,
        how: AsOfHow = "inner",
        max_age_us: int | None = None,
        late: LateSides = (None, None),
        deleted: str | None = None,
    ) -> None:
        super().__init__(layout, how, late)
        self._deleted_at = None if deleted is None else layout.right.names.index(deleted)
        """The column of a version which says that the key is deleted from its time on."""
        self._max_age_us = max_age_us
        self.own_states = {
            "waiting": Map("bigint", f"array<{layout.left.ddl}>"),
            "versions": Map("bigint", layout.right.ddl),
        }

    def open(self) -> None:
        states = vars(self)
        self._waiting: MapTable = states["waiting"].table
        self._versions: MapTable = states["versions"].table

    def on_left(self, event: Row, ctx: Any) -> None:
        """Store a row until the watermark has passed it."""
        time, key = time_of(event, ctx), ctx.key
        if ctx.is_late:
            self._refuse_late(event, True, ctx)
            return
        waiting = self._waiting.get(key, time)
        if waiting is None:
            self._waiting.put(key, time, [event])
        else:
            insert(self._waiting, key, time, waiting, len(waiting), event)
        # A version of the same time may still come while the watermark is at that time.
        ctx.timers.set_us(time)

    def on_right(self, event: Row, ctx: Any) -> None:
        """Store a version. A late one counts for rows that have not been joined yet."""
        time = time_of(event, ctx)
        if ctx.is_late:
            self._refuse_late(event, False, ctx)
        self._versions.put(ctx.key, time, event)
        ctx.timers.set_us(time)
        if self._max_age_us is not None:
            ctx.timers.set_us(time + self._max_age_us)

    def on_timer(self, timer: Any, ctx: Any) -> Iterator[Row]:
        """Join the due rows, and delete the versions that no row can match any more."""
        key, last, max_age = ctx.key, timer.time_us, self._max_age_us
        if (
            self._waiting.get(key, last) is None
            and self._versions.get(key, last) is None
            and (max_age is None or self._versions.get(key, last - max_age) is None)
        ):
            # An earlier timer of the key has done all work.
            return
        reached = ctx.watermark_us
        versions = _by_time(self._versions, key)
        yield from self._joined(versions, reached, ctx)
        # Rows at the watermark itself may still come, none before it.
        valid = [at for at, _ in versions if at <= reached]
        over = valid[:-1]
        if valid and max_age is not None and valid[-1] + max_age < reached:
            over = valid
        for at in over:
            self._versions.put(key, at, None)

    def _is_deletion(self, version: Row) -> bool:
        # As a plain tuple: a record's own [] is slow.
        return self._deleted_at is not None and bool(tuple(version)[self._deleted_at])

    def _joined(self, versions: list[tuple[int, Row]], reached: int, ctx: Any) -> Iterator[Row]:
        layout, max_age, key = self.layout, self._max_age_us, ctx.key
        due = [(at, rows) for at, rows in _by_time(self._waiting, key) if at < reached]
        following = 0
        for at, rows in due:
            while following < len(versions) and versions[following][0] <= at:
                following += 1
            since, version = versions[following - 1] if following else (at, None)
            is_too_old = max_age is not None and since + max_age < at
            if version is not None and (is_too_old or self._is_deletion(version)):
                version = None
            ctx.time_us = at
            for row in rows:
                if version is not None:
                    yield layout.pair(row, version)
                elif self._outer_left:
                    yield layout.left_alone(row)
            self._waiting.put(key, at, None)


def _by_time(table: MapTable, key: Any) -> list[tuple[int, Any]]:
    """Return a key's entries, in the order of their times."""
    return sorted(((at, value) for at, value in table.entries(key).items() if value is not None), key=itemgetter(0))
