"""A job's options for what its driver reports to other systems."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from strandline.core.errors import ConfigurationError
from strandline.core.failure import without_credentials
from strandline.core.settings import Duration, parse_duration_ms

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Telemetry:
    """Reports of a job's driver to other systems: metrics, spans and lineage. No report that fails disturbs the job.

    `prometheus` is a port of this machine's loopback on which the driver serves metrics, 0 for any free one, or an
    address such as "0.0.0.0:9464": then all who reach it may read them. `otlp` is a collector of OpenTelemetry, such as
    "http://localhost:4318", to which metrics and spans are sent each `every`. `lineage` is a file, or the address of a
    server, that gets OpenLineage's events of the start and the end of each run; `namespace` is the job's there.
    Without this option, `strandline metrics` serves all jobs of a machine. Needs the extra `metrics`.

    >>> Telemetry(prometheus=9464, lineage="lineage.jsonl")
    """

    prometheus: int | str | None = None
    otlp: str | None = field(default=None, repr=False)
    every: Duration = "15s"
    lineage: str | Path | None = field(default=None, repr=False)
    namespace: str = "strandline"

    def __post_init__(self) -> None:
        if self.prometheus is not None:
            _ = self.address
        for what, url in (("otlp", self.otlp), ("lineage", self.lineage)):
            if isinstance(url, str) and (what == "otlp" or "://" in url) and not _is_http(url):
                raise ConfigurationError(
                    f"telemetry: {what} is {without_credentials(url)!r}, expected the address of a server",
                    hint=f'write it like {what}="http://localhost:{4318 if what == "otlp" else 5000}"',
                )
        if self.otlp is not None and not isinstance(self.otlp, str):
            raise ConfigurationError(f"telemetry: otlp is {self.otlp!r:.200}, expected the address of a collector")
        if isinstance(self.lineage, str) and "://" in self.lineage and "@" in urlsplit(self.lineage).netloc:
            raise ConfigurationError(
                "telemetry: the address of lineage has a user or password",
                hint="leave them out: a server gets the key in the environment variable OPENLINEAGE_API_KEY",
            )
        if self.lineage is not None and not isinstance(self.lineage, str | Path):
            raise ConfigurationError(f"telemetry: lineage is {self.lineage!r:.200}, expected a file or a server")
        if not self.interval_s:
            raise ConfigurationError(f"telemetry: every is {self.every!r}, expected more than 0")

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port on which metrics are served."""
        place = self.prometheus
        host, _, port = place.rpartition(":") if isinstance(place, str) else (_LOOPBACK, "", str(place))
        if isinstance(place, bool) or not host or not port.isdecimal() or int(port) > 65535:
            raise ConfigurationError(
                f"telemetry: prometheus is {place!r}, expected a port, or an address with its port",
                hint='write it like prometheus=9464, for this machine alone, or prometheus="0.0.0.0:9464"',
            )
        return host.strip("[]"), int(port)

    @property
    def interval_s(self) -> float:
        """`every` in seconds."""
        return parse_duration_ms(self.every, "telemetry: every") / 1000


def _is_http(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.hostname)
