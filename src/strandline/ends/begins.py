"""The epochs at which runs of a job began, as a sink's target records them: they tell branches of the job apart.

A run that goes back gives other rows in the same epochs as before. If the checkpoint directory is then set back to a
checkpoint from before that, or was copied, the job itself cannot see that the target has the rows of the other branch.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from strandline.core.errors import CorruptionError

Begin = tuple[int, int]
"""A generation, and the epoch after which it began."""
MOST_BEGINS = 64
_BEGINS = msgspec.json.Decoder(list[Begin])


def with_begin(
    begins: Sequence[Begin], generation: int, epoch: int, made_by: int = 0, turns: Sequence[Begin] = ()
) -> list[Begin]:
    """Return the begins with that of a new run, oldest first.

    Those at its epoch or later are left out: what it goes back to is all that counts of them. So are those of
    generations after `made_by`, which made its snapshot, if it is known: of those, the target has no rows. `turns` are
    the runs that went back, from the snapshot: the target may not have been there then. Of too many begins, those with
    the fewest epochs before the next one are left out, and turns last: snapshots of these epochs are not told apart.
    """
    known = sorted((dict(begins) | dict(turns)).items())
    kept = [begin for begin in known if begin[1] < epoch and begin[0] <= (made_by or begin[0])]
    kept.append((generation, epoch))
    while len(kept) > MOST_BEGINS:
        del kept[min(range(len(kept) - 1), key=lambda at: (kept[at] in turns, kept[at + 1][1] - kept[at][1]))]
    return kept


def encode_begins(begins: Sequence[Begin]) -> str:
    """Return begins as the text that targets store."""
    return msgspec.json.encode(begins).decode()


def decode_begins(text: str | None, where: str) -> list[Begin]:
    """Return begins from their text, which older records do not have."""
    try:
        return _BEGINS.decode(text or "[]")
    except msgspec.MsgspecError as error:
        raise CorruptionError(
            f"{where} has a record of runs that the sink has not written: {text!r:.200}",
            hint="restore its former value",
        ) from error


def check_branch(begins: Sequence[Begin], made_by: int, epoch: int, where: str) -> None:
    """Raise CorruptionError if the target's rows up to `epoch` are not those of a snapshot.

    `made_by` is the generation that has made it; 0: it is not known.
    """
    back = min((at for generation, at in begins if generation > made_by), default=epoch)
    if made_by and back < epoch:
        raise CorruptionError(
            f"{where}: the job continues after epoch {epoch}, and a later run of it went back to epoch {back}: the "
            "rows of the epochs after that are of the later run, not those that the checkpoint counts",
            hint="the checkpoint directory was copied, or set back to what it was before a rollback. Go back to a "
            f"checkpoint of epoch {back} or before (strandline rollback), or start the sink under another name in an "
            "empty place, and process the input again",
        )
