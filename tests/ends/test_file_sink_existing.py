"""A file sink whose job begins where rows of another life are: refused unless told, and replaced once, whatever crashes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import ConfigurationError
from strandline.core.ids import Epoch, Generation
from strandline.spark.sinks.base import SinkContext
from strandline.spark.sinks.files import FileSink
from tests.crashing import Crash
from tests.ends.filesinks import Disk, records, rows, shown_files, staged, visible


def context(life: str, generation: int = 1, job: str = "job", sink: str = "out") -> SinkContext:
    begins = "starts afresh in file:///ck/job"
    return SinkContext(None, job, life, Generation(generation), sink, False, begins)  # type: ignore[arg-type]


def sink_at(path: Path, existing: Any = "refuse") -> FileSink:
    return FileSink(f"file:{path}", format="json", existing=existing)


def begun(path: Path, run: SinkContext, existing: Any = "refuse", pending: Any = (), epoch: int = 0) -> FileSink:
    """Return a sink as a start of the job leaves it."""
    sink = sink_at(path, existing)
    # Before the claim, nobody knows how a new life is called.
    sink.check(replace(run, generation=Generation(0), life="" if run.generation == 1 else run.life))
    sink.open(run)
    sink.recover(list(pending), Epoch(epoch), fresh=epoch == 0 or (bool(run.from_life) and run.from_life != run.life))
    return sink


def shown_by(path: Path, run: SinkContext, *epochs: int, existing: Any = "keep") -> None:
    sink = begun(path, run, existing)
    sink.commit(staged(sink, *epochs))
    sink.close()


def refusal(path: Path, run: SinkContext) -> str:
    with pytest.raises(ConfigurationError) as caught:
        sink_at(path).check(run)
    return str(caught.value)


def test_a_directory_with_rows_of_another_life_is_refused(tmp_path: Path) -> None:
    shown_by(tmp_path, context("one"), 1, 2)
    before = sorted(tmp_path.rglob("*"))
    said = refusal(tmp_path, context(""))
    assert f"sink 'out': file:{tmp_path} holds 4 files of an earlier life of job 'job'" in said
    assert "job 'job' starts afresh in file:///ck/job" in said
    assert "existing='keep'" in said
    assert "existing='replace'" in said
    assert "4 files of job 'job', and job 'new'" in refusal(tmp_path, context("", job="new"))
    # Also in the middle of a life: the sink was given another path.
    assert "4 files of" in refusal(tmp_path, context("two", 7))
    assert sorted(tmp_path.rglob("*")) == before
    # Its own, and those of the job's other sinks, are no others.
    sink_at(tmp_path).check(context("one", 2))
    sink_at(tmp_path).check(context("one", 2, sink="another"))
    sink_at(tmp_path / "empty").check(context(""))


def test_rows_that_readers_have_taken_count_for_the_job_itself(tmp_path: Path) -> None:
    shown_by(tmp_path, context("one"), 1, 2)
    for path in shown_files(tmp_path):
        path.unlink()
    assert "the record of rows up to epoch 2, which were moved away, of an earlier life" in refusal(
        tmp_path, context("")
    )
    sink_at(tmp_path).check(context("", job="new"))
    # Nobody's rows, that nobody has shown.
    begun(tmp_path / "empty", context("one")).close()
    sink_at(tmp_path / "empty").check(context(""))


def test_two_sinks_of_one_identity_do_not_share_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(context("one").identity) == 32
    monkeypatch.setattr(SinkContext, "identity", "0" * 32)
    begun(tmp_path, context("one"))
    with pytest.raises(ConfigurationError, match=r"has the record of .*life='one'.*, expected .*life='two'"):
        begun(tmp_path, context("two", 2))


def test_rows_without_a_record_are_somebodys(tmp_path: Path) -> None:
    shown_by(tmp_path, context("one"), 1)
    for record in records(tmp_path):
        record.unlink()
    assert "2 files of a job that has left no record" in refusal(tmp_path, context(""))
    (tmp_path / "_spark_metadata").mkdir()
    assert "Spark's own streaming file sink" in refusal(tmp_path, context("one", 2))


def test_a_directory_has_files_of_one_format(tmp_path: Path) -> None:
    def check(run: SinkContext, format: str = "parquet", existing: Any = "refuse", **options: str) -> None:
        FileSink(f"file:{tmp_path}", format=format, existing=existing, **options).check(run)

    (tmp_path / "notes.csv").write_text("mine")
    shown_by(tmp_path, context("one"), 1, 2)
    again, beside, kept = context("one", 2), context("one", 2, sink="beside"), context("two")
    for run, existing in ((again, "refuse"), (again, "replace"), (beside, "refuse"), (kept, "keep")):
        with pytest.raises(ConfigurationError) as caught:
            check(run, existing=existing)
        assert f"sink '{run.sink}': file:{tmp_path} holds files of format 'json', such as part-0" in str(caught.value)
        assert "the sink's format is 'parquet'" in str(caught.value)
        assert "set format='json' again, choose another directory, or move the files out" in caught.value.hint
        check(run, "JSON", existing)
    # Formats whose files have names that it does not know.
    check(again, "avro.of.somebody")
    check(again, "csv", extension="json")
    # Files that it deletes: as it begins, and as it goes back.
    check(kept, existing="replace")
    check(replace(again, from_life="one", from_epoch=0))
    with pytest.raises(ConfigurationError, match="format 'json', such as part-0000000001-"):
        check(replace(again, from_life="one", from_epoch=1))
    for path in shown_files(tmp_path):
        path.rename(path.with_name(path.name.replace(".json", ".json.gz")))
    with pytest.raises(ConfigurationError, match="format 'json'"):
        check(again)
    for path in shown_files(tmp_path):
        path.unlink()
    check(again)


def test_what_is_kept_stays_and_is_never_taken_back(tmp_path: Path) -> None:
    shown_by(tmp_path, context("one"), 1, 2)
    sink = begun(tmp_path, context("two"), "keep")
    pending = staged(sink, 1)
    sink.commit(pending)
    assert visible(tmp_path) == rows(1, 2) + rows(1)
    begun(tmp_path, context("two", 2), "keep", pending, 1)
    # It goes on where it was: nothing needs to be said any more.
    begun(tmp_path, context("two", 3), "refuse", pending, 1)
    assert visible(tmp_path) == rows(1, 2) + rows(1)


def test_replacing_takes_other_lives_away_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text('"mine"\n')
    shown_by(tmp_path, context("one"), 1, 2)
    shown_by(tmp_path, context("other", job="other"), 3)
    shown_by(tmp_path, context("two", sink="beside"), 4)
    sink = begun(tmp_path, context("two"), "replace")
    mine = Counter(["mine"])
    assert visible(tmp_path) == mine + rows(4)
    assert len(list((tmp_path / "_strandline").iterdir())) == 2
    pending = staged(sink, 1)
    sink.commit(pending)
    # Once: when it goes on, others may have come on purpose.
    shown_by(tmp_path, context("late", job="late"), 5)
    begun(tmp_path, context("two", 2), "replace", pending, 1)
    assert visible(tmp_path) == mine + rows(1, 4, 5)


def test_a_crash_anywhere_while_others_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(out: Path) -> None:
        shown_by(out, context("one"), 1, 2)
        sink = begun(out, context("half", job="half"), "keep")
        staged(sink, 7)

    disk = Disk(monkeypatch)
    prepare(tmp_path / "counted")
    disk.forget()
    begun(tmp_path / "counted", context("two"), "replace")
    steps = len(disk.done)
    assert steps > 20
    for at in range(steps):
        out = tmp_path / f"at-{at}"
        disk.forget()
        prepare(out)
        disk.forget(crash_at=at)
        with pytest.raises(Crash):
            begun(out, context("two"), "replace")
        disk.forget()
        assert not visible(out) - rows(1, 2)
        # Whoever does not say it any more is refused, unless nothing of the others is left, or the run had begun.
        left = visible(out)
        if left:
            assert "starts afresh" in refusal(out, context("two", 2))
        sink = begun(out, context("two", 2), "replace")
        assert visible(out) == Counter()
        pending = staged(sink, 1)
        sink.commit(pending)
        begun(out, context("two", 3), "replace", pending, 1)
        assert visible(out) == rows(1)
        assert [path.parent.name for path in records(out)] == [context("two").identity]


def test_what_a_snapshot_covers_does_not_come_again(tmp_path: Path) -> None:
    shown_by(tmp_path, context("one"), 1, 2)
    fork = context("two", job="fork")
    covered, behind = (replace(fork, from_life="one", from_epoch=epoch) for epoch in (2, 1))
    sink_at(tmp_path).check(replace(covered, life=""))
    assert "holds 2 files of job 'job'" in refusal(tmp_path, replace(behind, life=""))
    assert "holds 4 files" in refusal(tmp_path, replace(fork, life="", from_life="another", from_epoch=9))
    for path in shown_files(tmp_path)[2:]:
        path.unlink()
    same = replace(behind, job="job", life="")
    assert "rows up to epoch 2, which were moved away" in refusal(tmp_path, same)


@pytest.mark.parametrize("covered", [1, 2])
def test_replacing_leaves_what_a_snapshot_covers(tmp_path: Path, covered: int) -> None:
    shown_by(tmp_path, context("one"), 1, 2)
    shown_by(tmp_path, context("else", job="else"), 1)
    fork = replace(context("two", job="fork"), from_life="one", from_epoch=covered)
    sink = begun(tmp_path, fork, "replace", epoch=covered)
    assert visible(tmp_path) == rows(*range(1, covered + 1))
    sink.commit(staged(sink, *range(covered + 1, 4)))
    assert visible(tmp_path) == rows(1, 2, 3)


def test_words_for_what_existing_may_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="existing is 'append', expected 'refuse', 'keep' or 'replace'"):
        sink_at(tmp_path, "append")
