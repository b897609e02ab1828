"""One error root; branches by what the handler does about it. Every error pickles with its fields."""

from __future__ import annotations

from typing import Any

BEGIN_ANEW = (
    "begin anew with another job name or checkpoint directory: then sources are read as at the first start, and rows "
    "that sinks have shown come again, so give them other places too, or sinks.files(…, existing='replace')"
)
"""A hint's last resort, with what becomes of the sinks."""


class StrandlineError(Exception):
    """Root of every error that Strandline raises on purpose.

    The message names what, where, expected and actual; `hint` names the next step. `discreet` is what may be said where
    no keys, events or other values may stand: in log files and in a job's status. Unless given, it is the message.
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


def discreet(error: BaseException) -> str:
    """Return what may be said of any error where no keys, events or other values may stand.

    Of an error that is not ours, what it says may be a value: ValueError and KeyError quote them.
    """
    if isinstance(error, StrandlineError):
        return error.discreet
    return f"{type(error).__name__}: {error}" if isinstance(error, OSError) else type(error).__name__


class ConfigurationError(StrandlineError):
    """The program, its settings or its environment are wrong: fix them and start again."""


class IncompatibleStateError(ConfigurationError):
    """The program does not fit the state it would be restored from. Nothing was touched."""


class AccessError(ConfigurationError):
    """Another system refuses the job's credentials or rights. A start ends with it; a job that ran is restarted."""


class NotFoundError(StrandlineError):
    """A named thing is not there."""


class ConflictError(StrandlineError):
    """A conditional create found the object already there."""


class FencedError(StrandlineError):
    """A newer driver owns the job: this one must stop and touch nothing more."""


class UnavailableError(StrandlineError):
    """Storage or a process did not answer: trying again may help."""


class CorruptionError(StrandlineError):
    """Durable bytes are missing or damaged: stop, do not guess."""


class CheckpointError(StrandlineError):
    """A checkpoint failed or timed out. The job goes on while few enough fail in a row."""


class VersionMismatchError(StrandlineError):
    """A keeper is not at the state version the epoch needs: the job must be restored."""


class KeeperError(StrandlineError):
    """A keeper died, could not be started or broke the protocol: the job must be restored."""


class SparkError(StrandlineError):
    """Spark failed at a part of the job. The message has its reason; all it said is in the file that is named."""


class SinkError(StrandlineError):
    """A function of a sink raised, or a sink failed: what it writes to may be gone for now. The job is restarted."""


class UserCodeError(StrandlineError):
    """The user's function raised. Carries operator, key, event and the user's own traceback."""

    @property
    def discreet(self) -> str:
        """The message without the program's data: of what holds values everywhere, not more than what it is."""
        where = f"operator '{self.fields['operator']}': " if "operator" in self.fields else ""
        return self._discreet or f"{where}{type(self).__name__}; what it says may quote values, and is not shown here"


class OutputError(UserCodeError):
    """The user's function gave an output row that does not fit the declared output schema."""


class StateTypeError(UserCodeError):
    """The user's function gave a state value that does not fit the declared type."""


class NullKeyError(UserCodeError):
    """An event has no key: a key column is null."""


class StateLimitError(StrandlineError):
    """State grew beyond the backend's limit. The epoch was not applied."""
