"""Making a checkpoint the job's newest, and taking the older ones away. The only writer of manifests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strandline.checkpoint.catalog import read_catalog
from strandline.checkpoint.generation import Claim
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.checkpoint.registry import SharedFiles
from strandline.core.errors import (
    CheckpointError,
    ConflictError,
    FencedError,
    NotFoundError,
    StrandlineError,
    UnavailableError,
)
from strandline.core.failpoints import hit
from strandline.core.ids import CheckpointId
from strandline.format.manifest import FileRef, Manifest, encode_manifest

_REMEMBERED = 100_000


class OutcomeUnknownError(CheckpointError):
    """Storage did not say whether the manifest was written."""


class NumberTakenError(CheckpointError):
    """A manifest of a replaced driver has the checkpoint's number. Carries `next_id`."""


class Publisher:
    """Publishes, subsumes and deletes under one claim. Called by one thread at a time."""

    def __init__(self, jobdir: JobDirectory, claim: Claim, retain: int, restored: Manifest | None) -> None:
        self._jobdir = jobdir
        self._claim = claim
        self._retain = retain
        self._confirmed = restored
        self._registry = SharedFiles()
        self._registry_is_full = False
        self._abandoned: dict[str, None] = {}  # ordered, so that the oldest can be forgotten
        self._garbage: set[str] = set()
        self._doubtful: dict[CheckpointId, list[FileRef]] = {}

    @property
    def confirmed(self) -> Manifest | None:
        """The newest published manifest, or the restored one."""
        return self._confirmed

    @property
    def oldest_live(self) -> CheckpointId | None:
        """The oldest checkpoint that a restore can find; None while that is not known."""
        if not self._registry_is_full or self._doubtful:
            return None
        return min(self._registry.checkpoints, default=None)

    def new_bytes(self, files: Sequence[FileRef]) -> int:
        """Return how many bytes a checkpoint of these files adds to the confirmed one."""
        known = self._confirmed_paths()
        new = {f.path: f.size for f in files if f.path and f.path not in known}
        return sum(new.values()) + sum(f.size for f in files if f.inline is not None)

    def _confirmed_paths(self) -> set[str]:
        return {f.path for f in self._confirmed.files() if f.path} if self._confirmed else set()

    def publish(self, manifest: Manifest) -> None:
        """Steps 1 to 3 of completing a checkpoint.

        Raises FencedError, NumberTakenError, OutcomeUnknownError (the manifest may be there), CheckpointError when
        the manifest references what it must not; after any other error the manifest is not there.
        """
        # 1. Only the job's owner publishes, and only once readers know what it goes on from.
        if not self._claim.has_base:
            raise CheckpointError(
                f"generation {self._claim.generation} has not recorded what it goes on from",
                hint="call claim.set_base(…) after choosing what to restore",
            )
        self._claim.check()
        # 2. Every file is new, or held by the last confirmed checkpoint.
        self._check_files(manifest)
        # 3. One conditional create makes the checkpoint.
        hit("checkpoint.publish.before")
        path, data = manifest_path(CheckpointId(manifest.checkpoint)), encode_manifest(manifest)
        try:
            self._jobdir.create(path, data)
        except ConflictError:
            self._resolve_conflict(manifest, path, data)
        except UnavailableError as error:
            raise OutcomeUnknownError(
                f"checkpoint {manifest.checkpoint}: its manifest could not be written: {error.message}", hint=error.hint
            ) from error

    def _check_files(self, manifest: Manifest) -> None:
        known = self._confirmed_paths()
        for file in manifest.files():
            if file.inline is not None or file.path in known:
                continue
            if not file.path or file.path in self._abandoned or file.path in self._registry.live:
                raise CheckpointError(
                    f"checkpoint {manifest.checkpoint} references {file.path!r} ('{file.name}'), which neither it nor "
                    f"the last confirmed checkpoint uploaded: publishing it would be unsafe"
                )

    def _resolve_conflict(self, manifest: Manifest, path: str, data: bytes) -> None:
        """Our own bytes: the answer to an earlier try was lost. Others': find out who may go on."""
        try:
            if self._jobdir.get(path) == data:
                return
        except NotFoundError:
            pass
        except UnavailableError as error:
            raise OutcomeUnknownError(f"checkpoint {manifest.checkpoint}: {error.message}") from error
        self._claim.check()
        raise NumberTakenError(
            f"checkpoint {manifest.checkpoint}: a driver that was replaced has published under this number",
            next_id=read_catalog(self._jobdir).next_id,
        )

    def confirm(self, manifest: Manifest) -> None:
        """Step 4: register a published checkpoint."""
        hit("checkpoint.publish.after")
        self._registry.complete(manifest)
        self._confirmed = manifest

    def subsume(self) -> None:
        """Step 6: delete the checkpoints beyond `retain`. What storage refuses now, `clean` tries again.

        Raises FencedError, and only that.
        """
        hit("checkpoint.subsume.before")
        if self._delete_what_is_due():
            hit("checkpoint.subsume.after")

    def clean(self) -> bool:
        """Delete what late reports, failed checkpoints and earlier refusals have left; False if something remains.

        Raises FencedError, and only that.
        """
        overdue = len(self._registry.checkpoints) > self._retain
        return not (self._garbage or self._doubtful or overdue) or self._delete_what_is_due()

    def _delete_what_is_due(self) -> bool:
        """Delete old manifests, then garbage; False if storage refused and something remains."""
        try:
            self._claim.check()
            self._fill_registry()
            # A checkpoint in doubt was reported as failed: make that true, then its files are garbage.
            for checkpoint in list(self._doubtful):
                self._jobdir.delete([manifest_path(checkpoint)])
                self._discard(self._doubtful.pop(checkpoint))
            for checkpoint in self._registry.checkpoints[: -self._retain]:
                self._jobdir.delete([manifest_path(checkpoint)])
                hit("checkpoint.subsume.manifest_deleted")
                self._garbage.update(self._registry.drop(checkpoint))
            self._garbage -= self._registry.live.keys()
            self._jobdir.delete(sorted(self._garbage))
            self._garbage.clear()
        except FencedError:
            raise
        except StrandlineError:
            return False
        return True

    def _fill_registry(self) -> None:
        """Learn, once, which other live checkpoints storage holds."""
        if not self._registry_is_full:
            for manifest in read_catalog(self._jobdir).live.values():
                if manifest.checkpoint not in self._doubtful:
                    self._registry.complete(manifest)
            self._registry_is_full = True

    def abandon(self, checkpoint: CheckpointId, files: Sequence[FileRef], in_doubt: bool) -> None:
        """Remember an unpublished checkpoint's uploads for deletion; never raises."""
        if in_doubt:
            self._doubtful[checkpoint] = list(files)
        self._discard(files, delete=not in_doubt)

    def discard(self, files: Iterable[FileRef]) -> None:
        """Remember files for deletion, unless a published checkpoint, or one in doubt, needs them; never raises."""
        in_doubt = {f.path for doubtful in self._doubtful.values() for f in doubtful}
        self._discard([f for f in files if f.path not in in_doubt])

    def _discard(self, files: Iterable[FileRef], delete: bool = True) -> None:
        known = self._confirmed_paths()
        paths = {f.path for f in files if f.path} - known - self._registry.live.keys()
        self._abandoned.update(dict.fromkeys(paths))
        while len(self._abandoned) > _REMEMBERED:
            del self._abandoned[next(iter(self._abandoned))]
        if delete:
            self._garbage |= paths
