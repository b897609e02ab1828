"""Checks of paths and urls that users write: tells paths from urls, and refuses text that is neither."""

from __future__ import annotations

import re
from pathlib import Path

from strandline.core.errors import ConfigurationError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/+)")
_BUCKETS = ("s3", "s3a", "s3n", "gs", "az", "abfs", "abfss", "wasb", "wasbs", "memory")
"""Schemes of urls that begin with the name of a bucket: these need both slashes."""
_HINTS = {
    "dbfs": "give the url of the cloud storage behind it (s3://…, abfss://…, gs://…): DBFS is none that checkpoints "
    "and savepoints can be in",
    "hdfs": "give a directory that all machines have, or s3://…, gs://…, az://…: HDFS is not supported",
}


def check_url(url: str | Path, *, hadoop: bool = False) -> str:
    """Return a path or url as text; raise ConfigurationError for one like `s3:/bucket`, or with a `?` or `#`.

    They would be read as a local directory named `s3:`, and without the rest. With `hadoop`, Spark's file systems read
    it, some of which have urls with one slash, as `dbfs:/data`, and patterns.
    """
    text = str(url)
    match = _SCHEME.match(text)
    is_url = match is not None and (len(match[2]) > 1 or match[1].lower() == "file")
    if is_url and not hadoop and re.search("[?#]", text):
        # The rest may be a signature: do not show it.
        raise ConfigurationError(
            f"{_without_credentials(text)}…: a url of a folder ends where a '?' or '#' begins",
            hint="write %3F or %23 if the folder's name has them",
        )
    if match is None or len(match[2]) == 2:
        return text
    scheme = match[1].lower()
    if scheme == "file" or (hadoop and scheme not in _BUCKETS):
        return text
    text = _without_credentials(text)
    why = "; pathlib.Path makes one slash of two: give a string" if isinstance(url, Path) else ""
    meant = f"{scheme}://{text.partition(':')[2].lstrip('/')}"
    raise ConfigurationError(
        f"'{text}' is neither a url, which has '{scheme}://', nor clearly a local path",
        hint=_HINTS.get(scheme, f"write '{meant}'{why}") + f"; a local directory of that name is './{text}'",
    )


def _without_credentials(text: str) -> str:
    """Return a url without credentials and query string."""
    return re.sub(r":(/+)[^/@]+@", r":\1***@", re.split("[?#]", text)[0])


def check_local_path(what: str, path: str | Path) -> None:
    """Raise ConfigurationError for a url where a path of this machine is expected."""
    text = str(path)
    if _SCHEME.match(text) is not None:
        text = _without_credentials(text)
        raise ConfigurationError(
            f"{what} is '{text}', expected a path of this machine, and no url",
            hint=f"write it like '/var/lib/strandline'; a local directory of that name is './{text}'",
        )
