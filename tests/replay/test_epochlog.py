"""The log of a run's epochs: bounded, and filled with offsets that Spark writes later."""

from __future__ import annotations

from pathlib import Path

from strandline.core.ids import Epoch
from strandline.format.epochs import EpochRecord, unpack_epochs
from strandline.spark.job.epochlog import EpochLog


def written(log: EpochLog, confirmed: int = 0) -> list[EpochRecord]:
    return unpack_epochs(log.pack(Epoch(confirmed)), "log").epochs


def test_offsets_are_read_when_spark_has_written_them(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    log = EpochLog(4, tmp_path)
    for epoch in (1, 2, 3):
        log.add(EpochRecord(epoch=Epoch(epoch), batch=-1 if epoch == 2 else epoch - 1), Epoch(0))
    (tmp_path / "offsets" / "0").write_text("v1\n{}\n7")
    assert [each.offsets for each in written(log)] == ["v1\n{}\n7", "", ""]
    (tmp_path / "offsets" / "2").write_text("v1\n{}\n9")
    log.note_reduced(Epoch(3), {"sums": True})
    assert [each.offsets for each in written(log)] == ["v1\n{}\n7", "", "v1\n{}\n9"]
    assert [each.reduced for each in written(log)] == [{}, {}, {"sums": True}]
    assert log.newest == 3


def test_old_records_are_dropped_beyond_the_bounds(tmp_path: Path) -> None:
    log = EpochLog(4, tmp_path)
    for epoch in range(1, 5001):
        log.add(EpochRecord(epoch=Epoch(epoch), batch=epoch, offsets="x" * 900), Epoch(0))
    kept = written(log)
    assert kept[-1].epoch == 5000
    assert 1000 < len(kept) < 1100, "a megabyte since the checkpoint"
    assert [each.epoch for each in kept] == list(range(kept[0].epoch, 5001))
    kept = written(log, confirmed=4990)
    assert 60 < len(kept) < 70, "64 KB in all, if the checkpoint is recent"
