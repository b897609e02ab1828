"""A file sink's part of one output directory: its staged files, its visible ones, and the record of what was shown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from strandline.core.errors import BEGIN_ANEW, CorruptionError
from strandline.core.failpoints import hit
from strandline.core.ids import Epoch
from strandline.spark.base.filesystem import open_filesystem
from strandline.spark.sinks.base import SinkContext
from strandline.spark.sinks.foreign_outputs import OURS, Other, find_others
from strandline.spark.sinks.visibility_log import Committable, Owner, VisibilityLog, VisibilityRecord


class OutputDirectory:
    """Shows what is staged and takes back what was shown, below one root, for one run of the sink.

    Made at the run's start. Raises UnavailableError if a later run has begun here.
    """

    def __init__(self, run: SinkContext, root: str, options: Mapping[str, str] | None = None) -> None:
        """`options` are those of object storage."""
        self.root = root
        self.files = open_filesystem(run.spark, root, fsync=run.fsync, options=options)
        self.run = run
        self._options = options
        self._home = f"{OURS}/{run.identity}"
        self.records = VisibilityLog(self.files, root, self._home, Owner(run.job, run.life, run.sink))
        self.records.check_owner()
        self.records.check_before(run.generation)

    def staging(self, epoch: Epoch) -> str:
        """Return the directory in which an epoch is staged."""
        return f"{self._home}/g{self.run.generation}/epoch-{epoch:010d}"

    def knows(self, staged: Committable) -> bool:
        """Whether the epoch is staged here, was shown here, or was being shown."""
        record = self.records.newest
        return record.covers(staged) or staged in record.intent or self.files.exists(staged.directory)

    def show(self, staged: Sequence[Committable]) -> None:
        """Make these epochs visible, each file once, whatever became of them before; oldest first.

        Raises CorruptionError if a file is gone that was never made visible, UnavailableError if another driver shows
        them at the same time.
        """
        # 1. What was shown is on record, whether or not its files are still there.
        before = self.records.newest
        due = [epoch for epoch in staged if not before.covers(epoch)]
        if not due:
            return
        # 2. All files are there, but for those that were being shown when an earlier run ended.
        for epoch in due:
            if epoch not in before.intent:
                self._check_staged(epoch)
        # 3. From here on, a file that is not staged any more is one that was shown.
        self.records.write(VisibilityRecord(generation=before.generation, epoch=before.epoch, intent=due))
        hit("sink.intent_written")
        # 4. Rename file by file.
        for epoch in due:
            self._rename(epoch, may_be_shown=epoch in before.intent)
        self.files.sync("")
        # 5. All is visible, durably.
        self.records.write(VisibilityRecord(generation=self.run.generation, epoch=due[-1].epoch))
        hit("sink.shown_recorded")
        # 6. Nothing is left in the staging directories but what Spark put beside the rows.
        for epoch in due:
            self.files.delete(epoch.directory)

    def show_at_once(self, staged: Committable) -> None:
        """Make an epoch visible without a record: if it comes again, its rows are there again."""
        self._rename(staged, may_be_shown=False)
        self.files.sync("")
        self.files.delete(staged.directory)

    def forget_staged(self) -> None:
        """Delete what older runs have staged. Nothing of it can be shown afterwards, not even by their drivers."""
        for name in self.files.directories(self._home):
            if name[0] == "g" and name[1:].isdigit() and int(name[1:]) < self.run.generation:
                self.files.delete(f"{self._home}/{name}")

    def take_back(self, epoch: Epoch) -> None:
        """Delete what older runs have shown of later epochs: these are coming again."""
        pattern = re.compile(rf"part-(\d+)-{self.run.identity}-g(\d+)-")
        for name, _ in self.files.list(""):
            found = pattern.match(name)
            if found and int(found[1]) > epoch and int(found[2]) < self.run.generation:
                self.files.delete(name)
        self.files.sync("")

    def forget_gone(self, epoch: Epoch) -> None:
        """Do both for sinks that this job has had here under other names, and has not any more: nobody else does."""
        if self.run.beside is None:
            return
        for identity in self.files.directories(OURS):
            newest = VisibilityLog(self.files, self.root, f"{OURS}/{identity}").newest
            owner = newest.owner or None
            if owner is None or (owner.job, owner.life) != (self.run.job, self.run.life):
                continue
            # What was left to be shown may have been in this run already.
            if owner.sink not in self.run.beside and newest.generation < self.run.generation:
                gone = OutputDirectory(replace(self.run, sink=owner.sink), self.root, self._options)
                gone.forget_staged()
                gone.take_back(epoch)
                gone.begin(epoch)

    def replace_others(self) -> list[Other]:
        """Delete what other lives have here, if this one begins here; return what it was.

        Their rows first: whatever happens in between, what is left of them is found again until this run has begun.
        """
        if self.records.are_there:
            return []
        others = find_others(self.files, self.root, self.run)
        for other in others:
            for name in other.files:
                self.files.delete(name)
                hit("sink.other_deleted")
        self.files.sync("")
        for other in others:
            if not other.is_gone_on_from:
                self.files.delete(f"{OURS}/{other.identity}")
                hit("sink.other_forgotten")
        return [other for other in others if other.files]

    def begin(self, epoch: Epoch) -> None:
        """Put on record that the run begins after `epoch`: all before is shown, and nothing after it."""
        self.records.write(VisibilityRecord(generation=self.run.generation, epoch=epoch))

    def check_fresh(self, begin: Epoch) -> None:
        """Raise CorruptionError if rows of this life of the job were shown here: there was a checkpoint, then.

        `begin` is the epoch that the life began after: that of the snapshot, for another job's.
        """
        newest = self.records.newest
        # What was being shown was in a checkpoint, too.
        epoch = max([newest.epoch, *(staged.epoch for staged in newest.intent)])
        if epoch > begin:
            raise CorruptionError(
                f"sink {self.root}: the job's rows up to epoch {epoch} are on record as shown, and the job begins "
                "without any checkpoint: they would come again",
                hint=f"bring the checkpoints back, or {BEGIN_ANEW}",
            )

    def _check_staged(self, staged: Committable) -> None:
        there = {name for name, _ in self.files.list(staged.directory)}
        missing = [name for name in staged.files if name not in there]
        if missing:
            self._fail(staged, missing[0])

    def _rename(self, staged: Committable, *, may_be_shown: bool) -> None:
        for name in staged.files:
            if not self.files.rename(f"{staged.directory}/{name}", self._target(staged, name)) and not may_be_shown:
                self._fail(staged, name)
            hit("sink.file_shown")

    def _fail(self, staged: Committable, name: str) -> None:
        # Another driver that shows the same epochs has said so before it touched any.
        self.records.check_alone()
        raise CorruptionError(
            f"sink {self.root}: the staged file {staged.directory}/{name} of epoch {staged.epoch} is gone, and was "
            "never made visible: its rows are lost",
            hint="something outside of the job deleted it; keep away from the _strandline directory",
        )

    def _target(self, staged: Committable, name: str) -> str:
        run = f"{self.run.identity}-g{staged.generation}"
        return f"part-{staged.epoch:010d}-{run}-{name.removeprefix('part-')}"
