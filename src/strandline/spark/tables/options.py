"""What `spark.read.format("strandline")` is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from strandline.core.errors import ConfigurationError

FORMAT = "strandline"
STORAGE = "storage."
"""What the options of the storage begin with."""
_KNOWN = ("url", "table", "metadata")


@dataclass(frozen=True)
class Options:
    """Options, checked."""

    url: str = field(repr=False)
    table: str
    metadata: str
    """One of the two is ""."""
    storage: dict[str, str] = field(repr=False)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """Return the options that Spark gives. The error of wrong ones names no values: they may be secrets."""
        storage = {name[len(STORAGE) :]: value for name, value in given.items() if name.startswith(STORAGE)}
        rest = {name: value for name, value in given.items() if not name.startswith(STORAGE)}
        unknown = sorted(set(rest).difference(_KNOWN))
        if unknown:
            raise ConfigurationError(
                f'format("{FORMAT}"): unknown option {", ".join(unknown)}',
                hint=f"known are {', '.join(_KNOWN)}, and the storage's own as {STORAGE}NAME",
            )
        if not rest.get("url") or bool(rest.get("table")) == bool(rest.get("metadata")):
            raise ConfigurationError(
                f'format("{FORMAT}"): expected the options url, and either table or metadata; got '
                f"{', '.join(sorted(rest)) or 'none'}",
                hint='.option("url", "s3://…/job").option("table", "uid.state")',
            )
        return cls(rest["url"], rest.get("table", ""), rest.get("metadata", ""), storage)
