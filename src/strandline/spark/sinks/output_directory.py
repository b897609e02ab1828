"""A file sink's output directory: its staged files, its visible files, and the record of the shown epochs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from strandline.core.errors import BEGIN_ANEW, CorruptionError
from strandline.core.failpoints import hit
from strandline.core.ids import Epoch
from strandline.ends.begins import check_branch, with_begin
from strandline.spark.base.filesystem import open_filesystem
from strandline.spark.sinks.base import SinkContext
from strandline.spark.sinks.foreign_outputs import FOLDER, ForeignOutput, find_foreign
from strandline.spark.sinks.visibility_log import Committable, SinkOwner, VisibilityLog, VisibilityRecord


class OutputDirectory:
    """Shows staged epochs and takes back shown ones, below one root, for one run of the sink.

    Created at the run's start. Raises UnavailableError if a later run has begun here.
    """

    def __init__(self, run: SinkContext, root: str, options: Mapping[str, str] | None = None) -> None:
        """`options` are for object storage."""
        self.root = root
        self.files = open_filesystem(run.spark, root, fsync=run.fsync, options=options)
        self.run = run
        self._options = options
        self._home = f"{FOLDER}/{run.identity}"
        self.records = VisibilityLog(self.files, root, self._home, SinkOwner(run.job, run.life, run.sink))
        self.records.check_owner()
        self.records.check_before(run.generation)

    def staging(self, epoch: Epoch) -> str:
        """Return the directory in which an epoch is staged."""
        return f"{self._home}/g{self.run.generation}/epoch-{epoch:010d}"

    def knows(self, staged: Committable) -> bool:
        """Whether the epoch is staged here, was shown here, or was being shown."""
        record = self.records.newest
        # Each run records its begin before it stages rows: without that, this is another directory, as one that a disk
        # was mounted over, or unmounted from.
        has_begun = staged.generation <= record.generation
        return record.covers(staged) or staged in record.intent or (has_begun and self.files.exists(staged.directory))

    def show(self, staged: Sequence[Committable]) -> None:
        """Make these epochs visible, oldest first, each file once, also if an earlier run has begun or finished that.

        Raises CorruptionError if a file is missing that was never made visible, UnavailableError if another driver
        shows them at the same time.
        """
        # 1. Skip epochs that are on record as shown, whether or not their files still exist.
        before = self.records.newest
        due = [epoch for epoch in staged if not before.covers(epoch)]
        if not due:
            return
        # 2. Check that all files exist, except for epochs that an earlier run had begun to show.
        for epoch in due:
            if epoch not in before.intent:
                self._check_staged(epoch)
        # 3. Record the intent: from here on, a file that is not staged any more was shown.
        self.records.write(VisibilityRecord(generation=before.generation, epoch=before.epoch, intent=due))
        hit("sink.intent_written")
        # 4. Rename the files, one by one.
        for epoch in due:
            self._rename(epoch, may_be_shown=epoch in before.intent)
        self.files.sync("")
        # 5. Record that all epochs are visible.
        self.records.write(VisibilityRecord(generation=self.run.generation, epoch=due[-1].epoch))
        hit("sink.shown_recorded")
        # 6. Delete the staging directories. They may hold other files of Spark's.
        for epoch in due:
            self.files.delete(epoch.directory)

    def show_now(self, staged: Committable) -> None:
        """Make an epoch visible without a record: if it comes again, its rows are duplicated."""
        self._rename(staged, may_be_shown=False)
        self.files.sync("")
        self.files.delete(staged.directory)

    def delete_staged(self) -> None:
        """Delete the staged files of older runs, so that not even their drivers can show them."""
        for name in self.files.directories(self._home):
            if name[0] == "g" and name[1:].isdigit() and int(name[1:]) < self.run.generation:
                self.files.delete(f"{self._home}/{name}")

    def take_back(self, epoch: Epoch) -> None:
        """Delete the visible files of older runs after `epoch`: these epochs come again."""
        pattern = re.compile(rf"part-(\d+)-{self.run.identity}-g(\d+)-")
        for name, _ in self.files.list(""):
            match = pattern.match(name)
            if match and int(match[1]) > epoch and int(match[2]) < self.run.generation:
                self.files.delete(name)
        self.files.sync("")

    def clean_removed(self, epoch: Epoch) -> None:
        """Delete staged and later files of sinks that the job had here under other names, and has no more."""
        if self.run.beside is None:
            return
        for identity in self.files.directories(FOLDER):
            newest = VisibilityLog(self.files, self.root, f"{FOLDER}/{identity}").newest
            owner = newest.owner or None
            if owner is None or (owner.job, owner.life) != (self.run.job, self.run.life):
                continue
            # This run may have shown the epochs that were pending.
            if owner.sink not in self.run.beside and newest.generation < self.run.generation:
                gone = OutputDirectory(replace(self.run, sink=owner.sink), self.root, self._options)
                gone.delete_staged()
                gone.take_back(epoch)
                gone.begin(epoch)

    def delete_foreign(self) -> list[ForeignOutput]:
        """Delete the outputs of other lives, if this one begins here; return them.

        Rows first, records last: after a crash in between, the next start finds the rest again.
        """
        if self.records.exist:
            return []
        others = find_foreign(self.files, self.root, self.run)
        for other in others:
            for name in other.files:
                self.files.delete(name)
                hit("sink.other_deleted")
        self.files.sync("")
        for other in others:
            if not other.is_base:
                self.files.delete(f"{FOLDER}/{other.identity}")
                hit("sink.other_forgotten")
        return [other for other in others if other.files]

    def begin(self, epoch: Epoch) -> None:
        """Record that the run begins after `epoch`: all epochs up to it are shown, and none after it."""
        begins = with_begin(self.records.newest.begins or (), self.run.generation, epoch, turns=self.run.turns)
        self.records.write(VisibilityRecord(generation=self.run.generation, epoch=epoch, begins=begins))

    def check_branch(self, epoch: Epoch) -> None:
        """Raise CorruptionError if the visible rows up to the restored epoch are of another branch of the job."""
        check_branch(self.records.newest.begins or (), self.run.restored_by, epoch, f"sink {self.root}")

    def check_fresh(self, begin: Epoch) -> None:
        """Raise CorruptionError if rows of this life of the job were shown here: then a checkpoint is missing.

        `begin` is the epoch after which the life began: that of the snapshot of another job.
        """
        newest = self.records.newest
        # Epochs that were being shown were in a checkpoint, too.
        epoch = max([newest.epoch, *(staged.epoch for staged in newest.intent)])
        if epoch > begin:
            raise CorruptionError(
                f"sink {self.root}: the job's rows up to epoch {epoch} are on record as shown, and the job begins "
                "without any checkpoint: they would come again",
                hint=f"restore the checkpoints' files, or {BEGIN_ANEW}",
            )

    def _check_staged(self, staged: Committable) -> None:
        existing = {name for name, _ in self.files.list(staged.directory)}
        missing = [name for name in staged.files if name not in existing]
        if missing:
            self._fail(staged, missing[0])

    def _rename(self, staged: Committable, *, may_be_shown: bool) -> None:
        for name in staged.files:
            if not self.files.rename(f"{staged.directory}/{name}", self._target(staged, name)) and not may_be_shown:
                self._fail(staged, name)
            hit("sink.file_shown")

    def _fail(self, staged: Committable, name: str) -> None:
        # Another driver that shows the same epochs has written a record first.
        self.records.check_sole_writer()
        raise CorruptionError(
            f"sink {self.root}: the staged file {staged.directory}/{name} of epoch {staged.epoch} is gone, and was "
            "never made visible: its rows are lost",
            hint="another program deleted it; leave the _strandline directory to the job",
        )

    def _target(self, staged: Committable, name: str) -> str:
        run = f"{self.run.identity}-g{staged.generation}"
        return f"part-{staged.epoch:010d}-{run}-{name.removeprefix('part-')}"
