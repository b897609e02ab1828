"""The error classes: one root, and a branch for each way to handle an error. Every error pickles with its fields."""

from __future__ import annotations

from typing import Any

BEGIN_ANEW = (
    "begin anew with another job name or checkpoint directory: then sources are read as at the first start, and rows "
    "that sinks have shown come again, so give them other places too, or sinks.files(…, existing='replace')"
)
"""The last resort that a hint offers, with its effect on the sinks."""


class StrandlineError(Exception):
    """Root of every error that Strandline raises on purpose.

    The message names what, where, expected and actual; `hint` names the next step. `discreet` is the text for places
    that may hold no keys, events or other values: log files and a job's status. It defaults to the message.
    """

    def __init__(self, message: str, *, hint: str = "", discreet: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.fields = fields
        self._discreet = discreet

    @property
    def discreet(self) -> str:
        """The message without the program's data."""
        return self._discreet or str(self)

    def __str__(self) -> str:
        return f"{self.message}\n  next step: {self.hint}" if self.hint else self.message

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.fields, self._discreet)


def _rebuild(
    kind: type[StrandlineError], message: str, hint: str, fields: dict[str, Any], discreet: str = ""
) -> StrandlineError:
    return kind(message, hint=hint, discreet=discreet, **fields)


def local_files_hint(error: BaseException) -> str:
    """Return the next step after an error of a file under `local_dir`."""
    if "too many open files" in str(error).lower():
        return "raise the limit of open files (ulimit -n, or the service's LimitNOFILE) on that machine"
    return "look for a full or failing disk under local_dir"


def discreet(error: BaseException) -> str:
    """Return an error's text for places that may hold no keys, events or other values.

    The message of a foreign error is left out, since it may quote a value, as those of ValueError and KeyError do.
    """
    if isinstance(error, StrandlineError):
        return error.discreet
    return f"{type(error).__name__}: {error}" if isinstance(error, OSError) else type(error).__name__


class ConfigurationError(StrandlineError):
    """The program, its settings or its environment are wrong: fix them and start again.

    With `may_pass`, the cause may disappear by itself, as a disk that is not mounted: a job that has run is restarted.
    """


class IncompatibleStateError(ConfigurationError):
    """The program does not fit the state that it would be restored from. The state is unchanged."""


class AccessError(ConfigurationError):
    """Another system refuses the job's credentials or rights. A job that starts fails; one that ran is restarted."""


class NotFoundError(StrandlineError):
    """A named object, job or checkpoint does not exist."""


class ConflictError(StrandlineError):
    """A conditional create failed, since the object already exists."""


class FencedError(StrandlineError):
    """A newer driver owns the job: this one must stop and change nothing more."""


class UnavailableError(StrandlineError):
    """Storage or a process did not answer: a retry may help."""


class CorruptionError(StrandlineError):
    """Durable bytes are missing or damaged: stop, do not guess."""


class CheckpointError(StrandlineError):
    """A checkpoint failed or timed out. The job continues until too many fail in a row."""


class VersionMismatchError(StrandlineError):
    """A keeper does not have the state version that the epoch needs: the job must be restored."""


class KeeperError(StrandlineError):
    """A keeper died, could not be started or broke the protocol: the job must be restored."""


class SparkError(StrandlineError):
    """Spark failed in a part of the job. The message has its reason; the file that it names has Spark's full error."""


class SinkError(StrandlineError):
    """A sink or a function of one failed; its target may be unavailable for now. The job is restarted."""


class UserCodeError(StrandlineError):
    """The user's function raised. Carries operator, key, event and the user's own traceback."""

    @property
    def discreet(self) -> str:
        """The message without the program's data: only the operator and the kind, since any text may quote values."""
        where = f"operator '{self.fields['operator']}': " if "operator" in self.fields else ""
        return self._discreet or f"{where}{type(self).__name__}; its message is left out, since it may quote values"


class OutputError(UserCodeError):
    """The user's function returned an output row that does not fit the declared output schema."""


class StateTypeError(UserCodeError):
    """The user's function wrote a state value that does not fit the declared type."""


class NullKeyError(UserCodeError):
    """An event has no key: a key column is null."""


class StateLimitError(StrandlineError):
    """State grew beyond the backend's limit. The epoch was not applied."""
