"""Views against Spark: many queries in one job over the same files, each compared with spark.sql after every epoch."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import strandline as sl

GONE = "gone"
Row = tuple[Any, ...]
Bag = Counter[Row]


@dataclass(frozen=True)
class Table:
    """The rows of a table: what comes in each epoch, perhaps nothing."""

    ddl: str
    epochs: Sequence[Sequence[Row]]
    key: str = ""
    """If rows are versions of the rows of this key, of which each ends with whether it deletes the row: its column."""
    delay: str = ""
    """If the table has a watermark on its column `at`: how far behind the newest row."""
    late: Sequence[Row] = ()
    """Rows that come again in each epoch but the first, and that the watermark has passed: no answer has them."""

    def arriving(self, epoch: int) -> list[Row]:
        """Return the rows that come in an epoch, which are numbered from 0."""
        return [*self.epochs[epoch], *(self.late if epoch else ())]

    @property
    def stored(self) -> str:
        """The columns of the files."""
        return f"{self.ddl}, {GONE} boolean" if self.key else self.ddl

    def until(self, epoch: int) -> list[Row]:
        """Return all rows up to the end of an epoch, or the newest version of each."""
        rows = [row for rows in self.epochs[:epoch] for row in rows]
        if not self.key:
            return rows
        at = [column.split()[0] for column in self.ddl.split(", ")].index(self.key)
        return [row[:-1] for row in {row[at]: row for row in rows}.values() if not row[-1]]


@dataclass(frozen=True)
class Wrong:
    """A query whose result was not what Spark answers, after an epoch."""

    query: str
    epoch: int
    missing: Bag
    extra: Bag

    def __str__(self) -> str:
        return f"after epoch {self.epoch}: missing {dict(self.missing)}, too many {dict(self.extra)}: {self.query}"


@dataclass
class Compared:
    """Queries over the same tables, as views in one job and as spark.sql."""

    spark: Any
    root: Path
    tables: Mapping[str, Table]
    sources: dict[str, Any] = field(default_factory=dict)
    views: dict[str, sl.View] = field(default_factory=dict)
    changes: dict[str, dict[int, list[Row]]] = field(default_factory=lambda: defaultdict(dict))
    """By query and epoch: the changes, each row with its weight last. An epoch that is repeated replaces them."""
    with_rows: set[int] = field(default_factory=set)
    """If a table has a watermark: the epochs that read files. Others run between them, for timers, if Spark is slow."""
    are_written: bool = True
    """Whether the files of all epochs are there from the beginning."""
    _timed: Any = None
    """The stream of a table with a watermark."""
    _expected: dict[tuple[str, int], Bag] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, table in self.tables.items():
            # A source needs its directory.
            self.write(name, table.epochs if self.are_written else ())

    @property
    def epochs(self) -> int:
        """The number of epochs that have all rows."""
        return max(len(table.epochs) for table in self.tables.values())

    def write(self, name: str, epochs: Iterable[Sequence[Row]], first: int = 0) -> None:
        """Write one file for each epoch of a table."""
        directory, ddl = self.root / name, self.tables[name].stored
        directory.mkdir(parents=True, exist_ok=True)
        for number, rows in enumerate(epochs, first):
            path = directory / f"{number:04}.parquet"
            hidden = path.with_name(f"_{path.name}")
            pq.write_table(self.spark.createDataFrame(list(rows), ddl).toArrow(), hidden)
            # Files are read in the order of their times.
            os.utime(hidden, (1_700_000_000 + number * 10,) * 2)
            hidden.rename(path)

    def stream(self, name: str) -> Any:
        """Return the stream of a table's files, one an epoch, or the table of the versions in them."""
        if name not in self.sources:
            table = self.tables[name]
            schema = self.spark.createDataFrame([], table.stored).schema
            stream = sl.files_source(
                self.root / name, schema=schema, format="parquet", name=name, max_files_per_epoch=1, spark=self.spark
            )
            if table.delay:
                stream = self._timed = stream.watermark("at", table.delay)
            order_by = "at" if table.delay else None
            made = sl.table(stream, key=table.key, order_by=order_by, deleted=GONE) if table.key else stream
            self.sources[name] = made
        return self.sources[name]

    def add(self, query: str, **options: Any) -> sl.View:
        """Make a query a view."""
        view = sl.sql(
            query, **options, **{name: self.stream(name) for name in self.tables if re.search(rf"\b{name}\b", query)}
        )
        self.views[query] = view
        return view

    def sinks(self) -> list[Any]:
        """Return what a job needs to gather the changes of all views."""
        gathered = [self._gathered(number, query, view) for number, (query, view) in enumerate(self.views.items())]
        if self._timed is not None:
            gathered.append(self._timed.to(sl.sinks.foreach_batch(self._note, name="epochs")))
        return gathered

    def _note(self, df: Any, epoch: int) -> None:
        if not df.isEmpty():
            self.with_rows.add(epoch)

    def _gathered(self, number: int, query: str, view: sl.View) -> Any:
        def write(df: Any, epoch: int) -> None:
            self.changes[query][epoch] = [tuple(row) for row in df.collect()]

        return view.changes("__weight").to(sl.sinks.foreach_batch(write, name=f"query{number}"))

    def job(self, local_dir: Path, parallelism: int = 1, **given: Any) -> sl.Job:
        """Return the job of all views, which ends when all files are read."""
        given.setdefault("trigger", "available-now")
        given.setdefault("checkpoints", sl.Checkpoints(self.root / "checkpoints", retain=2))
        given.setdefault("restart", sl.Restart.never())
        given.setdefault("sinks", self.sinks())
        return sl.Job(
            "views",
            settings=sl.Settings(parallelism=parallelism, local_dir=local_dir, state_memory="256MB"),
            **given,
        )

    def run(self, local_dir: Path, parallelism: int = 1) -> None:
        """Read all files."""
        self.job(local_dir, parallelism).start(self.spark).await_termination()

    def rows(self, query: str, epoch: int) -> Bag:
        """Return the rows of a view after an epoch's files. Some may be there less than 0 times."""
        numbers = sorted(self.with_rows)
        return self.sum(query, numbers[epoch - 1] if epoch <= len(numbers) else epoch)

    def sum(self, query: str, epoch: int) -> Bag:
        """Return the sum of a view's changes up to the epoch of this number."""
        total: Bag = Counter()
        for number, changes in self.changes[query].items():
            if number <= epoch:
                for *row, weight in changes:
                    total[normal(row)] += weight
        return Counter({row: n for row, n in total.items() if n})

    def expected(self, query: str, epoch: int) -> Bag:
        """Return what Spark answers over all rows up to the end of an epoch."""
        if (query, epoch) not in self._expected:
            self._expected[query, epoch] = self._asked(query, epoch)
        return self._expected[query, epoch]

    def _asked(self, query: str, epoch: int) -> Bag:
        for name, table in self.tables.items():
            rows = self.spark.createDataFrame(table.until(epoch), table.ddl)
            rows.createOrReplaceTempView(name)
        return Counter(normal(tuple(row)) for row in self.spark.sql(query).collect())

    def wrong(self, query: str) -> Wrong | None:
        """Compare a view after each epoch; return the first difference."""
        for epoch in range(1, self.epochs + 1):
            found, wanted = self.rows(query, epoch), self.expected(query, epoch)
            if found != wanted:
                missing = Counter({row: n - found[row] for row, n in wanted.items() if found[row] < n})
                extra = Counter({row: n - wanted[row] for row, n in found.items() if wanted[row] < n})
                return Wrong(query, epoch, missing, extra | Counter({row: n for row, n in found.items() if n < 0}))
        return None

    def broken_promise(self, query: str) -> str | None:
        """Return what a view says of its changes and does not keep."""
        view = self.views[query]
        for epoch, changes in sorted(self.changes[query].items()):
            # By its text, as -0.0 is another row than 0.0.
            weights: dict[str, set[int]] = defaultdict(set)
            for *row, weight in changes:
                weights[repr(row)].add(weight)
            if not {1, -1} >= {each for found in weights.values() for each in found}:
                return f"epoch {epoch} gives other weights than 1 and -1"
            if any(len(found) > 1 for found in weights.values()):
                return f"epoch {epoch} adds and takes back the same row"
            if view.appends and any(-1 in found for found in weights.values()):
                return f"epoch {epoch} takes a row back, and rows only come"
            if view.key is not None:
                at = [view.columns.index(name) for name in view.key]
                keys = Counter(tuple(row[i] for i in at) for row in self.sum(query, epoch).elements())
                if keys and max(keys.values()) > 1:
                    return f"after epoch {epoch}, two rows have the key {view.key}: {keys.most_common(1)}"
        return None

    def check(self) -> None:
        """Assert that every view was right after every epoch, and is what it says of itself."""
        wrong = [str(each) for each in map(self.wrong, self.views) if each is not None]
        assert not wrong, "\n".join(wrong)
        broken = [f"{query}: {what}" for query in self.views if (what := self.broken_promise(query))]
        assert not broken, "\n".join(broken)


def normal(value: Any) -> Any:
    """Return a value as one that can be compared: doubles within rounding, NaN as NaN, zeros without a sign."""
    if isinstance(value, float):
        return "NaN" if value != value else float(f"{value:.9g}") + 0.0
    if isinstance(value, dict):
        return tuple(sorted((normal(k), normal(v)) for k, v in value.items()))
    if isinstance(value, list | tuple):
        return tuple(map(normal, value))
    return bytes(value) if isinstance(value, bytearray) else value
