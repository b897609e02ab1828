"""What Spark gives of a partition's rows, and what of it a keeper is told is whole."""

from __future__ import annotations

import io
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import msgspec
import pyarrow as pa
import pytest

from strandline.core.errors import KeeperError
from strandline.keeper import protocol as p
from strandline.keeper.protocol import Connection
from strandline.keeper.rowproof import RowCounter, RowProof
from strandline.spark.keepers.feeder import Feeder

Batch = Sequence[int | None]
LAST = None
"""The row that only comes last has no key group."""


def batches(*groups: Batch) -> list[pa.RecordBatch]:
    return [
        pa.RecordBatch.from_pydict(
            {
                "partition": pa.array([3] * len(each), pa.int32()),
                "key_group": pa.array(each, pa.int32()),
                "v": pa.array([group and group * 10 for group in each], pa.int64()),
            }
        )
        for each in groups
    ]


def proof_of(*groups: int) -> RowProof:
    counter = RowCounter()
    counter.add(pa.array(groups, pa.int32()))
    return counter.proof


def fed(given: Iterator[pa.RecordBatch], *, is_replay: bool = False) -> tuple[list[int], RowProof | None, Feeder]:
    """Return the rows that a keeper got, and what END said, if it came."""
    here, there = socket.socketpair()
    with closing(Connection(here)) as worker, closing(Connection(there)) as keeper:
        feeder = Feeder(worker, next(given), given, epoch=7, is_replay=is_replay)
        feeder.start()
        schema = batches([1])[0].schema.remove(0)
        rows: list[int] = []
        while True:
            try:
                kind, payload = keeper.expect(p.ROWS, p.END)
            except KeeperError:
                feeder.join()
                return rows, None, feeder
            if kind == p.END:
                feeder.join()
                return rows, msgspec.msgpack.decode(payload, type=RowProof), feeder
            rows += pa.ipc.read_record_batch(payload, schema).column("v").to_pylist()


@pytest.mark.parametrize(
    "groups",
    [[[1, 2], [3, LAST]], [[1, 2, 3], [LAST]], [[1], [2], [3], [LAST, LAST]], [[1, 2, 3, LAST]], [[1, 2, 3, LAST], []]],
)
def test_rows_that_have_all_come_are_said_to_be_whole(groups: list[Batch]) -> None:
    rows, said, feeder = fed(iter(batches(*groups)))
    assert (rows, said) == ([10, 20, 30], proof_of(3, 1, 2))
    feeder.raise_error()


def test_a_partition_without_rows_is_whole() -> None:
    assert fed(iter(batches([LAST, LAST])))[:2] == ([], proof_of())


def test_of_a_replay_the_keeper_is_told_only_which_rows_came() -> None:
    assert fed(iter(batches([1, 2], [2, LAST])), is_replay=True)[:2] == ([], proof_of(1, 2, 2))


def stream_of(given: list[pa.RecordBatch]) -> bytes:
    written = io.BytesIO()
    with pa.ipc.new_stream(written, given[0].schema) as writer:
        for batch in given:
            writer.write_batch(batch)
    return written.getvalue()


GIVEN = batches([1, 2], [3], [4, 5, LAST])


def cuts() -> list[int]:
    """Return where Spark may stop: after each batch, and in the middle of one."""
    ends = [len(stream_of(GIVEN[: n + 1])) - 8 for n in range(len(GIVEN) - 1)]
    return [*ends, *(end + 20 for end in ends)]


@pytest.mark.parametrize("is_replay", [False, True])
@pytest.mark.parametrize("cut", cuts())
def test_a_stream_that_breaks_off_is_never_said_to_be_whole(cut: int, is_replay: bool) -> None:
    """Cut at a batch's end, it looks to pyarrow like one that has ended."""
    given = pa.ipc.open_stream(io.BytesIO(stream_of(GIVEN)[:cut]))
    _, said, feeder = fed(iter(given), is_replay=is_replay)
    assert said is None
    with pytest.raises((KeeperError, OSError, pa.ArrowInvalid), match=r"broke off|Expected to"):
        feeder.raise_error()


@pytest.mark.parametrize("groups", [[[1], [LAST], [2]], [[1, LAST, 2]], [[LAST, 1]]])
def test_rows_after_the_last_are_refused(groups: list[Batch]) -> None:
    _, said, feeder = fed(iter(batches(*groups)))
    assert said is None
    with pytest.raises(KeeperError, match="after the row that marks their end"):
        feeder.raise_error()


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda rows: rows[::-1], True),
        (lambda rows: rows[1:], False),
        (lambda rows: [*rows, rows[0]], False),
        (lambda rows: [rows[0] + 1, *rows[1:]], False),
        (lambda rows: [rows[0] + 1, rows[1] - 1, *rows[2:]], False),
    ],
)
def test_a_proof_tells_other_rows_and_not_another_order(change: Callable[[list[int]], list[int]], same: bool) -> None:
    rows = [5, 9, 2, 2, 31]
    assert (proof_of(*rows) == proof_of(*change(rows))) == same
    one, two = RowCounter(), RowCounter()
    one.add(pa.array(rows, pa.int32()))
    two.add(pa.array(rows[:2], pa.int32()))
    two.add(pa.array(rows[2:], pa.int32()))
    assert one.proof == two.proof
