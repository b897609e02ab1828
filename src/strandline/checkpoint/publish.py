"""Publication of a manifest: one conditional create, whose answer may be lost or conflict with another driver."""

from __future__ import annotations

from strandline.checkpoint.catalog import read_catalog
from strandline.checkpoint.generation import Claim
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.core.errors import CheckpointError, ConflictError, NotFoundError, StrandlineError
from strandline.format.manifest import MANIFEST, Manifest


class OutcomeUnknownError(CheckpointError):
    """It is unknown whether storage has written the manifest."""


class NumberTakenError(CheckpointError):
    """A manifest of a replaced driver has the checkpoint's number. Carries `next_id`."""


def publish(jobdir: JobDirectory, claim: Claim, manifest: Manifest) -> None:
    """Create a checkpoint's manifest, which makes it complete; creating the same again changes nothing.

    Raises FencedError, NumberTakenError, and OutcomeUnknownError when the manifest may exist or appear later.
    """
    path, data = manifest_path(manifest.checkpoint), MANIFEST.encode(manifest)
    try:
        jobdir.create(path, data)
        return
    except ConflictError:
        pass
    except StrandlineError as error:
        # Any error may be of a retry in the client whose first try has written the object.
        raise OutcomeUnknownError(
            f"checkpoint {manifest.checkpoint}: its manifest could not be written: {error.message}", hint=error.hint
        ) from error
    # With our own bytes, the answer to an earlier try was lost. With others, check who owns the job.
    try:
        if jobdir.get(path) == data:
            return
    except NotFoundError:
        pass
    except StrandlineError as error:
        raise OutcomeUnknownError(f"checkpoint {manifest.checkpoint}: {error.message}", hint=error.hint) from error
    claim.check()
    raise NumberTakenError(
        f"checkpoint {manifest.checkpoint}: a driver that was replaced has published under this number",
        next_id=read_catalog(jobdir).next_id,
    )
