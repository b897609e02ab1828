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

    The message names what, where, expected and actual; `hint` names the next step.
    """

    def __init__(self, message: str, *, hint: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.fields = fields

    def __str__(self) -> str:
        return f"{self.message}\n  next step: {self.hint}" if self.hint else self.message

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.fields)


def _rebuild(kind: type[StrandlineError], message: str, hint: str, fields: dict[str, Any]) -> StrandlineError:
    return kind(message, hint=hint, **fields)


class ConfigurationError(StrandlineError):
    """The program, its settings or its environment are wrong: fix them and start again."""


class IncompatibleStateError(ConfigurationError):
    """The program does not fit the state it would be restored from. Nothing was touched."""


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


class UserCodeError(StrandlineError):
    """The user's function raised. Carries operator, key, event and the user's own traceback."""


class OutputError(UserCodeError):
    """The user's function gave an output row that does not fit the declared output schema."""


class StateTypeError(UserCodeError):
    """The user's function gave a state value that does not fit the declared type."""


class NullKeyError(UserCodeError):
    """An event has no key: a key column is null."""


class StateLimitError(StrandlineError):
    """State grew beyond the backend's limit. The epoch was not applied."""
